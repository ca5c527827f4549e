//! Networks that deployments share.

use std::collections::BTreeSet;

use jaco_proto::{
    manifest::compose::{SHARED_SCOPE, shared_name},
    v1,
};

use crate::State;

/// Names of the networks that the services of a deployment share with other deployments.
pub fn shared_networks(services: &[v1::ServiceSpec]) -> impl Iterator<Item = &str> {
    let networks = services.iter().flat_map(|service| &service.networks);
    networks.filter_map(|network| shared_name(network))
}

impl State {
    /// The networks that are in use, and so keep their address blocks.
    #[must_use]
    pub fn networks_in_use(&self) -> NetworksInUse<'_> {
        let deployments = self.deployments.values();
        NetworksInUse {
            state: self,
            shared: deployments
                .flat_map(|row| shared_networks(&row.services))
                .collect(),
        }
    }
}

/// Networks that deployments use.
#[derive(Debug)]
pub struct NetworksInUse<'a> {
    state: &'a State,
    shared: BTreeSet<&'a str>,
}

impl NetworksInUse<'_> {
    /// Whether a deployment, or scope, uses a network: the deployment exists, or one shares the network.
    #[must_use]
    pub fn contains(&self, deployment: &str, network: &str) -> bool {
        self.state.deployments.contains_key(deployment)
            || deployment == SHARED_SCOPE && self.shared.contains(network)
    }

    /// Whether a block is in use by a member: its network is, or a container of that host has an address of
    /// it, or may have one that is not reported yet. A container serves on as it is until the next revision of
    /// its service is placed.
    #[must_use]
    pub fn contains_block(&self, subnet: &v1::Subnet) -> bool {
        let is_attached = || {
            // The detail that reports have for each network of the engine.
            let detail = format!("ip.jaco_{SHARED_SCOPE}_{}", subnet.network);
            let mut reports = self.state.replicas_observed.values();
            let mut rows = self.state.replicas_desired.values();
            reports.any(|seen| seen.host == subnet.host && seen.details.contains_key(&detail))
                || rows.any(|row| row.host == subnet.host && self.joined(row, &subnet.network))
        };
        self.state.nodes.contains_key(&subnet.host)
            && (self.contains(&subnet.deployment, &subnet.network)
                || subnet.deployment == SHARED_SCOPE && is_attached())
    }

    /// Whether a row is of the revision before, in which its service named a shared network.
    fn joined(&self, row: &v1::ReplicaDesired, network: &str) -> bool {
        let Some(deployment) = self.state.deployments.get(&row.deployment) else {
            return false;
        };
        let previous = deployment.previous.as_ref();
        let previous = previous.filter(|_| row.raft_index < deployment.applied_raft_index);
        let mut services = previous.into_iter().flat_map(|revision| &revision.services);
        services.any(|service| {
            let mut names = shared_networks(std::slice::from_ref(service));
            service.name == row.service && names.any(|name| name == network)
        })
    }

    /// Whether any network is shared.
    #[must_use]
    pub fn any_shared(&self) -> bool {
        !self.shared.is_empty()
    }
}
