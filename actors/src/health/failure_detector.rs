//! Liveness of the members, shared by the transport and every consumer.
//!
//! It outlives the actor that drives it: otherwise a restart of the actor would reset the silence
//! of every member.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jaco_policy::health::{
    core::{self, HEARTBEAT_INTERVAL},
    fencing,
};
use jaco_proto::v1::NodeStatus;
use jaco_raftnode::{RaftStatus, State};
use prost_types::Timestamp;
use tokio::sync::watch;

use crate::{
    clock::Clock,
    peer::{Heartbeat, HeartbeatHandler, Sender},
};

/// Maximum age of the leader's set: two heartbeat intervals and a network delay. After that a node
/// falls back to its own observations, so an election does not empty the set of live hosts.
const LEADER_SET_MAX_AGE: Duration = HEARTBEAT_INTERVAL
    .saturating_mul(2)
    .saturating_add(Duration::from_millis(500));

/// Hostnames of live members.
pub type Hosts = Arc<BTreeSet<String>>;

/// Effect that the actor must carry out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Detect(core::Effect),
    Fence(fencing::Effect),
}

/// Heartbeat state of one node.
pub struct FailureDetector {
    host: String,
    clock: Clock,
    raft: watch::Receiver<RaftStatus>,
    /// Lock order: lock this before writing the channels below; never while borrowing one of them.
    inner: Mutex<Inner>,
    fresh: watch::Sender<Hosts>,
    current: watch::Sender<bool>,
    /// Whether this node was ready at any time since its process started.
    was_ready: AtomicBool,
}

struct Inner {
    detector: core::Core,
    fencing: fencing::Core,
    /// Raft ids of the members.
    members: BTreeMap<String, u64>,
    leader: Option<LeaderSet>,
    /// Wall-clock time of each member's last heartbeat.
    last_heartbeat_at: BTreeMap<String, Timestamp>,
    effects: Vec<Effect>,
}

/// Set of live members in the last heartbeat of the leader.
struct LeaderSet {
    at: Instant,
    received_at: Timestamp,
    live: BTreeSet<String>,
}

impl LeaderSet {
    fn is_valid(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < LEADER_SET_MAX_AGE
    }
}

