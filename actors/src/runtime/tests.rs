//! The actors of a runtime together, with an in-memory engine and virtual time.

use std::time::Duration;

use jaco_engine::{EngineError, fake::FakeEngine};
use jaco_policy::runtime::replica::core::PULL_PROGRESS_TIMEOUT;
use jaco_proto::v1::{self, ReplicaState, command::Payload};
use jaco_raftnode::{ProposeError, State, StateReader as _, testing::MemoryRaft};

use futures::{StreamExt, stream};
use jaco_supervision::{ActorState, KillMode, Tree};
use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::health::ContactSwitch;

const CLUSTER: &str = "cl-1";

struct Node {
    raft: MemoryRaft,
    engine: FakeEngine,
    tree: Tree,
    contact: ContactSwitch,
    orphans_cleared: watch::Receiver<Option<ContactEpoch>>,
    reports: watch::Receiver<LocalReports>,
}

struct NoNetworks;

#[async_trait]
impl Networks for NoNetworks {
    async fn ensure(&self, _: &str, network: &str) -> Result<Attachment, NetworkError> {
        Ok(Attachment {
            network: network.to_owned(),
            engine_network: network.to_owned(),
            gateway: "10.0.0.1".to_owned(),
        })
    }
}

impl Node {
    async fn new() -> Self {
        Self::on(FakeEngine::new(), true).await
    }

    async fn on(engine: FakeEngine, caught_up: bool) -> Self {
        let state = State {
            cluster: Some(Arc::new(v1::ClusterMeta {
                cluster_id: CLUSTER.into(),
                ..Default::default()
            })),
            ..Default::default()
        };
        Self::of(MemoryRaft::new(state), "n1", engine, caught_up).await
    }

    async fn of(raft: MemoryRaft, host: &str, engine: FakeEngine, caught_up: bool) -> Self {
        let root = SupervisorSpec::new(Strategy::OneForOne);
        Self::beside(root, raft, host, engine, caught_up, Arc::new(NoNetworks)).await
    }

    /// Starts a node with `networks`, which other children of the root may provide.
    async fn beside(
        root: SupervisorSpec,
        raft: MemoryRaft,
        host: &str,
        engine: FakeEngine,
        caught_up: bool,
        networks: Arc<dyn Networks>,
    ) -> Self {
        let routing = Arc::new(crate::serving::Everywhere);
        Self::routed(root, raft, host, engine, caught_up, networks, routing).await
    }

    /// Starts a node whose containers leave `routing`.
    async fn routed(
        root: SupervisorSpec,
        raft: MemoryRaft,
        host: &str,
        engine: FakeEngine,
        caught_up: bool,
        networks: Arc<dyn Networks>,
        routing: Arc<dyn Spread>,
    ) -> Self {
        let contact = ContactSwitch::new(caught_up);
        let (reports, reported) = watch::channel(LocalReports::default());
        let deps = Deps {
            host: host.into(),
            engine: Arc::new(engine.clone()),
            networks,
            raft: Arc::new(raft.clone()),
            clock: Clock::system(),
            contact: contact.contact(),
            metrics: Metrics::new(host, Clock::system()),
            routing,
            files: FileMounts::in_directory("unused", watch::channel(None).1),
            reports,
        };
        let (spec, runtime) = supervisor("runtime", deps);
        let tree = Tree::start("node", root.child(spec)).await.unwrap();
        Self {
            raft,
            engine,
            tree,
            contact,
            orphans_cleared: runtime.orphans_cleared(),
            reports: reported,
        }
    }

    fn apply(&self, payload: Payload) {
        let command = v1::Command {
            cluster_id: CLUSTER.into(),
            ts: Some(Default::default()),
            identity: "test".into(),
            payload: Some(payload),
            ..Default::default()
        };
        self.raft.apply(command).unwrap();
    }

    fn deploy(&self, compose: &str) {
        let revision = self.raft.state().applied_index + 1;
        self.apply(Payload::DeploymentApply(v1::DeploymentApply {
            deployment: "shop".into(),
            revision,
            compose_yaml: compose.as_bytes().to_vec(),
            ..Default::default()
        }));
    }

