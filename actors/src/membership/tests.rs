//! The actor on a group that only records changes, in virtual time.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::BoxFuture;
use jaco_policy::membership::{DRAIN_LIMIT, TRANSFER_TARGET_TIMEOUT};
use jaco_proto::{
    mark,
    v1::{self, NodeStatus, command::Payload},
};
use jaco_raftnode::{
    MemberChange, RaftStatus, StateReader as _, actor::ChangeError, command, core::Progress,
    testing::MemoryRaft,
};
use jaco_supervision::{Strategy, SupervisorSpec, Tree};
use tokio::sync::watch;

use super::{Deps, Group, Membership, actor};
use crate::{clock::Clock, commit::CommitLock, lock::lock};

const HOSTS: [&str; 3] = ["a", "b", "c"];
const REPLICA: &str = "app-web-0";
/// Settings of a forced removal.
const SKIPS: v1::NodeDrain = v1::NodeDrain {
    skip_moves: true,
    timed_out: false,
};

/// Leader `a` with the learners `b` and `c`; a change of members only changes the status.
#[derive(Clone)]
struct Recorded {
    status: watch::Sender<RaftStatus>,
    changes: Arc<Mutex<Vec<MemberChange>>>,
}

impl Group for Recorded {
    fn status(&self) -> watch::Receiver<RaftStatus> {
        self.status.subscribe()
    }

    fn change(&self, change: MemberChange) -> BoxFuture<'static, Result<(), ChangeError>> {
        lock(&self.changes).push(change);
        self.status.send_modify(|status| {
            if let MemberChange::Remove(id) = change {
                status.learners.retain(|learner| *learner != id);
            }
        });
        Box::pin(async { Ok(()) })
    }

    fn transfer(&self, _: u64) {}
}

struct Leader {
    raft: MemoryRaft,
    group: Recorded,
    membership: Membership,
    drain_mark_lock: CommitLock,
    _tree: Tree,
}

impl Leader {
    /// Starts the actor on a cluster whose member `c` has a replica.
    async fn start() -> Self {
        let raft = MemoryRaft::with_ready_nodes(&HOSTS);
        let active = |raft_id| Progress {
            raft_id,
            recent_active: true,
            ..Default::default()
        };
        let status = RaftStatus {
            raft_id: 1,
            term: 1,
            leading: true,
            leader_id: Some(1),
            voters: vec![1],
            learners: vec![2, 3],
            progress: vec![active(1), active(2), active(3)],
            // A promotion would be a change that no test here asks for.
            commit: 1_000,
            ..Default::default()
        };
        let group = Recorded {
            status: watch::Sender::new(status),
            changes: Arc::default(),
        };
        let drain_mark_lock = CommitLock::default();
        let deps = Deps {
            raft: Arc::new(raft.clone()),
            clock: Clock::system(),
            drain_mark_lock: drain_mark_lock.clone(),
        };
        let (spec, membership) = actor(group.clone(), deps);
        let root = SupervisorSpec::new(Strategy::OneForOne).child(spec);
        let leader = Self {
            raft,
            group,
            membership,
            drain_mark_lock,
            _tree: Tree::start("node", root).await.unwrap(),
        };
        leader.place("c", "");
        // The actor has no mailbox before it runs.
        tokio::time::sleep(Duration::from_secs(1)).await;
        leader
    }

    fn apply(&self, payload: Payload) {
        let command = command("test", prost_types::Timestamp::default(), payload);
        self.raft.apply(command).unwrap();
    }

    fn place(&self, host: &str, previous_host: &str) {
        self.apply(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(v1::ReplicaDesired {
                id: REPLICA.to_owned(),
                deployment: "app".to_owned(),
                service: "web".to_owned(),
                host: host.to_owned(),
                previous_host: previous_host.to_owned(),
                ..Default::default()
            }),
        }));
    }

    fn mark(&self, drain: Option<v1::NodeDrain>) {
        self.mark_of("c", drain);
    }

    fn mark_of(&self, hostname: &str, drain: Option<v1::NodeDrain>) {
        self.apply(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: hostname.to_owned(),
            drain_mark: mark::SET,
            drain,
            ..Default::default()
        }));
    }

    fn changes(&self) -> Vec<MemberChange> {
        lock(&self.group.changes).clone()
    }

    /// Waits until `c` is no member any more.
    async fn removed(&self) {
        let mut states = self.raft.subscribe();
        let gone = states.wait_for(|state| !state.nodes.contains_key("c"));
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, gone).await.unwrap().unwrap();
    }

    fn node(&self) -> v1::Node {
        v1::Node::clone(&self.raft.state().nodes["c"])
    }
}

