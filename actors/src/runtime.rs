//! Runtime vertical: from a desired row to a container on this host.
//!
//! - [`engine`]: what is asked of a container engine, and the Docker implementation.
//! - [`projection`]: a compose service as the engine's create request.
//! - [`registry_key`]: image references and the credential that pulls them.
//! - [`replica`]: one container, from pull to removal.
//! - [`assignment`]: what the state wants of this host.
//! - [`manager`]: one replica actor per row, and the sweep for what no row wants.
//! - [`publisher`]: the newest observation of each replica, on its way into the state.
//! - [`events`]: the engine's event stream, fanned out.
//! - [`logs`]: the log tail of a replica.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use jaco_proto::chain;
use jaco_raftnode::Propose;
use jaco_supervision::{ChildSpec, Handle, Strategy, SupervisorHandle, SupervisorSpec};
use tokio::sync::{broadcast, watch};

use crate::{clock::Clock, network::BridgeDirectory, telemetry::Metrics};
use engine::Engine;
use projection::Attachment;

pub mod assignment;
mod documents;
pub mod engine;
pub mod events;
pub mod logs;
pub mod manager;
pub mod projection;
pub mod publisher;
mod pulls;
pub mod registry_key;
pub mod replica;

pub use documents::{Documents, ReadProject};

/// Events that a listener may be behind.
const NEWS: usize = 64;

/// Identity under which the runtime changes the state.
pub const IDENTITY: &str = "runtime";

/// Why a network is not ready on this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The address pool has no block left.
    #[error("the address pool is exhausted")]
    PoolExhausted,
    /// Anything that another attempt may find different.
    #[error("{0}")]
    Unavailable(String),
}

/// Networks of this host, made on demand.
#[async_trait]
pub trait Networks: Send + Sync + 'static {
    /// Makes sure that a network exists here; idempotent.
    async fn ensure(&self, deployment: &str, network: &str) -> Result<Attachment, NetworkError>;
}

#[async_trait]
impl Networks for BridgeDirectory {
    async fn ensure(&self, deployment: &str, network: &str) -> Result<Attachment, NetworkError> {
        use crate::network::{bridge, ipam};
        match Self::ensure(self, deployment, network).await {
            Ok(bridge) => Ok(Attachment {
                engine_network: bridge.engine_network,
                gateway: bridge.gateway.to_string(),
            }),
            Err(bridge::Error::Subnet(ipam::Error::Exhausted(_))) => {
                Err(NetworkError::PoolExhausted)
            }
            Err(error) => Err(NetworkError::Unavailable(chain(&error))),
        }
    }
}

/// What the runtime of one node works with.
#[derive(Clone)]
pub struct Deps {
    /// Hostname of this node.
    pub host: String,
    /// Its container engine.
    pub engine: Arc<dyn Engine>,
    /// Its networks.
    pub networks: Arc<dyn Networks>,
    /// The replicated state.
    pub raft: Arc<dyn Propose>,
    /// Wall clock for timestamps.
    pub clock: Clock,
    /// Whether this node has caught up with the cluster. While it has not, its state may be one
    /// that the cluster has left behind: nothing is swept, and no container is started that did
    /// not run before.
    pub caught_up: watch::Receiver<bool>,
    /// Where starts of containers are counted.
    pub metrics: Metrics,
}

impl fmt::Debug for Deps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deps")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// What the actors of one runtime share, across their restarts.
pub(crate) struct Shared {
    pub(crate) deps: Deps,
    pub(crate) documents: Documents,
    pub(crate) pulls: pulls::Pulls,
    /// The engine's event stream is up.
    events_up: AtomicBool,
    /// What the engine tells, for whoever waits for a container; a slow listener misses some and
    /// knows it.
    pub(crate) news: broadcast::Sender<engine::Event>,
    /// The log tails.
    pub(crate) readers: logs::readers::Readers,
    /// Since the node caught up, the engine has shown no container here that no row wants.
    settled: watch::Sender<bool>,
    /// Replicas whose start may have to wait for others.
    pub(crate) deferred: Marks,
    /// Replicas that nothing is wanted of here and whose actor makes nothing any more.
    pub(crate) leaving: Marks,
    /// Handles of the replica actors; they outlive a restart of the manager.
    roster: Mutex<BTreeMap<String, Handle<replica::Msg>>>,
}

