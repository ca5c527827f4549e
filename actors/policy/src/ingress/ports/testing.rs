//! States with published ports, for tests.

use std::sync::Arc;

use jaco_proto::v1::{TcpRoute, TransportProtocol};
use jaco_state::State;

/// Publishes `port` of `protocol` for port 5432 of the containers of service `web` of deployment
/// `shop`.
pub fn publish(state: &mut State, port: u16, protocol: TransportProtocol) {
    put(
        state,
        TcpRoute {
            published_port: port.into(),
            deployment: "shop".to_owned(),
            service: "web".to_owned(),
            container_port: 5432,
            protocol: protocol.into(),
            proxy_protocol: 0,
        },
    );
}

/// Stores a published port.
pub fn put(state: &mut State, route: TcpRoute) {
    let key = (route.published_port, route.protocol);
    state.tcp_routes.insert(key, Arc::new(route));
}
