//! Pulls without progress: a node's runtime runs in this process, whose clock can be advanced, on a
//! real engine.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use jaco_actors::{
    clock::Clock,
    health::ContactSwitch,
    runtime::{self, Deps, FileMounts, NetworkError, Networks},
    supervision::{Strategy, SupervisorSpec, Tree},
    telemetry::Metrics,
};
use jaco_chaos::{
    Engine, Registry, engine,
    registry::{Fault, Outcome, RequestKind},
    rng, test_permits, until,
    wait::WAIT_TIMEOUT,
};
use jaco_engine::{docker::DockerEngine, spec::Attachment};
use jaco_policy::runtime::replica::core::PULL_PROGRESS_TIMEOUT;
use jaco_proto::v1::{self, ReplicaObserved, ReplicaState, command::Payload};
use jaco_raftnode::{LeaderProposer, State, StateReader, testing::MemoryRaft};

const HOST: &str = "node-1";

/// The runtime of a node, with one replica without networks.
struct Node {
    raft: MemoryRaft,
    tree: Tree,
    cluster_id: String,
    deployment: String,
}

struct NoNetworks;

#[tonic::async_trait]
impl Networks for NoNetworks {
    async fn ensure(&self, _: &str, network: &str) -> Result<Attachment, NetworkError> {
        Err(NetworkError::Unavailable(network.to_owned()))
    }
}

impl Node {
    async fn new() -> Result<Self> {
        let unique = rng::unique();
        let cluster_id = format!("test-silence-{unique:016x}");
        let meta = v1::ClusterMeta {
            cluster_id: cluster_id.clone(),
            ..Default::default()
        };
        let raft = MemoryRaft::new(State {
            cluster: Some(Arc::new(meta)),
            ..Default::default()
        });
        let deps = Deps {
            host: HOST.to_owned(),
            engine: Arc::new(DockerEngine::new(engine::socket())),
            networks: Arc::new(NoNetworks),
            raft: Arc::new(raft.clone()),
            clock: Clock::system(),
            contact: ContactSwitch::new(true).contact(),
            metrics: Metrics::new(HOST, Clock::system()),
            routing: Arc::new(jaco_actors::serving::Everywhere),
            files: FileMounts::in_directory("unused", tokio::sync::watch::channel(None).1),
            reports: Default::default(),
        };
        let (spec, _) = runtime::supervisor("runtime", deps);
        let root = SupervisorSpec::new(Strategy::OneForOne).child(spec);
        Ok(Self {
            raft,
            tree: Tree::start("node", root).await.context("a tree")?,
            cluster_id,
            deployment: format!("silence-{:08x}", unique >> 32),
        })
    }

    async fn propose(&self, payload: Payload) -> Result<()> {
        let command = v1::Command {
            cluster_id: self.cluster_id.clone(),
            ts: Some(Clock::system().timestamp()),
            identity: "test".into(),
            payload: Some(payload),
            ..Default::default()
        };
        self.raft.propose(command).await?;
        Ok(())
    }

    /// Issues the row of a service with this image.
    async fn start(&self, image: &str) -> Result<()> {
        let compose = serde_json::json!({"services": {"web": {
            "image": image, "network_mode": "none", "command": ["sleep", "86400"],
            "stop_signal": "SIGKILL",
        }}});
        self.propose(Payload::DeploymentApply(v1::DeploymentApply {
            deployment: self.deployment.clone(),
            revision: 1,
            compose_yaml: compose.to_string().into_bytes(),
            ..Default::default()
        }))
        .await?;
        let row = v1::ReplicaDesired {
            id: self.id(),
            deployment: self.deployment.clone(),
            service: "web".into(),
            host: HOST.into(),
            ..Default::default()
        };
        self.propose(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(row),
        }))
        .await
    }

    fn id(&self) -> String {
        format!("{}-web-0", self.deployment)
    }

    async fn observed(
        &self,
        what: &str,
        wanted: impl Fn(&ReplicaObserved) -> bool,
    ) -> Result<ReplicaObserved> {
        let id = self.id();
        until(what, WAIT_TIMEOUT, || async {
            let state = self.raft.state();
            let seen = state.replicas_observed.get(&id);
            let found = seen.filter(|seen| wanted(seen.as_ref()));
            found
                .map(|seen| seen.as_ref().clone())
                .ok_or_else(|| format!("{seen:?}"))
        })
        .await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Drop cannot return an error.
        let _ = Engine::sweep_blocking(&self.cluster_id);
    }
}

/// Advances the clock of this process; the engine and the registry use real time.
async fn put_forward(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn pull_without_progress_fails_and_is_retried() -> Result<()> {
    let _permits = test_permits::heavy().await;
    for (part, fault) in [
        (RequestKind::Manifests, Fault::Hang),
        (RequestKind::Blobs, Fault::StallAt(10_000)),
    ] {
        let registry = Registry::public().await?;
        registry.push("deaf:1", "deaf").await?;
        let proxy = registry.proxy();
        proxy.inject(part, "", fault);
        let node = Node::new().await?;
        let image = registry.image("deaf:1");
        node.start(&image).await?;
        until("a request that hangs", WAIT_TIMEOUT, || async {
            let seen = proxy.requests();
            let held = |seen: &jaco_chaos::registry::RecordedRequest| seen.outcome == Outcome::Open;
            ensure!(seen.iter().any(held), "{seen:?}");
            Ok(())
        })
        .await?;
        node.observed("it is pulling", |seen| seen.code == "pulling")
            .await?;
        put_forward(PULL_PROGRESS_TIMEOUT).await;
        let seen = node
            .observed("it gave up", |seen| seen.code == "image_pull_failed")
            .await?;
        ensure!(seen.state() == ReplicaState::Pending, "{seen:?}");
        let reason = format!(
            "{image}: no progress for {} seconds",
            PULL_PROGRESS_TIMEOUT.as_secs()
        );
        ensure!(seen.details["reason"] == reason, "{seen:?}");
        proxy.clear_faults();
        node.observed("it runs", |seen| seen.state() == ReplicaState::Running)
            .await?;
        node.tree.stop().await;
        drop(node);
        drop(registry);
    }
    Ok(())
}
