//! Builds the node's configuration from `jacod.yaml` and the machine's interfaces.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use jaco_actors::{
    MeshSettings, Node, NodeConfig,
    ingress::certificate::{CertificateSettings, Directories},
    network::{cidr::Cidr, dns::DnsConfig, ipam::Pool},
};
use jaco_net::interfaces;
use jaco_proto::config::{
    DaemonConfig, HostPort, Isolation,
    advertise::{Interface, candidates, resolve},
};

use crate::version;

/// Reads the file; defaults apply if it does not exist.
pub(crate) fn read(path: &Path) -> Result<DaemonConfig> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    DaemonConfig::parse(&bytes).with_context(|| path.display().to_string())
}

/// Builds the node's configuration, and detects the addresses that the file leaves open.
pub(crate) fn node(
    config: &DaemonConfig,
    socket: Option<UnixListener>,
    fault_injection: bool,
) -> Result<NodeConfig> {
    let interfaces = interfaces::list().context("list the network interfaces")?;
    let listen_addr = endpoint("listen_addr", &config.listen_addr, &interfaces)?;
    let cluster_addr = endpoint("cluster_addr", &config.cluster_addr, &interfaces)?;
    let interface_ips = candidates(&interfaces)
        .into_iter()
        .map(|candidate| IpAddr::from(candidate.address));
    let range = Cidr::new(config.ipam_pool.network, config.ipam_pool.prefix)?;
    let mut node = Node::builder(&config.data_dir)
        .listen_addr(listen_addr)
        .cluster_addr(cluster_addr)
        .certificate_ips(interface_ips)
        .unix_socket(&config.unix_socket)
        .docker_socket(&config.docker_socket)
        .http_port(config.http_port)
        .https_port(config.https_port)
        .dns(DnsConfig {
            forwarders: config.dns.forwarders.clone(),
            forwarder_timeout: config.dns.forwarder_timeout,
            ..DnsConfig::default()
        })
        .isolation(config.isolation == Isolation::Enforce)
        .labels(config.labels.clone())
        .version(version())
        .fault_injection(fault_injection);
    let pool = Pool::new(range, config.ipam_block)?;
    if config.ipam_is_set {
        node = node.ipam(pool);
    }
    if config.isolation == Isolation::Enforce {
        node = node.mesh(MeshSettings {
            port: config.wg_port,
            backend: config.wg_backend,
        });
    }
    if config.acme_enabled {
        node = node.certificates(certificates(config)?);
    }
    if let Some(addr) = &config.metrics_addr {
        node = node.metrics_addr(socket_addr("metrics_addr", addr)?);
    }
    if let Some(path) = &config.ingress_access_log {
        node = node.ingress_access_log(path);
    }
    if let Some(socket) = socket {
        node = node.inherited_socket(socket);
    }
    if let Some(name) = &config.hostname {
        node = node.hostname(name);
    }
    Ok(node.build()?)
}

/// The settings of the certificates. Roots are checked here, so that a wrong file is noticed at the
/// start and not at the first order; a machine without any may still serve what others obtain.
fn certificates(config: &DaemonConfig) -> Result<CertificateSettings> {
    let read = |path: &PathBuf| {
        let named = || format!("acme_root_ca {}", path.display());
        fs::read_to_string(path).with_context(named)
    };
    let settings = CertificateSettings {
        directories: Directories::of_config(&config.acme_ca, config.acme_skip_staging),
        contact: config.acme_email.clone(),
        extra_roots: config.acme_root_ca.as_ref().map(read).transpose()?,
        preflight: config.acme_preflight,
    };
    if let (Some(path), Err(error)) = (&config.acme_root_ca, settings.authority()) {
        return Err(error).with_context(|| format!("acme_root_ca {}", path.display()));
    }
    Ok(settings)
}

/// The address to bind and advertise. A name is resolved only here, because certificates and member
/// entries contain addresses.
fn endpoint(key: &str, configured: &HostPort, interfaces: &[Interface]) -> Result<SocketAddr> {
    let found = resolve(configured, interfaces)?;
    if let Some(picked) = &found.picked {
        tracing::info!(
            subsystem = "jacod",
            setting = key,
            address = %picked.address,
            interface = %picked.interface,
            "address detected"
        );
    }
    socket_addr(key, &found.addr)
}

/// Resolves an address to bind.
fn socket_addr(key: &str, addr: &HostPort) -> Result<SocketAddr> {
    let text = addr.to_string();
    let Some(address) = (addr.host.as_str(), addr.port)
        .to_socket_addrs()
        .with_context(|| format!("{key} {text:?} does not resolve"))?
        .next()
    else {
        bail!("{key} {text:?} has no address");
    };
    Ok(address)
}
