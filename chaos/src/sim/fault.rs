//! The fault schedule of a run, drawn from the seed before the run begins, so that a failing run
//! can be repeated with fewer faults.

use std::{fmt, str::FromStr, time::Duration};

use super::{
    authority::AuthorityFault,
    disk::Crash,
    kernel::Tampering,
    network::NetworkFault,
    orders::OrderStep,
    reachability::SLOWEST,
    time::{MS, SECOND, Time},
};
use crate::Rng;

/// Length of a long outage of the authority.
pub(super) const LONG_OUTAGE: Time = 3_600 * SECOND;

/// Machine that a fault affects, resolved when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    /// The current leader.
    Leader,
    /// The n-th member, by raft id.
    Member(u64),
    /// The member that joined last.
    Newest,
}

/// Kinds of faults, for leaving one out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum FaultClass {
    Crash,
    Pause,
    Network,
    Disk,
    Engine,
    Container,
    Actor,
    Transfer,
    Member,
    Kernel,
    Authority,
}

/// A message that commits its sender to something it must keep even if it crashes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// The vote for a candidate.
    Vote,
    /// The acknowledgment of persisted entries.
    Entries,
    /// The claim to be the leader.
    Leadership,
}

/// Actors that a fault restarts, losing what they hold in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    /// The actor of one replica, drawn when the fault begins.
    Replica,
    Publisher,
    Scheduler,
    Health,
    Membership,
    Firewall,
    Mesh,
    Bridges,
    Ipam,
}

/// Steps of the start of a container, in which a fault can pause its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartStep {
    Pull,
    /// The container is created, and not started yet.
    Create,
}

/// A fault of a node that obtains a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IssuerFault {
    Crash(Crash),
    /// The daemon is stopped for so long that another node leads.
    Pause,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// The daemon or its machine is down for a while.
    Crash(Victim, Crash),
    /// The next node that makes such a promise crashes right after it.
    Trap(Promise, Crash),
    /// Every machine loses its power at the same moment.
    Blackout,
    /// The daemon is stopped (as by SIGSTOP); its containers keep running.
    Pause(Victim),
    /// The next daemon that begins this step is stopped until long after it; its actors then wake
    /// in any order.
    PauseStart(StartStep),
    /// The victim is partitioned from all others.
    Isolate(Victim),
    /// The network is disturbed; machine numbers are positions among the members.
    Network(NetworkFault),
    /// Every write takes this much longer.
    SlowDisk(Victim, Time),
    /// No write of the victim ends for a while: longer than its clients wait, and sometimes longer
    /// than its peers need to find another leader.
    StallDisk(Victim),
    /// The engine does not answer.
    EngineAway(Victim),
    /// Requests to any engine fail, in thousandths, before or after they took effect.
    EngineErrors(u64),
    /// The process of one container exits.
    KillContainer(Victim),
    /// An actor crashes and is restarted.
    KillActor(Victim, Actor),
    /// The leader transfers its leadership.
    Transfer,
    /// A new machine joins.
    Join,
    /// A member leaves for good.
    Leave(Victim),
    /// Another program changes the isolation table or the mesh of a machine.
    Tamper(Victim, Tampering),
    /// The kernel refuses every request about the isolation table and the mesh.
    KernelFails(Victim),
    /// Another process owns the isolation table of a machine for a time.
    OwnTable(Victim),
    /// Another program of a machine has routes to containers of other machines for a time.
    ForeignRoutes(Victim),
    /// Requests to the kernel take this much longer.
    SlowKernel(Victim, Time),
    /// The authority is disturbed.
    Authority(AuthorityFault),
    /// The next node that takes this step of an order suffers a fault.
    Issuer(OrderStep, IssuerFault),
}

impl FaultKind {
    pub(super) fn class(self) -> FaultClass {
        match self {
            Self::Crash(..) | Self::Trap(..) | Self::Blackout => FaultClass::Crash,
            Self::Pause(_) | Self::PauseStart(_) => FaultClass::Pause,
            Self::Isolate(_) | Self::Network(_) => FaultClass::Network,
            Self::SlowDisk(..) | Self::StallDisk(_) => FaultClass::Disk,
            Self::EngineAway(_) | Self::EngineErrors(_) => FaultClass::Engine,
            Self::KillContainer(_) => FaultClass::Container,
            Self::KillActor(..) => FaultClass::Actor,
            Self::Transfer => FaultClass::Transfer,
            Self::Join | Self::Leave(_) => FaultClass::Member,
            Self::Tamper(..)
            | Self::KernelFails(_)
            | Self::OwnTable(_)
            | Self::ForeignRoutes(_)
            | Self::SlowKernel(..) => FaultClass::Kernel,
            Self::Authority(_) | Self::Issuer(..) => FaultClass::Authority,
        }
    }
}

