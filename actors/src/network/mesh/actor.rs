//! Driver of the mesh.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    net::Ipv4Addr,
    sync::Arc,
};

use futures::future::join_all;
use jaco_engine::cidr::Cidr;
use jaco_policy::{
    COMMIT_BUDGET,
    network::{
        firewall::core::Status,
        ipam::Pool,
        mesh::{
            core::{Action, Core, Isolation, Seen},
            plan::{ApplyError, Step},
            repair::{Repair, audit_event, summary},
        },
    },
    node::writers::MESH,
};
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::{ForwardingProposer, State, command};
use jaco_supervision::{Context, Failure, TaskHandle, Worker};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

use super::{DEVICE, MeshStatus, PortError, SharedPort};
use crate::{clock::Clock, log_dedup::LogDedup, network::ipam::addresses};

/// Arguments of a [`MeshActor`]; kept across restarts.
#[derive(Clone)]
pub struct Args {
    /// This host.
    pub host: String,
    /// UDP port of peers that have published none: this node's own.
    pub port: u16,
    /// Address pool if the cluster's state names none.
    pub pool: Pool,
    /// Status of the firewall; `None` without isolation.
    pub firewall: Option<watch::Receiver<Status>>,
    /// Reads the replicated state and submits audit events.
    pub raft: Arc<dyn ForwardingProposer>,
    /// Source of the events' timestamps.
    pub clock: Clock,
    /// The kernel and the device.
    pub mesh: SharedPort,
    /// Receives the status after each pass.
    pub status: watch::Sender<MeshStatus>,
}

/// Mailbox of the mesh.
#[derive(Debug)]
pub enum Msg {
    /// Members or address blocks may have changed.
    State(Arc<State>),
    /// The firewall may enforce another ruleset.
    Isolation(Isolation),
    /// The kernel announced a change.
    Changed,
    /// The kernel was read.
    Seen(Result<Seen, PortError>),
    /// The names of members were resolved.
    Resolved(BTreeMap<String, Ipv4Addr>),
    /// The steps were carried out.
    Applied(Outcome),
    /// The core's deadline passed.
    Wake,
}

/// Outcome of the steps of one plan.
#[derive(Debug)]
pub struct Outcome {
    result: Result<(), ApplyError>,
    /// Number of peers, if the set was replaced.
    peers: Option<usize>,
}

/// Task that carries out the steps of a plan.
struct Applying {
    task: TaskHandle,
    /// Closed when the task has ended.
    ended: oneshot::Receiver<Infallible>,
}

impl Applying {
    /// Ends the task, which begins no step after this has returned.
    async fn abort(self) {
        self.task.abort();
        let _ = self.ended.await; // always an error: nothing is sent
    }
}

/// Owns the mesh of one node.
pub struct MeshActor {
    args: Args,
    core: Core,
    applying: Option<Applying>,
    peers: Option<usize>,
    failures: LogDedup,
    unresolved: LogDedup,
    overlapping: LogDedup,
}

impl Worker for MeshActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "MeshActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let now = Instant::now().into_std();
        let mut states = args.raft.follow();
        let last = states.borrow_and_update().clone();
        let mut core = Core::new(now, &args.host, args.port);
        core.handle_pool(now, addresses(&last, args.pool));
        if let Some(mut firewall) = args.firewall.clone() {
            let isolation = Isolation::of(&firewall.borrow_and_update());
            core.handle_isolation(now, isolation);
            core.handle_inherited(now, args.mesh.admitted().await);
            ctx.watch(firewall, |status| Msg::Isolation(Isolation::of(&status)));
        }
        core.handle_state(now, &last);
        let differs = |last: &Arc<State>, next: &Arc<State>| {
            !last.nodes.ptr_eq(&next.nodes)
                || !last.subnets.ptr_eq(&next.subnets)
                || Pool::of_cluster(last) != Pool::of_cluster(next)
        };
        ctx.watch_if(states, last, differs, Msg::State);
        ctx.watch(args.mesh.changes(), |_| Msg::Changed);
        let mut mesh = Self {
            args,
            core,
            applying: None,
            peers: None,
            failures: LogDedup::default(),
            unresolved: LogDedup::default(),
            overlapping: LogDedup::default(),
        };
        mesh.drive(ctx).await;
        Ok(mesh)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Instant::now().into_std();
        match msg {
            Msg::State(state) => {
                self.core
                    .handle_pool(now, addresses(&state, self.args.pool));
                self.core.handle_state(now, &state);
            }
            Msg::Isolation(isolation) => self.core.handle_isolation(now, isolation),
            Msg::Changed => self.core.handle_change(now),
            Msg::Seen(seen) => {
                self.core.handle_seen(now, seen.map_err(|error| error.0));
            }
            Msg::Resolved(names) => {
                self.core.handle_resolved(now, names);
                self.log_unresolved();
            }
            Msg::Applied(Outcome { result, peers }) => {
                if let Some(peers) = peers.filter(|peers| self.peers != Some(*peers)) {
                    info!(subsystem = "wgmesh", peers, "number of peers changed");
                    self.peers = Some(peers);
                }
                self.core.handle_applied(now, result);
            }
            Msg::Wake => self.core.handle_timeout(now),
        }
        self.drive(ctx).await;
        Ok(())
    }

    async fn stop(&mut self, _ctx: &Context<Self>) {
        // The device works on. Another process may have taken it over, in which no step may interfere.
        if let Some(applying) = self.applying.take() {
            applying.abort().await;
        }
    }
}

