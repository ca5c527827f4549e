//! Differences between the networks of a host and what the state wants of them. Pure.
//!
//! A network and its bridge are compared by their presence: [`plan`](super::plan) compares the rest
//! when a difference is repaired. A container belongs to a network if its row does, and a running
//! one that is not attached to it was detached from outside: the runtime attaches a container to
//! all its networks before it starts it.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use jaco_engine::{
    Endpoint, EngineNetwork, NetworkedContainer,
    cidr::Cidr,
    spec::{aliases, networks},
};
use jaco_proto::{
    config::advertise::Interface,
    v1::{self, AuditEventType, ReplicaDesired},
};
use jaco_state::State;

use super::{
    addresses::KnownAddresses,
    plan::{DesiredNetwork, Plan, plan},
    sight::BridgeSight,
};
use crate::{
    network::names::NetworkId,
    runtime::{assignment, documents::Documents},
};

/// Differences listed in a summary; the leader refuses audit events that are too large.
const MAX_SUMMARY: usize = 16;

/// One moment of a host: its networks, the containers of the cluster, and its interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetworks {
    /// Networks of the engine.
    pub networks: Vec<EngineNetwork>,
    /// Containers of the cluster.
    pub containers: Vec<NetworkedContainer>,
    /// Interfaces of the host.
    pub interfaces: Vec<Interface>,
}

/// Replica of this host that belongs to a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Replica id.
    pub replica_id: String,
    /// Log index of its row.
    pub raft_index: u64,
    /// Its names on the network.
    pub aliases: Vec<String>,
    /// Its last reported container and the address of that.
    pub reported: Option<(String, Ipv4Addr)>,
}

/// Difference between a network of this host and the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The engine has no such network.
    NetworkMissing,
    /// The engine's network has another block, belongs to another cluster, or exists twice.
    NetworkDiffers,
    /// The network has lost its Linux bridge.
    BridgeMissing(String),
    /// A running container of this replica is not attached.
    Detached(String),
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetworkMissing => f.write_str("missing:network"),
            Self::NetworkDiffers => f.write_str("differs:network"),
            Self::BridgeMissing(bridge) => write!(f, "missing:bridge:{bridge}"),
            Self::Detached(replica) => write!(f, "detached:{replica}"),
        }
    }
}

/// Audit event about a repair of a network on `host`; `None` if the network only followed a change
/// of its block.
#[must_use]
pub fn audit_event(host: &str, network: &NetworkId, repaired: &[Drift]) -> Option<v1::AuditEvent> {
    if repaired.iter().all(|drift| *drift == Drift::NetworkDiffers) {
        return None;
    }
    let detail = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let payload = [
        detail("node", host),
        detail("deployment", network.deployment()),
        detail("network", network.network()),
        detail("summary", &summary(repaired)),
    ];
    Some(v1::AuditEvent {
        r#type: AuditEventType::NetworkRepaired.into(),
        payload: payload.into(),
        ..Default::default()
    })
}

/// Comma list of differences, cut off after some of them.
#[must_use]
pub fn summary(drift: &[Drift]) -> String {
    let listed = drift.iter().take(MAX_SUMMARY).map(ToString::to_string);
    let mut listed: Vec<_> = listed.collect();
    if let Some(more @ 1..) = drift.len().checked_sub(MAX_SUMMARY) {
        listed.push(format!("and {more} more"));
    }
    listed.join(",")
}

/// Members of this host's networks, in order of their ids.
#[must_use]
pub fn members(
    state: &State,
    documents: &Documents,
    host: &str,
) -> BTreeMap<NetworkId, Vec<Member>> {
    let mut members = BTreeMap::<_, Vec<Member>>::new();
    for id in assignment::here(state, host) {
        let Some(row) = state.replicas_desired.get(&id) else {
            continue;
        };
        for network in networks_of(state, documents, row) {
            let network = NetworkId::new(&row.deployment, network);
            let member = Member {
                replica_id: id.clone(),
                raft_index: row.raft_index,
                aliases: aliases(row),
                reported: reported(state, host, &id, &network),
            };
            members.entry(network).or_default().push(member);
        }
    }
    members
}

/// Networks of a row; none while its document is missing.
fn networks_of(state: &State, documents: &Documents, row: &ReplicaDesired) -> Vec<String> {
    let deployment = state.deployments.get(&row.deployment);
    let specs = deployment.map(|found| found.services.as_slice());
    let spec = specs
        .unwrap_or_default()
        .iter()
        .find(|spec| spec.name == row.service);
    let listed = assignment::with_service(state, documents, row, |service| networks(spec, service));
    listed.unwrap_or_default()
}

fn reported(
    state: &State,
    host: &str,
    replica_id: &str,
    network: &NetworkId,
) -> Option<(String, Ipv4Addr)> {
    let seen = state.replicas_observed.get(replica_id)?;
    let address = seen.details.get(&format!("ip.{}", network.engine_name()))?;
    let address = address.parse().ok()?;
    (seen.host == host).then(|| (seen.container_id.clone(), address))
}

/// Attachments that running containers of `members` lack. An address that the container had is
/// asked for again.
#[must_use]
pub fn detached(
    wanted: &DesiredNetwork,
    members: &[Member],
    containers: &[NetworkedContainer],
    known: &KnownAddresses,
) -> Vec<(String, Endpoint)> {
    let name = wanted.id.engine_name();
    let lacks = |member: &Member, container: &&NetworkedContainer| {
        container.replica_id.as_ref() == Some(&member.replica_id)
            && container.raft_index == Some(member.raft_index)
            && container.running
            && !container.networks.contains_key(&name)
    };
    let mut endpoints = Vec::new();
    for member in members {
        for container in containers.iter().filter(|found| lacks(member, found)) {
            let address = known.of(&container.id, &wanted.id);
            let endpoint = Endpoint {
                container: container.id.clone(),
                aliases: member.aliases.clone(),
                address: address.filter(|address| is_for_containers(wanted.cidr, *address)),
            };
            endpoints.push((member.replica_id.clone(), endpoint));
        }
    }
    endpoints
}

fn is_for_containers(cidr: Cidr, address: Ipv4Addr) -> bool {
    let address_number = u64::from(u32::from(address));
    (cidr.first()..cidr.last()).contains(&address_number)
        && address != cidr.network()
        && address != cidr.gateway()
}

/// Compares a network with the state.
#[must_use]
pub fn compare(
    wanted: &DesiredNetwork,
    members: &[Member],
    seen: &HostNetworks,
    sight: &BridgeSight,
) -> Vec<Drift> {
    let mut drift = Vec::new();
    match plan(wanted, &seen.networks, &seen.interfaces) {
        Ok(Plan::Reuse(found)) => {
            let missing = sight.missing(&found, &seen.networks, &seen.interfaces);
            drift.extend(missing.map(Drift::BridgeMissing));
        }
        Ok(Plan::Remove(_)) => drift.push(Drift::NetworkDiffers),
        // The repair reports the error.
        Ok(Plan::Create(_)) | Err(_) => drift.push(Drift::NetworkMissing),
    }
    let known = KnownAddresses::default(); // not compared
    let detached = detached(wanted, members, &seen.containers, &known).into_iter();
    drift.extend(detached.map(|(replica, _)| Drift::Detached(replica)));
    drift
}

#[cfg(test)]
mod tests;
