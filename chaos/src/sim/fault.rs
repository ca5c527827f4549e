//! The fault schedule of a run, drawn from the seed before the run begins, so that a failing run
//! can be repeated with fewer faults.

use std::{fmt, str::FromStr};

use super::{
    disk::Crash,
    network::Trouble,
    time::{MS, SECOND, Time},
};
use crate::Rng;

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
pub(super) enum Kind {
    Crash,
    Pause,
    Network,
    Disk,
    Engine,
    Container,
    Actor,
    Transfer,
    Member,
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
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The daemon or its machine is down for a while.
    Crash(Victim, Crash),
    /// The next node that makes such a promise crashes right after it.
    Trap(Promise, Crash),
    /// Every machine loses its power at the same moment.
    Blackout,
    /// The daemon is stopped (as by SIGSTOP); its containers keep running.
    Pause(Victim),
    /// The victim is partitioned from all others.
    Isolate(Victim),
    /// The network is disturbed; machine numbers are positions among the members.
    Network(Trouble),
    /// Every write takes this much longer.
    SlowDisk(Victim, Time),
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
}

impl What {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Crash(..) | Self::Trap(..) | Self::Blackout => Kind::Crash,
            Self::Pause(_) => Kind::Pause,
            Self::Isolate(_) | Self::Network(_) => Kind::Network,
            Self::SlowDisk(..) => Kind::Disk,
            Self::EngineAway(_) | Self::EngineErrors(_) => Kind::Engine,
            Self::KillContainer(_) => Kind::Container,
            Self::KillActor(..) => Kind::Actor,
            Self::Transfer => Kind::Transfer,
            Self::Join | Self::Leave(_) => Kind::Member,
        }
    }
}

/// A fault and its time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: Time,
    /// Duration of the fault or of the downtime; unused for instantaneous faults.
    pub(super) span: Time,
    pub(super) what: What,
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, span) = (self.at / MS, self.span / MS);
        write!(f, "{at} ms: {:?} for {span} ms", self.what)
    }
}

/// A disturbance that a cluster must bear without moving any replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nuisance {
    /// One daemon after another stands still for less than five seconds.
    ShortPauses,
    /// One message in twenty is lost.
    Loss,
    /// Messages take up to 400 ms longer, 200 ms on average, and overtake each other.
    Delay,
}

impl fmt::Display for Nuisance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for Nuisance {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|nuisance| nuisance.to_string().eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("no nuisance is called {name:?}"))
    }
}

impl Nuisance {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ShortPauses, Self::Loss, Self::Delay];

    /// The faults of a run of `length` with only this disturbance.
    pub(super) fn faults(self, chance: &mut Rng, length: Time) -> Vec<Fault> {
        let always = |trouble| {
            let what = What::Network(trouble);
            vec![Fault {
                at: 0,
                span: length,
                what,
            }]
        };
        match self {
            Self::Loss => always(Trouble::Loss(50)),
            Self::Delay => always(Trouble::Delay(400 * MS)),
            Self::ShortPauses => {
                let mut faults = Vec::new();
                let mut at = chance.within(0..SECOND);
                while at < length {
                    let victim = match chance.within(0..3) {
                        0 => Victim::Leader,
                        _ => Victim::Member(chance.within(0..8)),
                    };
                    let span = chance.within(10 * MS..4_900 * MS);
                    let what = What::Pause(victim);
                    faults.push(Fault { at, span, what });
                    at += span + chance.within(MS..5 * SECOND);
                }
                faults
            }
        }
    }
}

/// Draws the faults of a run of `length`; with `churn`, half of them are joins and leaves.
pub(super) fn draw(chance: &mut Rng, length: Time, churn: bool) -> Vec<Fault> {
    // Mean time between faults: some runs are quiet, some are dense.
    let pause = *chance.choose(&[500, 1_500, 1_500, 4_000]).unwrap_or(&1_500) * MS;
    // Share of joins and leaves in thousandths: none, some, or many.
    let members = *chance.choose(&[0, 0, 60, 60, 300]).unwrap_or(&0);
    let grows = chance.within(0..3) == 0;
    let (members, grows) = if churn {
        (500, false)
    } else {
        (members, grows)
    };
    let mut faults = Vec::new();
    let mut at = chance.within(0..2 * pause);
    while at < length {
        let what = draw_one(chance, members, grows);
        let longest = match what {
            // Some crashes are shorter than any failure detection.
            What::Crash(..) | What::Blackout => *chance
                .choose(&[60 * MS, 8 * SECOND, 20 * SECOND])
                .unwrap_or(&SECOND),
            What::Pause(_) => *chance
                .choose(&[SECOND, 5 * SECOND, 16 * SECOND])
                .unwrap_or(&SECOND),
            _ => *chance.choose(&[4 * SECOND, 16 * SECOND]).unwrap_or(&SECOND),
        };
        let span = chance.within(10 * MS..longest);
        faults.push(Fault { at, span, what });
        // One fault in five begins together with its predecessor.
        at += match chance.within(0..5) {
            0 => 0,
            _ => chance.within(MS..2 * pause),
        };
    }
    faults
}

/// `members` is the share of joins and leaves, in thousandths; a cluster that grows has only joins.
fn draw_one(chance: &mut Rng, members: u64, grows: bool) -> What {
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
                0 => What::Leave(Victim::Newest),
                _ => What::Leave(victim),
            },
            _ => What::Join,
        };
    }
    match chance.within(0..100) {
        0..14 => What::Crash(victim, crash),
        14..24 => {
            let promises = [
                Promise::Vote,
                Promise::Vote,
                Promise::Entries,
                Promise::Leadership,
            ];
            let promise = *chance.choose(&promises).unwrap_or(&Promise::Vote);
            What::Trap(promise, crash)
        }
        24..28 => What::Blackout,
        28..36 => What::Pause(victim),
        36..46 => What::Isolate(victim),
        46..54 => What::Network(Trouble::Partition(chance.number())),
        54..60 => {
            let from = chance.within(0..8);
            What::Network(Trouble::OneWay(from, chance.within(0..8)))
        }
        60..66 => What::Network(Trouble::Loss(chance.within(20..400))),
        66..72 => What::Network(Trouble::Delay(chance.within(20 * MS..1_500 * MS))),
        72..75 => What::Network(Trouble::Twice(chance.within(20..400))),
        75..80 => What::SlowDisk(victim, chance.within(20 * MS..900 * MS)),
        80..83 => What::EngineAway(victim),
        83..86 => What::EngineErrors(chance.within(20..400)),
        86..89 => What::KillContainer(victim),
        89..91 => {
            let actors = [
                Actor::Replica,
                Actor::Replica,
                Actor::Publisher,
                Actor::Scheduler,
                Actor::Health,
                Actor::Membership,
            ];
            let actor = *chance.choose(&actors).unwrap_or(&Actor::Replica);
            What::KillActor(victim, actor)
        }
        91..95 => What::Transfer,
        _ => What::Crash(victim, crash),
    }
}
