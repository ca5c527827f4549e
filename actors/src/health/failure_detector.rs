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
    fencing::ContactEpoch,
    liveness::{Action, Core, Report},
};
use jaco_raftnode::{RaftStatus, State};
use prost_types::Timestamp;
use tokio::sync::watch;

use crate::{
    clock::Clock,
    peer::{Heartbeat, HeartbeatHandler, Sender},
};

/// Hostnames of live members.
pub type Hosts = Arc<BTreeSet<String>>;

/// Heartbeat state of one node.
pub struct FailureDetector {
    host: String,
    clock: Clock,
    raft: watch::Receiver<RaftStatus>,
    /// Lock order: lock this before writing the channels below; never while borrowing one of them.
    core: Mutex<Core>,
    fresh: watch::Sender<Hosts>,
    contact: watch::Sender<Option<ContactEpoch>>,
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
            contact: watch::Sender::new(None),
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

    /// Contact in which this node has caught up with the cluster and may act on its state, as of the
    /// last event; see [`jaco_policy::health::fencing`].
    #[must_use]
    pub fn contact_changes(&self) -> watch::Receiver<Option<ContactEpoch>> {
        self.contact.subscribe()
    }

    /// Contact at this moment, even if no event has ended it yet.
    #[must_use]
    pub fn contact(&self) -> Option<ContactEpoch> {
        self.core().contact(now())
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
        let leads = self.raft.borrow().leading;
        self.handle(|core, now| core.handle_tick(now, leads));
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
        let contact = core.contact(now);
        self.contact
            .send_if_modified(|known| std::mem::replace(known, contact) != contact);
    }
}

impl HeartbeatHandler for FailureDetector {
    fn next_heartbeat(&self) -> Heartbeat {
        let raft = self.raft.borrow();
        let (applied, term, leads) = (raft.applied, raft.term, raft.leading);
        let halted = raft.halted.is_some();
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