/// A fault and its time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: Time,
    /// Duration of the fault or of the downtime; unused for instantaneous faults.
    pub(super) span: Time,
    pub(super) kind: FaultKind,
}

impl Fault {
    /// Whether the authority is away for an hour.
    pub(super) fn is_long_outage(&self) -> bool {
        let outage = FaultKind::Authority(AuthorityFault::Outage);
        self.kind == outage && self.span >= LONG_OUTAGE
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, span) = (self.at / MS, self.span / MS);
        write!(f, "{at} ms: {:?} for {span} ms", self.kind)
    }
}

/// A disturbance that a cluster must bear without moving any replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenignFault {
    /// One daemon after another stands still for less than five seconds.
    ShortPauses,
    /// One message in twenty is lost.
    Loss,
    /// Messages take up to 400 ms longer, 200 ms on average, and overtake each other.
    Delay,
}

impl fmt::Display for BenignFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for BenignFault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|benign_fault| benign_fault.to_string().eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("no nuisance is called {name:?}"))
    }
}

impl BenignFault {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ShortPauses, Self::Loss, Self::Delay];

    /// The faults of a run of `length` with only this disturbance.
    pub(super) fn faults(self, chance: &mut Rng, length: Time) -> Vec<Fault> {
        let always = |network_fault| {
            let kind = FaultKind::Network(network_fault);
            vec![Fault {
                at: 0,
                span: length,
                kind,
            }]
        };
        match self {
            Self::Loss => always(NetworkFault::Loss(50)),
            Self::Delay => always(NetworkFault::Delay(400 * MS)),
            Self::ShortPauses => {
                let mut faults = Vec::new();
                let mut at = chance.within(0..SECOND);
                while at < length {
                    let victim = match chance.within(0..3) {
                        0 => Victim::Leader,
                        _ => Victim::Member(chance.within(0..8)),
                    };
                    let span = chance.within(10 * MS..4_900 * MS);
                    let kind = FaultKind::Pause(victim);
                    faults.push(Fault { at, span, kind });
                    at += span + chance.within(MS..5 * SECOND);
                }
                faults
            }
        }
    }
}

/// Faults that are frequent throughout a run, beside all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Often {
    /// Machines join and leave.
    Churn,
    /// The leader's disk stalls, or is slow, mostly in clusters of one member.
    Stalls,
    /// Daemons are paused while they pull an image, for so long that replicas move.
    PausedPulls,
    /// Daemons are paused while they create a container, for so long that replicas move.
    PausedCreates,
    /// Clients mostly apply and delete deployments that want the same route, and the first
    /// member's disk is so slow that a proposal takes longer than its requester waits, mostly in
    /// clusters of one member.
    Contention,
    /// Every deployment asks for a certificate, nodes die in each step of an order, and the authority
    /// is disturbed, in long runs.
    Issuance,
}

impl Often {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Churn,
        Self::Stalls,
        Self::PausedPulls,
        Self::PausedCreates,
        Self::Contention,
        Self::Issuance,
    ];
}

impl fmt::Display for Often {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for Often {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|often| often.to_string().eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("no frequent fault is called {name:?}"))
    }
}

