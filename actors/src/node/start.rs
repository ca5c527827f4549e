//! Assembles a node: its supervision tree, in start order.

use std::{path::PathBuf, sync::Arc, time::Duration};

use jaco_engine::docker::DockerEngine;
use jaco_net::{
    proxy::{Proxy, Settings},
    tls::{self, CertSlot},
};
use jaco_raftnode::{NoTransport, Propose, RaftArgs, RaftHandle, actor::spawn, storage};
use jaco_supervision::{ChildSpec, GaveUp, StartTreeError, Strategy, SupervisorSpec, Tree};
use ractor::SpawnErr;
use tokio::sync::mpsc;

use super::{
    ConfigError, MemberContext, NodeBuilder, NodeConfig, NodeContext,
    actor::{Args, NodeActor},
    context::NodeParts,
    files::{FilesError, Layout},
    leader::leading,
    lock::DirectoryLock,
    subnets::LeaderAllocator,
};
use crate::{
    api::{
        ApiArgs, ApiContext, Client, ControlSocket, InProcess, TlsApiActor, UnixApiActor,
        admission::Transport, service,
    },
    health,
    ingress::{self, ProxyActor, ProxyArgs},
    membership, network,
    peer::{self, PeerTransport, Services},
    runtime, scheduler,
    telemetry::{Metrics, TelemetryActor, TelemetryArgs},
};

