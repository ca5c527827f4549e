//! Metrics of a node.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jaco_net::{
    ingress::{self, AccessLog, Meter},
    l4::Ports,
};
use jaco_raftnode::{Applied, Observe, RaftHandle, State};
use jaco_supervision::Tree;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::{
    certificates::Certificates, round_trips::RoundTrips, routes::Routes, snapshot::Sources,
    starts::Starts, text,
};
use crate::{clock::Clock, network::reports::NetworkReports};

/// Upper bounds of the buckets of every histogram, in seconds.
pub const BUCKETS: [f64; 13] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

pub(super) fn buckets() -> Histogram {
    Histogram::new(BUCKETS)
}

/// Metrics of one node; clones share state.
///
/// Recording is always enabled and cheap: an atomic addition, or a lock that is held only briefly.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    counts: Arc<Counts>,
    clock: Clock,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Op {
    op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DnsQuery {
    kind: &'static str,
    rcode: &'static str,
}

struct Counts {
    commit_latency: Histogram,
    apply_duration: Family<Op, Histogram, fn() -> Histogram>,
    reconcile_lag: Histogram,
    revocation: Histogram,
    routes: Routes,
    certificates: Certificates,
    starts: Starts,
    round_trips: RoundTrips,
    dns_queries: Family<DnsQuery, Counter>,
    sources: Sources,
}

impl Metrics {
    /// Creates the metrics of node `node`; `clock` measures the propagation of token revocations.
    #[must_use]
    pub fn new(node: &str, clock: Clock) -> Self {
        let counts = Arc::new(Counts {
            commit_latency: buckets(),
            apply_duration: Family::new_with_constructor(buckets),
            reconcile_lag: buckets(),
            revocation: buckets(),
            routes: Routes::new(),
            certificates: Certificates::new(),
            starts: Starts::new(),
            round_trips: RoundTrips::new(),
            dns_queries: Family::default(),
            sources: Sources::default(),
        });
        let mut registry = Registry::with_prefix("jaco");
        registry.register_collector(Box::new(ClusterCollector(counts.clone())));
        let node = ("node".into(), node.to_owned().into());
        let of_node = registry.sub_registry_with_label(node);
        of_node.register(
            "raft_commit_latency_seconds",
            "From a proposal on this node to its commit",
            counts.commit_latency.clone(),
        );
        of_node.register(
            "apply_duration_seconds",
            "Time the state machine took for one command",
            counts.apply_duration.clone(),
        );
        of_node.register(
            "scheduler_reconcile_lag_seconds",
            "From the first change to the batch that answers it",
            counts.reconcile_lag.clone(),
        );
        of_node.register(
            "token_revocation_propagation_seconds",
            "From the revocation of a token to its effect here",
            counts.revocation.clone(),
        );
        of_node.register(
            "dns_queries",
            "Answered queries of containers",
            counts.dns_queries.clone(),
        );
        of_node.register_collector(Box::new(NodeCollector(counts.clone())));
        Self(Arc::new(Inner {
            registry,
            counts,
            clock,
        }))
    }

    /// Records the time from a change to the end of the scheduler pass that covers it.
    pub fn reconciled(&self, lag: Duration) {
        self.0.counts.reconcile_lag.observe(lag.as_secs_f64());
    }

    /// Records an attempt to start a container of `service` that reached its creation.
    pub fn container_start(&self, deployment: &str, service: &str, ok: bool) {
        self.0.counts.starts.count(deployment, service, ok);
    }

    /// Counts an attempt to obtain a certificate for `domain`.
    pub(crate) fn certificate(&self, domain: &str, environment: &'static str, ok: bool) {
        self.0.counts.certificates.count(domain, environment, ok);
    }

    /// Sets the source of the domains that this node presents certificates for, with the ends of
    /// their validities; later calls have no effect.
    pub(crate) fn watch_certificates(
        &self,
        served: impl Fn() -> Vec<(String, SystemTime)> + Send + Sync + 'static,
    ) {
        self.0.counts.certificates.watch(Box::new(served));
    }

    /// Counts the answer to a query for a name of `kind`, with its response code.
    pub(crate) fn dns_query(&self, kind: &'static str, code: Option<u8>) {
        let rcode = match code {
            Some(0) => "NOERROR",
            Some(1) => "FORMERR",
            Some(2) => "SERVFAIL",
            Some(3) => "NXDOMAIN",
            Some(4) => "NOTIMP",
            Some(5) => "REFUSED",
            Some(_) | None => "OTHER",
        };
        let query = DnsQuery { kind, rcode };
        self.0.counts.dns_queries.get_or_create(&query).inc();
    }

    /// Records the round-trip time of a packet to member `peer`.
    pub(crate) fn peer_rtt(&self, peer: &str, rtt: Duration) {
        self.0.counts.round_trips.observe(peer, rtt);
    }

    /// Sets the tree whose actors are exported; later calls have no effect.
    pub(crate) fn watch_tree(&self, tree: &Tree) {
        let _ = self.0.counts.sources.tree.set(tree.clone());
    }

    /// Sets the raft node whose status is exported; later calls have no effect.
    pub(crate) fn watch_raft(&self, raft: &RaftHandle) {
        let _ = self.0.counts.sources.raft.set(raft.clone());
    }

    /// Sets the published ports whose connections are exported; later calls have no effect.
    pub(crate) fn watch_ports(&self, ports: &Ports) {
        let _ = self.0.counts.sources.ports.set(ports.clone());
    }

    /// Sets the log of requests whose losses are exported; later calls have no effect.
    pub(crate) fn watch_access_log(&self, log: &AccessLog) {
        let _ = self.0.counts.sources.access_log.set(log.clone());
    }

    /// Sets the reports of which the drops of node `host` are exported; later calls have no effect.
    pub(crate) fn watch_network(&self, host: &str, reports: &NetworkReports) {
        let network = (reports.clone(), host.to_owned());
        let _ = self.0.counts.sources.network.set(network);
    }

    /// Drops the series of objects that are missing in `state` at two successive sweeps.
    pub(super) fn sweep(&self, state: &State) {
        self.0.counts.routes.sweep(state);
        self.0.counts.certificates.sweep(state);
        self.0.counts.starts.sweep(state);
        self.0.counts.round_trips.sweep(state);
    }

    /// Replicated state; `None` until the node is a member.
    pub(super) fn state(&self) -> Option<Arc<State>> {
        use jaco_raftnode::StateReader;
        self.0.counts.sources.raft.get().map(RaftHandle::state)
    }

    /// Renders all metrics in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        text::render(&self.0.registry)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Observe for Metrics {
    fn committed(&self, latency: Duration) {
        self.0.counts.commit_latency.observe(latency.as_secs_f64());
    }

    fn applied(&self, applied: &Applied) {
        let counts = &self.0.counts;
        counts
            .apply_duration
            .get_or_create(&Op { op: applied.op })
            .observe(applied.took.as_secs_f64());
        if applied.op == "token_revoke"
            && applied.accepted
            && let Some(revoked) = applied.ts.as_ref().and_then(time)
        {
            // Clocks of two nodes may differ, so a negative duration counts as zero.
            let took = self.0.clock.now().duration_since(revoked);
            let took = took.unwrap_or_default();
            counts.revocation.observe(took.as_secs_f64());
        }
    }
}

fn time(at: &prost_types::Timestamp) -> Option<SystemTime> {
    let seconds = u64::try_from(at.seconds).ok()?;
    let nanos = u32::try_from(at.nanos).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds) + Duration::from_nanos(nanos.into()))
}

impl ingress::Observe for Metrics {
    fn meter(&self, domain: Option<&str>, service: &str) -> Arc<dyn Meter> {
        self.0.counts.routes.meter(domain, service)
    }

    fn limited(&self, deployment: &str, service: &str) {
        self.0.counts.routes.count_limited(deployment, service);
    }
}

/// Metrics with the label `node`.
struct NodeCollector(Arc<Counts>);

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.routes.encode_limited(&mut encoder)?;
        self.0.starts.encode(&mut encoder)?;
        self.0.round_trips.encode(&mut encoder)?;
        self.0.sources.encode_node(&mut encoder)
    }
}

/// Metrics without the label `node`.
struct ClusterCollector(Arc<Counts>);

impl Collector for ClusterCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.routes.encode(&mut encoder)?;
        self.0.certificates.encode(&mut encoder)?;
        self.0.sources.encode_cluster(&mut encoder)
    }
}

impl fmt::Debug for NodeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeCollector")
    }
}

impl fmt::Debug for ClusterCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterCollector")
    }
}
