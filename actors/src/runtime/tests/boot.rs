//! Containers that exist when a node boots.

use super::*;

/// Networks that are isolated once a test says so.
struct Isolated(watch::Receiver<bool>);

#[async_trait]
impl Networks for Isolated {
    async fn ensure(&self, _: &str, network: &str) -> Result<Attachment, NetworkError> {
        if !*self.0.borrow() {
            let why = "the isolation ruleset is not in force".to_owned();
            return Err(NetworkError::Unavailable(why));
        }
        NoNetworks.ensure("", network).await
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_container_starts_after_its_networks_are_isolated() {
    let node = Node::new().await;
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let container = node.running(&id).await.container_id;
    let (raft, engine) = (node.raft.clone(), node.engine.clone());
    node.tree.stop().await;
    let _ = engine.stop(&container).await;
    let (isolated, networks) = watch::channel(false);
    let root = SupervisorSpec::new(Strategy::OneForOne);
    let networks = Arc::new(Isolated(networks));
    let node = Node::beside(root, raft, "n1", engine.clone(), true, networks).await;
    let waits = node.observed(&id, |seen| seen.state() == ReplicaState::Pending);
    waits.await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(engine.running(), 0);
    isolated.send_replace(true);
    assert_eq!(node.running(&id).await.container_id, container);
}
