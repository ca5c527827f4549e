//! Driver of the firewall.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use jaco_engine::cidr::Cidr;
use jaco_policy::{
    COMMIT_BUDGET,
    network::{
        firewall::{
            core::{Action, Applied, Core, FlowsCut, Report, Submitted},
            exemptions::{Exemption, Outcome},
            local::{LocalNetworks, LocalReports},
            ruleset::Ruleset,
        },
        ipam::Pool,
        names::NetworkId,
        readiness::{IsolationStatus, MeshStatus},
    },
    node::writers::FIREWALL,
};
use jaco_raftnode::{ForwardingProposer, ProposeError, State};
use jaco_supervision::{Context, Failure, Worker};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, timeout},
};
use tracing::{error, info, warn};

use super::{SharedPort, Status};
use crate::{clock::Clock, commit::submit, log_dedup::LogDedup, network::ipam::addresses};

/// Delay before the next attempt to subscribe to changes.
const RESUBSCRIBE: Duration = Duration::from_secs(5);

/// Arguments of a [`FirewallActor`]; kept across restarts.
#[derive(Clone)]
pub struct Args {
    /// This host.
    pub host: String,
    /// Reads the replicated state and submits reports.
    pub raft: Arc<dyn ForwardingProposer>,
    /// Whether a leader is known.
    pub leader_known: watch::Receiver<bool>,
    /// Address pool if the cluster's state names none.
    pub pool: Pool,
    /// The networks of this host's engine, once they were listed.
    pub local: watch::Receiver<Option<Arc<LocalNetworks>>>,
    /// The reports of this host's replicas.
    pub reports: watch::Receiver<LocalReports>,
    /// State of the mesh, if the node has one.
    pub mesh: Option<watch::Receiver<MeshStatus>>,
    /// Source of the commands' timestamps.
    pub clock: Clock,
    /// The packet filter.
    pub port: SharedPort,
    /// Receives the status; holds the last one while the actor restarts.
    pub status: watch::Sender<Status>,
}

/// Mailbox of the firewall.
pub enum Msg {
    /// Address blocks or this node's row may have changed.
    State(Arc<State>),
    /// A leader was elected or lost.
    Leader(bool),
    /// The mesh came up or went down.
    Mesh(MeshStatus),
    /// The networks of this host's engine were listed.
    Local(Option<Arc<LocalNetworks>>),
    /// A replica of this host was reported on.
    Reports(LocalReports),
    /// The packet filter changed; the stream announces the next change. `None` if there is none.
    Changed(Option<BoxStream<'static, ()>>),
    /// Time to subscribe to changes again.
    Subscribe,
    /// A container waits until the ruleset includes a block.
    Wanted(NetworkId, Cidr),
    /// The exemptions were asserted.
    Exempted(Vec<(Exemption, Outcome)>),
    /// The table was read.
    Read(Result<Option<Ruleset>, String>),
    /// The table was replaced.
    Applied(Result<Applied, String>),
    /// Connections that began without the table were ended; their number, if they can be listed.
    FlowsCut(Result<Option<usize>, String>),
    /// The submission of a report ended.
    Submitted(Result<(), ProposeError>),
    /// The core's deadline passed.
    Wake,
}

impl fmt::Debug for Msg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("firewall::Msg")
    }
}

/// Owns the isolation ruleset of one node.
pub struct FirewallActor {
    args: Args,
    core: Core,
    failures: LogDedup,
    subscription: LogDedup,
    reports: LogDedup,
    flows: LogDedup,
    exemptions: BTreeMap<Exemption, LogDedup>,
}

