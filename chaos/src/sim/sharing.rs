//! Networks that deployments share, and their judges.

use jaco_policy::network::names::NetworkId;
use jaco_proto::{manifest::compose::SHARED_SCOPE, v1};
use jaco_state::State;

use super::{
    cluster::{Cluster, Machine},
    mutation::Mutation,
};
use crate::Rng;

/// The network that some services share, by its name in the state.
const EDGE: &str = "shared/edge";

/// Adds the shared network to a few services.
pub(super) fn draw(chance: &mut Rng, networks: &mut Vec<String>) {
    // Each use costs a block per machine, and in five minutes of churn few of 256 come back.
    if chance.within(0..10) > 0 {
        return;
    }
    // A service without a list would be on the shared network only.
    if networks.is_empty() {
        networks.push("_default".to_owned());
    }
    let at = usize::try_from(chance.within(0..2)).unwrap_or(0);
    networks.insert(at, EDGE.to_owned());
}

/// Description of a block of a shared network that was freed while a deployment on a member's node used the network.
pub(super) fn freed_in_use(before: &State, after: &State) -> Option<String> {
    if before.subnets.ptr_eq(&after.subnets) {
        return None;
    }
    let is_used = |network: &str| {
        let name = format!("{SHARED_SCOPE}/{network}");
        let rows = after.deployments.values();
        let mut services = rows.flat_map(|row| &row.services);
        services.any(|service| service.networks.contains(&name))
    };
    let mut shared = { before.subnets.keys() }.filter(|(scope, ..)| scope == SHARED_SCOPE);
    let freed = shared.find(|key| {
        let (_, network, host) = key;
        !after.subnets.contains_key(*key) && after.nodes.contains_key(host) && is_used(network)
    })?;
    Some(format!("{freed:?} is freed"))
}

/// Whether a service names a shared network.
fn names(service: &v1::ServiceSpec, network: &NetworkId) -> bool {
    let name = format!("{SHARED_SCOPE}/{}", network.network());
    service.networks.contains(&name)
}

impl Cluster {
    /// A container is only on networks of its deployment, and on shared ones that its service names.
    ///
    /// Only those of rows that were issued after the last change of their deployment are judged: the
    /// service of any other may have named the network before.
    pub(super) fn judge_joined(&self, machine: &Machine) -> Option<(&'static str, String)> {
        let state = self.oracle.newest();
        let found = machine.engine.running().find_map(|container| {
            let row = state.replicas_desired.get(&container.replica)?;
            let deployment = state.deployments.get(&row.deployment)?;
            if container.raft_index != row.raft_index
                || row.raft_index < deployment.applied_raft_index
            {
                return None;
            }
            let mut services = deployment.services.iter();
            let service = services.find(|spec| spec.name == row.service)?;
            let is_own = |network: &NetworkId| match network.is_shared() {
                true => names(service, network),
                false => network.deployment() == row.deployment,
            };
            let other = container.networks.iter().find(|network| !is_own(network))?;
            Some((container, other))
        });
        let (container, network) = found?;
        let what = format!(
            "{} of {} on n{} is on {network}",
            container.id, container.replica, machine.id
        );
        Some(("containers join their own networks", what))
    }

    /// Networks of a row, except with the planted bug.
    pub(super) fn scoped(&self, networks: Vec<NetworkId>) -> Vec<NetworkId> {
        if !self.has(Mutation::JoinUnnamed) {
            return networks;
        }
        let joined = networks.into_iter().map(|id| match id.network() {
            "back-end" => NetworkId::new(id.deployment(), EDGE),
            _ => id,
        });
        joined.collect()
    }
}

impl Mutation {
    /// State of a state machine that takes shared networks for those of one deployment.
    pub(super) fn without_shared_blocks(state: &State) -> State {
        let mut patched = state.clone();
        if state.deployments.contains_key("app-0") {
            return patched;
        }
        for key in state
            .subnets
            .keys()
            .filter(|(scope, ..)| scope == SHARED_SCOPE)
        {
            patched.subnets.remove(key);
        }
        patched
    }
}
