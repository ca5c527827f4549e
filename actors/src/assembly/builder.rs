//! Builds a validated node configuration from the settings of the embedding program.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::Arc,
};

use jaco_net::handover::Inherited;
use jaco_policy::network::dns::forwarders::loops_back;
use jaco_proto::config::HostPort;

use crate::{
    clock::Clock,
    ingress::certificate::CertificateSettings,
    network::{dns::DnsConfig, ipam::Pool},
    node::{MeshSettings, NodeConfig},
};

/// Longest path of a unix socket, in bytes (`sockaddr_un`, unix(7), less its final zero).
const SOCKET_PATH_BYTES: usize = 107;

/// A setting with which no node can be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The setting has no value.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// Not a sequence of DNS labels of at most 253 characters.
    #[error("hostname {0:?} cannot be a node's name")]
    Hostname(String),
    /// The address is advertised to members and clients; `0.0.0.0`, `::` and port 0 cannot be
    /// dialled.
    #[error("{setting} {address} cannot be dialled: an address and a port are needed")]
    Undialable {
        /// Which setting.
        setting: &'static str,
        /// Its value.
        address: SocketAddr,
    },
    /// The path is longer than the kernel allows.
    #[error("{setting} {path} is {bytes} bytes long, over the {limit} a socket may have", path = path.display(), limit = SOCKET_PATH_BYTES)]
    SocketPath {
        /// Which setting.
        setting: &'static str,
        /// Its value.
        path: PathBuf,
        /// Its length in bytes.
        bytes: usize,
    },
    /// Two listeners are configured with the same TCP port.
    #[error("{first} and {second} both want port {port}")]
    SamePort {
        /// A setting.
        first: &'static str,
        /// Another one.
        second: &'static str,
        /// The port.
        port: u16,
    },
    /// Queries to the upstream server could come back to the node's own responders.
    #[error("dns forwarder {0} leads back to this cluster")]
    ForwarderLoop(HostPort),
}

/// Collects the settings of a node; created by
/// [`Node::builder`](crate::Node::builder).
///
/// With nothing but the directory set, a node opens no port and no socket: it is reached by its own
/// process, through [`Node::client`](crate::Node::client). Each listener is enabled by its setter.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct NodeBuilder(NodeConfig);

impl NodeBuilder {
    pub(super) fn new(data_dir: PathBuf) -> Self {
        Self(NodeConfig::new(data_dir))
    }

    /// Names the node. Default: the name it has in its cluster, else the system's.
    pub fn hostname(mut self, name: impl Into<String>) -> Self {
        self.0.hostname = Some(name.into());
        self
    }

    /// Serves the API over TLS on a TCP address, which is advertised to members and clients.
    pub fn listen_addr(mut self, address: SocketAddr) -> Self {
        self.0.listen_addr = Some(address);
        self
    }

    /// Sets the UDP address of the peer transport, which is advertised to members.
    pub fn cluster_addr(mut self, address: SocketAddr) -> Self {
        self.0.cluster_addr = Some(address);
        self
    }

    /// Adds addresses to the node's certificate when one is made. The listen and the cluster
    /// address are always in it.
    pub fn certificate_ips(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.0.certificate_ips.extend(addresses);
        self
    }