    fn upsert(&self, service: &str, index: i32) -> String {
        let id = format!("shop-{service}-{index}");
        let row = v1::ReplicaDesired {
            id: id.clone(),
            deployment: "shop".into(),
            service: service.into(),
            index,
            host: "n1".into(),
            ..Default::default()
        };
        self.apply(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(row),
        }));
        id
    }

    async fn observed(
        &self,
        id: &str,
        what: impl Fn(&v1::ReplicaObserved) -> bool,
    ) -> v1::ReplicaObserved {
        let mut states = self.raft.subscribe();
        let seen = states.wait_for(|state| {
            state
                .replicas_observed
                .get(id)
                .is_some_and(|seen| what(seen))
        });
        let state = tokio::time::timeout(Duration::from_secs(600), seen).await;
        let state = state.expect("seen in time").unwrap().clone();
        state.replicas_observed[id].as_ref().clone()
    }

    async fn running(&self, id: &str) -> v1::ReplicaObserved {
        self.observed(id, |seen| seen.state() == ReplicaState::Running)
            .await
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        for _ in 0..1_000 {
            if holds() {
                return;
            }
            tokio::time::advance(Duration::from_millis(100)).await;
            tokio::task::yield_now().await;
        }
        panic!("never: {what}");
    }
}

const ONE: &str = "services:\n  web:\n    image: web:1\n";

#[tokio::test(start_paused = true)]
async fn idle_replicas_cost_few_calls_and_no_writes() {
    let node = Node::new().await;
    node.deploy(ONE);
    let ids: Vec<_> = (0..50).map(|index| node.upsert("web", index)).collect();
    for id in &ids {
        node.running(id).await;
    }
    let (calls, written) = (node.engine.calls(), node.raft.committed().len());
    let minutes = 10;
    tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
    // One inspection per replica and one listing per half minute.
    let allowed = 2 * minutes * 51 + 102;
    let spent = node.engine.calls() - calls;
    assert!(spent <= allowed, "{spent} calls, {allowed} allowed");
    assert!(
        spent >= 2 * (minutes - 1) * 50,
        "the safety net is gone: {spent}"
    );
    assert_eq!(node.raft.committed().len(), written);
}

#[tokio::test(start_paused = true)]
async fn newest_observation_is_written_after_raft_outage() {
    let node = Node::new().await;
    node.raft.fail_next(20, ProposeError::NoLeader);
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let seen = node.running(&id).await;
    assert_eq!(seen.container_id, "c1");
    let reports = node.raft.committed().len() - 2;
    assert_eq!(reports, 1, "reports before `running` were superseded");
}

#[tokio::test(start_paused = true)]
async fn host_knows_reports_before_the_cluster() {
    let node = Node::new().await;
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let container = node.running(&id).await.container_id;
    node.raft.fail_next(1_000, ProposeError::NoLeader);
    node.engine.die(&container);
    let mut reports = node.reports.clone();
    let ended = |reports: &LocalReports| {
        let report = reports.get(&id);
        report.is_some_and(|report| report.state() != ReplicaState::Running)
    };
    reports.wait_for(ended).await.unwrap();
    let state = node.raft.state();
    assert_eq!(state.replicas_observed[&id].state(), ReplicaState::Running);
    node.apply(Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
        id: id.clone(),
    }));
    let is_gone = |reports: &LocalReports| reports.get(&id).is_none();
    reports.wait_for(is_gone).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn report_lost_with_its_publisher_is_republished() {
    let node = Node::new().await;
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let container = node.running(&id).await.container_id;
    node.raft.fail_next(3, ProposeError::NoLeader);
    node.engine.die(&container);
    // The publisher has failed once and holds the report until its next attempt.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let state = node.raft.state();
    assert_eq!(state.replicas_observed[&id].state(), ReplicaState::Running);
    node.tree
        .kill("node/runtime/publisher", KillMode::Kill)
        .unwrap();
    let lost = tokio::time::Instant::now();
    node.observed(&id, |seen| seen.state() != ReplicaState::Running)
        .await;
    assert!(
        lost.elapsed() < Duration::from_secs(20),
        "only the tick found it"
    );
}

#[tokio::test(start_paused = true)]
async fn proposal_with_unknown_outcome_is_retried() {
    let node = Node::new().await;
    node.raft.lose_next_answers(3);
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    node.running(&id).await;
}

