//! Liveness of the members as one node sees it: the set of live hosts, and the events of the
//! [failure detector](super::core) and of [`fencing`], which it owns. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use jaco_proto::v1::{Node, NodeStatus};
use jaco_state::State;
use prost_types::Timestamp;

use super::{
    core::{self, HEARTBEAT_INTERVAL},
    fencing::{self, ContactEpoch},
};
use crate::membership::records_timeout;

/// Maximum age of the leader's set: two heartbeat intervals and a network delay. After that a node
/// falls back to its own observations, so an election does not empty the set of live hosts.
const LEADER_SET_MAX_AGE: Duration = HEARTBEAT_INTERVAL
    .saturating_mul(2)
    .saturating_add(Duration::from_millis(500));

/// Action that the shell must carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Of the failure detector.
    Detect(core::Action),
    /// Of the fencing of this node.
    Fence(fencing::Action),
}

/// Content of a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Wall-clock time of its arrival.
    pub received_at: Timestamp,
    /// Whether the sender stopped applying the log.
    pub halted: bool,
    /// Live members according to the sender, if it is the leader that this node follows.
    pub leader_set: Option<BTreeSet<String>>,
}

/// The sender of a heartbeat is this node itself or no member in the local state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotMember;

/// Liveness of the members.
#[derive(Debug)]
pub struct Core {
    host: String,
    detector: core::Core,
    fencing: fencing::Core,
    /// Raft ids of the members.
    members: BTreeMap<String, u64>,
    leader: Option<LeaderSet>,
    /// Wall-clock time of each member's last heartbeat.
    last_heartbeat_at: BTreeMap<String, Timestamp>,
    actions: VecDeque<Action>,
}

/// Set of live members in the last heartbeat of the leader.
#[derive(Debug)]
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

