//! Gauges computed from the state and the supervision tree at each scrape.

use std::{collections::BTreeMap, fmt, sync::OnceLock};

use jaco_net::{ingress::AccessLog, l4::Ports};
use jaco_proto::v1::ReplicaState;
use jaco_raftnode::{RaftHandle, Role, State, StateReader};
use jaco_supervision::Tree;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use crate::network::reports::NetworkReports;

/// Kind of the raft actor, whose mailbox depth the tree does not have.
const RAFT_ACTOR: &str = "RaftActor";

/// Exported replica states and their labels.
const STATES: [(ReplicaState, &str); 7] = [
    (ReplicaState::Pending, "pending"),
    (ReplicaState::Pulling, "pulling"),
    (ReplicaState::Running, "running"),
    (ReplicaState::Degraded, "degraded"),
    (ReplicaState::Updating, "updating"),
    (ReplicaState::Failed, "failed"),
    (ReplicaState::Stopped, "stopped"),
];

/// Sources of the gauges.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) tree: OnceLock<Tree>,
    /// Set once the node is a member.
    pub(super) raft: OnceLock<RaftHandle>,
    /// Published ports, if the node serves any.
    pub(super) ports: OnceLock<Ports>,
    /// The log of requests, if it is on.
    pub(super) access_log: OnceLock<AccessLog>,
    /// Reports of the members about their networks, and the host whose drops are exported.
    pub(super) network: OnceLock<(NetworkReports, String)>,
}

impl Sources {
    /// Encodes the metrics of this node.
    pub(super) fn encode_node(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(tree) = self.tree.get() {
            let restart_stats = tree.restart_stats();
            counter(
                encoder,
                "actor_restarts",
                "Actors started again.",
                restart_stats
                    .iter()
                    .map(|(kind, count)| (*kind, count.restarts)),
            )?;
            counter(
                encoder,
                "actor_budget_exhausted",
                "Actors that used up their restarts.",
                restart_stats
                    .iter()
                    .map(|(kind, count)| (*kind, count.exhausted)),
            )?;
            let mut depths = BTreeMap::<_, i64>::new();
            for actor in tree.describe() {
                let depth = i64::try_from(actor.mailbox_depth).unwrap_or(i64::MAX);
                *depths.entry(actor.kind).or_default() += depth;
            }
            if let (Some(depth), Some(raft)) = (depths.get_mut(RAFT_ACTOR), self.raft.get()) {
                *depth = i64::try_from(raft.mailbox_depth()).unwrap_or(i64::MAX);
            }
            let help = "Messages that wait for actors.";
            let mut family =
                encoder.encode_descriptor("actor_mailbox_depth", help, None, MetricType::Gauge)?;
            for (kind, depth) in depths {
                ConstGauge::new(depth).encode(family.encode_family(&[("kind", kind)])?)?;
            }
        }
        if let Some(ports) = self.ports.get() {
            let help = "Open connections of published TCP ports.";
            let name = "ingress_tcp_connections";
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (port, count) in ports.tcp_connections() {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                ConstGauge::new(count).encode(family.encode_family(&[("port", port)])?)?;
            }
        }
        if let Some(log) = self.access_log.get() {
            let help = "Requests that the log missed because its disk was too slow or failed.";
            let name = "ingress_access_log_dropped";
            let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(log.dropped()).encode(family)?;
        }
        if let Some((reports, host)) = self.network.get() {
            let help = "Packets of containers and of the mesh that this node dropped.";
            let name = "network_dropped_packets";
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for dropped in reports.dropped(host) {
                let labels = [("reason", dropped.reason)];
                ConstCounter::new(dropped.packets).encode(family.encode_family(&labels)?)?;
            }
        }
        if let Some(raft) = self.raft.get() {
            let status = raft.status();
            let leads = u64::from(status.role == Role::Leader && !status.is_stalled());
            gauge(encoder, "raft_term", "Term of raft.", status.term)?;
            let help = "Index of the last applied log entry.";
            gauge(encoder, "raft_applied_index", help, status.applied)?;
            gauge(encoder, "raft_is_leader", "Whether this node leads.", leads)?;
        }
        Ok(())
    }

    /// Encodes the metrics of the cluster.
    pub(super) fn encode_cluster(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(raft) = self.raft.get() else {
            return Ok(());
        };
        let state = raft.state();
        let used = state.subnets.len() as u64;
        gauge(
            encoder,
            "ipam_subnets_used",
            "Allocated address blocks.",
            used,
        )?;
        if raft.status().leading {
            replicas(&state, encoder)?;
        }
        Ok(())
    }
}

/// Encodes the replicas of each service by state, including states with zero replicas.
fn replicas(state: &State, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut counts = BTreeMap::<(&str, &str), [i64; STATES.len()]>::new();
    for deployment in state.deployments.values() {
        for service in &deployment.services {
            counts.insert((&deployment.name, &service.name), Default::default());
        }
    }
    for (id, desired) in &state.replicas_desired {
        let observed = state.replicas_observed.get(id);
        // A replica without an observation has not been reported by its node yet.
        let now = observed.map_or(ReplicaState::Pending, |row| row.state());
        let at = STATES.iter().position(|(state, _)| *state == now);
        let service = (desired.deployment.as_str(), desired.service.as_str());
        counts.entry(service).or_default()[at.unwrap_or(0)] += 1;
    }
    let help = "Replicas by state.";
    let mut family = encoder.encode_descriptor("replica_state", help, None, MetricType::Gauge)?;
    for ((deployment, service), counts) in counts {
        for ((_, state), count) in STATES.iter().zip(counts) {
            let labels = [
                ("deployment", deployment),
                ("service", service),
                ("state", state),
            ];
            ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    by_kind: impl Iterator<Item = (&'static str, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (kind, count) in by_kind {
        ConstCounter::new(count).encode(family.encode_family(&[("kind", kind)])?)?;
    }
    Ok(())
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(value).encode(family)
}
