//! A node's runtime and networks on an in-memory state machine and a real engine.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use jaco_actors::{
    clock::Clock,
    health::ContactSwitch,
    network::{self, ipam::Pool},
    runtime::{self, Deps, FileMounts},
    supervision::{Strategy, SupervisorSpec, Tree},
    telemetry::Metrics,
};
use jaco_engine::{cidr::Cidr, docker::DockerEngine};
use jaco_proto::v1::{self, ReplicaState, command::Payload};
use jaco_raftnode::{LeaderProposer, State, StateReader, testing::MemoryRaft};
use tokio::sync::watch;

/// Hostname of the one node.
pub(crate) const HOST: &str = "node-1";
/// Script that runs until SIGTERM and then exits at once.
pub(crate) const FOREVER: &str = "trap 'exit 0' TERM; while true; do busybox sleep 0.1; done";
const IMAGE: &str = "jaco-test/rules:2";
const TIMEOUT: Duration = Duration::from_secs(60);

/// One deployment on one node.
pub(crate) struct EngineFixture {
    pub(crate) cluster_id: String,
    pub(crate) deployment: String,
    pub(crate) raft: MemoryRaft,
    socket: String,
    tree: Tree,
    revision: AtomicU32,
}

impl EngineFixture {
    pub(crate) async fn new(name: &str) -> Self {
        Self::behind(name, &socket(), &socket()).await
    }