#[tokio::test(start_paused = true)]
async fn member_leaves_after_its_replica_runs_elsewhere() {
    let leader = Leader::start().await;
    leader.mark(None);
    leader.membership.note_leaving(3, "ops", false);
    for (host, previous_host) in [("c", ""), ("b", "c")] {
        leader.place(host, previous_host);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(leader.changes(), [], "while it is on {host}");
    }
    let index = leader.raft.state().replicas_desired[REPLICA].raft_index;
    leader.apply(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
        replica: Some(v1::ReplicaObserved {
            id: REPLICA.to_owned(),
            host: "b".to_owned(),
            state: v1::ReplicaState::Running.into(),
            desired_raft_index: index,
            ..Default::default()
        }),
    }));
    leader.removed().await;
    assert_eq!(leader.changes(), [MemberChange::Remove(3)]);
    let last = leader.raft.committed().pop().unwrap();
    assert_eq!(last.identity, "ops");
}

#[tokio::test(start_paused = true)]
async fn slow_drain_is_recorded_and_keeps_member() {
    let leader = Leader::start().await;
    leader.mark(None);
    leader.membership.note_leaving(3, "ops", false);
    tokio::time::sleep(DRAIN_LIMIT - Duration::from_secs(5)).await;
    assert_eq!(leader.node().status(), NodeStatus::Ready);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let node = leader.node();
    assert_eq!(node.status(), NodeStatus::DrainTimeout);
    assert!(node.draining, "it gets no replicas");
    assert!(node.drain.is_some_and(|drain| drain.timed_out));
    assert_eq!(node.status_details["reason"], "drain_timeout");
    assert_eq!(node.status_details["replicas"], REPLICA);
    tokio::time::sleep(DRAIN_LIMIT).await;
    assert_eq!(leader.changes(), []);
}

#[tokio::test(start_paused = true)]
async fn request_decided_before_timeout_prevails() {
    // Forced by an operator, or cleared by the member's restart.
    for (mark, drain) in [(mark::SET, Some(SKIPS)), (mark::CLEAR, None)] {
        let leader = Leader::start().await;
        leader.mark(None);
        tokio::time::sleep(DRAIN_LIMIT - Duration::from_secs(5)).await;
        let guard = leader.drain_mark_lock.lock(&leader.raft).await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(leader.node().status(), NodeStatus::Ready);
        leader.apply(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: "c".to_owned(),
            drain_mark: mark,
            drain,
            ..Default::default()
        }));
        let commands = leader.raft.committed().len();
        drop(guard);
        if drain.is_some() {
            leader.removed().await;
            assert_eq!(leader.raft.committed().len(), commands + 1);
        } else {
            tokio::time::sleep(DRAIN_LIMIT).await;
            assert_eq!(leader.raft.committed().len(), commands);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn leader_that_stays_clears_mark_under_lock() {
    let leader = Leader::start().await;
    // No other member answers any more.
    leader.group.status.send_modify(|status| {
        status.progress.retain(|follower| follower.raft_id == 1);
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    let guard = leader.drain_mark_lock.lock(&leader.raft).await.unwrap();
    leader.mark_of("a", Some(SKIPS));
    tokio::time::sleep(2 * TRANSFER_TARGET_TIMEOUT).await;
    assert!(leader.raft.state().nodes["a"].draining, "under the lock");
    drop(guard);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!leader.raft.state().nodes["a"].draining);
}

#[tokio::test(start_paused = true)]
async fn forced_removal_waits_for_no_replica() {
    for (drain, skip_drain) in [
        (Some(SKIPS), false),
        // A member of another version might not understand the row.
        (None, true),
    ] {
        let leader = Leader::start().await;
        leader.mark(drain);
        leader.membership.note_leaving(3, "ops", skip_drain);
        leader.removed().await;
        assert_eq!(leader.changes(), [MemberChange::Remove(3)]);
    }
}
