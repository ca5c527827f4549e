//! Liveness of the members, shared by the transport and every consumer.
//!
//! It outlives the actor that drives it: otherwise a restart of the actor would reset the silence
//! of every member.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use jaco_policy::health::{
    core::{HEARTBEAT_INTERVAL, LIVE_FOR, UNHEALTHY_AFTER},
    fencing::ContactEpoch,
    liveness::{Action, Core, Report},
};
use jaco_raftnode::{RaftStatus, State};
use prost_types::Timestamp;
use tokio::sync::watch;

use crate::{
    clock::Clock,
    lock::lock,
    peer::{Heartbeat, HeartbeatHandler, Sender},
};

/// Hostnames of live members.
pub type Hosts = Arc<BTreeSet<String>>;

/// Newest claim of another member to lead, from its heartbeats; clones share it.
///
/// Any member can claim to lead, so a claim counts only while this node's own raft does not know,
/// and only to find a member that will check for itself whether it leads.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaderClaim(Arc<Mutex<Option<Claim>>>);

#[derive(Clone, Copy, Debug)]
struct Claim {
    raft_id: u64,
    term: u64,
    at: Instant,
}

impl LeaderClaim {
    /// Records that member `raft_id` claims to lead in `term`.
    fn record(&self, raft_id: u64, term: u64) {
        let mut newest = lock(&self.0);
        let at = now();
        if newest.is_none_or(|claim| term >= claim.term || claim.is_expired(at)) {
            *newest = Some(Claim { raft_id, term, at });
        }
    }

    /// Returns the member with the newest claim to lead in `term` or a later one, if it is recent.
    pub(crate) fn leader(&self, term: u64) -> Option<u64> {
        let claim = (*lock(&self.0))?;
        (claim.term >= term && !claim.is_expired(now())).then_some(claim.raft_id)
    }
}

impl Claim {
    fn is_expired(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= LIVE_FOR
    }
}

/// Heartbeat state of one node.
pub struct FailureDetector {
    host: String,
    clock: Clock,
    raft: watch::Receiver<RaftStatus>,
    /// Lock order: lock this before writing the channels below; never while borrowing one of them.
    core: Mutex<Core>,
    fresh: watch::Sender<Hosts>,
    contact: watch::Sender<Option<ContactEpoch>>,
    claim: LeaderClaim,
    /// Whether this node was ready at any time since its process started.
    was_ready: AtomicBool,
    /// Whether the state of this node has members.
    has_members: AtomicBool,
    /// Last heartbeat of each sender while it has none: a joining node is connected before it
    /// receives the state. Not counted until then, but not lost either.
    early: Mutex<BTreeMap<String, EarlyHeartbeat>>,
}

/// Heartbeat that arrived before the state.
struct EarlyHeartbeat {
    from: Sender,
    heartbeat: Heartbeat,
    at: Instant,
}

impl FailureDetector {
    /// Returns the heartbeat state of member `host` with the raft status `raft`.
    #[must_use]
    pub fn new(host: &str, raft: watch::Receiver<RaftStatus>, clock: Clock) -> Self {
        Self {
            host: host.to_owned(),
            clock,
            raft,
            core: Mutex::new(Core::new(host)),
            fresh: watch::Sender::new(Arc::new(BTreeSet::from([host.to_owned()]))),
            contact: watch::Sender::new(None),
            claim: LeaderClaim::default(),
            was_ready: AtomicBool::new(false),
            has_members: AtomicBool::new(false),
            early: Mutex::default(),
        }
    }

    /// Live hosts, whose running replicas count as fresh: this one and those in the leader's set,
    /// at most two heartbeat intervals old. Without a leader, those with a recent heartbeat on this
    /// node.
    #[must_use]
    pub fn fresh(&self) -> watch::Receiver<Hosts> {
        self.fresh.subscribe()
    }

    /// Newest claim of another member to lead.
    pub(crate) fn leader_claim(&self) -> LeaderClaim {
        self.claim.clone()
    }

    /// Contact in which this node has caught up with the cluster and may act on its state, as of the
    /// last event; see [`jaco_policy::health::fencing`].
    #[must_use]
    pub fn contact_changes(&self) -> watch::Receiver<Option<ContactEpoch>> {
        self.contact.subscribe()
    }

    /// Contact at this moment, even if no event has ended it yet.
    #[must_use]
    pub fn contact(&self) -> Option<ContactEpoch> {
        self.core().contact(self.clock.instant())
    }

    /// Time of the last heartbeat of `host`, if it is live; the present time for this node.
    #[must_use]
    pub fn last_heartbeat(&self, host: &str) -> Option<Timestamp> {
        if host == self.host {
            return Some(self.clock.timestamp());
        }
        if !self.fresh.borrow().contains(host) {
            return None;
        }
        self.core().last_heartbeat(host)
    }

