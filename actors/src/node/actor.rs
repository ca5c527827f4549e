//! Lifecycle actor: makes the daemon a member, by an init or from its data directory, and retires
//! it when it is removed.

use std::{sync::Arc, time::Duration};

use jaco_engine::docker::DockerEngine;
use jaco_policy::network::ipam::Pool;
use jaco_proto::{Error, ErrorCode, chain, v1};
use jaco_raftnode::{RaftHandle, RaftLimits, Role, State, StateReader as _, Storage, storage};
use jaco_supervision::{ChildSpec, Context, Failure, Reply, Worker};

use super::{
    MemberContext, NodeConfig, NodeContext,
    announce::announce,
    context::{MemberParts, OpenedNode},
    files::{FilesError, Layout, Membership},
    init::{self, ClusterBootstrap},
    leader::leading,
    msg::Msg,
    removed, renew,
    restore_marker::{self, RestoreRecorder},
};
use crate::{
    lock::lock,
    network::mesh::{self, MeshPort as _},
    peer::PeerTransport,
};

/// Keys of a member's verticals, in start order.
const VERTICALS: [&str; 8] = [
    "raft",
    "secrets",
    "health",
    "network",
    "network-probe",
    "runtime",
    "scheduler",
    "ingress",
];
/// Time limit for raft to become ready during a start.
const RAFT_BUDGET: Duration = Duration::from_secs(5);

/// Builds the verticals of a member, in start order, from its state and the authority's
/// certificate (PEM); called once per node.
pub(crate) type BuildVerticals =
    Arc<dyn Fn(&Arc<MemberContext>, String) -> Vec<ChildSpec> + Send + Sync>;

/// Arguments of a [`NodeActor`].
#[derive(Clone)]
pub struct Args {
    pub(crate) shared: Arc<NodeContext>,
    pub(crate) layout: Layout,
    pub(crate) hostname: String,
    pub(crate) verticals: BuildVerticals,
}

impl Args {
    /// Stops the containers on a removed node's host; returns once none runs.
    async fn stop_replicas(self) {
        let config = &self.shared.config;
        if let Some(node) = self.shared.try_running() {
            let (state, engine) = (node.raft.state(), node.engine.clone());
            let (cluster, host) = (node.cluster_id.clone(), node.hostname.clone());
            return removed::stop_replicas(engine, &cluster, &host, &state).await;
        }
        let layout = self.layout.clone();
        let member = match self.layout.read_membership(config) {
            Ok(Some(member)) => member,
            Ok(None) | Err(_) => return,
        };
        let read = tokio::task::spawn_blocking(move || removed::last_state(&layout));
        let Ok(state) = read.await else { return };
        let engine = Arc::new(DockerEngine::new(&config.docker_socket));
        let (cluster, host) = (&member.cluster_id, &member.hostname);
        removed::stop_replicas(engine, cluster, host, &state).await;
    }
}

/// Actor of the node's lifecycle; stores the membership in [`NodeContext`].
pub struct NodeActor {
    args: Args,
    bootstrapping: bool,
}

impl Worker for NodeActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "NodeActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        // Deferred: starting the verticals needs the supervisor, which is still starting this
        // actor.
        ctx.send_to_self(Msg::Open);
        Ok(Self {
            args,
            bootstrapping: false,
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Open => self.open(ctx).await,
            Msg::Init(request, reply) => {
                self.init(ctx, request, reply);
                Ok(())
            }
            Msg::Announced | Msg::RetireFinished => Ok(()),
            Msg::Removed => self.retire(ctx).await,
            Msg::BootstrapFinished(result, reply) => {
                self.bootstrapping = false;
                if result.is_ok() {
                    self.open(ctx).await?;
                }
                reply.send(result);
                Ok(())
            }
        }
    }
}