    /// Serves the API on a unix socket to every process that may open it. Mode 0660; its directory
    /// is created when missing.
    pub fn unix_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.unix_socket = Some(path.into());
        self
    }

    /// Serves the API on a socket that is already listening, instead of one of its own. That socket
    /// is never removed.
    pub fn inherited_socket(mut self, socket: UnixListener) -> Self {
        self.0.inherited_socket = Some(Arc::new(socket));
        self
    }

    /// Serves the ingress on sockets that an earlier process left ([`Node::listening_sockets`]), as
    /// far as they fit its ports.
    ///
    /// [`Node::listening_sockets`]: crate::Node::listening_sockets
    pub fn inherited_ingress(mut self, sockets: Inherited) -> Self {
        self.0.inherited = sockets;
        self
    }

    /// Sets the socket of the container engine. Default: `/var/run/docker.sock`. The engine may
    /// start after the node, and may stop and start again.
    pub fn docker_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.docker_socket = path.into();
        self
    }

    /// Serves the routes over plain HTTP on a TCP port of all addresses; 0 lets the system
    /// choose.
    pub fn http_port(mut self, port: u16) -> Self {
        self.0.http_port = Some(port);
        self
    }

    /// Obtains certificates for the domains whose routes ask for them, and redirects their plain
    /// HTTP to HTTPS. Default: none are obtained, and these domains are served in plain HTTP. Has no
    /// effect without [`NodeBuilder::http_port`].
    pub fn certificates(mut self, settings: CertificateSettings) -> Self {
        self.0.certificates = Some(settings);
        self
    }

    /// Serves the routes over TLS as well, on a TCP port of all addresses; 0 lets the system choose.
    /// Has no effect without [`NodeBuilder::http_port`].
    pub fn https_port(mut self, port: u16) -> Self {
        self.0.https_port = Some(port);
        self
    }

    /// Logs each request through the ingress as a line of JSON in the file `path`, which is replaced
    /// at 20 MiB and kept five times.
    pub fn ingress_access_log(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.ingress_access_log = Some(path.into());
        self
    }

    /// Serves metrics in Prometheus text over plain HTTP at `/metrics`; port 0 lets the system
    /// choose.
    pub fn metrics_addr(mut self, address: SocketAddr) -> Self {
        self.0.metrics_addr = Some(address);
        self
    }

    /// Sets the address pool of the containers. Default: that of the cluster; `10.244.0.0/16` in
    /// blocks of /24 in a new one. The pool is fixed when a cluster is created: a node with another
    /// one cannot join it. Clusters that share an engine need pools that do not overlap.
    pub fn ipam(mut self, pool: Pool) -> Self {
        self.0.ipam = pool;
        self.0.ipam_is_set = true;
        self
    }

    /// Serves the names of services to their containers, at the gateway of each bridge. Default:
    /// not served. Needs the capability `CAP_NET_BIND_SERVICE`.
    pub fn dns(mut self, dns: DnsConfig) -> Self {
        self.0.dns = Some(dns);
        self
    }

    /// Connects the containers of all members over an encrypted mesh, on a UDP port of all
    /// addresses. Default: none, since a network namespace has room for one mesh only.
    pub fn mesh(mut self, settings: MeshSettings) -> Self {
        self.0.mesh = Some(settings);
        self
    }

    /// Isolates deployments from each other by a ruleset of the kernel. Default: `false`, since all
    /// nodes of a network namespace share its table.
    pub fn isolation(mut self, enforced: bool) -> Self {
        self.0.isolation = enforced;
        self
    }

    /// Sets the labels of the node, which constraints of services name. Default: none.
    pub fn labels(mut self, labels: BTreeMap<String, String>) -> Self {
        self.0.labels = labels;
        self
    }

    /// Sets the version shown to members and clients. Default: this crate's.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.0.version = version.into();
        self
    }

    /// Allows operators on this machine to kill single actors. Default: `false`.
    pub fn fault_injection(mut self, allowed: bool) -> Self {
        self.0.fault_injection = allowed;
        self
    }

    /// Sets the source of timestamps. Default: the system's clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.0.clock = clock;
        self
    }

    /// Validates the settings and returns the configuration, for a later start.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn build(self) -> Result<NodeConfig, ConfigError> {
        let mut config = self.0;
        if config.data_dir.as_os_str().is_empty() {
            return Err(ConfigError::Empty("data_dir"));
        }
        if let Some(name) = &config.hostname
            && jaco_net::pki::check_hostname(name).is_err()
        {
            return Err(ConfigError::Hostname(name.clone()));
        }
        let advertised = [
            ("listen_addr", config.listen_addr),
            ("cluster_addr", config.cluster_addr),
        ];
        for (setting, address) in advertised {
            let Some(address) = address else { continue };
            if address.ip().is_unspecified() || address.port() == 0 {
                return Err(ConfigError::Undialable { setting, address });
            }
            config.certificate_ips.push(address.ip());
        }
        config.certificate_ips.sort_unstable();
        config.certificate_ips.dedup();
        if let Some(path) = &config.unix_socket {
            check_socket("unix_socket", path)?;
        }
        check_socket("docker_socket", &config.docker_socket)?;
        let forwarders = config.dns.iter().flat_map(|dns| &dns.forwarders);
        for forwarder in forwarders {
            let address = forwarder.host.parse::<IpAddr>();
            if address.is_ok_and(|address| loops_back(address, config.ipam)) {
                return Err(ConfigError::ForwarderLoop(forwarder.clone()));
            }
        }
        // The ingress binds its ports on every address.
        let ingress = |port: Option<u16>| port.map(|port| ([0, 0, 0, 0], port).into());
        let listeners: [(_, Option<SocketAddr>); 4] = [
            ("http_port", ingress(config.http_port)),
            ("https_port", ingress(config.https_port)),
            ("listen_addr", config.listen_addr),
            ("metrics_addr", config.metrics_addr),
        ];
        for (index, (second, address)) in listeners.iter().enumerate() {
            let Some(address) = address.filter(|address| address.port() > 0) else {
                continue;
            };
            let mut earlier = listeners[..index].iter();
            if let Some((first, _)) = earlier.find(|(_, other)| collide(*other, address)) {
                return Err(ConfigError::SamePort {
                    first,
                    second,
                    port: address.port(),
                });
            }
        }
        Ok(config)
    }
}