/// Draws the faults of a run of `length`, of which those that `often` names are frequent.
pub(super) fn draw(chance: &mut Rng, length: Time, often: Option<Often>) -> Vec<Fault> {
    // Mean time between faults: some runs are quiet, some are dense.
    let pause = *chance.choose(&[500, 1_500, 1_500, 4_000]).unwrap_or(&1_500) * MS;
    let pause = match often {
        Some(Often::Issuance) => 6 * pause,
        _ => pause,
    };
    // Share of joins and leaves in thousandths: none, some, or many.
    let members = *chance.choose(&[0, 0, 60, 60, 300]).unwrap_or(&0);
    let grows = chance.within(0..3) == 0;
    let (members, grows) = match often {
        Some(Often::Churn) => (500, false),
        Some(
            Often::Stalls
            | Often::PausedPulls
            | Often::PausedCreates
            | Often::Contention
            | Often::Issuance,
        )
        | None => (members, grows),
    };
    let mut faults = Vec::new();
    if often == Some(Often::Contention) {
        // A proposal takes two writes, neither of which takes so long that the leader counts as
        // stalled.
        faults.push(Fault {
            at: 0,
            span: length,
            kind: FaultKind::SlowDisk(Victim::Member(0), 2_900 * MS),
        });
    }
    let mut at = chance.within(0..2 * pause);
    while at < length {
        let drawn = often.map_or(0, |_| chance.within(0..8));
        let frequent = match (often, drawn) {
            (Some(Often::Stalls), 0) => Some(FaultKind::StallDisk(Victim::Leader)),
            // The next write after a stall takes a while, too.
            (Some(Often::Stalls), 1..3) => Some(FaultKind::SlowDisk(Victim::Leader, 800 * MS)),
            (Some(Often::PausedPulls), 0..4) => Some(FaultKind::PauseStart(StartStep::Pull)),
            (Some(Often::PausedCreates), 0..4) => Some(FaultKind::PauseStart(StartStep::Create)),
            _ => None,
        };
        let kind = frequent.unwrap_or_else(|| draw_one(chance, members, grows));
        let longest = match kind {
            // Some crashes are shorter than any failure detection.
            FaultKind::Crash(..) | FaultKind::Blackout => *chance
                .choose(&[60 * MS, 8 * SECOND, 20 * SECOND])
                .unwrap_or(&SECOND),
            FaultKind::Pause(_) => *chance
                .choose(&[SECOND, 5 * SECOND, 16 * SECOND])
                .unwrap_or(&SECOND),
            _ => *chance.choose(&[4 * SECOND, 16 * SECOND]).unwrap_or(&SECOND),
        };
        let span = match kind {
            FaultKind::StallDisk(_) => chance.within(5 * SECOND..16 * SECOND),
            FaultKind::PauseStart(_) => chance.within(10 * SECOND..20 * SECOND),
            _ => chance.within(10 * MS..longest),
        };
        faults.push(Fault { at, span, kind });
        // One fault in five begins together with its predecessor.
        at += match chance.within(0..5) {
            0 => 0,
            _ => chance.within(MS..2 * pause),
        };
    }
    faults
}

/// `members` is the share of joins and leaves, in thousandths; a cluster that grows has only joins.
fn draw_one(chance: &mut Rng, members: u64, grows: bool) -> FaultKind {
    let victim = match chance.within(0..3) {
        0 => Victim::Leader,
        _ => Victim::Member(chance.within(0..8)),
    };
    let crash = match chance.within(0..2) {
        0 => Crash::Kill,
        _ => Crash::PowerCut,
    };
    if chance.within(0..1000) < members {
        return match chance.within(0..2) {
            1 if !grows => match chance.within(0..3) {
                0 => FaultKind::Leave(Victim::Newest),
                _ => FaultKind::Leave(victim),
            },
            _ => FaultKind::Join,
        };
    }
    if chance.within(0..10) == 0 {
        return draw_kernel_fault(chance, victim);
    }
    match chance.within(0..100) {
        0..14 => FaultKind::Crash(victim, crash),
        14..24 => {
            let promises = [
                Promise::Vote,
                Promise::Vote,
                Promise::Entries,
                Promise::Leadership,
            ];
            let promise = *chance.choose(&promises).unwrap_or(&Promise::Vote);
            FaultKind::Trap(promise, crash)
        }
        24..28 => FaultKind::Blackout,
        28..36 => FaultKind::Pause(victim),
        36..46 => FaultKind::Isolate(victim),
        46..54 => FaultKind::Network(NetworkFault::Partition(chance.number())),
        54..60 => {
            let from = chance.within(0..8);
            FaultKind::Network(NetworkFault::OneWay(from, chance.within(0..8)))
        }
        60..66 => FaultKind::Network(NetworkFault::Loss(chance.within(20..400))),
        66..72 => FaultKind::Network(NetworkFault::Delay(chance.within(20 * MS..1_500 * MS))),
        72..75 => FaultKind::Network(NetworkFault::Twice(chance.within(20..400))),
        75..78 => FaultKind::SlowDisk(victim, chance.within(20 * MS..900 * MS)),
        78..80 => FaultKind::StallDisk(victim),
        80..83 => FaultKind::EngineAway(victim),
        83..86 => FaultKind::EngineErrors(chance.within(20..400)),
        86..89 => FaultKind::KillContainer(victim),
        89..91 => {
            let actors = [
                Actor::Replica,
                Actor::Replica,
                Actor::Publisher,
                Actor::Scheduler,
                Actor::Health,
                Actor::Membership,
                Actor::Firewall,
                Actor::Mesh,
                Actor::Bridges,
                Actor::Ipam,
            ];
            let actor = *chance.choose(&actors).unwrap_or(&Actor::Replica);
            FaultKind::KillActor(victim, actor)
        }
        91..95 => FaultKind::Transfer,
        _ => FaultKind::Crash(victim, crash),
    }
}

