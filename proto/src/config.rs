//! `jacod.yaml`: the settings of one daemon.
//!
//! The schema is closed: an unknown key is an error, so that a misspelt setting is noticed. A
//! missing or null key has its default; an empty file is valid.
//!
//! - [`advertise`]: selects the address that replaces an unspecified host.
//! - [`LogFilter`]: log level by subsystem.

pub mod advertise;
mod error;
mod field;
mod log;
mod read;
mod values;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

pub use error::Error;
pub use log::{LogFilter, LogLevel, SUBSYSTEMS, UnknownLevel};
pub use values::{HostPort, Pool, is_hostname};

pub(crate) use values::port_number;

use crate::yaml;
use read::Fields;

const KEYS: [&str; 25] = [
    "data_dir",
    "listen_addr",
    "cluster_addr",
    "unix_socket",
    "wg_port",
    "wg_backend",
    "acme_email",
    "acme_ca",
    "acme_enabled",
    "acme_skip_staging",
    "acme_preflight",
    "acme_root_ca",
    "log_level",
    "ipam_pool",
    "ipam_block",
    "node_status_interval",
    "dns",
    "docker_socket",
    "isolation",
    "http_port",
    "https_port",
    "metrics_addr",
    "ingress_access_log",
    "hostname",
    "labels",
];
const DNS_KEYS: [&str; 2] = ["forwarders", "forwarder_timeout"];

/// Settings of a daemon, complete and validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Directory of the daemon's files.
    pub data_dir: PathBuf,
    /// TCP address of the gRPC API for clients and peers.
    pub listen_addr: HostPort,
    /// UDP address of the peer transport.
    pub cluster_addr: HostPort,
    /// Control socket; callers on it need no token.
    pub unix_socket: PathBuf,
    /// UDP port of the mesh.
    pub wg_port: u16,
    /// Implementation of the mesh.
    pub wg_backend: WgBackend,
    /// ACME contact for deployments without their own; may be empty.
    pub acme_email: String,
    /// Directory URL of the certificate authority.
    pub acme_ca: String,
    /// Whether certificates are issued at all.
    pub acme_enabled: bool,
    /// Whether to order from production without a rehearsal against staging.
    pub acme_skip_staging: bool,
    /// Whether the addresses of a domain are asked whether they lead here before its first order.
    pub acme_preflight: bool,
    /// Extra trust root for the directory.
    pub acme_root_ca: Option<PathBuf>,
    /// Least severity that is logged.
    pub log_level: LogLevel,
    /// Address pool of the container subnets.
    pub ipam_pool: Pool,
    /// Prefix length of one container subnet, 24 to 28.
    pub ipam_block: u8,
    /// Whether the file sets the pool or the prefix length. Both are fixed when a cluster is created,
    /// so settings that differ from the cluster's are errors, and defaults are not.
    pub ipam_is_set: bool,
    /// Interval of the node's status reports, 5 s to 5 min.
    pub node_status_interval: Duration,
    /// Name resolution for containers.
    pub dns: Dns,
    /// Socket of the container engine.
    pub docker_socket: PathBuf,
    /// Whether the networks of deployments are isolated from each other.
    pub isolation: Isolation,
    /// Plain HTTP port of the ingress.
    pub http_port: u16,
    /// HTTPS port of the ingress.
    pub https_port: u16,
    /// Address of the metrics endpoint, if enabled.
    pub metrics_addr: Option<HostPort>,
    /// File of the log of requests through the ingress, if enabled.
    pub ingress_access_log: Option<PathBuf>,
    /// Name of this node; the system's hostname if absent.
    pub hostname: Option<String>,
    /// Labels of this node, for constraints of services.
    pub labels: BTreeMap<String, String>,
}

/// Name resolution for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// Upstream servers for external names, in order; those of the system if empty.
    pub forwarders: Vec<HostPort>,
    /// Timeout of one server.
    pub forwarder_timeout: Duration,
}

/// Whether the networks of deployments are isolated from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// The ruleset is loaded; a node that fails to load it receives no replicas.
    Enforce,
    /// No ruleset and no mesh.
    Off,
}