impl FailureDetector {
    /// Returns the heartbeat state of member `host` with the raft status `raft`.
    #[must_use]
    pub fn new(host: &str, raft: watch::Receiver<RaftStatus>, clock: Clock) -> Self {
        Self {
            host: host.to_owned(),
            clock,
            raft,
            inner: Mutex::new(Inner {
                detector: core::Core::new(host),
                fencing: fencing::Core::default(),
                members: BTreeMap::new(),
                leader: None,
                last_heartbeat_at: BTreeMap::new(),
                effects: Vec::new(),
            }),
            fresh: watch::Sender::new(Arc::new(BTreeSet::from([host.to_owned()]))),
            current: watch::Sender::new(false),
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

    /// Whether this node has caught up with the cluster and may act on its state; see [`fencing`].
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
        let inner = self.inner();
        let received_at = || inner.leader.as_ref().map(|leader| leader.received_at);
        inner
            .last_heartbeat_at
            .get(host)
            .copied()
            .or_else(received_at)
    }

    /// Resets attempts and proposals in flight, whose results a new actor instance never receives.
    pub(super) fn restart(&self) {
        let now = now();
        let mut inner = self.inner();
        inner.effects.clear();
        inner.fencing = fencing::Core::default();
        inner.detector(now, core::Input::Leads(false));
        inner.effects.clear();
        self.publish(&inner, now);
    }

    /// Handles the newest state.
    pub(super) fn state(&self, state: &State) -> Vec<Effect> {
        let now = now();
        let mut inner = self.inner();
        let status = |host: &str| state.nodes.get(host).map(|node| node.status());
        let roster: BTreeMap<_, _> = state
            .nodes
            .iter()
            .map(|(host, node)| (host.clone(), node.status()))
            .collect();
        let ids = state.nodes.iter();
        inner.members = ids.map(|(host, row)| (host.clone(), row.raft_id)).collect();
        let Inner {
            last_heartbeat_at,
            members,
            ..
        } = &mut *inner;
        last_heartbeat_at.retain(|host, _| members.contains_key(host));
        inner.detector(now, core::Input::Members(roster));
        let marked_down = match status(&self.host) {
            Some(NodeStatus::Unhealthy | NodeStatus::Offline) => true,
            Some(
                NodeStatus::Unspecified
                | NodeStatus::Joining
                | NodeStatus::Ready
                | NodeStatus::IsolationUnavailable
                | NodeStatus::DrainTimeout,
            )
            | None => false,
        };
        inner.fencing(now, fencing::Input::MarkedDown(marked_down));
        self.publish(&inner, now);
        std::mem::take(&mut inner.effects)
    }

    /// Handles a timer tick.
    pub(super) fn tick(&self) -> Vec<Effect> {
        let now = now();
        let leads = self.raft.borrow().leading;
        let mut inner = self.inner();
        inner.detector(now, core::Input::Leads(leads));
        inner.detector(now, core::Input::Tick);
        let input = if leads {
            fencing::Input::SeenByLeader(true)
        } else {
            fencing::Input::Tick
        };
        inner.fencing(now, input);
        self.publish(&inner, now);
        std::mem::take(&mut inner.effects)
    }

    /// Handles the end of the proposal for `host`.
    pub(super) fn proposed(&self, host: String) {
        self.inner().detector(now(), core::Input::Proposed(host));
    }

    /// Handles the result of a catch-up attempt.
    pub(super) fn confirmed(&self, attempt: u64, current: bool) {
        let now = now();
        let mut inner = self.inner();
        inner.fencing(now, fencing::Input::Confirmed { attempt, current });
        self.publish(&inner, now);
    }

    /// Whether the leader's set contains this node, or this node leads.
    pub(super) fn is_seen_by_leader(&self) -> bool {
        self.inner().fencing.is_seen_by_leader(now())
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

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, inner: &Inner, now: Instant) {
        let hosts = inner.live(&self.host, self.raft.borrow().leading, now);
        self.fresh.send_if_modified(|known| {
            let changed = **known != hosts;
            if changed {
                *known = Arc::new(hosts);
            }
            changed
        });
        let current = inner.fencing.is_current();
        self.current
            .send_if_modified(|known| std::mem::replace(known, current) != current);
    }
}

impl Inner {
    fn detector(&mut self, now: Instant, input: core::Input) {
        let effects = self.detector.handle(now, input);
        self.effects.extend(effects.into_iter().map(Effect::Detect));
    }

    fn fencing(&mut self, now: Instant, input: fencing::Input) {
        let effect = self.fencing.handle(now, input);
        self.effects.extend(effect.map(Effect::Fence));
    }

    fn live(&self, own: &str, leads: bool, now: Instant) -> BTreeSet<String> {
        let valid = self.leader.as_ref().filter(|leader| leader.is_valid(now));
        let mut hosts: BTreeSet<String> = match valid {
            // Entries that are no members in the local state are ignored.
            Some(leader) if !leads => {
                let known = |host: &&String| self.members.contains_key(*host);
                leader.live.iter().filter(known).cloned().collect()
            }
            Some(_) | None => self.detector.live().map(str::to_owned).collect(),
        };
        hosts.insert(own.to_owned());
        hosts
    }
}

impl HeartbeatHandler for FailureDetector {
    fn next_heartbeat(&self) -> Heartbeat {
        let raft = self.raft.borrow();
        let (applied, term, leads) = (raft.applied, raft.term, raft.leading);
        let halted = raft.halted.is_some();
        drop(raft);
        let live = if leads {
            self.inner().live(&self.host, true, now())
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
        let mut inner = self.inner();
        let from_id = inner.members.get(&from.hostname);
        // A namesake, known from membership reports only, does not count.
        if from.hostname == self.host || from_id != Some(&from.raft_id) {
            return;
        }
        inner
            .last_heartbeat_at
            .insert(from.hostname.clone(), received_at);
        inner.detector(now, core::Input::Heartbeat(from.hostname.clone()));
        let halted = core::Input::Halted(from.hostname.clone(), heartbeat.halted);
        inner.detector(now, halted);
        if heartbeat.leads && follows {
            let seen_by_leader = heartbeat.live.contains(&self.host);
            inner.leader = Some(LeaderSet {
                at: now,
                received_at,
                live: heartbeat.live,
            });
            inner.fencing(now, fencing::Input::SeenByLeader(seen_by_leader));
        }
        self.publish(&inner, now);
    }
}

impl fmt::Debug for FailureDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heart")
            .field("host", &self.host)
            .field("fresh", &*self.fresh.borrow())
            .finish_non_exhaustive()
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