impl NodeActor {
    /// Starts the verticals of a member, or those that the previous instance did not start.
    async fn open(&mut self, ctx: &Context<Self>) -> Result<(), Failure> {
        let shared = &self.args.shared;
        if shared.is_removed() {
            shared.startup_done.send_replace(true);
            self.stop_verticals(ctx);
            return Ok(());
        }
        let args = self.args.clone();
        // Opening reads the whole state from disk.
        let opened = tokio::task::spawn_blocking(move || open(&args)).await?;
        let running = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                shared.startup_done.send_replace(true);
                return Ok(());
            }
            Err(error) => return Err(shared.report_fatal(&error)),
        };
        while let Some(spec) = next_unstarted(shared) {
            // The data planes drain while the mesh and raft still run.
            ctx.supervisor().start_child(spec.ordered_stop()).await?;
        }
        if tokio::time::timeout(RAFT_BUDGET, wait_ready(&running))
            .await
            .is_err()
        {
            tracing::warn!(
                subsystem = "raft",
                "raft is not ready yet; requests fail until it is"
            );
        }
        shared.become_member(running.clone());
        lock(&shared.setup_token).take();
        self.args.layout.remove_setup();
        shared.startup_done.send_replace(true);
        let (config, node) = (shared.config.clone(), running.clone());
        let mesh_key = shared.mesh_public_key();
        let (owner, layout) = (shared.clone(), self.args.layout.clone());
        ctx.spawn(async move {
            // Concurrently: peers may reject this node until its renewed certificate is in force,
            // and then it cannot announce anything.
            tokio::join!(
                announce(node.clone(), config, mesh_key),
                renew::renew(owner, node, layout)
            );
            Msg::Announced
        });
        let (owner, layout) = (shared.clone(), self.args.layout.clone());
        ctx.spawn(async move {
            // A certificate that the cluster already knows may be staged since a crash.
            let hostname = running.hostname.clone();
            let promote_staged = move || {
                let promoted = renew::promote(&owner, &layout, &hostname);
                promoted.unwrap_or(false)
            };
            removed::wait_removed(running, promote_staged).await;
            Msg::Removed
        });
        Ok(())
    }

    /// Retires a removed member: records the removal, then stops its verticals and containers.
    async fn retire(&mut self, ctx: &Context<Self>) -> Result<(), Failure> {
        let shared = &self.args.shared;
        if shared.removed.send_replace(true) {
            return Ok(());
        }
        tracing::error!(
            subsystem = "raft",
            "this node was removed from its cluster; its data stays until the directory is emptied"
        );
        let layout = self.args.layout.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || layout.mark_removed()).await? {
            // After a restart the removal is detected again.
            tracing::warn!(subsystem = "raft", %error, "the removal was not recorded");
        }
        // The state does not change any more; this ends the streams that follow it.
        if let Some(running) = shared.running.get() {
            running.raft.hub().close();
        }
        self.stop_verticals(ctx);
        Ok(())
    }

    /// Stops the verticals of a removed node, and the containers of its host.
    fn stop_verticals(&self, ctx: &Context<Self>) {
        let (supervisor, args) = (ctx.supervisor(), self.args.clone());
        ctx.spawn(async move {
            for vertical in VERTICALS.iter().rev() {
                // A vertical that never ran needs no stop.
                let _ = supervisor.stop_child(vertical).await;
            }
            let mesh = args.shared.config.mesh;
            let member = args.shared.try_running();
            args.stop_replicas().await;
            if let Some(device) = member.as_ref().and_then(|member| member.mesh.get()) {
                device.close().await;
            }
            // No container is left whose packets could leave this host.
            if mesh.is_some()
                && let Err(error) = mesh::leave().await
            {
                tracing::warn!(
                    subsystem = "wgmesh",
                    error = chain(&error),
                    "routes of the mesh are left"
                );
            }
            Msg::RetireFinished
        });
    }

    fn init(
        &mut self,
        ctx: &Context<Self>,
        request: ClusterBootstrap,
        reply: Reply<Result<v1::ClusterInitResponse, Error>>,
    ) {
        if let Some(running) = self.args.shared.running.get() {
            reply.send(if running.cluster_id == request.cluster_id {
                Ok(request.response())
            } else {
                Err(init::already(&running.cluster_id))
            });
            return;
        }
        if self.bootstrapping {
            // The outcome of the init in progress is not known yet.
            reply.send(Err(Error::new(
                ErrorCode::StateUnavailable,
                "another init is under way",
            )));
            return;
        }
        self.bootstrapping = true;
        let args = self.args.clone();
        ctx.spawn(async move {
            let made = tokio::task::spawn_blocking(move || {
                let _one = lock(&args.shared.opened);
                init::bootstrap(&args.layout, &args.shared.config, &args.hostname, request)
            });
            let result = made.await.unwrap_or_else(|error| {
                Err(
                    Error::new(ErrorCode::Internal, "the cluster could not be created")
                        .because(error),
                )
            });
            Msg::BootstrapFinished(result, reply)
        });
    }
}

