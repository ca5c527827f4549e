use std::time::SystemTime;

use jaco_proto::v1;
use jaco_raftnode::{StateReader as _, testing::MemoryRaft};
use jaco_supervision::{ChildSpec, KillMode, Strategy, SupervisorSpec, Tree};
use tokio::time::Instant;

use super::*;

struct Lab {
    raft: MemoryRaft,
    clock: Clock,
    lead: watch::Sender<bool>,
    tree: Tree,
    allocator: SharedAllocator,
}

impl Lab {
    async fn start(leads: bool) -> Self {
        let raft = MemoryRaft::with_ready_nodes(&["n1", "n2"]);
        let (lead, is_leader) = watch::channel(leads);
        let start = Instant::now();
        let clock = Clock::from_fn(move || SystemTime::UNIX_EPOCH + start.elapsed());
        let args = Args {
            raft: Arc::new(raft.clone()),
            is_leader,
            clock: clock.clone(),
            pool: Pool::new("10.9.240.0/20".parse().unwrap(), 24).unwrap(),
        };
        let (ipam, handle) = ChildSpec::worker::<IpamActor>("ipam", args);
        let tree = Tree::start("node", SupervisorSpec::new(Strategy::OneForOne).child(ipam));
        let tree = tree.await.unwrap();
        handle.running().await;
        let lab = Self {
            raft,
            clock,
            lead,
            tree,
            allocator: allocator(handle),
        };
        lab.deploy("app");
        lab
    }

    fn apply(&self, payload: Payload) {
        self.raft
            .apply(command("test", self.clock.timestamp(), payload))
            .unwrap();
    }

    fn deploy(&self, name: &str) {
        self.apply(Payload::DeploymentApply(v1::DeploymentApply {
            deployment: name.into(),
            revision: 1,
            ..Default::default()
        }));
    }

    async fn ensure(&self, network: &str, host: &str) -> Result<String, Error> {
        self.ensure_other(network, host, &[]).await
    }

    async fn ensure_other(
        &self,
        network: &str,
        host: &str,
        refused: &[&str],
    ) -> Result<String, Error> {
        let refused = refused.iter().map(|cidr| cidr.parse().unwrap()).collect();
        let key = key("app", network, host);
        let cidr = self.allocator.ensure(key, refused).await?;
        Ok(cidr.to_string())
    }
}

