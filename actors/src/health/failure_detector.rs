//! Liveness of the members, shared by the transport and every consumer.
//!
//! It outlives the actor that drives it: otherwise a restart of the actor would reset the silence
//! of every member.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use jaco_policy::health::{
    core::{LIVE_FOR, UNHEALTHY_AFTER},
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
    current: watch::Sender<bool>,
    claim: LeaderClaim,
    /// Whether this node was ready at any time since its process started.
    was_ready: AtomicBool,
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
            current: watch::Sender::new(false),
            claim: LeaderClaim::default(),
            was_ready: AtomicBool::new(false),
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

    /// Whether this node has caught up with the cluster and may act on its state; see
    /// [`jaco_policy::health::fencing`].
    #[must_use]
    pub fn caught_up(&self) -> watch::Receiver<bool> {
        self.current.subscribe()
    }

    /// Present value of [`FailureDetector::caught_up`].
    pub(super) fn is_current(&self) -> bool {
        *self.current.borrow()
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
    }

    /// Handles the end of the proposal for `host`.
    pub(super) fn proposed(&self, host: &str) {
        self.core().handle_proposed(now(), host);
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
        self.core().is_seen_by_leader(now())
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

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports one event to the core and publishes what changed.
    fn handle(&self, event: impl FnOnce(&mut Core, Instant)) {
        let now = now();
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
        let current = core.is_current();
        self.current
            .send_if_modified(|known| std::mem::replace(known, current) != current);
    }
}

impl HeartbeatHandler for FailureDetector {
    fn next_heartbeat(&self) -> Heartbeat {
        let raft = self.raft.borrow();
        let (applied, term, leads) = (raft.applied, raft.term, raft.leading);
        // Like silence, a hang counts only once it is longer than that of a slow disk.
        let hangs = |since: Instant| now().saturating_duration_since(since) >= UNHEALTHY_AFTER;
        let halted = raft.halted.is_some() || raft.stalled_since.is_some_and(hangs);
        drop(raft);
        let live = if leads {
            self.core().live(now(), true)
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
        let now = now();
        // Any member can claim to lead; raft knows this node's leader and term.
        let raft = self.raft.borrow();
        let follows = raft.leader_id == Some(from.raft_id) && raft.term == heartbeat.term;
        drop(raft);
        if heartbeat.leads {
            self.claim.record(from.raft_id, heartbeat.term);
        }
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

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
