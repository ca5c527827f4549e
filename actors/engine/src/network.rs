//! The port to the networks of an engine.

use std::{collections::BTreeMap, time::Duration};

use futures::future::BoxFuture;

use crate::{EngineError, cidr::Cidr};

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
    /// MTU in bytes.
    pub mtu: u16,
    /// Labels.
    pub labels: BTreeMap<String, String>,
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
}