/// Implementation of the encrypted mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WgBackend {
    /// The best one that this machine has.
    Auto,
    /// WireGuard of the kernel.
    Kernel,
    /// The daemon's own implementation.
    Userspace,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        let any = |port| HostPort {
            host: "0.0.0.0".to_owned(),
            port,
        };
        Self {
            data_dir: "/var/lib/jaco".into(),
            listen_addr: any(7000),
            cluster_addr: any(7001),
            unix_socket: "/var/run/jaco/jaco.sock".into(),
            wg_port: 51820,
            wg_backend: WgBackend::Auto,
            acme_email: String::new(),
            acme_ca: "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
            acme_enabled: true,
            acme_skip_staging: false,
            acme_preflight: true,
            acme_root_ca: None,
            log_level: LogLevel::Info,
            ipam_pool: Pool {
                network: [10, 244, 0, 0].into(),
                prefix: 16,
            },
            ipam_block: 24,
            ipam_is_set: false,
            node_status_interval: Duration::from_secs(30),
            dns: Dns::default(),
            docker_socket: "/var/run/docker.sock".into(),
            isolation: Isolation::Enforce,
            http_port: 80,
            https_port: 443,
            metrics_addr: None,
            ingress_access_log: None,
            hostname: None,
            labels: BTreeMap::new(),
        }
    }
}

impl Default for Dns {
    fn default() -> Self {
        Self {
            forwarders: Vec::new(),
            forwarder_timeout: Duration::from_secs(2),
        }
    }
}

impl DaemonConfig {
    /// Parses the first YAML document of a file.
    ///
    /// # Errors
    /// The first [`Error`] of: syntax, unknown keys, then the values in the order of the fields.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let document = yaml::parse(bytes)?;
        let fields = Fields::closed(document.root.as_ref(), "", &KEYS)?;
        let dns = Fields::closed(fields.node("dns"), "dns.", &DNS_KEYS)?;
        let default = Self::default();

        let listen_addr = field::host_port(&fields, "listen_addr")?.unwrap_or(default.listen_addr);
        let cluster_addr =
            field::host_port(&fields, "cluster_addr")?.unwrap_or(default.cluster_addr);
        if listen_addr == cluster_addr {
            return Err(Error::SameAddresses);
        }
        let ipam_pool = fields.text("ipam_pool")?.map(Pool::parse).transpose()?;
        let ipam_block = field::number(&fields, "ipam_block", 24, 28)?;
        let ipam_is_set = ipam_pool.is_some() || ipam_block.is_some();
        let ipam_pool = ipam_pool.unwrap_or(default.ipam_pool);
        let ipam_block = ipam_block.unwrap_or(default.ipam_block);

        Ok(Self {
            data_dir: field::path(&fields, "data_dir")?.unwrap_or(default.data_dir),
            listen_addr,
            cluster_addr,
            unix_socket: field::path(&fields, "unix_socket")?.unwrap_or(default.unix_socket),
            wg_port: field::port(&fields, "wg_port")?.unwrap_or(default.wg_port),
            wg_backend: field::wg_backend(&fields)?.unwrap_or(default.wg_backend),
            acme_email: field::optional_text(&fields, "acme_email")?.unwrap_or(default.acme_email),
            acme_ca: field::acme_ca(&fields)?.unwrap_or(default.acme_ca),
            acme_enabled: fields
                .boolean("acme_enabled")?
                .unwrap_or(default.acme_enabled),
            acme_skip_staging: fields
                .boolean("acme_skip_staging")?
                .unwrap_or(default.acme_skip_staging),
            acme_preflight: fields
                .boolean("acme_preflight")?
                .unwrap_or(default.acme_preflight),
            acme_root_ca: field::optional_text(&fields, "acme_root_ca")?.map(PathBuf::from),
            log_level: field::log_level(&fields)?.unwrap_or(default.log_level),
            ipam_pool,
            ipam_block,
            ipam_is_set,
            node_status_interval: field::status_interval(&fields)?
                .unwrap_or(default.node_status_interval),
            dns: Dns {
                forwarders: field::forwarders(&dns, ipam_pool, ipam_block)?,
                forwarder_timeout: field::forwarder_timeout(&dns)?
                    .unwrap_or(default.dns.forwarder_timeout),
            },
            docker_socket: field::docker_socket(&fields)?.unwrap_or(default.docker_socket),
            isolation: field::isolation(&fields)?.unwrap_or(default.isolation),
            http_port: field::port(&fields, "http_port")?.unwrap_or(default.http_port),
            https_port: field::port(&fields, "https_port")?.unwrap_or(default.https_port),
            metrics_addr: field::metrics_addr(&fields)?,
            ingress_access_log: field::optional_text(&fields, "ingress_access_log")?
                .map(PathBuf::from),
            hostname: field::hostname(&fields)?,
            labels: field::labels(&fields)?,
        })
    }
}

#[cfg(test)]
mod tests;
