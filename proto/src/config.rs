//! `jacod.yaml`: the settings of one daemon.
//!
//! The schema is closed: an unknown key is an error, so that a misspelt setting is noticed. A
//! missing key, like a null, means its default, and so does an empty file.
//!
//! - [`advertise`]: which address stands for an unspecified host.
//! - [`LogFilter`]: how much is logged.

pub mod advertise;
mod error;
mod log;
mod read;
mod values;

use std::{path::PathBuf, time::Duration};

pub use error::Error;
pub use log::{LogFilter, LogLevel, UnknownLevel};
pub use values::{HostPort, Pool};

use crate::{duration::Nanos, yaml};
use read::Fields;

const KEYS: [&str; 21] = [
    "data_dir",
    "listen_addr",
    "cluster_addr",
    "unix_socket",
    "wg_port",
    "acme_email",
    "acme_ca",
    "acme_enabled",
    "acme_skip_staging",
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
    "hostname",
];
const DNS_KEYS: [&str; 2] = ["forwarders", "forwarder_timeout"];

const STATUS_INTERVAL: Duration = Duration::from_secs(30);
const MIN_STATUS_INTERVAL: Duration = Duration::from_secs(5);
const MAX_STATUS_INTERVAL: Duration = Duration::from_secs(300);

/// Everything a daemon reads from its file, complete and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Where the daemon keeps its files.
    pub data_dir: PathBuf,
    /// TCP address of the gRPC API for clients and peers.
    pub listen_addr: HostPort,
    /// UDP address of the peer transport.
    pub cluster_addr: HostPort,
    /// Control socket; callers on it need no token.
    pub unix_socket: PathBuf,
    /// UDP port of the mesh.
    pub wg_port: u16,
    /// Contact of certificates whose deployment names none; may be empty.
    pub acme_email: String,
    /// Directory URL of the certificate authority.
    pub acme_ca: String,
    /// Whether certificates are issued at all.
    pub acme_enabled: bool,
    /// Whether to order from production without a rehearsal against staging.
    pub acme_skip_staging: bool,
    /// Extra trust root for the directory.
    pub acme_root_ca: Option<PathBuf>,
    /// Least severity that is logged.
    pub log_level: LogLevel,
    /// Where container subnets come from.
    pub ipam_pool: Pool,
    /// Prefix length of one container subnet, 24 to 28.
    pub ipam_block: u8,
    /// How often the node reports its status, 5 s to 5 min.
    pub node_status_interval: Duration,
    /// Name resolution for containers.
    pub dns: Dns,
    /// Socket of the container engine.
    pub docker_socket: PathBuf,
    /// Whether the networks of deployments are kept apart.
    pub isolation: Isolation,
    /// Plain HTTP port of the ingress.
    pub http_port: u16,
    /// HTTPS port of the ingress.
    pub https_port: u16,
    /// Where metrics are served, if anywhere.
    pub metrics_addr: Option<HostPort>,
    /// Name of this node instead of the system's hostname.
    pub hostname: Option<String>,
}

/// Name resolution for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// Servers for outside names, in order; empty for those of the system.
    pub forwarders: Vec<HostPort>,
    /// How long one server may take.
    pub forwarder_timeout: Duration,
}