#[tokio::test(start_paused = true)]
async fn rejected_observation_does_not_block_others() {
    let node = Node::new().await;
    node.deploy(ONE);
    let refused = ProposeError::Rejected(jaco_proto::Error::new(
        jaco_proto::ErrorCode::Internal,
        "spoiled",
    ));
    node.raft.fail_next(1, refused);
    let ids: Vec<_> = (0..5).map(|index| node.upsert("web", index)).collect();
    for id in &ids {
        node.running(id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn engine_event_reveals_exit_at_once() {
    let node = Node::new().await;
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let container = node.running(&id).await.container_id;
    let died = tokio::time::Instant::now();
    node.engine.die(&container);
    node.observed(&id, |seen| seen.code == "container_exited")
        .await;
    assert!(
        died.elapsed() < Duration::from_millis(100),
        "{:?}",
        died.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn engine_outage_reports_pending_and_recovers() {
    let node = Node::new().await;
    node.engine.set_down(true);
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let seen = node
        .observed(&id, |seen| seen.state() == ReplicaState::Pending)
        .await;
    assert!(seen.details["reason"].contains("unreachable"), "{seen:?}");
    node.engine.set_down(false);
    node.running(&id).await;
    assert_eq!(node.engine.names(), ["jaco_shop-web-0"]);
}

#[tokio::test(start_paused = true)]
async fn dependent_waits_for_its_dependency() {
    let node = Node::new().await;
    node.deploy(
        "services:\n  db:\n    image: db:1\n  web:\n    image: web:1\n    depends_on:\n      \
         db:\n        condition: service_healthy\n",
    );
    let web = node.upsert("web", 0);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(node.engine.names().is_empty());
    assert!(!node.raft.state().replicas_observed.contains_key(&web));
    let db = node.upsert("db", 0);
    node.running(&db).await;
    node.running(&web).await;
}

#[tokio::test(start_paused = true)]
async fn pull_uses_credential_of_its_registry() {
    let node = Node::new().await;
    node.apply(Payload::RegistryCredentialUpsert(
        v1::RegistryCredentialUpsert {
            credential: Some(v1::RegistryCredential {
                registry: "ghcr.io/team".into(),
                username: "robot".into(),
                secret: b"s".to_vec(),
                updated_at: None,
            }),
        },
    ));
    node.deploy("services:\n  web:\n    image: ghcr.io/team/web:1\n");
    let id = node.upsert("web", 0);
    node.running(&id).await;
    let expected = ("ghcr.io/team/web:1".to_owned(), Some("robot".to_owned()));
    assert_eq!(node.engine.pulls(), [expected]);
}

/// Secret of [`login`].
const SECRET: &str = "hunter2-hunter2";

fn login() -> Payload {
    Payload::RegistryCredentialUpsert(v1::RegistryCredentialUpsert {
        credential: Some(v1::RegistryCredential {
            registry: "docker.io".into(),
            username: "robot".into(),
            secret: SECRET.into(),
            updated_at: None,
        }),
    })
}

fn failed_pull(seen: &v1::ReplicaObserved) -> bool {
    seen.state() == ReplicaState::Pending && seen.code == "image_pull_failed"
}

#[tokio::test(start_paused = true)]
async fn stalled_pull_times_out_and_is_retried() {
    let node = Node::new().await;
    node.engine.script_pull(stream::pending());
    node.deploy(ONE);
    let began = tokio::time::Instant::now();
    let id = node.upsert("web", 0);
    let seen = node.observed(&id, failed_pull).await;
    assert_eq!(began.elapsed().as_secs(), PULL_PROGRESS_TIMEOUT.as_secs());
    assert_eq!(seen.details["reason"], "web:1: no progress for 300 seconds");
    assert_eq!(seen.details["attempt"], "1");
    node.running(&id).await;
    assert_eq!(node.engine.pulls().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn slow_pull_with_progress_is_not_cancelled() {
    let node = Node::new().await;
    let steps = stream::iter(0..20).then(|_| async {
        tokio::time::sleep(PULL_PROGRESS_TIMEOUT - Duration::from_secs(2)).await;
        Ok(())
    });
    node.engine.script_pull(steps);
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    node.observed(&id, |seen| seen.code == "pulling").await;
    tokio::time::sleep(PULL_PROGRESS_TIMEOUT * 15).await;
    assert_eq!(node.raft.state().replicas_observed[&id].code, "pulling");
    tokio::time::sleep(PULL_PROGRESS_TIMEOUT * 5).await;
    node.running(&id).await;
    assert_eq!(node.engine.pulls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn removed_row_cancels_its_pull() {
    let node = Node::new().await;
    let (held, mut dropped) = tokio::sync::oneshot::channel::<()>();
    node.engine.script_pull(stream::once(async move {
        std::future::pending::<()>().await;
        drop(held);
        Ok(())
    }));
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    node.observed(&id, |seen| seen.code == "pulling").await;
    assert!(dropped.try_recv().is_err_and(|e| e == TryRecvError::Empty));
    node.apply(Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
        id,
    }));
    assert!(dropped.await.is_err(), "the pull was cancelled");
    assert_eq!(node.engine.names(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn secret_quoted_by_registry_is_redacted() {
    let node = Node::new().await;
    node.apply(login());
    let message = format!("denied: `{SECRET}` is wrong");
    let error = EngineError::Api {
        status: 500,
        message,
    };
    node.engine.script_pull(stream::iter([Err(error)]));
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let seen = node.observed(&id, failed_pull).await;
    assert_eq!(
        seen.details["reason"],
        "web:1: denied: `<redacted>` is wrong"
    );
    assert!(!format!("{seen:?}").contains(SECRET));
}

#[tokio::test(start_paused = true)]
async fn each_pull_attempt_uses_current_credential() {
    let node = Node::new().await;
    for _ in 0..2 {
        let error = EngineError::Api {
            status: 500,
            message: "unauthorized".into(),
        };
        node.engine.script_pull(stream::iter([Err(error)]));
    }
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let seen = node.observed(&id, failed_pull).await;
    assert_eq!(seen.details["attempt"], "1");
    node.apply(login());
    node.running(&id).await;
    let accounts = node.engine.pulls().into_iter().map(|(_, account)| account);
    let robot = Some("robot".to_owned());
    assert_eq!(accounts.collect::<Vec<_>>(), [None, robot.clone(), robot]);
}

#[tokio::test(start_paused = true)]
async fn killing_any_runtime_actor_keeps_containers() {
    let node = Node::new().await;
    node.deploy(ONE);
    let ids: Vec<_> = (0..3).map(|index| node.upsert("web", index)).collect();
    for id in &ids {
        node.running(id).await;
    }
    let written = node.raft.committed().len();
    let names = node.engine.names();
    let mut paths = vec!["replicas".to_owned(), "publisher".into(), "events".into()];
    paths.extend(ids.iter().map(|id| format!("replica:{id}")));
    for path in paths {
        for mode in [KillMode::Kill, KillMode::Panic] {
            let path = format!("node/runtime/{path}");
            node.tree.kill(&path, mode).unwrap();
            node.until("it is back", || {
                let info = node
                    .tree
                    .describe()
                    .into_iter()
                    .find(|info| info.path == path);
                info.is_some_and(|info| info.state == ActorState::Running)
            })
            .await;
        }
    }
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(node.engine.names(), names);
    assert_eq!(node.raft.committed().len(), written);
    // The tree still works: a new row is started, a removed one is cleaned up.
    let id = node.upsert("web", 3);
    node.running(&id).await;
    let id = ids[0].clone();
    node.apply(Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
        id,
    }));
    node.until("it is gone", || node.engine.names().len() == 3)
        .await;
}

#[tokio::test(start_paused = true)]
async fn restarted_manager_adopts_running_replica_actors() {
    let node = Node::new().await;
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    node.running(&id).await;
    let path = format!("node/runtime/replica:{id}");
    let uptime = || {
        let mut tree = node.tree.describe().into_iter();
        tree.find(|info| info.path == path)
            .and_then(|info| info.uptime)
    };
    let before = uptime().unwrap();
    node.tree
        .kill("node/runtime/replicas", KillMode::Kill)
        .unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(uptime().unwrap() >= before + Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn restarted_supervisor_restarts_every_replica() {
    let node = Node::new().await;
    node.deploy(ONE);
    let id = node.upsert("web", 0);
    let before = node.running(&id).await;
    node.tree.kill("node/runtime", KillMode::Kill).unwrap();
    let path = format!("node/runtime/replica:{id}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    node.until("the replica actor is back", || {
        let info = node
            .tree
            .describe()
            .into_iter()
            .find(|info| info.path == path);
        info.is_some_and(|info| info.state == ActorState::Running)
    })
    .await;
    node.engine.die(&before.container_id);
    node.observed(&id, |seen| {
        seen.container_id != before.container_id && !seen.container_id.is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_swept_before_node_caught_up() {
    let engine = FakeEngine::new();
    engine.insert_container(
        "old",
        &[("jaco.cluster_id", CLUSTER), ("jaco.replica_id", "gone-0")],
    );
    engine.insert_container(
        "other",
        &[("jaco.cluster_id", "cl-2"), ("jaco.replica_id", "gone-0")],
    );
    let node = Node::on(engine, false).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let swept_early = node.engine.names().len() < 2;
    node.contact.set(true);
    node.until("the orphan is gone", || node.engine.names() == ["other"])
        .await;
    assert!(!swept_early);
}

mod boot;
mod cut_off;
mod exhaustion;
mod moves;
mod withdrawal;
