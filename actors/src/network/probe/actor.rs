//! Driver of the probes of one host.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use jaco_policy::{
    network::{
        names::NetworkId,
        probe::{
            core::{Action, Breach, Core, Outcome},
            drops::{Drops, ForgeryAudit},
            paths::Paths,
            report::{BridgeView, MeshView, Reporter, essence},
        },
    },
    node::writers::NETWORK_PROBE,
};
use jaco_proto::v1::{
    self, AuditEvent, AuditEventType, NodeNetwork, command::Payload,
    internal_client::InternalClient,
};
use jaco_raftnode::State;
use jaco_supervision::{Context, Failure, Worker};
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout},
};
use tracing::{error, info, warn};

use super::{Args, LONGEST_SILENCE, LocalNetwork, REPORT_INTERVAL};
use crate::{commit::submit, log_dedup::LogDedup, peer::Peers};

/// Interval of the check of working endpoints, beside that of the bridges.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit of sending a report to one member.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Members that a report is sent to at the same time.
const SEND_CONCURRENCY: usize = 8;
/// Time limit of an audit event.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Audit events that wait to be written; more are dropped.
const MAX_AUDITS: usize = 64;

/// Messages of a [`ProbeActor`].
#[derive(Debug)]
pub enum Msg {
    /// The replicated state changed.
    State(Arc<State>),
    /// The core's deadline passed.
    Wake,
    /// Time to check the bridges and to report.
    Tick,
    /// A network was made able to send probes.
    Ensured(NetworkId, BridgeView),
    /// A probe ended.
    Probed(u64, Outcome),
    /// The state of the mesh, for the next report, and what the rules of the packet filter dropped.
    Collected(MeshView, Result<Drops, String>),
    /// The report was sent to the other members.
    Sent,
    /// Whether an audit event was written.
    Audited(Result<(), String>),
}

/// Probes the networks of this host and reports the verdicts.
pub struct ProbeActor {
    args: Args,
    seen: Arc<State>,
    core: Core,
    live: BTreeSet<Ipv4Addr>,
    networks: BTreeMap<NetworkId, LocalNetwork>,
    bridges: BTreeMap<NetworkId, BridgeView>,
    /// Networks with a call of [`super::Prober::ensure`] in progress.
    ensuring: BTreeSet<NetworkId>,
    reporter: Reporter,
    /// Essence and time of the last report that was sent.
    sent: Option<(NodeNetwork, Instant)>,
    sending: bool,
    reporting: bool,
    audits: VecDeque<AuditEvent>,
    auditing: bool,
    audit_errors: LogDedup,
    forgeries: ForgeryAudit,
    /// Packets that the rules of the packet filter had dropped when they were last read.
    dropped: Drops,
    drop_errors: LogDedup,
    /// Last check of all endpoints.
    checked: Instant,
}

impl Worker for ProbeActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "ProbeActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let mut states = args.cluster.follow();
        let seen = states.borrow_and_update().clone();
        let mut actor = Self {
            args,
            seen: Arc::new(State::default()),
            core: Core::default(),
            live: BTreeSet::new(),
            networks: BTreeMap::new(),
            bridges: BTreeMap::new(),
            ensuring: BTreeSet::new(),
            reporter: Reporter::default(),
            sent: None,
            sending: false,
            reporting: false,
            audits: VecDeque::new(),
            auditing: false,
            audit_errors: LogDedup::default(),
            forgeries: ForgeryAudit::default(),
            dropped: Drops::new(),
            drop_errors: LogDedup::default(),
            checked: Instant::now(),
        };
        // An earlier instance may have ended before it released a network.
        actor.args.prober.retain(&local(&seen, &actor.args.host));
        actor.handle_state(ctx, Arc::clone(&seen));
        let differs = |last: &Arc<State>, next: &Arc<State>| {
            !last.subnets.ptr_eq(&next.subnets) || !last.nodes.ptr_eq(&next.nodes)
        };
        ctx.watch_if(states, seen, differs, Msg::State);
        ctx.send_after(REPORT_INTERVAL, Msg::Tick);
        actor.drive(ctx);
        Ok(actor)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Instant::now();
        match msg {
            Msg::State(state) => self.handle_state(ctx, state),
            Msg::Wake => self.core.handle_timeout(now.into_std()),
            Msg::Tick => {
                ctx.send_after(REPORT_INTERVAL, Msg::Tick);
                self.check(ctx, now);
                self.update_paths(false);
                self.collect(ctx);
                self.audit(ctx);
            }
            Msg::Ensured(id, view) => self.handle_ensured(ctx, id, view),
            Msg::Probed(id, outcome) => self.core.handle_outcome(now.into_std(), id, outcome),
            Msg::Collected(mut mesh, dropped) => {
                self.handle_dropped(now, &mut mesh, dropped);
                self.audit(ctx);
                self.report(ctx, &mesh);
            }
            Msg::Sent => self.sending = false,
            Msg::Audited(outcome) => self.handle_audited(ctx, outcome),
        }
        self.drive(ctx);
        Ok(())
    }
}