/// Whether the networks of deployments are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// The ruleset is loaded, and a node that cannot load it receives no replicas.
    Enforce,
    /// No ruleset and no mesh.
    Off,
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
            acme_email: String::new(),
            acme_ca: "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
            acme_enabled: true,
            acme_skip_staging: false,
            acme_root_ca: None,
            log_level: LogLevel::Info,
            ipam_pool: Pool {
                network: [10, 244, 0, 0].into(),
                prefix: 16,
            },
            ipam_block: 24,
            node_status_interval: STATUS_INTERVAL,
            dns: Dns::default(),
            docker_socket: "/var/run/docker.sock".into(),
            isolation: Isolation::Enforce,
            http_port: 80,
            https_port: 443,
            metrics_addr: None,
            hostname: None,
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
    /// Reads the first YAML document of a file.
    ///
    /// # Errors
    /// The first [`Error`] of: syntax, unknown keys, then the values in the order of the fields.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let document = yaml::parse(bytes)?;
        let fields = Fields::closed(document.root.as_ref(), "", &KEYS)?;
        let dns = Fields::closed(fields.node("dns"), "dns.", &DNS_KEYS)?;
        let default = Self::default();

        let listen_addr = host_port(&fields, "listen_addr")?.unwrap_or(default.listen_addr);
        let cluster_addr = host_port(&fields, "cluster_addr")?.unwrap_or(default.cluster_addr);
        if listen_addr == cluster_addr {
            return Err(Error::SameAddresses);
        }
        let ipam_pool = fields.text("ipam_pool")?.map(Pool::parse).transpose()?;
        let ipam_pool = ipam_pool.unwrap_or(default.ipam_pool);
        let ipam_block = number(&fields, "ipam_block", 24, 28)?.unwrap_or(default.ipam_block);

        Ok(Self {
            data_dir: path(&fields, "data_dir")?.unwrap_or(default.data_dir),
            listen_addr,
            cluster_addr,
            unix_socket: path(&fields, "unix_socket")?.unwrap_or(default.unix_socket),
            wg_port: port(&fields, "wg_port")?.unwrap_or(default.wg_port),
            acme_email: optional_text(&fields, "acme_email")?.unwrap_or(default.acme_email),
            acme_ca: acme_ca(&fields)?.unwrap_or(default.acme_ca),
            acme_enabled: fields
                .boolean("acme_enabled")?
                .unwrap_or(default.acme_enabled),
            acme_skip_staging: fields
                .boolean("acme_skip_staging")?
                .unwrap_or(default.acme_skip_staging),
            acme_root_ca: optional_text(&fields, "acme_root_ca")?.map(PathBuf::from),
            log_level: log_level(&fields)?.unwrap_or(default.log_level),
            ipam_pool,
            ipam_block,
            node_status_interval: status_interval(&fields)?,
            dns: Dns {
                forwarders: forwarders(&dns, ipam_pool, ipam_block)?,
                forwarder_timeout: forwarder_timeout(&dns)?
                    .unwrap_or(default.dns.forwarder_timeout),
            },
            docker_socket: docker_socket(&fields)?.unwrap_or(default.docker_socket),
            isolation: isolation(&fields)?.unwrap_or(default.isolation),
            http_port: port(&fields, "http_port")?.unwrap_or(default.http_port),
            https_port: port(&fields, "https_port")?.unwrap_or(default.https_port),
            metrics_addr: metrics_addr(&fields)?,
            hostname: hostname(&fields)?,
        })
    }
}

fn path(fields: &Fields<'_>, key: &'static str) -> Result<Option<PathBuf>, Error> {
    match fields.text(key)? {
        Some("") => Err(Error::Empty { key }),
        other => Ok(other.map(PathBuf::from)),
    }
}

/// Text for which empty means absent.
fn optional_text(fields: &Fields<'_>, key: &'static str) -> Result<Option<String>, Error> {
    let text = fields.text(key)?.filter(|text| !text.is_empty());
    Ok(text.map(str::to_owned))
}

fn host_port(fields: &Fields<'_>, key: &'static str) -> Result<Option<HostPort>, Error> {
    let Some(text) = fields.text(key)? else {
        return Ok(None);
    };
    if text.is_empty() {
        return Err(Error::Empty { key });
    }
    HostPort::parse(text)
        .map(Some)
        .map_err(|reason| Error::NotHostPort {
            key,
            value: text.to_owned(),
            reason,
        })
}

fn port(fields: &Fields<'_>, key: &'static str) -> Result<Option<u16>, Error> {
    number(fields, key, 1, u16::MAX)
}

fn number<T>(fields: &Fields<'_>, key: &'static str, min: T, max: T) -> Result<Option<T>, Error>
where
    T: TryFrom<i128> + PartialOrd,
{
    let Some(value) = fields.integer(key)? else {
        return Ok(None);
    };
    match T::try_from(value) {
        Ok(number) if number >= min && number <= max => Ok(Some(number)),
        Ok(_) | Err(_) => Err(Error::OutOfRange { key, value }),
    }
}