impl Core {
    /// Returns the core of member `host`.
    #[must_use]
    pub fn new(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            detector: core::Core::new(host),
            fencing: fencing::Core::default(),
            members: BTreeMap::new(),
            leader: None,
            last_heartbeat_at: BTreeMap::new(),
            actions: VecDeque::new(),
        }
    }

    /// Handles a restart of the shell, which never receives the results of attempts and proposals
    /// in flight. The silence of the members counts on.
    pub fn handle_restart(&mut self, now: Instant) {
        self.fencing.handle_restart();
        self.detector.handle_leads(now, false);
        self.collect();
        self.actions.clear();
    }

    /// Handles the newest state.
    pub fn handle_state(&mut self, now: Instant, state: &State) {
        let nodes = || state.nodes.iter();
        self.members = nodes()
            .map(|(host, row)| (host.clone(), row.raft_id))
            .collect();
        let members = &self.members;
        self.last_heartbeat_at
            .retain(|host, _| members.contains_key(host));
        let roster = nodes().map(|(host, node)| (host.clone(), detected_status(node)));
        self.detector.handle_members(now, roster.collect());
        let status = state.nodes.get(&self.host).map(|node| node.status());
        self.fencing.handle_status(now, status);
        self.collect();
    }

    /// Handles a timer tick, due several times a second as in [`core::Core::handle_tick`]. `leads`
    /// is whether this node leads and has applied an entry of its own term.
    pub fn handle_tick(&mut self, now: Instant, leads: bool) {
        self.detector.handle_leads(now, leads);
        self.detector.handle_tick(now);
        if leads {
            self.fencing.handle_leads(now);
        } else {
            self.fencing.handle_tick(now);
        }
        self.collect();
    }

    /// Handles that this node does not apply the log; see [`fencing::Core::handle_stalled`].
    pub fn handle_stalled(&mut self, now: Instant) {
        self.fencing.handle_stalled(now);
        self.collect();
    }

    /// Handles a heartbeat of the node with this hostname and raft id.
    ///
    /// # Errors
    /// [`NotMember`]; the heartbeat does not count. A namesake, known from membership reports only,
    /// has another raft id.
    pub fn handle_heartbeat(
        &mut self,
        now: Instant,
        (host, raft_id): (&str, u64),
        report: Report,
    ) -> Result<(), NotMember> {
        if host == self.host || self.members.get(host) != Some(&raft_id) {
            return Err(NotMember);
        }
        let received_at = report.received_at;
        self.last_heartbeat_at.insert(host.to_owned(), received_at);
        self.detector.handle_heartbeat(now, host);
        self.detector.handle_halted(now, host, report.halted);
        if let Some(live) = report.leader_set {
            let seen_by_leader = live.contains(&self.host);
            self.leader = Some(LeaderSet {
                at: now,
                received_at,
                live,
            });
            self.fencing.handle_seen_by_leader(now, seen_by_leader);
        }
        self.collect();
        Ok(())
    }

    /// Handles the end of the proposal for `host`; see [`core::Core::handle_proposed`].
    pub fn handle_proposed(&mut self, now: Instant, host: &str) {
        self.detector.handle_proposed(now, host);
        self.collect();
    }

    /// Handles the result of a catch-up attempt; see [`fencing::Core::handle_confirmed`].
    pub fn handle_confirmed(&mut self, now: Instant, attempt: u64, current: bool) {
        self.fencing.handle_confirmed(now, attempt, current);
        self.collect();
    }

    /// Takes the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The present contact, if this node may act on its state at `now`; see
    /// [`fencing::Core::contact`].
    #[must_use]
    pub fn contact(&self, now: Instant) -> Option<ContactEpoch> {
        self.fencing.contact(now)
    }

    /// Whether the leader's set contains this node, or this node leads.
    #[must_use]
    pub fn is_seen_by_leader(&self, now: Instant) -> bool {
        self.fencing.is_seen_by_leader(now)
    }

    /// Wall-clock time of the last heartbeat of `host`, or of the leader without one.
    #[must_use]
    pub fn last_heartbeat(&self, host: &str) -> Option<Timestamp> {
        let received_at = || self.leader.as_ref().map(|leader| leader.received_at);
        let own = self.last_heartbeat_at.get(host).copied();
        own.or_else(received_at)
    }

    /// Live hosts: this one and those in the leader's set, unless it is too old or this node
    /// `leads`; then those with a recent heartbeat on this node.
    #[must_use]
    pub fn live(&self, now: Instant, leads: bool) -> BTreeSet<String> {
        let valid = self.leader.as_ref().filter(|leader| leader.is_valid(now));
        let mut hosts: BTreeSet<String> = match valid {
            // Entries that are no members in the local state are ignored.
            Some(leader) if !leads => {
                let known = |host: &&String| self.members.contains_key(*host);
                leader.live.iter().filter(known).cloned().collect()
            }
            Some(_) | None => self.detector.live().map(str::to_owned).collect(),
        };
        hosts.insert(self.host.clone());
        hosts
    }

    /// Takes over the actions of the two cores after each event, so that they stay in the order of
    /// the events.
    fn collect(&mut self) {
        while let Some(action) = self.detector.poll_action() {
            self.actions.push_back(Action::Detect(action));
        }
        while let Some(action) = self.fencing.poll_action() {
            self.actions.push_back(Action::Fence(action));
        }
    }
}