/// Time limit for requests in progress when the node stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for another voter to take over leadership when the node stops.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a node did not start, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid.
    #[error("configuration")]
    Config(#[from] ConfigError),
    /// The data directory cannot be used.
    #[error("data directory")]
    Files(#[from] FilesError),
    /// The TLS configuration cannot be built.
    #[error("tls")]
    Tls(#[from] tls::Error),
    /// The supervision tree did not start.
    #[error("supervision tree")]
    Tree(#[from] StartTreeError),
    /// The root supervisor gave up restarting a vertical.
    #[error("the supervision tree gave up")]
    GaveUp(#[from] GaveUp),
    /// An error that a restart cannot fix.
    #[error("{0}")]
    Fatal(String),
    /// The system's hostname is not a valid node name, and none is configured.
    #[error("the system hostname {0:?} cannot be a node's name; set hostname")]
    Hostname(String),
}

/// A running node. Dropping this handle does not stop it; [`Node::stop`] does.
pub struct Node {
    tree: Arc<Tree>,
    shared: Arc<NodeContext>,
    client: Arc<InProcess>,
    fatal: tokio::sync::Mutex<mpsc::UnboundedReceiver<String>>,
    /// Lock on the data directory, held for the life of the node.
    _lock: DirectoryLock,
}

impl Node {
    /// Returns a builder for a node with its durable state in `data_dir`, which is created when
    /// missing.
    pub fn builder(data_dir: impl Into<PathBuf>) -> NodeBuilder {
        NodeBuilder::new(data_dir.into())
    }

    /// Starts a node; returns once its API answers and, on a member, raft runs (it waits at most
    /// 5 s for raft). A single-node cluster accepts writes by then; in a larger one a write may
    /// still have to wait for the other members.
    ///
    /// # Errors
    /// [`StartError`]; no part of the node keeps running then.
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        let layout = Layout::new(&config.data_dir);
        let lock = layout.open()?;
        layout.clean_up()?;
        let membership = layout.read_membership(&config)?;
        let removed = membership.is_some() && layout.is_removed()?;
        let (hostname, identity, setup_token) = match &membership {
            Some(member) => (member.hostname.clone(), layout.identity(member)?, None),
            None => {
                let hostname = hostname(&config)?;
                let (identity, token) = layout.setup(&hostname, &config)?;
                (hostname, identity, Some(token))
            }
        };
        let certificate = CertSlot::new(&identity);
        let tls = tls::api_server(certificate.clone())?;
        let (report, fatal) = mpsc::unbounded_channel();
        let metrics = Metrics::new(&hostname, config.clock.clone());
        let telemetry = TelemetryArgs {
            metrics: metrics.clone(),
            addr: config.metrics_addr,
        };
        let shared = Arc::new(NodeContext::new(NodeParts {
            config,
            metrics,
            certificate,
            tls,
            fatal: report,
            setup_token,
            member: membership.is_some(),
            removed,
        }));

        let _ = shared.hostname.set(hostname.clone()); // set once, right here
        let api = Arc::new(ApiContext::new(shared.clone()));
        let of_members = api.clone();
        let args = Args {
            shared: shared.clone(),
            layout,
            hostname,
            verticals: Arc::new(move |member, ca_pem| verticals(&of_members, member, ca_pem)),
        };
        let (lifecycle, handle) = ChildSpec::worker::<NodeActor>("lifecycle", args);
        let _ = shared.lifecycle.set(handle); // set once, right here
        let mut served = SupervisorSpec::new(Strategy::OneForOne);
        let mut listeners = Vec::new();
        let config = &shared.config;
        let inherited = config
            .inherited_socket
            .clone()
            .map(ControlSocket::Inherited);
        let own = config.unix_socket.clone().map(ControlSocket::Path);
        if let Some(at) = inherited.or(own) {
            let api = api.clone();
            let (spec, handle) = ChildSpec::worker::<UnixApiActor>("unix", ApiArgs { api, at });
            served = served.child(spec);
            listeners.push(handle);
        }
        if let Some(at) = shared.config.listen_addr {
            let api = api.clone();
            let (spec, handle) = ChildSpec::worker::<TlsApiActor>("tls", ApiArgs { api, at });
            served = served.child(spec);
            listeners.push(handle);
        }
        let (served, _) = ChildSpec::supervisor("api", served);
        let (telemetry, _) = ChildSpec::worker::<TelemetryActor>("telemetry", telemetry);
        let root = SupervisorSpec::new(Strategy::OneForOne)
            .child(lifecycle)
            .child(served)
            .child(telemetry);
        let tree = Arc::new(Tree::start("node", root).await?);
        shared.metrics.watch_tree(&tree);
        let _ = shared.tree.set(tree.clone()); // set once, right here
        let node = Self {
            tree,
            client: Arc::new(InProcess::new(&api)),
            shared,
            fatal: tokio::sync::Mutex::new(fatal),
            _lock: lock,
        };
        let mut opened = node.shared.startup_done.subscribe();
        let up = async {
            // The sender lives as long as the node.
            let _ = opened.wait_for(|&startup_done| startup_done).await;
            for listener in listeners {
                listener.running().await;
            }
        };
        let failed = tokio::select! {
            () = up => None,
            ended = node.join() => ended.err(),
        };
        match failed {
            None => Ok(node),
            Some(error) => {
                node.stop().await;
                Err(error)
            }
        }
    }

    /// Returns an in-process client with operator rights: no socket, no token, identity `local`.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(&self.client)
    }

    /// State shared by the node's actors.
    #[must_use]
    pub fn shared(&self) -> &Arc<NodeContext> {
        &self.shared
    }

    /// Handle of the replicated state, to read, follow and change it; `None` before a cluster
    /// exists.
    #[must_use]
    pub fn raft(&self) -> Option<RaftHandle> {
        self.shared.try_running().map(|member| member.raft.clone())
    }

    /// The supervision tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Waits until the node cannot continue.
    ///
    /// # Errors
    /// [`StartError`] with the reason; `Ok` only after [`Node::stop`].
    pub async fn join(&self) -> Result<(), StartError> {
        let mut fatal = self.fatal.lock().await;
        tokio::select! {
            biased;
            Some(reason) = fatal.recv() => Err(StartError::Fatal(reason)),
            ended = self.tree.join() => Ok(ended?),
        }
    }

    /// Stops the actors and waits for raft to close, without draining clients, so that the process
    /// can exit.
    pub async fn abandon(&self) {
        self.tree.stop().await;
        if let Some(running) = self.shared.running.get() {
            running.raft.closed().await;
        }
        // A bootstrap continues without its actor and uses the directory until it ends.
        let shared = self.shared.clone();
        let _ = tokio::task::spawn_blocking(move || shared.drop_unstarted()).await;
    }

    /// Stops the node; containers keep running.
    ///
    /// Drains requests as [`Node::drain`], transfers leadership, then stops the actors in reverse
    /// start order.
    pub async fn stop(&self) {
        self.drain().await;
        self.hand_over().await;
        self.abandon().await;
    }

    /// Transfers leadership to another voter, if this node leads and there is one; takes at most 3
    /// seconds.
    pub async fn hand_over(&self) {
        if let Some(running) = self.shared.running.get()
            && running.raft.status().voters.len() > 1
            && !running.raft.step_down(HANDOVER_TIMEOUT).await
        {
            tracing::info!(
                subsystem = "raft",
                "no other voter could take over leadership"
            );
        }
    }

    /// Refuses new clients, ends streams with `raft_unavailable`, and waits for the requests in
    /// progress, at most 10 seconds.
    pub async fn drain(&self) {
        self.shared.stopping.send_replace(true);
        self.shared.stopping_in_process.send_replace(true);
        if let Some(running) = self.shared.running.get() {
            running.raft.hub().close();
        }
        let served = self.shared.stopping.closed();
        if tokio::time::timeout(DRAIN_TIMEOUT, served).await.is_err() {
            tracing::warn!(
                subsystem = "daemon/grpc",
                "open client connections did not close within 10 s"
            );
        }
    }
}

/// Returns the configured name, or the system's.
fn hostname(config: &NodeConfig) -> Result<String, StartError> {
    let name = match &config.hostname {
        Some(name) => name.clone(),
        None => rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .to_lowercase(),
    };
    jaco_net::pki::check_hostname(&name).map_err(|_| StartError::Hostname(name.clone()))?;
    Ok(name)
}

/// Builds the verticals of a member, in start order; called once per node.
fn verticals(api: &Arc<ApiContext>, node: &Arc<MemberContext>, ca_pem: String) -> Vec<ChildSpec> {
    let shared = api.node();
    // `raft` proposes only on the leader; `submitter` forwards to it, for commands of any node.
    let raft: Arc<dyn Propose> = Arc::new(node.raft.clone());
    let submitter: Arc<dyn Propose> = Arc::new(node.submitter());
    let is_leader = leading(&node.raft);
    let clock = node.clock.clone();

    let (network, _, directory, allocator) = network::supervisor(network::Args {
        cluster_id: node.cluster_id.clone(),
        host: node.hostname.clone(),
        raft: raft.clone(),
        is_leader: is_leader.clone(),
        clock: clock.clone(),
        pool: shared.config.ipam,
        engine: Arc::new(DockerEngine::new(&shared.config.docker_socket)),
        remote: Arc::new(LeaderAllocator(node.leader.clone())),
    });
    let _ = node.allocator.set(allocator); // set once: the verticals are assembled once
    let (runtime, access) = runtime::supervisor(
        "runtime",
        runtime::Deps {
            host: node.hostname.clone(),
            engine: node.engine.clone(),
            networks: Arc::new(directory),
            raft: submitter.clone(),
            clock: clock.clone(),
            caught_up: node.failure_detector.caught_up(),
            metrics: shared.metrics.clone(),
        },
    );
    let health = health::worker(health::Args {
        failure_detector: node.failure_detector.clone(),
        host: node.hostname.clone(),
        raft: raft.clone(),
        cluster: submitter.clone(),
        confirm: health::confirm_by_read_index(&node.raft),
        orphans_cleared: access.orphans_cleared(),
        engine: node.engine.clone(),
        clock: clock.clone(),
    });
    let _ = node.runtime.set(access); // set once: the verticals are assembled once
    let (scheduler, _) = scheduler::supervisor(scheduler::Args::new(
        raft.clone(),
        is_leader,
        clock,
        shared.metrics.clone(),
    ));
    let mut ingress = SupervisorSpec::new(Strategy::OneForOne);
    if let Some(port) = shared.config.http_port {
        let facts = ingress::table::NodeFacts {
            hostname: node.hostname.clone(),
            https: false,
            mesh: false,
        };
        let proxy = Proxy::observed(Settings::default(), Arc::new(shared.metrics.clone()));
        let proxy = ProxyArgs::new(raft, facts, node.failure_detector.fresh(), port, proxy);
        ingress = ingress.child(ChildSpec::worker::<ProxyActor>("proxy", proxy).0);
    }
    let (ingress, _) = ChildSpec::supervisor("ingress", ingress);
    vec![
        raft_supervisor(api, node, ca_pem),
        health,
        network,
        runtime,
        scheduler,
        ingress,
    ]
}

/// Supervisor of the raft actor and its dependents, which start after it and restart with it.
fn raft_supervisor(api: &Arc<ApiContext>, node: &Arc<MemberContext>, ca_pem: String) -> ChildSpec {
    let shared = api.node();
    let report = shared.clone();
    let transport = node.network.as_ref().map(PeerTransport::transport);
    let args = RaftArgs {
        storage: node.storage.clone(),
        handle: node.raft.clone(),
        transport: transport.unwrap_or_else(|| Arc::new(NoTransport)),
        observer: Arc::new(shared.metrics.clone()),
        on_fatal: Arc::new(move |error: &storage::Error| {
            let _ = report.report_fatal(error);
        }),
        limits: node.limits.clone(),
    };
    let raft = ChildSpec::external("raft", "RaftActor", move |supervisor| {
        let args = args.clone();
        async move {
            spawn(args, supervisor)
                .await
                .map_err(|error| SpawnErr::StartupFailed(Box::new(error)))
        }
    });
    let deps = membership::Deps {
        raft: Arc::new(node.raft.clone()),
        clock: node.clock.clone(),
    };
    let (members, membership) = membership::actor(node.raft.clone(), deps);
    let _ = node.membership.set(membership); // set once: the verticals are assembled once
    let mut spec = SupervisorSpec::new(Strategy::RestForOne).child(raft);
    if let (Some(network), Some(address)) = (&node.network, shared.config.cluster_addr) {
        spec = spec.child(peer::supervisor(peer::Args {
            network: network.clone(),
            address,
            identity: shared.certificate.clone(),
            ca_pem,
            services: Services::new(service(api, Transport::Peer)),
            heartbeat: node.failure_detector.clone(),
            metrics: shared.metrics.clone(),
        }));
    }
    ChildSpec::supervisor("raft", spec.child(members)).0
}
