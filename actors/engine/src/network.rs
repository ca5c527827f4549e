//! The port to the networks of an engine.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use futures::{future::BoxFuture, stream::BoxStream};

use crate::{EngineError, cidr::Cidr, spec::EndpointConfig};

/// Network as reported by the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineNetwork {
    /// Engine id.
    pub id: String,
    /// Name; engines allow several networks with the same name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Subnets in the engine's order and notation.
    pub subnets: Vec<String>,
    /// Name of its Linux bridge, if one was requested.
    pub bridge: Option<String>,
}

/// Parameters of a bridge network to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// Name in the engine.
    pub name: String,
    /// Name of the Linux bridge.
    pub bridge: String,
    /// Address block; the second address is the gateway.
    pub cidr: Cidr,
    /// Address of the block that no container gets. On Podman, none gets a higher one either.
    pub reserved: Option<Ipv4Addr>,
    /// MTU in bytes.
    pub mtu: u16,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// Container of a cluster and its networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkedContainer {
    /// Engine id.
    pub id: String,
    /// Replica it belongs to, according to its label.
    pub replica_id: Option<String>,
    /// Log index of the row it was created from; `None` when missing or unparsable.
    pub raft_index: Option<u64>,
    /// Whether its process runs.
    pub running: bool,
    /// Address by network name; `None` while it has none there.
    pub networks: BTreeMap<String, Option<Ipv4Addr>>,
}

/// Attachment of a container to a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Engine id of the container.
    pub container: String,
    /// Its names, and other settings.
    pub config: EndpointConfig,
    /// Its address; when attaching, `None` lets the engine choose one.
    pub address: Option<Ipv4Addr>,
}

/// Change of a network that JACO did not necessarily make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkEvent {
    /// The network of this name was removed.
    Destroyed(String),
    /// A container was detached from the network of this name.
    Disconnected(String),
}

/// Result of an engine call.
pub type EngineResult<T> = BoxFuture<'static, Result<T, EngineError>>;

/// Network client of a container engine; removing something absent succeeds.
pub trait NetworkEngine: Send + Sync + 'static {
    /// Lists all networks of any driver.
    fn list(&self) -> EngineResult<Vec<EngineNetwork>>;
    /// Creates a network and returns its id.
    fn create(&self, spec: NetworkSpec) -> EngineResult<String>;
    /// Removes a network by id.
    fn remove(&self, id: String) -> EngineResult<()>;
    /// Ids of the containers attached to a network, running or not.
    fn attached(&self, network: &EngineNetwork) -> EngineResult<Vec<String>>;
    /// Stops a container, forcibly after `grace`, and removes it.
    fn evict(&self, container: String, grace: Duration) -> EngineResult<()>;
    /// Lists the containers of a cluster in any state, with their networks.
    fn containers(&self, cluster_id: &str) -> EngineResult<Vec<NetworkedContainer>>;
    /// Attachments of running containers to a network, of this cluster or not.
    fn endpoints(&self, network: &EngineNetwork) -> EngineResult<Vec<Endpoint>>;
    /// Attaches a container to the network of a name.
    fn connect(&self, network: &str, endpoint: Endpoint) -> EngineResult<()>;
    /// Detaches a container from a network by id, even if its bridge is gone.
    fn disconnect(&self, network: String, container: String) -> EngineResult<()>;
    /// Streams changes of networks; ends or fails with the connection.
    fn network_events(&self) -> BoxStream<'static, Result<NetworkEvent, EngineError>>;
}