impl Shared {
    fn new(deps: Deps) -> Self {
        Self {
            deps,
            documents: Documents::default(),
            pulls: pulls::Pulls::default(),
            events_up: AtomicBool::new(false),
            news: broadcast::channel(NEWS).0,
            readers: logs::readers::Readers::default(),
            settled: watch::Sender::new(false),
            deferred: Marks::default(),
            leaving: Marks::default(),
            roster: Mutex::default(),
        }
    }

    pub(crate) fn settled(&self) -> bool {
        *self.settled.borrow()
    }

    pub(crate) fn set_settled(&self, settled: bool) -> bool {
        let news = |known: &mut bool| std::mem::replace(known, settled) != settled;
        self.settled.send_if_modified(news)
    }

    pub(crate) fn events_up(&self) -> bool {
        self.events_up.load(Ordering::Acquire)
    }

    pub(crate) fn set_events_up(&self, up: bool) -> bool {
        self.events_up.swap(up, Ordering::AcqRel) != up
    }

    pub(crate) fn roster(&self) -> MutexGuard<'_, BTreeMap<String, Handle<replica::Msg>>> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replicas of which one thing holds, as their actors say it.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<BTreeSet<String>>);

impl Marks {
    pub(crate) fn set(&self, id: &str, holds: bool) {
        let mut marked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !holds {
            marked.remove(id);
        } else if !marked.contains(id) {
            marked.insert(id.to_owned());
        }
    }

    pub(crate) fn all(&self) -> BTreeSet<String> {
        let marked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marked.clone()
    }
}

/// The runtime of a node as a child of its root.
///
/// Replica actors are dynamic children of the returned supervisor, `replica:<id>`.
#[must_use]
pub fn supervisor(key: &str, deps: Deps) -> (ChildSpec, Runtime) {
    let shared = Arc::new(Shared::new(deps));
    let args = publisher::Args {
        shared: Arc::clone(&shared),
    };
    let (publisher, reports) = ChildSpec::worker::<publisher::PublisherActor>("publisher", args);
    let args = manager::Args {
        shared: Arc::clone(&shared),
        reports,
    };
    let (manager, handle) = ChildSpec::worker::<manager::ReplicaManager>("replicas", args);
    let args = events::Args {
        shared: Arc::clone(&shared),
        manager: handle.clone(),
    };
    let (events, _) = ChildSpec::worker::<events::EngineEventsActor>("events", args);
    let spec = SupervisorSpec::new(Strategy::OneForOne)
        .child(publisher)
        .child(manager)
        .child(events);
    let (spec, supervisor) = ChildSpec::supervisor(key, spec);
    let runtime = Runtime {
        shared,
        manager: handle,
        supervisor,
    };
    (spec, runtime)
}

/// Access to the runtime of a node; a clone reaches the same one.
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
    manager: Handle<manager::Msg>,
    supervisor: SupervisorHandle,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("deps", &self.shared.deps)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// The manager, to make it look again.
    #[must_use]
    pub fn manager(&self) -> Handle<manager::Msg> {
        self.manager.clone()
    }

    /// The supervisor of every replica actor.
    #[must_use]
    pub fn supervisor(&self) -> SupervisorHandle {
        self.supervisor.clone()
    }

    /// Whether this node has caught up with the cluster and nothing is left here that runs
    /// elsewhere by now. Starts wait for it, and so does a node that wants to be ready again.
    #[must_use]
    pub fn settled(&self) -> watch::Receiver<bool> {
        self.shared.settled.subscribe()
    }

    /// Output of this host's replicas that `query` selects.
    #[must_use]
    pub fn logs(&self, query: &logs::Query) -> logs::Tail {
        logs::tail(&self.shared, query)
    }
}

#[cfg(test)]
mod tests;
