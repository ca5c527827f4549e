//! Upstream servers, by address or by name.

use std::{
    fmt, fs,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use jaco_policy::network::{dns::forwarders::of_resolv_conf, ipam::Pool};
use jaco_proto::config::HostPort;
use tokio::sync::watch;
use tracing::warn;

use super::DnsConfig;

/// A server for external names.
pub(super) struct Upstream {
    server: HostPort,
    /// Addresses in order of preference; none until the name is resolved.
    addresses: watch::Sender<Arc<[SocketAddr]>>,
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

impl Upstream {
    pub(super) fn new(server: HostPort) -> Self {
        let literal = server.host.parse::<IpAddr>().ok();
        let addresses = literal.map(|address| SocketAddr::from((address, server.port)));
        Self {
            addresses: watch::Sender::new(addresses.into_iter().collect()),
            server,
        }
    }

    /// Known addresses of the server.
    pub(super) fn addresses(&self) -> Arc<[SocketAddr]> {
        self.addresses.borrow().clone()
    }

    /// Replaces the addresses of a server with a name.
    pub(super) fn set_addresses(&self, addresses: Arc<[SocketAddr]>) {
        self.addresses.send_replace(addresses);
    }

    #[cfg(test)]
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<[SocketAddr]>> {
        self.addresses.subscribe()
    }

    /// The server, if it has a name that has to be resolved.
    pub(super) fn named(&self) -> Option<&HostPort> {
        let is_name = self.server.host.parse::<IpAddr>().is_err();
        is_name.then_some(&self.server)
    }
}

/// The configured servers, or those of the host. Warns if there is none.
pub(super) fn configured(config: &DnsConfig, pool: Pool) -> Arc<[Upstream]> {
    let servers = if config.forwarders.is_empty() {
        let text = fs::read_to_string(&config.resolv_conf).unwrap_or_else(|error| {
            let path = config.resolv_conf.display();
            warn!(subsystem = "dns.forwarder", %path, %error, "resolver file not read");
            String::new()
        });
        let port = 53;
        let server = |address: IpAddr| HostPort {
            host: address.to_string(),
            port,
        };
        of_resolv_conf(&text, pool)
            .into_iter()
            .map(server)
            .collect()
    } else {
        config.forwarders.clone()
    };
    if servers.is_empty() {
        warn!(
            subsystem = "dns.forwarder",
            "no upstream server: external names cannot be resolved"
        );
    }
    let servers = servers.into_iter();
    servers.map(Upstream::new).collect()
}
