//! Configuration of a node.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    os::unix::net::UnixListener,
    path::PathBuf,
    sync::Arc,
};

use jaco_net::{
    handover::Inherited,
    pki::{MAX_REQUEST_ADDRESSES, dialable},
};
use jaco_proto::config::WgBackend;

use crate::{
    clock::Clock,
    ingress::certificate::CertificateSettings,
    network::{dns::DnsConfig, ipam::Pool, mesh::Resumed},
};

/// Default socket of the container engine.
const DOCKER_SOCKET: &str = "/var/run/docker.sock";

/// Settings of the encrypted mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshSettings {
    /// UDP port of this node, on all addresses.
    pub port: u16,
    /// Implementation of WireGuard.
    pub backend: WgBackend,
}

/// Settings of a node; built and validated by a [`NodeBuilder`](crate::NodeBuilder).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeConfig {
    /// Directory of all durable state; created when missing, mode 0700.
    pub data_dir: PathBuf,
    /// Name of the node. `None`: the stored name of a member, else the system's.
    pub hostname: Option<String>,
    /// TCP address of the API over TLS, bound and advertised. `None`: it is not served.
    pub listen_addr: Option<SocketAddr>,
    /// UDP address of the peer transport, advertised to members. `None`: the node has no peers.
    pub cluster_addr: Option<SocketAddr>,
    /// Addresses a client may dial this node by; named in its certificate.
    pub certificate_ips: Vec<IpAddr>,
    /// Path of the API's unix socket. `None`: there is none.
    pub unix_socket: Option<PathBuf>,
    /// A socket that is already listening, used instead of `unix_socket`, which is then neither
    /// created nor removed.
    pub inherited_socket: Option<Arc<UnixListener>>,
    /// Listening sockets of the ingress that an earlier process left.
    pub inherited: Inherited,
    /// Device of the mesh that an earlier process left, once [`NodeConfig::resume_mesh`] has found it.
    pub resumed_mesh: Resumed,
    /// Path of the engine's unix socket.
    pub docker_socket: PathBuf,
    /// TCP port of the plain HTTP ingress, on all addresses; 0 lets the system choose. `None`:
    /// routes are stored but not served.
    pub http_port: Option<u16>,
    /// How certificates are obtained. `None`: none are, and none are used.
    pub certificates: Option<CertificateSettings>,
    /// TCP port of the ingress over TLS, on all addresses, beside `http_port`; 0 lets the system
    /// choose. `None`: there is no TLS.
    pub https_port: Option<u16>,
    /// File of the log of requests through the ingress. `None`: they are not logged.
    pub ingress_access_log: Option<PathBuf>,
    /// Address of the metrics endpoint over plain HTTP, if there is one; port 0 lets the system
    /// choose.
    pub metrics_addr: Option<SocketAddr>,
    /// Address pool of the containers of a cluster that this node creates.
    pub ipam: Pool,
    /// Whether the pool was set: then that of the cluster must not be another one.
    pub ipam_is_set: bool,
    /// Name resolution for the containers. `None`: they resolve no names of each other.
    pub dns: Option<DnsConfig>,
    /// The encrypted mesh to the other members. `None`: there is none, and containers reach only
    /// those of their own host.
    pub mesh: Option<MeshSettings>,
    /// Whether deployments are isolated from each other by a ruleset of the kernel. There is one
    /// table per network namespace, so at most one node in each can have it.
    pub isolation: bool,
    /// Labels of the node, for constraints of services.
    pub labels: BTreeMap<String, String>,
    /// Version shown to members and clients.
    pub version: String,
    /// Whether an operator on this machine may kill actors.
    pub fault_injection: bool,
    /// Source of timestamps.
    pub clock: Clock,
}

/// An address in the format of the records; empty if there is none.
pub(super) fn text(address: Option<SocketAddr>) -> String {
    address
        .map(|address| address.to_string())
        .unwrap_or_default()
}

impl NodeConfig {
    /// Returns the default settings: no name and no listener.
    pub(crate) fn new(data_dir: PathBuf) -> Self {
        Self {
            data_dir,
            hostname: None,
            listen_addr: None,
            cluster_addr: None,
            certificate_ips: Vec::new(),
            unix_socket: None,
            inherited_socket: None,
            inherited: Inherited::default(),
            resumed_mesh: Resumed::default(),
            docker_socket: DOCKER_SOCKET.into(),
            http_port: None,
            certificates: None,
            https_port: None,
            ingress_access_log: None,
            metrics_addr: None,
            ipam: Pool::default(),
            ipam_is_set: false,
            dns: None,
            mesh: None,
            isolation: false,
            labels: BTreeMap::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fault_injection: false,
            clock: Clock::system(),
        }
    }

    /// Addresses that a certificate signed by another node may carry, the advertised ones first.
    pub(super) fn dialable_ips(&self) -> Vec<IpAddr> {
        let advertised = [self.cluster_addr, self.listen_addr].into_iter().flatten();
        let mut ips: Vec<IpAddr> = advertised.map(|address| address.ip()).collect();
        ips.dedup();
        for ip in &self.certificate_ips {
            if !ips.contains(ip) {
                ips.push(*ip);
            }
        }
        ips.retain(|ip| dialable(*ip));
        ips.truncate(MAX_REQUEST_ADDRESSES);
        ips
    }
}