    /// Creates a world whose node reaches the engine at `socket` through the socket `way`.
    pub(crate) async fn behind(name: &str, way: &str, socket: &str) -> Self {
        import(socket);
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let cluster_id = format!("rules-{name}-{unique}");
        let mut state = State {
            cluster: Some(Arc::new(v1::ClusterMeta {
                cluster_id: cluster_id.clone(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let node = v1::Node {
            hostname: HOST.into(),
            status: v1::NodeStatus::Ready.into(),
            ..Default::default()
        };
        state.nodes.insert(HOST.into(), Arc::new(node));
        let raft = MemoryRaft::new(state);
        let (network, _, directory, _) = network::supervisor(network::Args {
            cluster_id: cluster_id.clone(),
            host: HOST.into(),
            raft: Arc::new(raft.clone()),
            is_leader: watch::channel(true).1,
            clock: Clock::system(),
            pool: pool(),
            engine: Arc::new(DockerEngine::new(way)),
            cluster: Arc::new(raft.clone()),
            remote: network::ipam::no_allocator(),
            interfaces: network::interfaces::of_this_host(),
            gate: Arc::new(network::gate::NoIsolation),
            responders: Arc::new(network::responders::NoResponders),
            mesh: None,
            dns: None,
            firewall: None,
            local: tokio::sync::watch::Sender::default(),
        });
        let deps = Deps {
            host: HOST.into(),
            engine: Arc::new(DockerEngine::new(way)),
            networks: Arc::new(directory),
            raft: Arc::new(raft.clone()),
            clock: Clock::system(),
            contact: ContactSwitch::new(true).contact(),
            metrics: Metrics::new(HOST, Clock::system()),
            routing: Arc::new(jaco_actors::serving::Everywhere),
            files: FileMounts::in_directory("unused", tokio::sync::watch::channel(None).1),
            reports: Default::default(),
        };
        let (runtime, _) = runtime::supervisor("runtime", deps);
        let root = SupervisorSpec::new(Strategy::OneForOne)
            .child(network)
            .child(runtime);
        Self {
            cluster_id,
            deployment: format!("{name}{}", &unique[..8]),
            raft,
            socket: socket.to_owned(),
            tree: Tree::start("node", root).await.expect("a tree"),
            revision: AtomicU32::new(0),
        }
    }

    /// Returns a service of a compose file that runs `script`, with the lines `extra`.
    pub(crate) fn service(&self, name: &str, script: &str, extra: &str) -> String {
        let image = if extra.lines().any(|line| line.starts_with("image:")) {
            String::new()
        } else {
            format!("    image: {IMAGE}\n")
        };
        let extra: String = extra.lines().map(|line| format!("    {line}\n")).collect();
        format!(
            "  {name}:\n{image}    pull_policy: never\n    \
             command: [\"/bin/busybox\", \"sh\", \"-c\", \"{script}\"]\n{extra}"
        )
    }

    /// Applies a document and issues one row per service; `networks` are the overrides.
    pub(crate) async fn apply(&self, compose: &str, services: &[(&str, &[&str])]) {
        let revision = u64::from(self.revision.fetch_add(1, Ordering::Relaxed) + 1);
        let specs = services.iter().map(|(name, networks)| v1::ServiceSpec {
            name: (*name).into(),
            replicas: 1,
            networks: networks.iter().map(|name| (*name).into()).collect(),
            ..Default::default()
        });
        self.propose(Payload::DeploymentApply(v1::DeploymentApply {
            deployment: self.deployment.clone(),
            revision,
            compose_yaml: compose.as_bytes().to_vec(),
            services: specs.collect(),
            ..Default::default()
        }))
        .await;
        for (service, _) in services {
            let row = v1::ReplicaDesired {
                id: self.id(service),
                deployment: self.deployment.clone(),
                service: (*service).into(),
                host: HOST.into(),
                ..Default::default()
            };
            self.propose(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
                replica: Some(row),
            }))
            .await;
        }
    }

    /// Applies one service called `web`.
    pub(crate) async fn apply_one(&self, script: &str, extra: &str) {
        let service = self.service("web", script, extra);
        self.apply(&format!("services:\n{service}"), &[("web", &[])])
            .await;
    }

    /// Gives a network of the deployment another address block on this node.
    pub(crate) async fn allocate(&self, network: &str, cidr: Cidr) {
        self.propose(Payload::SubnetAllocate(v1::SubnetAllocate {
            deployment: self.deployment.clone(),
            network: network.into(),
            cidr: cidr.to_string(),
            host: HOST.into(),
        }))
        .await;
    }

    /// Removes the row of a service.
    pub(crate) async fn remove(&self, service: &str) {
        let id = self.id(service);
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

    pub(crate) fn id(&self, service: &str) -> String {
        format!("{}-{service}-0", self.deployment)
    }

    /// Name of a service's container.
    pub(crate) fn container(&self, service: &str) -> String {
        format!("jaco_{}", self.id(service))
    }

    /// Waits until the newest row of a service runs.
    pub(crate) async fn running(&self, service: &str) -> v1::ReplicaObserved {
        let index = self.raft.state().replicas_desired[&self.id(service)].raft_index;
        self.observed(service, "it runs", |seen| {
            seen.state() == ReplicaState::Running && seen.desired_raft_index == index
        })
        .await
    }

    /// Waits for an observation of a service.
    pub(crate) async fn observed(
        &self,
        service: &str,
        what: &str,
        wanted: impl Fn(&v1::ReplicaObserved) -> bool,
    ) -> v1::ReplicaObserved {
        let id = self.id(service);
        let mut states = self.raft.subscribe();
        let seen =
            states.wait_for(|state| state.replicas_observed.get(&id).is_some_and(|s| wanted(s)));
        match tokio::time::timeout(TIMEOUT, seen).await {
            Ok(Ok(state)) => v1::ReplicaObserved::clone(&state.replicas_observed[&id]),
            Ok(Err(_)) | Err(_) => {
                panic!(
                    "{service}: not seen: {what}; reports: {:#?}",
                    self.reports(service)
                )
            }
        }
    }

    /// Waits for an observation of a service, even one that has been replaced since.
    pub(crate) async fn reported(
        &self,
        service: &str,
        what: &str,
        wanted: impl Fn(&v1::ReplicaObserved) -> bool,
    ) -> v1::ReplicaObserved {
        let mut states = self.raft.subscribe();
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let reports = self.reports(service);
            if let Some(seen) = reports.iter().find(|seen| wanted(seen)) {
                return seen.clone();
            }
            let changed = tokio::time::timeout_at(deadline, states.changed()).await;
            assert!(
                changed.is_ok(),
                "{service}: not reported: {what}; reports: {reports:#?}"
            );
        }
    }

    /// Every observation of a service that was written, in order.
    pub(crate) fn reports(&self, service: &str) -> Vec<v1::ReplicaObserved> {
        fn collect(command: v1::Command, into: &mut Vec<v1::ReplicaObserved>) {
            match command.payload {
                Some(Payload::ReplicaObservedUpdate(update)) => into.extend(update.replica),
                Some(Payload::Batch(batch)) => {
                    for child in batch.children {
                        collect(child, into);
                    }
                }
                _ => {}
            }
        }
        let mut reports = Vec::new();
        for command in self.raft.committed() {
            collect(command, &mut reports);
        }
        let id = self.id(service);
        reports.retain(|seen| seen.id == id);
        reports
    }

    /// Waits for a condition that only the engine knows.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        let waited = async {
            while !holds() {
                tick.tick().await;
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, waited).await;
        assert!(waited.is_ok(), "never true: {what}");
    }

    /// Full ids of a service's containers, in any state.
    pub(crate) fn containers(&self, service: &str) -> Vec<String> {
        let filter = format!("label=jaco.replica_id={}", self.id(service));
        let ids = try_docker_at(
            &self.socket,
            &["ps", "-aq", "--no-trunc", "--filter", &filter],
        );
        ids.expect("docker ps")
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    /// Output of a shell script in a service's container; its error when it fails.
    pub(crate) fn exec(&self, service: &str, script: &str) -> String {
        let container = self.container(service);
        let args = ["exec", &container, "/bin/busybox", "sh", "-c", script];
        try_docker_at(&self.socket, &args).unwrap_or_else(|error| error)
    }

    /// Returns a field of `docker inspect` for a service's container.
    pub(crate) fn inspect(&self, service: &str, template: &str) -> String {
        let args = ["inspect", "-f", template, &self.container(service)];
        try_docker_at(&self.socket, &args).unwrap_or_else(|error| error)
    }

    pub(crate) async fn close(self) {
        let stopped = tokio::time::timeout(TIMEOUT, self.tree.stop()).await;
        stopped.expect("stopped in time");
    }
}

impl Drop for EngineFixture {
    fn drop(&mut self) {
        // The node of a failed test would recreate what is removed here.
        tokio::task::block_in_place(|| {
            let stopped = tokio::time::timeout(TIMEOUT, self.tree.stop());
            let _ = tokio::runtime::Handle::current().block_on(stopped);
        });
        let filter = format!("label=jaco.cluster_id={}", self.cluster_id);
        let lists: [(&[&str], &[&str]); 3] = [
            (&["ps", "-aq"], &["rm", "-fv"]),
            // Podman does not remove a container while another one shares its namespaces.
            (&["ps", "-aq"], &["rm", "-fv"]),
            (&["network", "ls", "-q"], &["network", "rm"]),
        ];
        for (list, remove) in lists {
            let left = try_docker_at(&self.socket, &[list, &["--filter", &filter]].concat())
                .unwrap_or_default();
            for id in left.split_whitespace() {
                let _ = try_docker_at(&self.socket, &[remove, &[id]].concat());
            }
        }
        let left = try_docker_at(&self.socket, &["volume", "ls", "-q"]).unwrap_or_default();
        let ours = left
            .split_whitespace()
            .filter(|name| name.contains(&self.deployment));
        for volume in ours {
            let _ = try_docker_at(&self.socket, &["volume", "rm", volume]);
        }
    }
}

/// Returns addresses for one lab that no interface of this machine has; other labs on the same
/// engine choose theirs at random, too.
fn pool() -> Pool {
    /// Second octet of Podman's default network, which is reserved even without an interface.
    const PODMAN: u32 = 88;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let output = Command::new("ip").args(["-4", "-o", "addr"]).output();
    let addresses = output.expect("ip, of iproute2").stdout;
    let addresses = String::from_utf8_lossy(&addresses).into_owned();
    let first = std::process::id().wrapping_mul(31);
    let free = std::iter::repeat_with(|| {
        let slot = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % (64 * 16);
        (64 + slot / 16, slot % 16 * 16)
    });
    let (second, third) = free
        .take(64 * 16)
        .find(|(second, _)| *second != PODMAN && !addresses.contains(&format!(" 10.{second}.")))
        .expect("free addresses");
    let range = format!("10.{second}.{third}.0/20");
    Pool::new(range.parse().expect("a range"), 24).expect("a pool")
}

/// Whether the engine is Podman, which has its own messages and limits.
pub(crate) fn is_podman() -> bool {
    docker(&["version"]).contains("Podman")
}

/// The engine's socket: `JACO_DOCKER_SOCKET`, or the usual place.
pub(crate) fn socket() -> String {
    std::env::var("JACO_DOCKER_SOCKET").unwrap_or_else(|_| "/var/run/docker.sock".to_owned())
}

pub(crate) fn docker(args: &[&str]) -> String {
    try_docker(args).unwrap_or_else(|error| panic!("docker {args:?}: {error}"))
}

pub(crate) fn try_docker(args: &[&str]) -> Result<String, String> {
    try_docker_at(&socket(), args)
}

pub(crate) fn try_docker_at(socket: &str, args: &[&str]) -> Result<String, String> {
    let host = format!("unix://{socket}");
    let output = Command::new("docker")
        .args(["-H", &host])
        .args(args)
        .output()
        .map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr) + &text(&output.stdout))
    }
}