impl Worker for FirewallActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "FirewallActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let now = Instant::now().into_std();
        let mut states = args.raft.follow();
        let last = states.borrow_and_update().clone();
        let host = args.host.clone();
        let differs = move |last: &Arc<State>, next: &Arc<State>| {
            !last.subnets.ptr_eq(&next.subnets)
                || !last.deployments.ptr_eq(&next.deployments)
                || !last.replicas_observed.ptr_eq(&next.replicas_observed)
                || !last.replicas_desired.ptr_eq(&next.replicas_desired)
                || last.nodes.get(&host) != next.nodes.get(&host)
                || last.nodes.len() != next.nodes.len()
                || Pool::of_cluster(last) != Pool::of_cluster(next)
        };
        let status = args.status.borrow().clone();
        let mut core = Core::new(now, &args.host, Arc::clone(&last), status);
        core.handle_pool(addresses(&last, args.pool));
        if let Some(mut mesh) = args.mesh.clone() {
            core.handle_mesh(mesh.borrow_and_update().clone());
            ctx.watch(mesh, Msg::Mesh);
        }
        ctx.watch_if(states, last, differs, Msg::State);
        let mut reports = args.reports.clone();
        core.handle_reports(now, reports.borrow_and_update().clone());
        ctx.watch(reports, Msg::Reports);
        let mut local = args.local.clone();
        local.mark_changed();
        ctx.watch(local, Msg::Local);
        let mut leader = args.leader_known.clone();
        leader.mark_changed();
        ctx.watch(leader, Msg::Leader);
        ctx.send_to_self(Msg::Subscribe);
        let mut firewall = Self {
            args,
            core,
            failures: LogDedup::default(),
            subscription: LogDedup::default(),
            reports: LogDedup::default(),
            flows: LogDedup::default(),
            exemptions: BTreeMap::new(),
        };
        firewall.drive(ctx);
        Ok(firewall)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Instant::now().into_std();
        match msg {
            Msg::State(state) => {
                self.core.handle_pool(addresses(&state, self.args.pool));
                self.core.handle_state(now, state);
            }
            Msg::Mesh(mesh) => self.core.handle_mesh(mesh),
            Msg::Local(local) => {
                if let Some(local) = local {
                    self.core.handle_local(now, local);
                }
            }
            Msg::Reports(reports) => self.core.handle_reports(now, reports),
            Msg::Leader(known) => self.core.handle_leader(now, known),
            Msg::Changed(changes) => {
                self.core.handle_kernel_event(now);
                match changes {
                    Some(changes) => await_change(ctx, changes),
                    None => drop(ctx.send_after(RESUBSCRIBE, Msg::Subscribe)),
                }
            }
            Msg::Subscribe => self.subscribe(ctx),
            Msg::Wanted(network, block) => self.core.handle_request(now, &network, block),
            Msg::Exempted(outcomes) => {
                self.log_exemptions(&outcomes);
                self.core.handle_exempted(now, &outcomes);
            }
            Msg::Read(found) => {
                if let Err(error) = &found {
                    self.log_failure("isolation ruleset not read", error);
                }
                self.core.handle_read(now, found);
            }
            Msg::Applied(outcome) => self.core.handle_applied(now, outcome),
            Msg::FlowsCut(outcome) => {
                self.log_cut(&outcome);
                self.core.handle_flows_cut(match outcome {
                    Ok(Some(_)) => FlowsCut::Done,
                    Ok(None) => FlowsCut::Unsupported,
                    Err(_) => FlowsCut::Failed,
                });
            }
            Msg::Submitted(outcome) => {
                // The core requires the newest row before the end of a report.
                self.core.handle_state(now, self.args.raft.state());
                let outcome = self.submitted(outcome);
                self.core.handle_submitted(now, outcome);
            }
            Msg::Wake => {}
        }
        self.drive(ctx);
        Ok(())
    }
}

/// Waits for the next change; the changes until it is handled are one.
fn await_change(ctx: &Context<FirewallActor>, mut changes: BoxStream<'static, ()>) {
    ctx.spawn(async move {
        let next = changes.next().await;
        Msg::Changed(next.map(|()| changes))
    });
}

impl FirewallActor {
    /// Runs the core's actions, then sets the deadline.
    fn drive(&mut self, ctx: &Context<Self>) {
        self.core.handle_timeout(Instant::now().into_std());
        while let Some(action) = self.core.poll_action() {
            let port = Arc::clone(&self.args.port);
            match action {
                Action::Exempt { accepts } => {
                    let pool = addresses(&self.args.raft.state(), self.args.pool);
                    let done = spawn_blocking(move || port.exempt(pool, accepts));
                    ctx.spawn(async { Msg::Exempted(done.await.unwrap_or_default()) });
                }
                Action::Read => {
                    let done = spawn_blocking(move || port.read());
                    ctx.spawn(async { Msg::Read(done.await.unwrap_or_else(panicked)) });
                }
                Action::Apply(rendered) => {
                    let done = spawn_blocking(move || port.apply(&rendered.ruleset));
                    ctx.spawn(async { Msg::Applied(done.await.unwrap_or_else(panicked)) });
                }
                Action::CutFlows(rendered) => {
                    let done = spawn_blocking(move || port.cut_flows(&rendered.ruleset));
                    ctx.spawn(async { Msg::FlowsCut(done.await.unwrap_or_else(panicked)) });
                }
                Action::Publish(status) => self.publish(status),
                Action::Submit(report) => {
                    let Report(payload) = *report;
                    let now = self.args.clock.timestamp();
                    let command = jaco_raftnode::command(FIREWALL, now, payload);
                    let raft = Arc::clone(&self.args.raft);
                    ctx.spawn(async move {
                        let outcome = timeout(COMMIT_BUDGET, submit(raft.as_ref(), command)).await;
                        let late = || Err(ProposeError::Unknown("no answer in time".to_owned()));
                        Msg::Submitted(outcome.unwrap_or_else(|_| late()).map(drop))
                    });
                }
            }
        }
        let deadline = self.core.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(deadline, Msg::Wake);
    }

