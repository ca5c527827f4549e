//! A node's runtime on an in-memory state machine and a real engine.

use std::{
    future::Future,
    io::Write as _,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jaco_actors::{
    clock::Clock,
    health::ContactSwitch,
    runtime::{self, Deps, FileMounts, NetworkError, Networks, Runtime},
    supervision::{ActorInfo, Strategy, SupervisorSpec, Tree},
    telemetry::Metrics,
};
use jaco_engine::{docker::DockerEngine, spec::Attachment};
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::{LeaderProposer, State, StateReader, testing::MemoryRaft};

/// Hostname of the one node.
pub(crate) const HOST: &str = "node-1";
const TIMEOUT: Duration = Duration::from_secs(45);

/// One node's runtime on an in-memory state machine and a real engine.
pub(crate) struct Lab {
    pub(crate) cluster_id: String,
    pub(crate) deployment: String,
    pub(crate) id: String,
    pub(crate) image: String,
    pub(crate) raft: MemoryRaft,
    pub(crate) tree: Tree,
    pub(crate) runtime: Runtime,
    contact: ContactSwitch,
}

/// Networks that the test created itself.
struct Ready;

#[async_trait]
impl Networks for Ready {
    async fn ensure(&self, deployment: &str, network: &str) -> Result<Attachment, NetworkError> {
        Ok(Attachment {
            network: network.to_owned(),
            engine_network: format!("jaco_{deployment}_{network}"),
            gateway: "127.0.0.1".to_owned(),
        })
    }
}

impl Lab {
    pub(crate) async fn new(name: &str) -> Self {
        Self::prepare(name, true).await
    }

    pub(crate) async fn prepare(name: &str, caught_up: bool) -> Self {
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let cluster_id = format!("test-{name}-{unique}");
        let image = format!("jaco-runtime-test:{unique}");
        import(&image);
        let state = State {
            cluster: Some(Arc::new(v1::ClusterMeta {
                cluster_id: cluster_id.clone(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let raft = MemoryRaft::new(state);
        let contact = ContactSwitch::new(caught_up);
        let deps = Deps {
            host: HOST.to_owned(),
            engine: Arc::new(DockerEngine::new(socket())),
            networks: Arc::new(Ready),
            raft: Arc::new(raft.clone()),
            clock: Clock::system(),
            contact: contact.contact(),
            metrics: Metrics::new(HOST, Clock::system()),
            routing: Arc::new(jaco_actors::serving::Everywhere),
            files: FileMounts::in_directory("unused", tokio::sync::watch::channel(None).1),
            reports: Default::default(),
        };
        let (spec, runtime) = runtime::supervisor("runtime", deps);
        let root = SupervisorSpec::new(Strategy::OneForOne).child(spec);
        let tree = Tree::start("node", root).await.expect("a tree");
        let deployment = format!("{name}{}", &unique[..8]);
        Self {
            id: format!("{deployment}-web-0"),
            cluster_id,
            deployment,
            image,
            raft,
            tree,
            runtime,
            contact,
        }
    }

    /// Returns a compose file with one service `web` that runs `script`.
    pub(crate) fn service(&self, script: &str, extra: &str) -> String {
        format!(
            "services:\n  web:\n    image: {}\n    pull_policy: never\n    network_mode: none\n    \
             command: [\"/bin/busybox\", \"sh\", \"-c\", \"{script}\"]\n{extra}",
            self.image
        )
    }

    /// Applies a document and issues its row.
    pub(crate) async fn apply(&self, compose: &str, revision: u64) {
        let service = v1::ServiceSpec {
            name: "web".into(),
            replicas: 1,
            ..Default::default()
        };
        self.propose(Payload::DeploymentApply(v1::DeploymentApply {
            deployment: self.deployment.clone(),
            revision,
            compose_yaml: compose.as_bytes().to_vec(),
            services: vec![service],
            ..Default::default()
        }))
        .await;
        let row = v1::ReplicaDesired {
            id: self.id.clone(),
            deployment: self.deployment.clone(),
            service: "web".into(),
            host: HOST.into(),
            ..Default::default()
        };
        self.propose(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(row),
        }))
        .await;
    }

    /// Removes the row.
    pub(crate) async fn remove(&self) {
        let id = self.id.clone();
        self.propose(Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
            id,
        }))
        .await;
    }

    async fn propose(&self, payload: Payload) {
        let command = v1::Command {
            cluster_id: self.cluster_id.clone(),
            ts: Some(Clock::system().timestamp()),
            identity: "test".into(),
            payload: Some(payload),
            ..Default::default()
        };
        self.raft.propose(command).await.expect("committed");
    }

    pub(crate) fn catch_up(&self) {
        self.contact.set(true);
    }

    pub(crate) fn row(&self) -> Arc<v1::ReplicaDesired> {
        Arc::clone(&self.raft.state().replicas_desired[&self.id])
    }

    /// Every observation that was written, in order.
    pub(crate) fn reports(&self) -> Vec<v1::ReplicaObserved> {
        fn collect(command: v1::Command, into: &mut Vec<v1::ReplicaObserved>) {
            match command.payload {
                Some(Payload::ReplicaObservedUpdate(update)) => into.extend(update.replica),
                Some(Payload::Batch(batch)) => {
                    batch
                        .children
                        .into_iter()
                        .for_each(|child| collect(child, into));
                }
                _ => {}
            }
        }
        let mut reports = Vec::new();
        for command in self.raft.committed() {
            collect(command, &mut reports);
        }
        reports
    }

    /// Waits until the newest row's replica runs.
    pub(crate) async fn running(&self) -> v1::ReplicaObserved {
        let index = self.row().raft_index;
        self.observed("the replica runs", |seen| {
            seen.state() == v1::ReplicaState::Running && seen.desired_raft_index == index
        })
        .await
    }

    /// Waits for an observation.
    pub(crate) async fn observed(
        &self,
        what: &str,
        wanted: impl Fn(&v1::ReplicaObserved) -> bool,
    ) -> v1::ReplicaObserved {
        let mut states = self.raft.subscribe();
        let seen = states.wait_for(|state| {
            state
                .replicas_observed
                .get(&self.id)
                .is_some_and(|seen| wanted(seen))
        });
        let state = match tokio::time::timeout(TIMEOUT, seen).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) | Err(_) => panic!("not seen: {what}; reports: {:#?}", self.reports()),
        };
        v1::ReplicaObserved::clone(&state.replicas_observed[&self.id])
    }

    /// Waits for a condition outside the state, by polling.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        let waited = async {
            while !holds() {
                tick.tick().await;
            }
        };
        if tokio::time::timeout(TIMEOUT, waited).await.is_err() {
            panic!("never true: {what}; reports: {:#?}", self.reports());
        }
    }

    /// Waits at most as long as a test may take.
    pub(crate) async fn soon<T>(&self, what: impl Future<Output = T>) -> T {
        tokio::time::timeout(TIMEOUT, what).await.expect("in time")
    }

    pub(crate) fn actor_path(&self) -> String {
        format!("node/runtime/replica:{}", self.id)
    }

    pub(crate) fn replica_actor(&self) -> Option<ActorInfo> {
        let path = self.actor_path();
        self.tree
            .describe()
            .into_iter()
            .find(|info| info.path == path)
    }

    /// Full ids of the replica's containers, in any state.
    pub(crate) fn containers(&self) -> Vec<String> {
        let filter = format!("label=jaco.replica_id={}", self.id);
        let ids = docker(&["ps", "-aq", "--no-trunc", "--filter", &filter]);
        ids.expect("docker ps")
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn exists(&self, container: &str) -> bool {
        docker(&["inspect", container]).is_ok()
    }

    /// Lines of a container that the engine has, of both streams.
    pub(crate) fn logged(&self, container: &str) -> usize {
        let output = Command::new("docker")
            .args(["-H", &format!("unix://{}", socket()), "logs", container])
            .output()
            .expect("docker");
        let lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
        lines(&output.stdout) + lines(&output.stderr)
    }

    pub(crate) fn is_up(&self, container: &str) -> bool {
        self.docker(&["inspect", "-f", "{{.State.Running}}", container]) == "true"
    }

    /// Starts a container without the runtime.
    pub(crate) fn run_container(&self, labels: &[&str]) -> String {
        let mut args = vec!["run", "-d", "--network", "none"];
        for label in labels {
            args.extend(["--label", label]);
        }
        args.extend([&self.image, "/bin/busybox", "sleep", "600"]);
        self.docker(&args)
    }

    /// Starts the container that the runtime adopts for the next applied row.
    pub(crate) fn run_replica(&self, options: &[&str], script: &str) -> String {
        let labels = [
            format!("jaco.cluster_id={}", self.cluster_id),
            format!("jaco.replica_id={}", self.id),
            format!("jaco.raft_index={}", self.raft.state().applied_index + 2),
        ];
        let name = format!("jaco_{}", self.id);
        let mut args = vec!["run", "-d", "--network", "none", "--name", &name];
        args.extend(options);
        for label in &labels {
            args.extend(["--label", label]);
        }
        args.extend([&self.image, "/bin/busybox", "sh", "-c", script]);
        self.docker(&args)
    }

    /// Whether the engine is Podman, which has its own limits.
    pub(crate) fn is_podman(&self) -> bool {
        self.docker(&["version"]).contains("Podman")
    }

    /// Restarts a container on the engine; an error if its replica actor replaced it meanwhile.
    /// Does not block the caller's task.
    pub(crate) async fn restart(&self, container: &str) -> Result<(), String> {
        let container = container.to_owned();
        let asked =
            tokio::task::spawn_blocking(move || docker(&["restart", "-t", "5", &container]));
        match asked.await.expect("docker") {
            Err(error) if !is_replaced(&error) => panic!("docker restart: {error}"),
            outcome => outcome.map(drop),
        }
    }

    pub(crate) fn docker(&self, args: &[&str]) -> String {
        docker(args).unwrap_or_else(|error| panic!("docker {args:?}: {error}"))
    }

    /// Stops the node; its remaining objects are removed when the lab is dropped.
    pub(crate) async fn close(self) {
        self.soon(self.tree.stop()).await;
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let filter = format!("label=jaco.cluster_id={}", self.cluster_id);
        let left = docker(&["ps", "-aq", "--filter", &filter]).unwrap_or_default();
        for container in left.split_whitespace() {
            let _ = docker(&["rm", "-fv", container]);
        }
        let filter = format!("name=jaco_{}_", self.deployment);
        for kind in ["network", "volume"] {
            let left = docker(&[kind, "ls", "-q", "--filter", &filter]).unwrap_or_default();
            for name in left.split_whitespace() {
                let _ = docker(&[kind, "rm", name]);
            }
        }
        let _ = docker(&["rmi", "-f", &self.image]);
    }
}

