//! Upstream servers, by address or by name.

use std::{
    fmt, fs, io,
    net::{IpAddr, SocketAddr},
    sync::Mutex,
    time::Duration,
};

use jaco_policy::network::{
    dns::forwarders::{loops_back, of_resolv_conf},
    ipam::Pool,
};
use jaco_proto::config::HostPort;
use tokio::time::Instant;
use tracing::warn;

use super::DnsConfig;
use crate::lock::lock;

/// Time for which the address of a server's name is used.
const NAME_LIFETIME: Duration = Duration::from_secs(60);

/// A server for external names.
pub(super) struct Upstream {
    server: HostPort,
    pool: Pool,
    /// Address of the name, and the time until which it is used.
    resolved: Mutex<Option<(SocketAddr, Instant)>>,
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}

impl Upstream {
    pub(super) fn new(server: HostPort, pool: Pool) -> Self {
        Self {
            server,
            pool,
            resolved: Mutex::default(),
        }
    }

    /// Returns the address of the server; a name is resolved by the host's resolver.
    ///
    /// # Errors
    /// If the name has no address, or only such that lead back to this cluster.
    pub(super) async fn address(&self) -> io::Result<SocketAddr> {
        let HostPort { host, port } = &self.server;
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok((address, *port).into());
        }
        let now = Instant::now();
        let known = *lock(&self.resolved);
        if let Some((address, until)) = known
            && now < until
        {
            return Ok(address);
        }
        let mut found = tokio::net::lookup_host((host.as_str(), *port)).await?;
        let address = found.find(|address| !loops_back(address.ip(), self.pool));
        let address = address.ok_or_else(|| io::Error::other("the name has no usable address"))?;
        *lock(&self.resolved) = Some((address, now + NAME_LIFETIME));
        Ok(address)
    }
}

/// The configured servers, or those of the host. Warns if there is none.
pub(super) fn configured(config: &DnsConfig, pool: Pool) -> Vec<Upstream> {
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
    servers.map(|server| Upstream::new(server, pool)).collect()
}
