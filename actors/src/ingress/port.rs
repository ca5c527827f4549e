//! Published TCP and UDP ports of one node.
//!
//! [`jaco_policy::ingress::ports`] decides which replicas serve a port.
//!
//! - [`PortManager`]: keeps the table of served ports, and one [`PortActor`] per published port.
//! - [`PortActor`]: opens and closes one port of the data plane, [`jaco_net::l4::Ports`].

mod actor;
mod manager;

use std::{collections::BTreeMap, sync::Arc};

use jaco_net::{handover::Inherited, l4};
use jaco_policy::ingress::ports::{PortKey, ServedPort};
use jaco_proto::v1::TransportProtocol;
use tokio::sync::watch;

pub use actor::{PortActor, PortArgs};
pub(crate) use manager::DRAIN;
pub use manager::{Msg, PortManager, PortManagerArgs};

/// Ports with an eligible replica, as of the last update.
pub type PortTable = Arc<BTreeMap<PortKey, ServedPort>>;

/// Returns a data plane whose new connections avoid hosts that are not in `fresh`; replicas on
/// `host`, this node, always count as fresh. Ports are opened with the `inherited` sockets where
/// there are some.
#[must_use]
pub fn data_plane(
    host: &str,
    fresh: watch::Receiver<crate::health::Hosts>,
    inherited: Inherited,
) -> l4::Ports {
    let this = host.to_owned();
    let is_fresh = move |host: &str| host == this || fresh.borrow().contains(host);
    l4::Ports::inheriting(l4::Settings::default(), Arc::new(is_fresh), inherited)
}

fn port_of(key: PortKey) -> l4::Port {
    l4::Port {
        number: key.port,
        protocol: match key.protocol {
            TransportProtocol::Tcp => l4::Protocol::Tcp,
            TransportProtocol::Udp => l4::Protocol::Udp,
        },
    }
}

fn key_of(port: l4::Port) -> PortKey {
    PortKey {
        port: port.number,
        protocol: match port.protocol {
            l4::Protocol::Tcp => TransportProtocol::Tcp,
            l4::Protocol::Udp => TransportProtocol::Udp,
        },
    }
}

fn backends(served: &ServedPort) -> l4::Backends {
    let upstreams = served.upstreams.iter().map(|upstream| l4::Upstream {
        replica: upstream.replica.as_str().into(),
        host: upstream.host.as_str().into(),
        addr: upstream.addr,
    });
    l4::Backends {
        upstreams: upstreams.collect(),
        proxy_v2: served.proxy_v2,
    }
}

#[cfg(test)]
mod tests;
