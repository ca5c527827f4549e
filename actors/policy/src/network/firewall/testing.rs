//! States with address blocks.

use std::sync::Arc;

use jaco_proto::v1;
use jaco_state::State;

/// State with the rows `(deployment, network, host, block)`.
pub(crate) fn state(rows: &[(&str, &str, &str, &str)]) -> State {
    let mut state = State::default();
    for &(deployment, network, host, cidr) in rows {
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
    state
}
