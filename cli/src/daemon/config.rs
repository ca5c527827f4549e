//! From `jacod.yaml` and the machine's interfaces to the configuration of a node.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    os::unix::net::UnixListener,
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use jaco_actors::{
    clock::Clock,
    network::{cidr::Cidr, ipam::Pool},
    node::NodeConfig,
};
use jaco_net::interfaces;
use jaco_proto::config::{
    DaemonConfig, HostPort,
    advertise::{Interface, candidates, resolve},
};

use crate::version;

/// Reads the file; a missing one means all defaults.
pub(super) fn read(path: &Path) -> Result<DaemonConfig> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    DaemonConfig::parse(&bytes).with_context(|| path.display().to_string())
}

/// Decides everything the file leaves open.
pub(super) fn node(
    config: &DaemonConfig,
    socket: Option<UnixListener>,
    fault_injection: bool,
) -> Result<NodeConfig> {
    let interfaces = interfaces::list().context("list the network interfaces")?;
    let listen_addr = endpoint("listen_addr", &config.listen_addr, &interfaces)?;
    let cluster_addr = endpoint("cluster_addr", &config.cluster_addr, &interfaces)?;
    let mut certificate_ips: Vec<IpAddr> = vec![listen_addr.ip(), cluster_addr.ip()];
    certificate_ips.extend(
        candidates(&interfaces)
            .into_iter()
            .map(|candidate| IpAddr::from(candidate.address)),
    );
    certificate_ips.sort_unstable();
    certificate_ips.dedup();
    Ok(NodeConfig {
        data_dir: config.data_dir.clone(),
        hostname: config.hostname.clone(),
        listen_addr,
        cluster_addr,
        certificate_ips,
        unix_socket: config.unix_socket.clone(),
        inherited_socket: socket.map(Arc::new),
        docker_socket: config.docker_socket.clone(),
        http_port: config.http_port,
        metrics_addr: config
            .metrics_addr
            .as_ref()
            .map(|addr| socket_addr("metrics_addr", addr))
            .transpose()?,
        ipam: Pool::new(
            Cidr::new(config.ipam_pool.network, config.ipam_pool.prefix)?,
            config.ipam_block,
        )?,
        version: version().to_owned(),
        fault_injection,
        clock: Clock::system(),
    })
}

/// One address to bind and advertise. A name is resolved once: certificates and members carry
/// addresses.
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

/// An address to bind.
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