    /// Resets attempts and proposals in flight, whose results a new actor instance never receives.
    pub(super) fn restart(&self) {
        self.handle(|core, now| core.handle_restart(now));
    }

    /// Handles the newest state.
    pub(super) fn state(&self, state: &State) {
        self.handle(|core, now| core.handle_state(now, state));
        let has_members = !state.nodes.is_empty();
        self.has_members.store(has_members, Ordering::Relaxed);
        self.handle_early();
    }

    /// Handles a timer tick.
    pub(super) fn tick(&self) {
        let (leads, stalled) = {
            let raft = self.raft.borrow();
            (raft.leading, raft.is_stalled())
        };
        self.handle(|core, now| {
            core.handle_tick(now, leads);
            if stalled {
                core.handle_stalled(now);
            }
        });
        self.handle_early();
    }

    /// Handles the end of the proposal for `host`.
    pub(super) fn proposed(&self, host: &str) {
        let now = self.clock.instant();
        self.core().handle_proposed(now, host);
    }

    /// Handles the result of a catch-up attempt.
    pub(super) fn confirmed(&self, attempt: u64, current: bool) {
        self.handle(|core, now| core.handle_confirmed(now, attempt, current));
    }

    /// Takes the next action. The actor takes them after each state and each tick, which also
    /// covers the heartbeats that arrive between those.
    pub(super) fn poll_action(&self) -> Option<Action> {
        self.core().poll_action()
    }

    /// Whether the leader's set contains this node, or this node leads.
    pub(super) fn is_seen_by_leader(&self) -> bool {
        let now = self.clock.instant();
        self.core().is_seen_by_leader(now)
    }

    /// Whether this node has stopped applying the log.
    pub(super) fn is_halted(&self) -> bool {
        self.raft.borrow().halted.is_some()
    }

    /// Records that this node has caught up and is ready.
    pub(super) fn note_ready(&self) {
        self.was_ready.store(true, Ordering::Relaxed);
    }

    /// Whether this node was ready since its process started.
    pub(super) fn was_ready(&self) -> bool {
        self.was_ready.load(Ordering::Relaxed)
    }

    /// Handles the heartbeats from before the state, once raft confirms the leader among their
    /// senders.
    fn handle_early(&self) {
        if !self.has_members.load(Ordering::Relaxed) {
            return;
        }
        let now = self.clock.instant();
        let due = |early: &EarlyHeartbeat| {
            !early.heartbeat.leads || self.follows(&early.from, &early.heartbeat)
        };
        let due: BTreeMap<_, _> = {
            let mut early = lock(&self.early);
            let recent = std::mem::take(&mut *early)
                .into_iter()
                .filter(|(_, early)| now.saturating_duration_since(early.at) < HEARTBEAT_INTERVAL);
            let (due, later) = recent.partition(|(_, early)| due(early));
            *early = later;
            due
        };
        for EarlyHeartbeat {
            from, heartbeat, ..
        } in due.into_values()
        {
            self.on_heartbeat(&from, heartbeat);
        }
    }

    /// Whether `from` is the leader that this node follows, in the term of its heartbeat. Any member
    /// can claim to lead; raft knows this node's leader and term.
    fn follows(&self, from: &Sender, heartbeat: &Heartbeat) -> bool {
        let raft = self.raft.borrow();
        raft.leader_id == Some(from.raft_id) && raft.term == heartbeat.term
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Reports one event to the core and publishes what changed.
    fn handle(&self, event: impl FnOnce(&mut Core, Instant)) {
        let now = self.clock.instant();
        let mut core = self.core();
        event(&mut core, now);
        self.publish(&core, now);
    }

    fn publish(&self, core: &Core, now: Instant) {
        let hosts = core.live(now, self.raft.borrow().leading);
        self.fresh.send_if_modified(|known| {
            let changed = **known != hosts;
            if changed {
                *known = Arc::new(hosts);
            }
            changed
        });
        let contact = core.contact(now);
        self.contact
            .send_if_modified(|known| std::mem::replace(known, contact) != contact);
    }
}

/// Time of a clock that stands still while the machine is suspended, like those of raft's status.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl HeartbeatHandler for FailureDetector {
    fn live(&self) -> watch::Receiver<Hosts> {
        self.fresh()
    }

    fn next_heartbeat(&self) -> Heartbeat {
        let raft = self.raft.borrow();
        let (applied, term, leads) = (raft.applied, raft.term, raft.leading);
        // Like silence, a hang counts only once it is longer than that of a slow disk.
        let hangs = |since: Instant| now().saturating_duration_since(since) >= UNHEALTHY_AFTER;
        let halted = raft.halted.is_some() || raft.stalled_since.is_some_and(hangs);
        drop(raft);
        let live = if leads {
            let now = self.clock.instant();
            self.core().live(now, true)
        } else {
            BTreeSet::new()
        };
        Heartbeat {
            applied,
            term,
            leads,
            live,
            halted,
        }
    }