/// The engine's socket: `JACO_DOCKER_SOCKET`, or the usual place.
fn socket() -> String {
    std::env::var("JACO_DOCKER_SOCKET").unwrap_or_else(|_| "/var/run/docker.sock".to_owned())
}

fn docker(args: &[&str]) -> Result<String, String> {
    let host = format!("unix://{}", socket());
    let output = Command::new("docker")
        .args(["-H", &host])
        .args(args)
        .output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Whether an engine refused a command because the container is being removed, or is gone.
fn is_replaced(error: &str) -> bool {
    let error = error.to_lowercase();
    [
        "marked for removal",
        "no such container",
        "being removed",
        "removal of container",
    ]
    .iter()
    .any(|text| error.contains(text))
}

/// Imports an image with nothing but a static busybox. Its label makes it another image than those of
/// other tests, which remove theirs.
fn import(image: &str) {
    let archive = Command::new("tar")
        .args(["-C", "/", "-c", "bin/busybox", "--transform", "s,^usr/,,"])
        .arg("--dereference")
        .output()
        .expect("tar");
    assert!(
        archive.status.success(),
        "no static busybox at /bin/busybox"
    );
    let mut import = Command::new("docker")
        .args(["-H", &format!("unix://{}", socket()), "import"])
        .args([
            "-c",
            "ENV PATH=/bin",
            "-c",
            &format!("LABEL test={image}"),
            "-",
            image,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("docker");
    let mut stdin = import.stdin.take().expect("stdin");
    stdin.write_all(&archive.stdout).expect("written");
    drop(stdin);
    assert!(
        import.wait().expect("docker").success(),
        "docker import failed"
    );
}
