//! Replicas of a host by the networks that they belong to.
//!
//! A container belongs to a network if its row does, whether or not it is attached.

use std::{collections::BTreeMap, net::Ipv4Addr};

use jaco_engine::spec::{EndpointConfig, endpoint_config, networks};
use jaco_proto::v1::ReplicaDesired;
use jaco_state::State;

use crate::{
    network::names::NetworkId,
    runtime::{assignment, documents::Documents},
};

/// Replica of this host that belongs to a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Replica id.
    pub replica_id: String,
    /// Log index of its row.
    pub raft_index: u64,
    /// Its names on the network, and other settings.
    pub config: EndpointConfig,
    /// Its last reported container and the address of that.
    pub reported: Option<(String, Ipv4Addr)>,
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
        for (network, config) in endpoints_of(state, documents, row) {
            let network = NetworkId::new(&row.deployment, network);
            let member = Member {
                replica_id: id.clone(),
                raft_index: row.raft_index,
                config,
                reported: reported(state, host, &id, &network),
            };
            members.entry(network).or_default().push(member);
        }
    }
    members
}

/// Whether a network of this host that has lost its block needs another one.
///
/// The block of a shared network goes with the last deployment that names it; one that names it again
/// may have kept its containers. That of any other network goes with its rows.
#[must_use]
pub fn needs_block(state: &State, documents: &Documents, host: &str, network: &NetworkId) -> bool {
    network.is_shared() && members(state, documents, host).contains_key(network)
}

/// Networks of a row and its settings on each; none while its document is missing.
fn endpoints_of(
    state: &State,
    documents: &Documents,
    row: &ReplicaDesired,
) -> Vec<(String, EndpointConfig)> {
    let deployment = state.deployments.get(&row.deployment);
    let specs = deployment.map(|found| found.services.as_slice());
    let spec = specs
        .unwrap_or_default()
        .iter()
        .find(|spec| spec.name == row.service);
    let listed = assignment::with_service(state, documents, row, |service| {
        let networks = networks(spec, service).into_iter();
        let configured = networks.map(|network| {
            let config = endpoint_config(row, service, &network);
            (network, config)
        });
        configured.collect()
    });
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