impl ProbeActor {
    fn handle_state(&mut self, ctx: &Context<Self>, state: Arc<State>) {
        let before = std::mem::replace(&mut self.seen, state);
        self.args.reports.retain_members(&self.seen);
        if before.subnets.ptr_eq(&self.seen.subnets) {
            return;
        }
        let networks = local(&self.seen, &self.args.host);
        let old = std::mem::replace(&mut self.networks, networks);
        for (id, last) in &old {
            if self.networks.get(id) != Some(last) {
                self.args.prober.remove(id);
                self.bridges.remove(id);
            }
        }
        let new = self.networks.values().cloned();
        let new: Vec<_> = new
            .filter(|network| old.get(&network.id) != Some(network))
            .collect();
        new.into_iter()
            .for_each(|network| self.ensure(ctx, network));
        self.update_paths(true);
    }

    /// Passes the paths to the core if they may have changed.
    fn update_paths(&mut self, state_changed: bool) {
        let own = self.bridges.values().filter_map(|view| view.endpoint);
        let mut live = self.args.reports.live();
        live.extend(own);
        if !state_changed && live == self.live {
            return;
        }
        self.live = live;
        let paths = Paths::new(&self.seen, &self.args.host, &self.live);
        self.core.handle_paths(Instant::now().into_std(), paths);
    }

    /// Ensures the networks without an endpoint, and every [`CHECK_INTERVAL`] all.
    fn check(&mut self, ctx: &Context<Self>, now: Instant) {
        let all = now.saturating_duration_since(self.checked) >= CHECK_INTERVAL;
        if all {
            self.checked = now;
        }
        let works = |id| {
            self.bridges
                .get(id)
                .is_some_and(|view| view.endpoint.is_some())
        };
        let due = self.networks.values();
        let due: Vec<_> = due
            .filter(|network| all || !works(&network.id))
            .cloned()
            .collect();
        due.into_iter()
            .for_each(|network| self.ensure(ctx, network));
    }

    fn ensure(&mut self, ctx: &Context<Self>, network: LocalNetwork) {
        if !self.ensuring.insert(network.id.clone()) {
            return;
        }
        let id = network.id.clone();
        let ensured = self.args.prober.ensure(network);
        ctx.spawn(async move { Msg::Ensured(id, ensured.await) });
    }

    fn handle_ensured(&mut self, ctx: &Context<Self>, id: NetworkId, view: BridgeView) {
        self.ensuring.remove(&id);
        let Some(network) = self.networks.get(&id) else {
            // Removed during the call.
            self.args.prober.remove(&id);
            return;
        };
        let endpoint = jaco_policy::network::probe::endpoint(network.block);
        if view.endpoint.is_some_and(|found| found != endpoint) {
            // The block changed during the call.
            self.args.prober.remove(&id);
            let network = network.clone();
            return self.ensure(ctx, network);
        }
        let endpoint = view.endpoint;
        let last = self.bridges.insert(id, view);
        if last.and_then(|last| last.endpoint) != endpoint {
            self.update_paths(false);
        }
    }