    fn subscribe(&mut self, ctx: &Context<Self>) {
        match self.args.port.changes() {
            Ok(changes) => {
                self.subscription.clear();
                // Changes before the subscription were not announced.
                self.core.handle_kernel_event(Instant::now().into_std());
                await_change(ctx, changes);
            }
            Err(error) => {
                if self.subscription.is_new(&error) {
                    warn!(subsystem = "firewall", %error, "changes of the packet filter are not announced");
                }
                ctx.send_after(RESUBSCRIBE, Msg::Subscribe);
            }
        }
    }

    fn publish(&mut self, status: Status) {
        let last = self.args.status.send_replace(status.clone());
        match &status.isolation {
            IsolationStatus::Unavailable(error) => {
                self.log_failure("deployments are not isolated", error);
            }
            IsolationStatus::Enforced if last.isolation != IsolationStatus::Enforced => {
                self.failures.clear();
                info!(subsystem = "firewall", "isolation ruleset in force");
            }
            IsolationStatus::Enforced => {
                self.failures.clear();
            }
            IsolationStatus::Pending | IsolationStatus::Off => {}
        }
        if status.repairs > last.repairs {
            info!(
                subsystem = "firewall",
                repairs = status.repairs,
                "isolation ruleset repaired"
            );
        }
    }

    fn submitted(&mut self, outcome: Result<(), ProposeError>) -> Submitted {
        let Err(error) = outcome else {
            self.reports.clear();
            return Submitted::Committed;
        };
        if self.reports.is_new(&error) {
            warn!(subsystem = "firewall", %error, "isolation not reported");
        }
        match error {
            ProposeError::NoLeader | ProposeError::Busy | ProposeError::Unavailable => {
                Submitted::Unavailable
            }
            ProposeError::Unknown(_) => Submitted::Unknown,
            ProposeError::Rejected(_) => Submitted::Refused,
        }
    }

    fn log_failure(&mut self, what: &str, error: &str) {
        if self.failures.is_new(format!("{what}: {error}")) {
            error!(subsystem = "firewall", error, "{what}");
        }
    }

    fn log_cut(&mut self, outcome: &Result<Option<usize>, String>) {
        match outcome {
            Ok(None) => warn!(
                subsystem = "firewall",
                "the kernel lists no connections; those that began without the ruleset may go on"
            ),
            Ok(Some(flows)) => {
                self.flows.clear();
                if *flows > 0 {
                    info!(
                        subsystem = "firewall",
                        flows, "connections between networks ended that began without the ruleset"
                    );
                }
            }
            Err(error) if self.flows.is_new(error) => {
                warn!(
                    subsystem = "firewall",
                    error, "connections that began without the ruleset may go on"
                );
            }
            Err(_) => {}
        }
    }

    /// Logs outcomes that differ from the last ones.
    fn log_exemptions(&mut self, outcomes: &[(Exemption, Outcome)]) {
        for (exemption, outcome) in outcomes {
            let (table, chain) = exemption.chain();
            let log = self.exemptions.entry(*exemption).or_default();
            match outcome {
                Outcome::InPlace => {
                    log.clear();
                }
                Outcome::Written => {
                    log.clear();
                    info!(subsystem = "firewall", table, chain, "exemption written");
                }
                Outcome::Removed => {
                    log.clear();
                    info!(subsystem = "firewall", table, chain, "exemption removed");
                }
                Outcome::NoChain if log.is_new("no chain") => {
                    info!(
                        subsystem = "firewall",
                        table, chain, "no chain to exempt from"
                    );
                }
                Outcome::Failed(error) if log.is_new(error) => {
                    warn!(
                        subsystem = "firewall",
                        table, chain, error, "exemption not written"
                    );
                }
                Outcome::Legacy if log.is_new("legacy") => {
                    warn!(
                        subsystem = "firewall",
                        table, chain, "rules of iptables-legacy are out of reach: no exemption"
                    );
                }
                Outcome::NoChain | Outcome::Legacy | Outcome::Failed(_) => {}
            }
        }
    }
}

fn panicked<T>(error: tokio::task::JoinError) -> Result<T, String> {
    Err(format!("the packet filter's thread failed: {error}"))
}
