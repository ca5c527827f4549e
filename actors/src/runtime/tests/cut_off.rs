//! A node without contact to the cluster keeps its containers running and starts no others.

use super::*;
use crate::network;

/// Starts a member whose networks are bridges; returns a handle to its leadership.
async fn on_bridges() -> (Node, watch::Sender<bool>) {
    let member = v1::Node {
        hostname: "n1".into(),
        status: v1::NodeStatus::Ready.into(),
        ..Default::default()
    };
    let state = State {
        cluster: Some(Arc::new(v1::ClusterMeta {
            cluster_id: CLUSTER.into(),
            ..Default::default()
        })),
        nodes: [("n1".to_owned(), Arc::new(member))].into_iter().collect(),
        ..Default::default()
    };
    let raft = MemoryRaft::new(state);
    let engine = FakeEngine::new();
    let (leads, is_leader) = watch::channel(true);
    let (bridges, _, directory, _) = network::supervisor(network::Args {
        cluster_id: CLUSTER.into(),
        host: "n1".into(),
        raft: Arc::new(raft.clone()),
        is_leader,
        clock: Clock::system(),
        pool: network::ipam::Pool::default(),
        engine: Arc::new(engine.clone()),
        remote: network::ipam::no_allocator(),
    });
    let root = SupervisorSpec::new(Strategy::OneForOne).child(bridges);
    let networks = Arc::new(directory);
    let node = Node::beside(root, raft, "n1", engine, true, networks).await;
    (node, leads)
}

#[tokio::test(start_paused = true)]
async fn restart_without_leader_reuses_existing_network() {
    let (node, leads) = on_bridges().await;
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let first = node.running(&id).await.container_id;
    leads.send_replace(false);
    node.caught_up.send_replace(false);
    node.engine.die(&first);
    let again = node.observed(&id, |seen| {
        seen.state() == ReplicaState::Running && seen.container_id != first
    });
    again.await;
    assert_eq!(node.engine.names(), ["jaco_shop-web-0"]);
}

#[tokio::test(start_paused = true)]
async fn losing_cluster_contact_cancels_start() {
    for waits in [true, false] {
        let node = Node::new().await;
        if waits {
            // The first pull fails; a retry would succeed.
            let error = EngineError::Api {
                status: 500,
                message: "no route to host".into(),
            };
            node.engine.script_pull(stream::iter([Err(error)]));
        } else {
            let slow = tokio::time::sleep(Duration::from_secs(60));
            node.engine.script_pull(stream::once(async {
                slow.await;
                Ok(())
            }));
        }
        node.deploy(ONE);
        let id = node.upsert("web", 0);
        let code = if waits {
            "image_pull_failed"
        } else {
            "pulling"
        };
        node.observed(&id, |seen| seen.code == code).await;
        node.caught_up.send_replace(false);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(node.engine.journal(), Vec::<String>::new(), "{code}");
        node.caught_up.send_replace(true);
        node.running(&id).await;
    }
}
