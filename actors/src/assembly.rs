//! A node put together: the API, the verticals and the supervision tree around the node's state.
//!
//! [`Node::builder`] collects the settings; [`NodeBuilder::start`] inspects the data directory.
//! Without raft state in it, the node serves the API and waits for an init or a join; with raft
//! state, it resumes its membership.

mod builder;
mod certificates;
mod network_probe;
mod verticals;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use jaco_net::{
    handover::NamedSocket,
    ingress::DatagramSockets,
    tls::{self, CertSlot},
};
use jaco_policy::network::readiness::IsolationStatus;
use jaco_proto::v1::NodeStatus;
use jaco_raftnode::{RaftHandle, RaftStatus, State, StateReader as _};
use jaco_supervision::{ChildSpec, GaveUp, StartTreeError, Strategy, SupervisorSpec, Tree};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    api::{ApiArgs, ApiContext, Client, ControlSocket, InProcess, TlsApiActor, UnixApiActor},
    node::{
        DirectoryLock, FilesError, Layout, NodeActor, NodeArgs, NodeConfig, NodeContext, NodeParts,
    },
    telemetry::{Metrics, TelemetryActor, TelemetryArgs},
};
use verticals::build;

pub use builder::{ConfigError, NodeBuilder};

/// Time limit for requests in progress when the node stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for raft to close; a disk that does not answer would hold it up for ever.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the first test of the isolation ruleset, which needs a leader.
const ISOLATION_TIMEOUT: Duration = Duration::from_secs(30);
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
        let mesh_key = match config.mesh {
            Some(_) => Some(layout.mesh_key()?),
            None => None,
        };
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
            mesh_key,
            tls,
            fatal: report,
            setup_token,
            member: membership.is_some(),
            removed,
        }));

        let _ = shared.hostname.set(hostname.clone()); // set once, right here
        let api = Arc::new(ApiContext::new(shared.clone()));
        let of_members = api.clone();
        let args = NodeArgs {
            shared: shared.clone(),
            layout,
            hostname,
            verticals: Arc::new(move |member, ca_pem| build(&of_members, member, ca_pem)),
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
        shared.metrics().watch_tree(&tree);
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

    /// Waits until the isolation ruleset of a member was tested, and a failure of the test is part
    /// of the replicated state; at most 30 seconds. Returns at once where there is no isolation, and
    /// on a node without a cluster.
    pub async fn isolation_tested(&self) {
        let Some(member) = self.shared.try_running() else {
            return;
        };
        let Some(mut status) = member.firewall.get().cloned() else {
            return;
        };
        let tested = async {
            let pending = IsolationStatus::Pending;
            let tested = status.wait_for(|status| status.isolation != pending).await;
            let failed = tested
                .is_ok_and(|status| matches!(status.isolation, IsolationStatus::Unavailable(_)));
            let reported = |state: &Arc<State>| {
                let node = state.nodes.get(&member.hostname);
                node.is_none_or(|node| node.status() == NodeStatus::IsolationUnavailable)
            };
            if failed {
                let _ = member.raft.subscribe().wait_for(reported).await; // the node may stop
            }
        };
        let _ = timeout(ISOLATION_TIMEOUT, tested).await; // the node may wait for a leader
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

    /// Duplicates of the listening sockets of the ingress, for the next process of this node, and the
    /// sockets of an earlier process that the ingress has not opened yet, at whatever stage of its
    /// start the node is. As long as they are open, clients can connect; once this node has stopped,
    /// their connections wait for the next process. Those of HTTP/3 wait from here on.
    ///
    /// Called once: the sockets of an earlier process are not returned again.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn listening_sockets(&self) -> io::Result<Vec<NamedSocket>> {
        self.shared.config.inherited.pass_on(|| self.open_sockets())
    }

    /// Duplicates of the descriptors of the mesh device in user space, if there is one, for a later
    /// process. This one carries the packets of containers to other hosts until it ends.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub async fn mesh_descriptors(&self) -> io::Result<Vec<NamedSocket>> {
        self.pass_mesh(false).await
    }

    /// As [`Node::mesh_descriptors`], for a process that carries on at once: this one carries no packets
    /// from here on.
    ///
    /// # Errors
    /// If the process is out of descriptors; it carries the packets on then.
    pub async fn release_mesh(&self) -> io::Result<Vec<NamedSocket>> {
        self.pass_mesh(true).await
    }

    async fn pass_mesh(&self, release: bool) -> io::Result<Vec<NamedSocket>> {
        let member = self.shared.try_running();
        let device = member.as_ref().and_then(|member| member.mesh.get());
        match device {
            Some(device) => device.descriptors(release).await.map_err(io::Error::other),
            // A node that is no member, or has no mesh.
            None => Ok(Vec::new()),
        }
    }

    fn open_sockets(&self) -> io::Result<Vec<NamedSocket>> {
        let member = self.shared.try_running();
        let Some((proxy, ports)) = member.as_ref().and_then(|it| it.data_planes.get()) else {
            return Ok(Vec::new());
        };
        let mut sockets = ports.sockets()?;
        for (scheme, listening) in proxy.sockets()? {
            let name = || scheme.socket_name().to_owned();
            sockets.extend(
                listening
                    .into_fds()
                    .into_iter()
                    .map(|socket| (name(), socket)),
            );
        }
        let http3 = proxy.hand_over_http3()?;
        sockets.extend(http3.into_iter().flat_map(DatagramSockets::into_named));
        Ok(sockets)
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
    /// can exit. Waits at most 10 seconds for a disk that does not answer.
    ///
    /// If raft does not close, because its disk does not answer, the process should exit without
    /// running library destructors (`_exit`): the database is still in use.
    pub async fn abandon(&self) {
        let member = self.shared.try_running();
        let planes = member.as_ref().and_then(|it| it.data_planes.get().cloned());
        let raft = member.map(|member| member.raft.clone());
        let stop = async {
            self.tree.stop().await;
            // An actor that had failed or was starting has drained nothing.
            if let Some((proxy, ports)) = planes {
                tokio::join!(
                    proxy.drain(crate::ingress::HTTP_DRAIN),
                    ports.drain(crate::ingress::PORT_DRAIN)
                );
            }
            match &raft {
                Some(raft) => timeout(CLOSE_TIMEOUT, raft.closed()).await.is_ok(),
                None => true,
            }
        };
        let closed = tokio::select! {
            closed = stop => closed,
            () = hang(raft.as_ref()) => false,
        };
        if !closed {
            tracing::warn!(
                subsystem = "raft",
                "raft did not close within 10 s: its disk does not answer"
            );
            return;
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
        if let Some(running) = self.shared.try_running()
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
        if let Some(running) = self.shared.try_running() {
            running.raft.hub().close();
        }
        let served = self.shared.stopping.closed();
        if timeout(DRAIN_TIMEOUT, served).await.is_err() {
            tracing::warn!(
                subsystem = "daemon/grpc",
                "open client connections did not close within 10 s"
            );
        }
    }
}

impl NodeConfig {
    /// Carries the packets of the mesh on with the device that an earlier process left in
    /// [`NodeConfig::inherited`], if it left one. The node takes the device when it starts; until then
    /// its peers are those of that process. Blocks the thread.
    ///
    /// A device that cannot be taken over is closed, and the node opens another one.
    pub fn resume_mesh(&self) {
        let Some(settings) = self.mesh else {
            return;
        };
        // An unreadable key is an error of the node's start.
        if let Ok(Some(key)) = Layout::new(&self.data_dir).existing_mesh_key() {
            let (port, backend) = (settings.port, settings.backend);
            self.resumed_mesh
                .resume(&self.inherited, &key, port, backend);
        }
    }
}

impl NodeBuilder {
    /// Starts the node, as [`Node::start`].
    ///
    /// # Errors
    /// [`StartError::Config`] as [`NodeBuilder::build`], or as [`Node::start`].
    pub async fn start(self) -> Result<Node, StartError> {
        Node::start(self.build()?).await
    }
}

/// Returns once raft has made no progress for [`CLOSE_TIMEOUT`]; never without raft.
async fn hang(raft: Option<&RaftHandle>) {
    let Some(raft) = raft else {
        return std::future::pending().await;
    };
    let mut status = raft.subscribe_status();
    loop {
        // The sender lives as long as the handle.
        let _ = status.wait_for(RaftStatus::is_stalled).await;
        let resumes = status.wait_for(|status| !status.is_stalled());
        if timeout(CLOSE_TIMEOUT, resumes).await.is_err() {
            return;
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use jaco_raftnode::testing::MemoryGroup;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hung_raft_ends_the_wait_for_it() {
        let (group, _actors) = MemoryGroup::start(State::default(), 1).await.unwrap();
        let raft = group.handle(1);
        let mut hung = pin!(hang(Some(&raft)));
        let slow = timeout(Duration::from_secs(3600), &mut hung).await;
        assert!(slow.is_err(), "a raft that runs may take its time");
        group.stall(1);
        let ended = timeout(2 * CLOSE_TIMEOUT, hung).await;
        ended.expect("the stop waits for the disk");
    }
}