    fn on_heartbeat(&self, from: &Sender, heartbeat: Heartbeat) {
        // Any member can claim to lead.
        if heartbeat.leads {
            self.claim.record(from.raft_id, heartbeat.term);
        }
        let now = self.clock.instant();
        if !self.has_members.load(Ordering::Relaxed) {
            let mut early = lock(&self.early);
            let from = from.clone();
            let at = now;
            let key = from.hostname.clone();
            early.insert(
                key,
                EarlyHeartbeat {
                    from,
                    heartbeat,
                    at,
                },
            );
            return;
        }
        let follows = self.follows(from, &heartbeat);
        let received_at = self.clock.timestamp();
        let mut core = self.core();
        let report = Report {
            received_at,
            halted: heartbeat.halted,
            leader_set: (heartbeat.leads && follows).then_some(heartbeat.live),
        };
        let sender = (&*from.hostname, from.raft_id);
        if core.handle_heartbeat(now, sender, report).is_ok() {
            self.publish(&core, now);
        }
    }
}

impl fmt::Debug for FailureDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureDetector")
            .field("host", &self.host)
            .field("fresh", &*self.fresh.borrow())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU64, time::Duration};

    use jaco_policy::health::fencing;
    use jaco_proto::v1;

    use super::*;

    /// The state of a cluster with the members `a` and `b`.
    fn members() -> State {
        let mut state = State::default();
        for (host, raft_id) in [("a", 1), ("b", 2)] {
            let row = v1::Node {
                hostname: host.to_owned(),
                raft_id,
                ..Default::default()
            };
            state.nodes.insert(host.to_owned(), Arc::new(row));
        }
        state
    }

    /// A node that has caught up, whose machine can be suspended, in milliseconds.
    fn current(leading: bool) -> (FailureDetector, watch::Sender<RaftStatus>, Arc<AtomicU64>) {
        let status = RaftStatus {
            leading,
            ..RaftStatus::default()
        };
        let (status, raft) = watch::channel(status);
        let suspended = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&suspended);
        let clock = Clock::system()
            .with_suspended(move || Duration::from_millis(read.load(Ordering::Relaxed)));
        let detector = FailureDetector::new("a", raft, clock);
        detector.state(&members());
        let attempt = attempt(&detector).expect("an attempt starts");
        detector.confirmed(attempt, true);
        detector.tick();
        assert_eq!(attempt_after_tick(&detector), None);
        (detector, status, suspended)
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeat_before_the_state_counts_after_it() {
        let heartbeat = |term| Heartbeat {
            term,
            leads: true,
            live: ["a", "b"].map(str::to_owned).into(),
            ..Heartbeat::default()
        };
        let leader = Sender::new("b", 2, []);
        for (term, late, seen) in [
            (1, Duration::ZERO, true),
            (2, Duration::ZERO, false),
            (1, HEARTBEAT_INTERVAL, false),
        ] {
            let (status, raft) = watch::channel(RaftStatus::default());
            let detector = FailureDetector::new("a", raft, Clock::system());
            detector.on_heartbeat(&leader, heartbeat(term));
            assert!(!detector.is_seen_by_leader());
            tokio::time::advance(late).await;
            detector.state(&members());
            assert!(!detector.is_seen_by_leader(), "raft knows no leader yet");
            status.send_modify(|status| (status.leader_id, status.term) = (Some(2), 1));
            detector.tick();
            assert_eq!(detector.is_seen_by_leader(), seen, "{term} {late:?}");
        }
    }

    fn attempt(detector: &FailureDetector) -> Option<u64> {
        match detector.poll_action() {
            Some(Action::Fence(fencing::Action::Confirm { attempt })) => Some(attempt),
            _ => None,
        }
    }

    fn attempt_after_tick(detector: &FailureDetector) -> Option<u64> {
        detector.tick();
        attempt(detector)
    }

    #[tokio::test(start_paused = true)]
    async fn suspended_machine_is_fenced_on_wake() {
        // A leader believes in its lead until the others answer, so only the time fences it.
        for leading in [false, true] {
            let (detector, _status, suspended) = current(leading);
            let almost = LIVE_FOR - Duration::from_millis(1);
            suspended.store(almost.as_millis() as u64, Ordering::Relaxed);
            assert_eq!(attempt_after_tick(&detector), None, "{leading}");
            suspended.store((almost + LIVE_FOR).as_millis() as u64, Ordering::Relaxed);
            assert!(attempt_after_tick(&detector).is_some(), "{leading}");
        }
    }
}