/// Waits until raft can take proposals. A single-node cluster elects itself; in a larger one the
/// election may need other members, and each request reports a missing leader itself.
async fn wait_ready(running: &MemberContext) {
    let mut status = running.raft.subscribe_status();
    // The sender lives as long as the handle.
    let _ = status
        .wait_for(|raft| {
            let alone = raft.voters == [raft.raft_id];
            raft.leading || (raft.role != Role::Stopped && !alone)
        })
        .await;
}

/// Opens identity and state, once, if the data directory holds a membership.
///
/// Stores the result itself, since the actor that waits for it may be gone.
fn open(args: &Args) -> Result<Option<Arc<MemberContext>>, FilesError> {
    let shared = &args.shared;
    let mut slot = lock(&shared.opened);
    if slot.is_none() {
        let Some(membership) = args.layout.read_membership(&shared.config)? else {
            return Ok(None);
        };
        let ca_pem = args.layout.authority(&membership)?;
        let running = open_state(shared, &args.layout, &membership).map_err(|source| {
            FilesError::Storage {
                path: args.layout.raft(),
                source,
            }
        })?;
        check_pool(&shared.config, &running.raft.state())?;
        // A crash may have come between publishing a new certificate and putting it in force.
        renew::promote_published(&args.layout, &running.hostname, &running.raft.state())?;
        let identity = args.layout.identity(&membership)?;
        shared.certificate.replace(&identity);
        let unstarted = (args.verticals)(&running, ca_pem).into();
        restore_marker::record_restore(RestoreRecorder {
            raft: running.raft.clone(),
            is_leader: leading(&running.raft),
            clock: running.clock.clone(),
            layout: args.layout.clone(),
            stopping: shared.stopping(),
        });
        *slot = Some(OpenedNode { running, unstarted });
    }
    Ok(slot.as_ref().map(|opened| opened.running.clone()))
}

/// Refuses to start with another address pool than the cluster was created with: its blocks would
/// not be those that members route and isolate.
fn check_pool(config: &NodeConfig, state: &State) -> Result<(), FilesError> {
    let configured = config.ipam;
    match Pool::of_cluster(state) {
        Some(stored) if config.ipam_is_set && stored != configured => {
            Err(FilesError::Pool { configured, stored })
        }
        Some(_) | None => Ok(()),
    }
}

/// Opens the replicated state of a member, before any actor uses it.
fn open_state(
    shared: &NodeContext,
    layout: &Layout,
    membership: &Membership,
) -> Result<Arc<MemberContext>, storage::Error> {
    let config = &shared.config;
    let storage = Storage::open(&layout.raft())?;
    let state = storage.load_state()?;
    let limits = RaftLimits::default();
    let raft = RaftHandle::new(state, limits.clone());
    shared.metrics.watch_raft(&raft);
    let transport = config
        .cluster_addr
        .map(|_| PeerTransport::new(membership.origin(), raft.clone(), &config.clock));
    let peers = transport.as_ref().map(PeerTransport::peers);
    let parts = MemberParts {
        hostname: membership.hostname.clone(),
        cluster_id: membership.cluster_id.clone(),
        raft,
        storage,
        peers: peers.unwrap_or_default(),
        transport,
        limits,
    };
    Ok(Arc::new(MemberContext::new(parts, config)))
}

fn next_unstarted(shared: &NodeContext) -> Option<ChildSpec> {
    lock(&shared.opened).as_mut()?.unstarted.pop_front()
}
