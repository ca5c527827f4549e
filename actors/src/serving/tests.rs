//! Members in one process, whose routing the tests install by hand.

use std::time::Duration;

use futures::FutureExt as _;
use jaco_policy::ingress::table::same_input;
use jaco_proto::v1::{NodeStatus, NodeStatusUpdate, command::Payload};
use jaco_raftnode::{LeaderProposer as _, command};
use prost_types::Timestamp;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::{
    node::MemberContext,
    testing::cluster::{Cluster, Fault},
};

/// Longer than a call that gets no answer.
const LONG: Duration = Duration::from_secs(60);

fn members(cluster: &Cluster) -> Vec<Arc<MemberContext>> {
    let nodes = (1..=3).map(|id| cluster.node(id).running().unwrap());
    nodes.collect()
}

/// One part of the routing of each member, none installed yet.
fn parts(members: &[Arc<MemberContext>]) -> Vec<Installed> {
    let parts = members.iter().map(|node| node.serving.part(same_input));
    parts.collect()
}

fn calls(cluster: &Cluster) -> usize {
    let calls = cluster.network.calls();
    let routing = |method: &str| method.ends_with("/AwaitRouting");
    calls.iter().filter(|call| routing(&call.method)).count()
}

#[tokio::test(start_paused = true)]
async fn entry_is_spread_once_every_node_has_it() {
    let cluster = Cluster::start(3).await;
    let members = members(&cluster);
    let parts = parts(&members);
    let state = members[0].raft.state();
    let reached = members[1].routing().reached(state.applied_index).shared();
    for (part, node) in parts.iter().zip(&members) {
        sleep(LONG).await;
        assert_eq!(reached.clone().now_or_never(), None);
        let waits = timeout(Duration::from_millis(1), reached.clone()).await;
        assert!(waits.is_err(), "a node has not installed it");
        part.set(node.raft.state());
    }
    timeout(LONG, reached).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn call_that_fails_is_repeated() {
    let cluster = Cluster::start(3).await;
    let members = members(&cluster);
    for fault in [Fault::NotSent, Fault::Lose, Fault::Break, Fault::Hang] {
        cluster.network.faults(&[fault]);
        let index = members[0].raft.state().applied_index;
        let node = members[0].clone();
        let routing = ClusterRouting::new(
            node.hostname.clone(),
            Arc::new(node.raft.clone()),
            node.serving.clone(),
            node.peers.clone(),
        );
        timeout(LONG, routing.reached(index)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn waits_for_one_node_share_a_call() {
    let cluster = Cluster::start(3).await;
    let members = members(&cluster);
    let index = members[0].raft.state().applied_index;
    let waits = (0..50).map(|_| members[0].routing().reached(index));
    join_all(waits).await;
    assert_eq!(calls(&cluster), 2, "one for each other node");
}

#[tokio::test(start_paused = true)]
async fn offline_node_is_not_waited_for() {
    let cluster = Cluster::start(3).await;
    let members = members(&cluster);
    let parts = parts(&members);
    let update = Payload::NodeStatusUpdate(NodeStatusUpdate {
        hostname: "n3".to_owned(),
        status: NodeStatus::Offline.into(),
        ..Default::default()
    });
    let update = command("health", Timestamp::default(), update);
    let raft = cluster.group.handle(1);
    let index = raft.propose(update).await.unwrap().index;
    for (part, node) in parts.iter().zip(&members).take(2) {
        let mut states = node.raft.subscribe();
        let newest = states.wait_for(|state| state.applied_index >= index);
        part.set(newest.await.unwrap().clone());
    }
    let start = Instant::now();
    members[0].routing().reached(index).await;
    assert!(start.elapsed() < Duration::from_secs(1));
}