    /// Runs the core's actions, then sets the deadline.
    fn drive(&mut self, ctx: &Context<Self>) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Send(probe) => {
                    let sent = self.args.prober.probe(&probe.from, probe.target.address);
                    ctx.spawn(async move { Msg::Probed(probe.id, sent.await) });
                }
                Action::Breached(breach) => {
                    error!(
                        subsystem = "firewall",
                        from = %breach.from, to = %breach.target.network,
                        host = %breach.target.host, address = %breach.target.address,
                        "a forbidden path answers"
                    );
                    self.record(breach_event(&self.args.host, &breach));
                    self.audit(ctx);
                    self.collect(ctx);
                }
                Action::Cleared(breach) => {
                    info!(
                        subsystem = "firewall",
                        from = %breach.from, to = %breach.target.network,
                        host = %breach.target.host, address = %breach.target.address,
                        "a forbidden path no longer answers"
                    );
                    self.collect(ctx);
                }
            }
        }
        let deadline = self.core.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(deadline, Msg::Wake);
    }

    /// Reads the state of the mesh for a report.
    fn collect(&mut self, ctx: &Context<Self>) {
        if std::mem::replace(&mut self.reporting, true) {
            return;
        }
        let mesh = self.args.mesh.mesh();
        let read = Arc::clone(&self.args.drops);
        let dropped = spawn_blocking(move || read());
        ctx.spawn(async move {
            let dropped = dropped.await;
            let dropped = dropped.unwrap_or_else(|error| Err(error.to_string()));
            Msg::Collected(mesh.await, dropped)
        });
    }

    /// Adds what the packet filter dropped to what the mesh did, and records forged sources.
    fn handle_dropped(
        &mut self,
        now: Instant,
        mesh: &mut MeshView,
        dropped: Result<Drops, String>,
    ) {
        match dropped {
            Ok(dropped) => {
                self.drop_errors.clear();
                self.dropped = dropped;
            }
            Err(error) if self.drop_errors.is_new(&error) => {
                warn!(subsystem = "firewall", %error, "dropped packets are not counted");
            }
            Err(_) => {}
        }
        mesh.drops.extend(&self.dropped);
        let (now, host) = (now.into_std(), &self.args.host);
        if let Some(event) = self.forgeries.handle_totals(now, host, &mesh.drops) {
            warn!(subsystem = "firewall", packets = ?event.payload, "packets with forged sources dropped");
            self.record(event);
        }
    }

    /// Keeps an audit event until it is written.
    fn record(&mut self, event: AuditEvent) {
        if self.audits.len() < MAX_AUDITS {
            self.audits.push_back(event);
        }
    }

    /// Stores a report of this node, and sends it to the others if it changed or the last one is old.
    fn report(&mut self, ctx: &Context<Self>, mesh: &MeshView) {
        self.reporting = false;
        let now = Instant::now();
        let node = (self.seen.as_ref(), self.args.host.as_str());
        let report = self
            .reporter
            .report(now.into_std(), node, &self.core, &self.bridges, mesh);
        if let Err(error) = self.args.reports.put(&self.args.host, report.clone()) {
            warn!(subsystem = "firewall", %error, "the report of this node is not published");
            return;
        }
        let essence = essence(&report);
        let is_due = self.sent.as_ref().is_none_or(|(last, at)| {
            *last != essence || now.saturating_duration_since(*at) >= LONGEST_SILENCE
        });
        if self.sending || !is_due {
            return;
        }
        self.sending = true;
        self.sent = Some((essence, now));
        let others = self.seen.nodes.keys();
        let others = others.filter(|host| **host != self.args.host).cloned();
        let sends = send(self.args.peers.clone(), others.collect(), report);
        ctx.spawn(async move {
            sends.await;
            Msg::Sent
        });
    }

    /// Writes the next audit event.
    fn audit(&mut self, ctx: &Context<Self>) {
        let Some(event) = self.audits.front().filter(|_| !self.auditing) else {
            return;
        };
        self.auditing = true;
        let payload = Payload::AuditAppend(v1::AuditAppend {
            event: Some(event.clone()),
        });
        let stamp = self.args.clock.timestamp();
        let command = jaco_raftnode::command(NETWORK_PROBE, stamp, payload);
        let cluster = Arc::clone(&self.args.cluster);
        ctx.spawn(async move {
            let written = timeout(AUDIT_TIMEOUT, submit(cluster.as_ref(), command)).await;
            Msg::Audited(match written {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer in time".to_owned()),
            })
        });
    }

    fn handle_audited(&mut self, ctx: &Context<Self>, outcome: Result<(), String>) {
        self.auditing = false;
        match outcome {
            Ok(()) => {
                self.audit_errors.clear();
                self.audits.pop_front();
                self.audit(ctx);
            }
            // Written again at the next tick.
            Err(error) if self.audit_errors.is_new(&error) => {
                warn!(subsystem = "firewall", %error, "audit event not recorded yet");
            }
            Err(_) => {}
        }
    }
}

/// Networks with a block on `host`.
fn local(state: &State, host: &str) -> BTreeMap<NetworkId, LocalNetwork> {
    let rows = state.subnets.values().filter(|row| row.host == host);
    rows.filter_map(|row| {
        let id = NetworkId::new(&row.deployment, &row.network);
        let block = row.cidr.parse().ok()?;
        Some((id.clone(), LocalNetwork { id, block }))
    })
    .collect()
}

/// Sends a report to `hosts`; a member that cannot be reached gets the next one.
async fn send(peers: Peers, hosts: Vec<String>, report: NodeNetwork) {
    let sends = stream::iter(hosts).for_each_concurrent(SEND_CONCURRENCY, |host| {
        let request = v1::ReportNetworkRequest {
            report: Some(report.clone()),
        };
        let mut client = InternalClient::new(peers.channel(&host));
        async move {
            match timeout(SEND_TIMEOUT, client.report_network(request)).await {
                Ok(Ok(_)) => {}
                Ok(Err(status)) => {
                    tracing::debug!(subsystem = "firewall", %host, error = %status, "report not sent");
                }
                Err(_) => {
                    tracing::debug!(subsystem = "firewall", %host, "report not answered");
                }
            }
        }
    });
    sends.await;
}

/// Audit event of a breach.
fn breach_event(host: &str, breach: &Breach) -> AuditEvent {
    let payload = [
        ("node", host.to_owned()),
        ("from", breach.from.to_string()),
        ("to", breach.target.network.to_string()),
        ("to_host", breach.target.host.clone()),
        ("address", breach.target.address.to_string()),
    ];
    let payload = payload.map(|(key, value)| (key.to_owned(), value));
    AuditEvent {
        r#type: AuditEventType::IsolationBreach.into(),
        payload: payload.into(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
