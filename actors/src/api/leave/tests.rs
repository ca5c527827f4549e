use std::sync::Arc;

use jaco_proto::{
    error::DecodedError,
    mark,
    v1::{NodeStatus, cluster_client::ClusterClient},
};
use jaco_raftnode::{LeaderProposer as _, StateReader as _, command};
use tokio::task::JoinHandle;

use super::*;
use crate::{
    membership::{self, Deps},
    testing::cluster::{Cluster, Fault},
};

type Answer = Result<(), DecodedError>;

/// Members `n1`, which leads, `n2` and `n3`, and replicas of `n3`. Nothing moves or removes anything
/// but the tests.
struct Drained(Cluster);

impl Drained {
    async fn start(replicas: &[&str]) -> Self {
        let cluster = Cluster::start(3).await;
        for id in 1..=3 {
            let node = cluster.node(id).try_running().unwrap();
            let deps = Deps {
                raft: Arc::new(node.raft.clone()),
                clock: node.clock.clone(),
                drain_mark_lock: node.drain_mark_lock.clone(),
            };
            let (_, membership) = membership::actor(node.raft.clone(), deps);
            let _ = node.membership.set(membership);
        }
        let this = Self(cluster);
        for id in replicas {
            this.place(id, "n3").await;
        }
        this
    }

    /// Commits a command on member `id`, which leads.
    async fn commit_on(&self, id: u64, payload: Payload) {
        let command = command("test", prost_types::Timestamp::default(), payload);
        self.0.group.handle(id).propose(command).await.unwrap();
    }

    async fn commit(&self, payload: Payload) {
        self.commit_on(1, payload).await;
    }

    async fn place(&self, id: &str, host: &str) {
        let replica = row(id, "web", host);
        let replica = v1::ReplicaDesired {
            // Stranded replicas are looked for in known deployments only.
            deployment: "other".to_owned(),
            ..replica
        };
        self.commit(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(replica),
        }))
        .await;
    }

    async fn mark(&self, status: NodeStatus, mark: i32) {
        self.commit(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: "n3".to_owned(),
            status: status.into(),
            drain_mark: mark,
            ..Default::default()
        }))
        .await;
    }

    async fn delete_row_on(&self, id: u64) {
        let hostname = "n3".to_owned();
        let payload = Payload::NodeRemove(v1::NodeRemove { hostname });
        self.commit_on(id, payload).await;
    }

    /// Removes `n3` through member `id`.
    fn remove(&self, id: u64, force: bool) -> JoinHandle<Answer> {
        let mut client = ClusterClient::new(self.0.member_api(id, Transport::Local));
        tokio::spawn(async move {
            let request = v1::NodeRemoveRequest {
                hostname: "n3".to_owned(),
                force,
            };
            client.node_remove(request).await?;
            Ok(())
        })
    }

    fn node(&self, on: u64) -> v1::Node {
        v1::Node::clone(&self.0.state(on).nodes["n3"])
    }

    /// Waits until the row of `n3` on member `on` fulfils `holds`.
    async fn until(&self, on: u64, holds: impl Fn(&v1::Node) -> bool) {
        let mut states = self.0.group.handle(on).subscribe();
        let shown = states.wait_for(|state| holds(&state.nodes["n3"]));
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, shown).await.unwrap().unwrap();
    }

    fn stop(&self, id: u64) {
        self.0.node(id).stopping.send_replace(true);
    }
}

/// Lets everything happen that needs no time, and a little more.
async fn pause(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn call_waits_while_the_drain_progresses() {
    let replicas = ["x", "y", "z"];
    let drained = Drained::start(&replicas).await;
    let call = drained.remove(2, false);
    for replica in replicas {
        pause(DRAIN_LIMIT.as_secs() - 10).await;
        assert!(!call.is_finished(), "before {replica} has moved");
        drained.place(replica, "n1").await;
    }
    drained.delete_row_on(1).await;
    call.await.unwrap().unwrap();

    let drained = Drained::start(&replicas).await;
    let begun = Instant::now();
    let call = drained.remove(2, false);
    pause(100).await;
    drained.place("x", "n1").await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.code, "drain_cancelled");
    assert_eq!(error.details["replicas"], "y,z");
    assert_eq!(begun.elapsed().as_secs(), 100 + PROGRESS_BUDGET.as_secs());
}