fn key(deployment: &str, network: &str, host: &str) -> SubnetKey {
    SubnetKey {
        deployment: deployment.into(),
        network: network.into(),
        host: host.into(),
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_request_returns_same_block_without_write() {
    let lab = Lab::start(true).await;
    assert_eq!(lab.ensure("a", "n1").await.as_deref(), Ok("10.9.240.0/24"));
    assert_eq!(lab.ensure("a", "n2").await.as_deref(), Ok("10.9.241.0/24"));
    let commits = lab.raft.committed().len();
    assert_eq!(lab.ensure("a", "n1").await.as_deref(), Ok("10.9.240.0/24"));
    assert_eq!(lab.raft.committed().len(), commits);
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_never_share_a_block() {
    let lab = Lab::start(true).await;
    let names: Vec<String> = (0..16).map(|at| format!("net{}", at % 8)).collect();
    let requests = names.iter().map(|name| lab.ensure(name, "n1"));
    let blocks = futures::future::try_join_all(requests).await.unwrap();
    assert_eq!(blocks[..8], blocks[8..], "equal requests get equal blocks");
    let distinct: std::collections::BTreeSet<_> = blocks.iter().collect();
    assert_eq!(distinct.len(), 8);
    assert_eq!(lab.raft.state().subnets.len(), 8);
}

#[tokio::test(start_paused = true)]
async fn exhausted_pool_recovers_after_quarantine() {
    let lab = Lab::start(true).await;
    lab.deploy("gone");
    for at in 0..16 {
        let deployment = if at == 7 { "gone" } else { "app" };
        let key = key(deployment, &format!("net{at}"), "n1");
        lab.allocator.ensure(key, Vec::new()).await.unwrap();
    }
    let exhausted = Err(Error::Exhausted(key("app", "more", "n1")));
    assert_eq!(lab.ensure("more", "n1").await, exhausted);
    lab.apply(Payload::DeploymentDelete(v1::DeploymentDelete {
        deployment: "gone".into(),
    }));
    assert_eq!(lab.ensure("more", "n1").await, exhausted);
    tokio::time::sleep(jaco_policy::network::ipam::QUARANTINE).await;
    assert_eq!(
        lab.ensure("more", "n1").await.as_deref(),
        Ok("10.9.247.0/24")
    );
}

#[tokio::test(start_paused = true)]
async fn allocation_needs_leader_deployment_and_member() {
    let lab = Lab::start(false).await;
    assert_eq!(lab.ensure("a", "n1").await, Err(Error::NotLeader));
    lab.lead.send_replace(true);
    assert_eq!(
        lab.ensure("a", "n9").await,
        Err(Error::UnknownHost("n9".into()))
    );
    let gone = lab
        .allocator
        .ensure(key("gone", "a", "n1"), Vec::new())
        .await;
    assert_eq!(gone, Err(Error::UnknownDeployment("gone".into())));
    assert!(lab.raft.state().subnets.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_commit_is_returned_to_caller() {
    let lab = Lab::start(true).await;
    lab.raft.fail_next(1, ProposeError::NoLeader);
    let failed = Err(Error::Propose(ProposeError::NoLeader));
    assert_eq!(lab.ensure("a", "n1").await, failed);
    lab.raft.lose_next_answers(1);
    assert!(matches!(
        lab.ensure("a", "n1").await,
        Err(Error::Propose(ProposeError::Unknown(_)))
    ));
    assert_eq!(lab.ensure("a", "n1").await.as_deref(), Ok("10.9.240.0/24"));
    assert_eq!(lab.raft.state().subnets.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn restarted_allocator_resumes_from_state() {
    let lab = Lab::start(true).await;
    lab.ensure("a", "n1").await.unwrap();
    lab.tree.kill("node/ipam", KillMode::Panic).unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lab.ensure("a", "n1").await.as_deref(), Ok("10.9.240.0/24"));
    assert_eq!(lab.ensure("b", "n1").await.as_deref(), Ok("10.9.241.0/24"));
}

#[tokio::test(start_paused = true)]
async fn restarted_allocator_keeps_the_quarantine() {
    let lab = Lab::start(true).await;
    lab.deploy("gone");
    lab.allocator
        .ensure(key("gone", "a", "n1"), Vec::new())
        .await
        .unwrap();
    lab.tree.kill("node/ipam", KillMode::Kill).unwrap();
    // Freed while no instance runs.
    lab.apply(Payload::DeploymentDelete(v1::DeploymentDelete {
        deployment: "gone".into(),
    }));
    tokio::time::sleep(Duration::from_secs(10)).await;
    lab.tree.kill("node/ipam", KillMode::Panic).unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lab.ensure("a", "n1").await.as_deref(), Ok("10.9.241.0/24"));
}

#[tokio::test(start_paused = true)]
async fn refused_block_is_exchanged_for_another() {
    let lab = Lab::start(true).await;
    lab.ensure("a", "n1").await.unwrap();
    let moved = lab.ensure_other("a", "n1", &["10.9.240.0/24"]).await;
    assert_eq!(moved.as_deref(), Ok("10.9.241.0/24"));
    let again = lab.ensure_other("a", "n1", &["10.9.240.0/24"]).await;
    assert_eq!(again.as_deref(), Ok("10.9.241.0/24"));
    // Other hosts may use it, but only after the quarantine.
    assert_eq!(lab.ensure("a", "n2").await.as_deref(), Ok("10.9.242.0/24"));
    // A refused range excludes every block in it.
    let wide = lab.ensure_other("b", "n1", &["10.9.240.0/22"]).await;
    assert_eq!(wide.as_deref(), Ok("10.9.244.0/24"));
}