impl MeshActor {
    /// Runs the core's actions, publishes the status, then sets the deadline.
    async fn drive(&mut self, ctx: &Context<Self>) {
        self.core.handle_timeout(Instant::now().into_std());
        if self.core.poll_close() {
            self.args.mesh.close().await;
        }
        while let Some(action) = self.core.poll_action() {
            let mesh = Arc::clone(&self.args.mesh);
            match action {
                Action::Look { networks, names } => {
                    let resolver = Arc::clone(&mesh);
                    ctx.spawn(async move { Msg::Seen(look(&mesh, networks).await) });
                    // A name server that is silent must not hold up repairs.
                    ctx.spawn(async move { Msg::Resolved(resolve(&resolver, names).await) });
                }
                Action::Apply(steps) => {
                    let (running, ended) = oneshot::channel();
                    let task = ctx.spawn(async move {
                        let _running = running;
                        Msg::Applied(apply(mesh, steps).await)
                    });
                    self.applying = Some(Applying { task, ended });
                }
                Action::Audit(repairs) => self.audit(&repairs),
            }
        }
        self.publish();
        let deadline = Instant::from_std(self.core.poll_timeout());
        ctx.set_deadline(Some(deadline), Msg::Wake);
    }

    /// Submits an audit event about repairs; best effort.
    fn audit(&self, repairs: &BTreeSet<Repair>) {
        info!(
            subsystem = "wgmesh",
            repaired = summary(repairs),
            "mesh repaired"
        );
        let event = audit_event(&self.args.host, DEVICE, repairs);
        let payload = Payload::AuditAppend(v1::AuditAppend { event: Some(event) });
        let command = command(MESH, self.args.clock.timestamp(), payload);
        let raft = Arc::clone(&self.args.raft);
        // The event is about the past: it is submitted even if the actor ends.
        tokio::spawn(async move {
            if !matches!(
                timeout(COMMIT_BUDGET, raft.submit(command)).await,
                Ok(Ok(_))
            ) {
                debug!(subsystem = "wgmesh", "audit event of a repair not written");
            }
        });
    }

    fn publish(&mut self) {
        self.log_overlapping();
        let status = self.core.status();
        match status {
            MeshStatus::Unavailable(reason) | MeshStatus::Unprotected(reason) => {
                let starts = !self.core.has_run() || self.core.awaits_isolation();
                if !starts && self.failures.is_new(reason) {
                    warn!(subsystem = "wgmesh", %reason, "the mesh is not up");
                }
            }
            MeshStatus::Partial { .. }
            | MeshStatus::ForeignRoutes { .. }
            | MeshStatus::Overlaps(_) => {
                let reason = status.fault().unwrap_or_default();
                if self.failures.is_new(&reason) {
                    warn!(subsystem = "wgmesh", %reason, "the mesh is not whole");
                }
            }
            MeshStatus::Up | MeshStatus::Off => {
                if self.failures.clear() {
                    info!(subsystem = "wgmesh", "the mesh is up again");
                }
            }
        }
        // The status of the last instance stays until this one has run a pass.
        if self.core.has_run() {
            self.args.status.send_if_modified(|current| {
                let differs = current != status;
                if differs {
                    current.clone_from(status);
                }
                differs
            });
        }
    }

    fn log_overlapping(&mut self) {
        let names: Vec<&str> = self.core.overlapping().collect();
        let names = names.join(", ");
        if names.is_empty() {
            self.overlapping.clear();
        } else if self.overlapping.is_new(&names) {
            warn!(subsystem = "wgmesh", %names, "members may be out of reach: their addresses belong to the container networks");
        }
    }

    fn log_unresolved(&mut self) {
        let names = self.core.unresolved().join(", ");
        if names.is_empty() {
            self.unresolved.clear();
        } else if self.unresolved.is_new(&names) {
            warn!(subsystem = "wgmesh", %names, "members left out: their names do not resolve");
        }
    }
}

async fn look(mesh: &SharedPort, networks: BTreeSet<Cidr>) -> Result<Seen, PortError> {
    Ok(Seen {
        observed: mesh.look(networks).await?,
        resolved: BTreeMap::new(),
    })
}

/// Addresses of those names that can be resolved.
async fn resolve(mesh: &SharedPort, names: BTreeSet<String>) -> BTreeMap<String, Ipv4Addr> {
    let resolving = names.into_iter().map(async |name| {
        let ip = mesh.resolve(name.clone()).await?;
        Some((name, ip))
    });
    join_all(resolving).await.into_iter().flatten().collect()
}

/// Carries out the steps in order. A step that fails does not stop those that do not need it.
async fn apply(mesh: SharedPort, steps: Vec<Step>) -> Outcome {
    let mut outcome = Outcome {
        result: Ok(()),
        peers: None,
    };
    for step in steps {
        let peers = match &step {
            Step::SetPeers(peers) => Some(peers.len()),
            _ => None,
        };
        let (required, text, failed) = (step.is_required(), step.to_string(), step.clone());
        match mesh.apply(step).await {
            Ok(()) => {
                debug!(subsystem = "wgmesh", step = %text, "mesh changed");
                outcome.peers = peers.or(outcome.peers);
            }
            Err(error) => {
                let earlier = outcome.result.err();
                outcome.result = Err(ApplyError::with(earlier, &failed, error.0));
                if required {
                    break;
                }
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests;