#[tokio::test(start_paused = true)]
async fn progressing_call_ends_after_an_hour() {
    let replicas: Vec<String> = (0..20).map(|at| format!("web-{at:02}")).collect();
    let names: Vec<&str> = replicas.iter().map(String::as_str).collect();
    for through in [1, 2] {
        let drained = Drained::start(&names).await;
        let begun = Instant::now();
        let call = drained.remove(through, false);
        for name in &names {
            pause(280).await;
            drained.place(name, "n1").await;
            if call.is_finished() {
                break;
            }
        }
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.code, "drain_cancelled", "through n{through}");
        // Found at a step of the loop.
        let elapsed = begun.elapsed();
        assert!(elapsed >= DRAIN_TIMEOUT, "{elapsed:?}");
        assert!(elapsed < DRAIN_TIMEOUT + Duration::from_secs(280));
        assert!(leaving(&drained.node(1)), "the removal goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn resumed_forced_removal_is_forced() {
    let drained = Drained::start(&["x"]).await;
    drained.mark(NodeStatus::Unspecified, mark::SET).await;
    // The leader is lost before it reads the request.
    drained.0.network.faults(&[Fault::Hang]);
    let call = drained.remove(2, true);
    pause(1).await;
    drained.0.group.elect(Some(2));
    drained.until(2, skips_drain).await;
    drained.delete_row_on(2).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn resumed_removal_begins_a_new_drain() {
    let drained = Drained::start(&["x"]).await;
    drained.mark(NodeStatus::Unspecified, mark::SET).await;
    drained.mark(NodeStatus::DrainTimeout, mark::KEEP).await;
    drained.0.network.faults(&[Fault::Hang]);
    let call = drained.remove(2, false);
    pause(1).await;
    drained.0.group.elect(Some(2));
    drained.until(2, leaving).await;
    assert!(!call.is_finished());
    assert_eq!(drained.node(2).status(), NodeStatus::Ready);
    drained.delete_row_on(2).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn repeated_removal_retries_moves_given_up() {
    let drained = Drained::start(&[]).await;
    let moved = v1::ReplicaDesired {
        deployment: "other".to_owned(),
        previous_host: "n3".to_owned(),
        ..row("x", "web", "n2")
    };
    drained
        .commit(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(moved),
        }))
        .await;
    let first = drained.remove(1, false);
    drained.until(1, leaving).await;
    let before = drained.0.state(1).replicas_desired["x"].raft_index;
    drained
        .commit(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
            replica: Some(v1::ReplicaObserved {
                id: "x".to_owned(),
                host: "n2".to_owned(),
                state: v1::ReplicaState::Failed.into(),
                code: jaco_proto::replica_code::RESTART_EXHAUSTED.to_owned(),
                desired_raft_index: before,
                ..Default::default()
            }),
        }))
        .await;
    let repeated = drained.remove(1, false);
    let mut states = drained.0.group.handle(1).subscribe();
    let reissued = states.wait_for(|state| state.replicas_desired["x"].raft_index > before);
    let reissued = tokio::time::timeout(Duration::from_secs(60), reissued).await;
    reissued.expect("the move is not retried").unwrap();
    drained.delete_row_on(1).await;
    for call in [first, repeated] {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn stopping_node_ends_the_waiting_call() {
    // The leader, and a member that forwards the call to it.
    for through in [1, 2] {
        let drained = Drained::start(&["x"]).await;
        let call = drained.remove(through, false);
        drained.until(through, leaving).await;
        pause(60).await;
        assert!(!call.is_finished());
        let stopped = Instant::now();
        drained.stop(through);
        drained.0.node(through).stopping.closed().await;
        let error = call.await.unwrap().unwrap_err();
        assert!(stopped.elapsed() < Duration::from_secs(1), "n{through}");
        assert_eq!(error.code, "drain_cancelled", "n{through}");
        assert_eq!(error.details["replicas"], "x");
        assert!(error.message.contains("is stopping"), "{error}");
        assert!(leaving(&drained.node(1)), "the removal goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn forwarded_call_outlives_the_stopping_leader() {
    let drained = Drained::start(&["x"]).await;
    let call = drained.remove(2, false);
    drained.until(2, leaving).await;
    pause(60).await;
    drained.stop(1);
    let closed = drained.0.node(1);
    tokio::time::timeout(Duration::from_secs(1), closed.stopping.closed())
        .await
        .unwrap();
    // The leader still leads while it stops.
    pause(8).await;
    drained.0.group.elect(Some(3));
    pause(60).await;
    assert!(!call.is_finished());
    drained.delete_row_on(3).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn call_outlives_the_leadership_of_the_leaver() {
    let drained = Drained::start(&[]).await;
    drained.0.group.elect(Some(3));
    let call = drained.remove(2, false);
    drained.until(2, leaving).await;
    // The leaver sees that another member leads, and not the end of its own removal.
    drained.0.group.elect(Some(1));
    pause(3).await;
    assert!(!call.is_finished());
    drained.delete_row_on(1).await;
    call.await.unwrap().unwrap();
}

fn row(id: &str, service: &str, host: &str) -> v1::ReplicaDesired {
    v1::ReplicaDesired {
        id: id.to_owned(),
        deployment: "app".to_owned(),
        service: service.to_owned(),
        host: host.to_owned(),
        ..Default::default()
    }
}

fn state(node: v1::Node, replicas: Vec<v1::ReplicaDesired>) -> State {
    let mut state = State::default();
    state.nodes.insert(node.hostname.clone(), Arc::new(node));
    for replica in replicas {
        let id = replica.id.clone();
        state.replicas_desired.insert(id, Arc::new(replica));
    }
    state
}

#[test]
fn state_tells_how_far_a_removal_is() {
    let node = |draining, status: NodeStatus, skip_moves: bool| v1::Node {
        hostname: "b".to_owned(),
        raft_id: 2,
        draining,
        status: status.into(),
        drain: skip_moves.then(|| v1::NodeDrain {
            skip_moves,
            ..Default::default()
        }),
        ..Default::default()
    };
    let here = || vec![row("app-web-0", "web", "b"), row("app-web-1", "web", "a")];
    let left = || vec!["app-web-0".to_owned()];
    for (node, replicas, expected) in [
        (
            node(true, NodeStatus::Ready, false),
            here(),
            Progress::Draining(left()),
        ),
        (
            node(true, NodeStatus::Ready, false),
            Vec::new(),
            Progress::Leaving,
        ),
        (
            node(true, NodeStatus::Ready, true),
            here(),
            Progress::Leaving,
        ),
        (
            node(true, NodeStatus::DrainTimeout, false),
            here(),
            Progress::TimedOut(left()),
        ),
        (
            node(false, NodeStatus::Ready, false),
            here(),
            Progress::GivenUp,
        ),
    ] {
        let state = state(node, replicas);
        assert_eq!(Progress::of(&state, "b", 2), expected);
        // Another member has taken the name since.
        assert_eq!(Progress::of(&state, "b", 1), Progress::Gone);
        assert_eq!(Progress::of(&state, "c", 3), Progress::Gone);
    }
}

#[test]
fn messages_name_services_replicas_and_remedy() {
    let rows = (0..7).map(|at| row(&format!("app-s{at}-0"), &format!("s{at}"), "b"));
    let state = state(v1::Node::default(), rows.collect());
    let stranded = ["app-s0-0".to_owned(), "app-s1-0".to_owned()];
    let error = no_placement(&state, "b", &stranded);
    assert_eq!(error.code, ErrorCode::DrainNoPlacement);
    for part in ["app/s0, app/s1", "\"b\"", "forced removal"] {
        assert!(error.message.contains(part), "{}", error.message);
    }
    assert_eq!(error.details["replicas"], "app-s0-0,app-s1-0");

    let left: Vec<String> = state.replicas_desired.keys().cloned().collect();
    let error = timed_out("b", &left);
    assert_eq!(error.code, ErrorCode::DrainTimeout);
    for part in ["7 replica(s)", "app-s0-0", "and 2 more", "\"b\""] {
        assert!(error.message.contains(part), "{}", error.message);
    }
    assert_eq!(error.details["replicas"].split(',').count(), 7);
}

#[test]
fn settings_are_written_only_for_equal_versions() {
    let node = |hostname: &str, version: &str| v1::Node {
        hostname: hostname.to_owned(),
        version: version.to_owned(),
        ..Default::default()
    };
    for (own, versions, expected) in [
        ("a", ["1.0", "1.0", "1.0"], true),
        ("a", ["1.0", "1.0", "0.9"], true),
        ("a", ["1.0", "0.9", "1.0"], false),
        ("a", ["1.0", "", "1.0"], false),
        // The leader itself leaves.
        ("c", ["0.9", "0.9", "1.0"], false),
        ("c", ["1.0", "1.0", "1.0"], true),
    ] {
        let mut state = State::default();
        for (hostname, version) in ["a", "b", "c"].into_iter().zip(versions) {
            let row = Arc::new(node(hostname, version));
            state.nodes.insert(hostname.to_owned(), row);
        }
        assert_eq!(is_uniform(&state, own, "c"), expected, "{own} {versions:?}");
    }
}