/// Imports an image with nothing but a static busybox, once, and keeps it.
fn import(socket: &str) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if try_docker_at(socket, &["inspect", IMAGE]).is_err() {
        import_at(socket, IMAGE, &[]);
    }
}

/// Imports the image again under another name, with more instructions.
pub(crate) fn import_as(image: &str, changes: &[&str]) {
    import_at(&socket(), image, changes);
}

fn import_at(socket: &str, image: &str, changes: &[&str]) {
    let script = "cd $(mktemp -d) && mkdir bin && cp -L /bin/busybox bin/ && ln -s busybox bin/sh && \
                  tar -c . && rm -r $PWD";
    let archive = Command::new("sh").args(["-c", script]).output();
    let archive = archive.expect("a shell");
    assert!(
        archive.status.success(),
        "no static busybox at /bin/busybox"
    );
    let mut import = Command::new("docker");
    import.args(["-H", &format!("unix://{socket}"), "import"]);
    for change in ["ENV PATH=/bin"].iter().chain(changes) {
        import.args(["-c", change]);
    }
    let mut import = import
        .args(["-", image])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("docker");
    let mut stdin = import.stdin.take().expect("stdin");
    stdin.write_all(&archive.stdout).expect("written");
    drop(stdin);
    assert!(import.wait().expect("docker").success(), "import failed");
}