fn acme_ca(fields: &Fields<'_>) -> Result<Option<String>, Error> {
    match optional_text(fields, "acme_ca")? {
        Some(value) if !values::is_https_url(&value) => Err(Error::AcmeCa { value }),
        other => Ok(other),
    }
}

/// Unlike flags and variables, the file takes the exact words only.
fn log_level(fields: &Fields<'_>) -> Result<Option<LogLevel>, Error> {
    word(
        fields,
        "log_level",
        "debug, info, warn or error",
        &[
            LogLevel::Debug,
            LogLevel::Info,
            LogLevel::Warn,
            LogLevel::Error,
        ]
        .map(|level| (level.as_str(), level)),
    )
}

fn isolation(fields: &Fields<'_>) -> Result<Option<Isolation>, Error> {
    word(
        fields,
        "isolation",
        "enforce or off",
        &[("enforce", Isolation::Enforce), ("off", Isolation::Off)],
    )
}

fn word<T: Copy>(
    fields: &Fields<'_>,
    key: &'static str,
    expected: &'static str,
    words: &[(&str, T)],
) -> Result<Option<T>, Error> {
    let Some(text) = fields.text(key)? else {
        return Ok(None);
    };
    match words.iter().find(|(word, _)| *word == text) {
        Some((_, value)) => Ok(Some(*value)),
        None => Err(Error::NotAWord {
            key,
            value: text.to_owned(),
            expected,
        }),
    }
}

fn status_interval(fields: &Fields<'_>) -> Result<Duration, Error> {
    let value = fields.duration("node_status_interval")?.unwrap_or(0);
    if value == 0 {
        return Ok(STATUS_INTERVAL);
    }
    positive(value)
        .filter(|interval| (MIN_STATUS_INTERVAL..=MAX_STATUS_INTERVAL).contains(interval))
        .ok_or(Error::StatusInterval { value })
}

fn forwarder_timeout(dns: &Fields<'_>) -> Result<Option<Duration>, Error> {
    match dns.duration("forwarder_timeout")? {
        None | Some(0) => Ok(None),
        Some(value) => positive(value)
            .map(Some)
            .ok_or(Error::ForwarderTimeout { value }),
    }
}

fn positive(nanos: Nanos) -> Option<Duration> {
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

fn forwarders(dns: &Fields<'_>, pool: Pool, block: u8) -> Result<Vec<HostPort>, Error> {
    let read = |text: &str| {
        let value = text.to_owned();
        match values::forwarder(text) {
            Ok(server) if values::loops_back(&server, pool, block) => {
                Err(Error::ForwarderLoop { value })
            }
            Ok(server) => Ok(server),
            Err(reason) => Err(Error::Forwarder { value, reason }),
        }
    };
    dns.texts("forwarders")?.into_iter().map(read).collect()
}

fn docker_socket(fields: &Fields<'_>) -> Result<Option<PathBuf>, Error> {
    let Some(text) = fields.text("docker_socket")? else {
        return Ok(None);
    };
    match text.strip_prefix("unix://") {
        Some(path) if path.len() > 1 && path.starts_with('/') => Ok(Some(path.into())),
        Some(_) | None => Err(Error::DockerSocket {
            value: text.to_owned(),
        }),
    }
}

/// Metrics are for this machine unless a host is named.
fn metrics_addr(fields: &Fields<'_>) -> Result<Option<HostPort>, Error> {
    if optional_text(fields, "metrics_addr")?.is_none() {
        return Ok(None);
    }
    let mut addr = host_port(fields, "metrics_addr")?;
    if let Some(addr) = addr.as_mut().filter(|addr| addr.host.is_empty()) {
        addr.host = "127.0.0.1".to_owned();
    }
    Ok(addr)
}

fn hostname(fields: &Fields<'_>) -> Result<Option<String>, Error> {
    match optional_text(fields, "hostname")? {
        Some(value) if !values::is_hostname(&value) => Err(Error::Hostname { value }),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests;
