//! Replica actors that exhaust their restarts.

use super::*;

impl Node {
    fn actor(&self, id: &str) -> Option<ActorState> {
        let path = format!("node/runtime/replica:{id}");
        let mut tree = self.tree.describe().into_iter();
        tree.find(|info| info.path == path).map(|info| info.state)
    }

    /// Kills the actor of a replica until its restarts are exhausted, and that is reported.
    async fn exhaust(&self, id: &str) {
        let path = format!("node/runtime/replica:{id}");
        for _ in 0..10 {
            // Killing fails while the actor is restarting.
            let _ = self.tree.kill(&path, KillMode::Kill);
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        assert_eq!(self.actor(id), Some(ActorState::Exhausted));
        let seen = self.observed(id, |seen| seen.code == "restart_exhausted");
        assert_eq!(seen.await.details["cause"], "actor");
    }
}

#[tokio::test(start_paused = true)]
async fn exhausted_replica_starts_again_with_newer_row() {
    for manager_restarts in [false, true] {
        let node = Node::new().await;
        node.deploy(ONE);
        let id = node.upsert("web", 0);
        node.running(&id).await;
        node.exhaust(&id).await;
        if manager_restarts {
            let manager = "node/runtime/replicas";
            node.tree.kill(manager, KillMode::Kill).unwrap();
        }
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(node.actor(&id), Some(ActorState::Exhausted));
        node.upsert("web", 0);
        node.running(&id).await;
        assert_eq!(node.actor(&id), Some(ActorState::Running));
    }
}

#[tokio::test(start_paused = true)]
async fn container_of_exhausted_replica_is_swept_after_removal() {
    let node = Node::new().await;
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    node.running(&id).await;
    node.exhaust(&id).await;
    node.apply(Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
        id: id.clone(),
    }));
    node.until("it is gone", || node.engine.names().is_empty())
        .await;
    assert_eq!(node.actor(&id), None);
}
