//! States with members and address blocks, for tests.

use std::sync::Arc;

use jaco_proto::v1;
use jaco_state::State;

/// State with the rows `(deployment, network, host, block)`.
pub(crate) fn state(rows: &[(&str, &str, &str, &str)]) -> State {
    let mut state = State::default();
    for row in rows {
        put_subnet(&mut state, *row);
    }
    state
}

/// Adds the row `(deployment, network, host, block)`.
pub(crate) fn put_subnet(
    state: &mut State,
    (deployment, network, host, cidr): (&str, &str, &str, &str),
) {
    let key = (deployment.to_owned(), network.to_owned(), host.to_owned());
    let row = v1::Subnet {
        deployment: deployment.to_owned(),
        network: network.to_owned(),
        host: host.to_owned(),
        cidr: cidr.to_owned(),
        ..Default::default()
    };
    state.subnets.insert(key, Arc::new(row));
}

/// Declares a network as internal.
pub(crate) fn make_internal(state: &mut State, deployment: &str, network: &str) {
    let row = state.deployments.entry(deployment.to_owned()).or_default();
    let row = Arc::make_mut(row);
    deployment.clone_into(&mut row.name);
    row.networks.push(v1::NetworkSpec {
        name: network.to_owned(),
        internal: true,
    });
}

/// Adds a member.
pub(crate) fn put_node(state: &mut State, node: v1::Node) {
    state.nodes.insert(node.hostname.clone(), Arc::new(node));
}
