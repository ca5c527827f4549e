//! Differences between the networks of a host and what the state wants of them. Pure.
//!
//! A network and its bridge are compared by their presence: [`plan`](super::plan) compares the rest
//! when a difference is repaired. A running container of a member that is not attached was detached
//! from outside: the runtime attaches a container to all its networks before it starts it.

use std::{fmt, net::Ipv4Addr};

use jaco_engine::{Endpoint, EngineNetwork, NetworkedContainer, cidr::Cidr};
use jaco_proto::{
    config::advertise::Interface,
    v1::{self, AuditEventType},
};

use super::{
    addresses::KnownAddresses,
    members::Member,
    plan::{DesiredNetwork, Plan, plan},
    sight::BridgeSight,
};
use crate::network::names::NetworkId;

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

/// Difference between a network of this host and the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The engine has no such network.
    NetworkMissing,
    /// The engine's network has another block, belongs to another cluster, or exists twice.
    NetworkDiffers,
    /// The network has lost its Linux bridge.
    BridgeMissing(String),
    /// The Linux bridge of the network is down.
    BridgeDown(String),
    /// The Linux bridge has lost the address of the gateway.
    GatewayMissing(String),
    /// A running container of this replica is not attached.
    Detached(String),
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetworkMissing => f.write_str("missing:network"),
            Self::NetworkDiffers => f.write_str("differs:network"),
            Self::BridgeMissing(bridge) => write!(f, "missing:bridge:{bridge}"),
            Self::BridgeDown(bridge) => write!(f, "down:bridge:{bridge}"),
            Self::GatewayMissing(bridge) => write!(f, "missing:gateway:{bridge}"),
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
                config: member.config.clone(),
                address: address.filter(|address| is_for_containers(wanted.cidr, *address)),
            };
            endpoints.push((member.replica_id.clone(), endpoint));
        }
    }
    endpoints
}

/// Faults of the bridge of a network with this block that need no other bridge.
#[must_use]
pub fn bridge_faults(network: &EngineNetwork, block: Cidr, interfaces: &[Interface]) -> Vec<Drift> {
    let bridge = interfaces
        .iter()
        .find(|found| Some(&found.name) == network.bridge.as_ref());
    let Some(bridge) = bridge else {
        return Vec::new();
    };
    let name = || bridge.name.clone();
    let down = (!bridge.up).then(|| Drift::BridgeDown(name()));
    let gateway = bridge.addresses.contains(&block.gateway().into());
    let lost = (!gateway).then(|| Drift::GatewayMissing(name()));
    down.into_iter().chain(lost).collect()
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
        Ok(Plan::Reuse(found)) => match sight.missing(&found, &seen.networks, &seen.interfaces) {
            Some(missing) => drift.push(Drift::BridgeMissing(missing)),
            None => drift.extend(bridge_faults(&found, wanted.cidr, &seen.interfaces)),
        },
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
