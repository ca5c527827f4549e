//! Containers leave the routing of the cluster before they are stopped.

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Routing that has the entries up to an index in force.
struct UpTo(watch::Sender<u64>);

impl Spread for UpTo {
    fn reached(&self, index: u64) -> BoxFuture<'static, ()> {
        let mut applied = self.0.subscribe();
        Box::pin(async move {
            let _ = applied.wait_for(|applied| *applied >= index).await; // the test may end
        })
    }
}

/// A node with a running replica, and its routing.
async fn serving() -> (Node, Arc<UpTo>, String) {
    let state = State {
        cluster: Some(Arc::new(v1::ClusterMeta {
            cluster_id: CLUSTER.into(),
            ..Default::default()
        })),
        ..Default::default()
    };
    let routing = Arc::new(UpTo(watch::Sender::new(0)));
    let node = Node::routed(
        SupervisorSpec::new(Strategy::OneForOne),
        MemoryRaft::new(state),
        "n1",
        FakeEngine::new(),
        true,
        Arc::new(NoNetworks),
        routing.clone(),
    );
    let node = node.await;
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    node.running(&id).await;
    (node, routing, id)
}

fn remove(node: &Node, id: &str) {
    node.apply(Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
        id: id.to_owned(),
    }));
}

#[tokio::test(start_paused = true)]
async fn removed_replica_stops_once_withdrawn() {
    let (node, routing, id) = serving().await;
    remove(&node, &id);
    let removed = node.raft.state().applied_index;
    routing.0.send_replace(removed - 1);
    sleep(SECOND).await;
    assert_eq!(node.engine.running(), 1);
    routing.0.send_replace(removed);
    sleep(SECOND / 10).await;
    assert_eq!(node.engine.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn node_without_answer_delays_the_stop_two_seconds() {
    let (node, _routing, id) = serving().await;
    remove(&node, &id);
    let removed = Instant::now();
    sleep(2 * SECOND - SECOND / 10).await;
    assert_eq!(node.engine.running(), 1);
    node.until("it is stopped", || node.engine.running() == 0)
        .await;
    assert!(removed.elapsed() < 3 * SECOND, "{:?}", removed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn replaced_container_is_withdrawn_by_a_report() {
    let (node, routing, id) = serving().await;
    node.upsert("web", 0);
    let issued = node.raft.state().applied_index;
    // The new row alone does not end the routing to the old container.
    routing.0.send_replace(issued);
    let updating = |seen: &v1::ReplicaObserved| seen.state() == ReplicaState::Updating;
    node.observed(&id, updating).await;
    sleep(SECOND).await;
    assert_eq!(node.engine.journal(), ["+jaco_shop-web-0"]);
    routing.0.send_replace(node.raft.state().applied_index);
    sleep(SECOND / 10).await;
    let journal = node.engine.journal();
    assert_eq!(journal[..2], ["+jaco_shop-web-0", "-jaco_shop-web-0"]);
    node.running(&id).await;
}

#[tokio::test(start_paused = true)]
async fn crashed_container_is_replaced_without_withdrawal() {
    let (node, _routing, id) = serving().await;
    let container = node.raft.state().replicas_observed[&id]
        .container_id
        .clone();
    node.engine.die(&container);
    sleep(SECOND + SECOND / 2).await;
    assert_eq!(node.engine.running(), 1, "restarted after one second");
}