/// Draws the faults of issuers and of the authority in a run of `length`.
pub(super) fn draw_issuance(chance: &mut Rng, length: Time) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut at = chance.within(0..10 * SECOND);
    while at < length {
        let (kind, longest) = match chance.within(0..12) {
            0..7 => {
                let step = *chance.choose(&OrderStep::ALL).unwrap_or(&OrderStep::Begin);
                let fault = match chance.within(0..3) {
                    0 => IssuerFault::Crash(Crash::Kill),
                    1 => IssuerFault::Crash(Crash::PowerCut),
                    _ => IssuerFault::Pause,
                };
                (FaultKind::Issuer(step, fault), 15 * SECOND)
            }
            7 => (FaultKind::Authority(AuthorityFault::Outage), 60 * SECOND),
            8..10 => {
                let retry_after = Duration::from_secs(chance.within(10..10_000));
                let fault = AuthorityFault::RateLimit(retry_after);
                (FaultKind::Authority(fault), 20 * SECOND)
            }
            10 => {
                let fault = AuthorityFault::Nonces(chance.within(100..900));
                (FaultKind::Authority(fault), 60 * SECOND)
            }
            _ => {
                let fault = AuthorityFault::Slow(chance.within(SECOND..20 * SECOND));
                (FaultKind::Authority(fault), 60 * SECOND)
            }
        };
        let span = chance.within(10 * MS..longest);
        faults.push(Fault { at, span, kind });
        at += chance.within(SECOND..40 * SECOND);
    }
    faults
}

/// Draws a long outage of the authority from `begin` on, in which the leader may change.
///
/// Rate limits are removed from `faults`: their waits are longer than those after an outage.
pub(super) fn draw_long_outage(chance: &mut Rng, begin: Time, faults: &mut Vec<Fault>) {
    let limits = |fault: &Fault| {
        matches!(
            fault.kind,
            FaultKind::Authority(AuthorityFault::RateLimit(_))
        )
    };
    faults.retain(|fault| !limits(fault));
    faults.push(Fault {
        at: begin,
        span: LONG_OUTAGE,
        kind: FaultKind::Authority(AuthorityFault::Outage),
    });
    for _ in 0..chance.within(0..3) {
        let kind = match chance.within(0..2) {
            0 => FaultKind::Crash(Victim::Leader, Crash::Kill),
            _ => FaultKind::Transfer,
        };
        faults.push(Fault {
            at: begin + chance.within(60 * SECOND..LONG_OUTAGE - 60 * SECOND),
            span: chance.within(10 * MS..20 * SECOND),
            kind,
        });
    }
}

fn draw_kernel_fault(chance: &mut Rng, victim: Victim) -> FaultKind {
    match chance.within(0..14) {
        0..7 => {
            let tampering = [
                Tampering::FlushTable,
                Tampering::FlushTable,
                Tampering::DeleteDrop,
                Tampering::DeleteElement(chance.within(0..64)),
                Tampering::ReorderRules,
                Tampering::DeleteDevice,
                Tampering::DeleteRoutes,
                Tampering::DeleteAllRoutes,
            ];
            let drawn = chance.choose(&tampering).copied();
            FaultKind::Tamper(victim, drawn.unwrap_or(Tampering::FlushTable))
        }
        7..9 => FaultKind::KernelFails(victim),
        9..11 => FaultKind::OwnTable(victim),
        11..13 => FaultKind::ForeignRoutes(victim),
        _ => FaultKind::SlowKernel(victim, chance.within(100 * MS..SLOWEST)),
    }
}
