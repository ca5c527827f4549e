//! What the network vertical needs of a container engine.

mod docker;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::cidr::Cidr;

pub use crate::docker::EngineError;
pub use docker::DockerNetworks;

/// A network as the engine shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineNetwork {
    /// Engine id.
    pub id: String,
    /// Name; engines allow several networks of one name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Subnets in the engine's order, as written there.
    pub subnets: Vec<String>,
    /// Name of its Linux bridge, if one was asked for.
    pub bridge: Option<String>,
}

/// A bridge network to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// Name in the engine.
    pub name: String,
    /// Name of the Linux bridge.
    pub bridge: String,
    /// Addresses; the gateway is the second one.
    pub cidr: Cidr,
    /// Largest packet.
    pub mtu: u16,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// Answer of an engine call.
pub type EngineResult<T> = BoxFuture<'static, Result<T, EngineError>>;

/// Networks of a container engine; every removal of something absent succeeds.
pub trait NetworkEngine: Send + Sync + 'static {
    /// Every network, whatever its driver.
    fn list(&self) -> EngineResult<Vec<EngineNetwork>>;
    /// Creates a network and answers with its id.
    fn create(&self, spec: NetworkSpec) -> EngineResult<String>;
    /// Removes a network by id.
    fn remove(&self, id: String) -> EngineResult<()>;
    /// Ids of the containers attached to a network, running or not.
    fn attached(&self, network: &EngineNetwork) -> EngineResult<Vec<String>>;
    /// Stops a container, forcibly after `grace`, and removes it.
    fn evict(&self, container: String, grace: Duration) -> EngineResult<()>;
}

/// An engine that is shared.
pub type SharedEngine = Arc<dyn NetworkEngine>;