/// Status from which the failure detector goes on. A drain that timed out leaves a node as alive as
/// before; where only the status tells of the timeout, it has to stay.
fn detected_status(node: &Node) -> NodeStatus {
    match node.status() {
        NodeStatus::DrainTimeout if records_timeout(node) => NodeStatus::Ready,
        status => status,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jaco_proto::v1::NodeDrain;

    use super::*;

    struct Fixture {
        core: Core,
        now: Instant,
    }

    impl Fixture {
        /// The core of `me`, in a cluster with `a` and `b`.
        fn new() -> Self {
            let mut state = State::default();
            for (host, raft_id) in [("a", 1), ("b", 2), ("me", 3)] {
                let node = Node {
                    hostname: host.to_owned(),
                    raft_id,
                    status: NodeStatus::Ready.into(),
                    ..Default::default()
                };
                state.nodes.insert(host.into(), Arc::new(node));
            }
            let (mut core, now) = (Core::new("me"), Instant::now());
            core.handle_state(now, &state);
            Self { core, now }
        }

        fn beat(&mut self, host: &str, raft_id: u64, set: Option<&[&str]>) -> bool {
            let set = set.map(|set| set.iter().map(|host| (*host).to_owned()).collect());
            let report = Report {
                leader_set: set,
                ..Default::default()
            };
            self.core
                .handle_heartbeat(self.now, (host, raft_id), report)
                .is_ok()
        }

        fn live(&self, leads: bool) -> Vec<String> {
            self.core.live(self.now, leads).into_iter().collect()
        }
    }

    #[test]
    fn only_heartbeats_of_members_count() {
        let mut fixture = Fixture::new();
        for (host, raft_id) in [("stranger", 4), ("me", 3), ("a", 7)] {
            assert!(!fixture.beat(host, raft_id, Some(&["b"])), "{host}");
        }
        assert_eq!(fixture.live(false), ["me"]);
        assert!(fixture.beat("a", 1, None));
        assert_eq!(fixture.live(false), ["a", "me"]);
    }

    #[test]
    fn drain_timeout_does_not_hide_a_death() {
        for recorded in [true, false] {
            let mut fixture = Fixture::new();
            let mut state = State::default();
            let node = Node {
                hostname: "a".to_owned(),
                raft_id: 1,
                status: NodeStatus::DrainTimeout.into(),
                draining: true,
                drain: recorded.then_some(NodeDrain {
                    timed_out: true,
                    ..Default::default()
                }),
                ..Default::default()
            };
            state.nodes.insert("a".into(), Arc::new(node));
            fixture.core.handle_state(fixture.now, &state);
            let mut statuses = Vec::new();
            for _ in 0..120 {
                fixture.now += Duration::from_millis(250);
                fixture.core.handle_tick(fixture.now, true);
                while let Some(action) = fixture.core.poll_action() {
                    let Action::Detect(core::Action::Propose { host, status, .. }) = action else {
                        continue;
                    };
                    statuses.push(status);
                    let node = state.nodes.get_mut(host.as_str()).unwrap();
                    Arc::make_mut(node).set_status(status);
                    fixture.core.handle_state(fixture.now, &state);
                    fixture.core.handle_proposed(fixture.now, &host);
                }
            }
            let expected = match recorded {
                true => vec![NodeStatus::Unhealthy, NodeStatus::Offline],
                false => Vec::new(),
            };
            assert_eq!(statuses, expected);
        }
    }

    #[test]
    fn leader_set_counts_until_it_is_old() {
        let mut fixture = Fixture::new();
        fixture.beat("a", 1, Some(&["b", "me", "stranger"]));
        assert_eq!(fixture.live(false), ["b", "me"]);
        assert_eq!(fixture.live(true), ["a", "me"], "its own observations");
        assert!(fixture.core.is_seen_by_leader(fixture.now));
        fixture.now += LEADER_SET_MAX_AGE;
        assert_eq!(fixture.live(false), ["a", "me"]);
    }

    #[test]
    fn restart_repeats_attempt_in_flight() {
        let mut fixture = Fixture::new();
        let confirm = Some(Action::Fence(fencing::Action::Confirm { attempt: 1 }));
        assert_eq!(fixture.core.poll_action(), confirm);
        fixture.core.handle_tick(fixture.now, false);
        assert_eq!(fixture.core.poll_action(), None);
        fixture.core.handle_restart(fixture.now);
        assert_eq!(fixture.core.poll_action(), None);
        fixture.core.handle_tick(fixture.now, false);
        assert_eq!(fixture.core.poll_action(), confirm);
    }
}