/// Whether two TCP listeners cannot both be bound.
fn collide(one: Option<SocketAddr>, other: SocketAddr) -> bool {
    one.is_some_and(|one| {
        one.port() == other.port()
            && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
    })
}

fn check_socket(setting: &'static str, path: &Path) -> Result<(), ConfigError> {
    match path.as_os_str().len() {
        0 => Err(ConfigError::Empty(setting)),
        bytes if bytes > SOCKET_PATH_BYTES => Err(ConfigError::SocketPath {
            setting,
            path: path.to_owned(),
            bytes,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn data_dir_alone_is_a_valid_configuration() {
        let config = Node::builder("/somewhere").build().unwrap();
        assert_eq!(config.data_dir, Path::new("/somewhere"));
        let listeners = (config.listen_addr, config.unix_socket, config.http_port);
        assert_eq!(listeners, (None, None, None));
        assert_eq!(config.docker_socket, Path::new("/var/run/docker.sock"));
        assert_eq!(config.version, env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn certificate_names_each_advertised_address_once() {
        let config = Node::builder("/d")
            .listen_addr(address("10.0.0.5:7000"))
            .cluster_addr(address("10.0.0.5:7001"))
            .certificate_ips([[10, 0, 0, 6].into()])
            .build()
            .unwrap();
        let ips = ["10.0.0.5", "10.0.0.6"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(config.certificate_ips, ips);
    }

    #[test]
    fn invalid_settings_are_refused() {
        let new = || Node::builder("/d");
        let long = "/".repeat(SOCKET_PATH_BYTES + 1);
        let undialable = |setting, text| ConfigError::Undialable {
            setting,
            address: address(text),
        };
        let server = |host: &str| HostPort {
            host: host.to_owned(),
            port: 53,
        };
        let forwarding_to = |first, second| DnsConfig {
            forwarders: vec![server(first), server(second)],
            ..DnsConfig::default()
        };
        let looping = |host| ConfigError::ForwarderLoop(server(host));
        let too_long = |setting| ConfigError::SocketPath {
            setting,
            path: long.clone().into(),
            bytes: long.len(),
        };
        let table = [
            (Node::builder(""), ConfigError::Empty("data_dir")),
            (new().unix_socket(""), ConfigError::Empty("unix_socket")),
            (new().docker_socket(""), ConfigError::Empty("docker_socket")),
            (new().hostname("a_b"), ConfigError::Hostname("a_b".into())),
            (new().hostname(""), ConfigError::Hostname(String::new())),
            (
                new().listen_addr(address("0.0.0.0:7000")),
                undialable("listen_addr", "0.0.0.0:7000"),
            ),
            (
                new().listen_addr(address("10.0.0.5:0")),
                undialable("listen_addr", "10.0.0.5:0"),
            ),
            (
                new().cluster_addr(address("[::]:7001")),
                undialable("cluster_addr", "[::]:7001"),
            ),
            (new().unix_socket(&long), too_long("unix_socket")),
            (new().docker_socket(&long), too_long("docker_socket")),
            (
                new()
                    .listen_addr(address("10.0.0.5:7000"))
                    .metrics_addr(address("0.0.0.0:7000")),
                ConfigError::SamePort {
                    first: "listen_addr",
                    second: "metrics_addr",
                    port: 7000,
                },
            ),
            (
                new().dns(forwarding_to("1.1.1.1", "127.0.0.11")),
                looping("127.0.0.11"),
            ),
            (
                new().dns(forwarding_to("dns.example", "10.244.9.1")),
                looping("10.244.9.1"),
            ),
            (
                new().listen_addr(address("10.0.0.5:80")).http_port(80),
                ConfigError::SamePort {
                    first: "http_port",
                    second: "listen_addr",
                    port: 80,
                },
            ),
        ];
        for (builder, expected) in table {
            assert_eq!(builder.build().unwrap_err(), expected);
        }
        assert!(new().unix_socket(&long[1..]).build().is_ok());
        let apart = new().listen_addr(address("10.0.0.5:7000"));
        let apart = apart.metrics_addr(address("127.0.0.1:7000"));
        assert!(apart.build().is_ok());
    }
}
