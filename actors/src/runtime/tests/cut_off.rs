//! A node without contact to the cluster keeps its containers running and starts no others.

use jaco_engine::fake::HeldCall;
use tokio::sync::oneshot;

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
        cluster: Arc::new(raft.clone()),
        remote: network::ipam::no_allocator(),
        interfaces: Arc::new(|| Ok(Vec::new())),
        gate: Arc::new(network::gate::NoIsolation),
        responders: Arc::new(network::responders::NoResponders),
        mesh: None,
        dns: None,
        firewall: None,
        local: tokio::sync::watch::Sender::default(),
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
    node.contact.set(false);
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
        node.contact.set(false);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(node.engine.journal(), Vec::<String>::new(), "{code}");
        node.contact.set(true);
        node.running(&id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pull_ending_after_pause_starts_nothing() {
    // Contact is lost, or it is another one in which no orphans were cleared.
    for in_contact in [false, true] {
        let node = Node::new().await;
        let (release, held) = oneshot::channel::<()>();
        node.engine.script_pull(stream::once(async {
            let _ = held.await;
            Ok(())
        }));
        node.deploy(ONE);
        let id = node.upsert("web", 0);
        node.observed(&id, |seen| seen.code == "pulling").await;
        // As after a pause of the process: no actor knows yet.
        node.contact.set_unnoticed(in_contact);
        release.send(()).unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(node.engine.journal(), [""; 0], "in contact: {in_contact}");
        node.contact.set(true);
        node.running(&id).await;
        assert_eq!(node.engine.journal(), ["+jaco_shop-web-0"]);
    }
}

#[tokio::test(start_paused = true)]
async fn start_overtaken_during_create_is_dropped() {
    for moves in [false, true] {
        let node = Node::new().await;
        let release = node.engine.hold_next(HeldCall::Create);
        node.deploy(ONE);
        let id = node.upsert("web", 0);
        node.until("the engine creates it", || node.engine.names().len() == 1)
            .await;
        if moves {
            let row = v1::ReplicaDesired {
                host: "n2".into(),
                ..node.raft.state().replicas_desired[&id].as_ref().clone()
            };
            node.apply(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
                replica: Some(row),
            }));
        } else {
            node.contact.set_unnoticed(false);
        }
        release.send(()).unwrap();
        node.until("it is removed", || node.engine.names().is_empty())
            .await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let journal = ["+jaco_shop-web-0", "-jaco_shop-web-0"];
        assert_eq!(node.engine.journal(), journal, "moves: {moves}");
        assert_eq!(node.engine.starts(), 0, "moves: {moves}");
    }
}
