//! Runtime vertical: turns the desired rows of this host into containers.
//!
//! [`jaco_policy::runtime`] decides.
//!
//! - [`replica`]: one container, from pull to removal.
//! - [`manager`]: one replica actor per row, and the sweep for orphaned containers.
//! - [`publisher`]: proposes the newest observation of each replica.
//! - [`events`]: the engine's event stream, fanned out.
//! - [`FileMounts`]: files that are mounted into containers.
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
use jaco_engine::{Engine, spec::Attachment};
use jaco_policy::{
    health::fencing::ContactEpoch,
    network::firewall::local::LocalReports,
    runtime::{
        assignment,
        documents::Documents,
        replica::core::{Assignment, StartGate},
    },
};
use jaco_proto::chain;
use jaco_raftnode::ForwardingProposer;
use jaco_supervision::{ChildSpec, Handle, Strategy, SupervisorHandle, SupervisorSpec};
use tokio::sync::{broadcast, watch};

use crate::{
    clock::Clock, health::Contact, network::BridgeDirectory, serving::Spread, telemetry::Metrics,
};

pub use jaco_policy::node::writers::RUNTIME as IDENTITY;

mod environment;
pub mod events;
mod files;
pub mod logs;
pub mod manager;
pub mod publisher;
mod pulls;
pub mod replica;

pub use files::FileMounts;

/// Capacity of the engine event channel; a subscriber that falls further behind is notified with
/// `Lagged`.
const EVENT_CAPACITY: usize = 64;

/// Why a network is not ready on this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The address pool has no block left.
    #[error("the address pool is exhausted")]
    PoolExhausted,
    /// Any other failure; a later attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
}

/// Networks of this host, created on demand.
#[async_trait]
pub trait Networks: Send + Sync + 'static {
    /// Ensures that a network exists on this host; idempotent.
    async fn ensure(&self, deployment: &str, network: &str) -> Result<Attachment, NetworkError>;

    /// Number of repairs so far, after which addresses of containers may have changed; never
    /// changes by default.
    fn repairs(&self) -> watch::Receiver<u64> {
        watch::Sender::new(0).subscribe()
    }
}

#[async_trait]
impl Networks for BridgeDirectory {
    async fn ensure(&self, deployment: &str, network: &str) -> Result<Attachment, NetworkError> {
        use crate::network::{bridge, ipam};
        match Self::ensure(self, deployment, network).await {
            Ok(bridge) => Ok(Attachment {
                network: network.to_owned(),
                engine_network: bridge.engine_network,
                gateway: bridge.gateway.to_string(),
            }),
            Err(bridge::Error::Subnet(ipam::Error::Exhausted(_))) => {
                Err(NetworkError::PoolExhausted)
            }
            Err(error) => Err(NetworkError::Unavailable(chain(&error))),
        }
    }

    fn repairs(&self) -> watch::Receiver<u64> {
        Self::repairs(self)
    }
}

/// Dependencies of one node's runtime.
#[derive(Clone)]
pub struct Deps {
    /// Hostname of this node.
    pub host: String,
    /// Its container engine.
    pub engine: Arc<dyn Engine>,
    /// Its networks.
    pub networks: Arc<dyn Networks>,
    /// The replicated state, and the leader that this node reports to.
    pub raft: Arc<dyn ForwardingProposer>,
    /// Wall clock for timestamps.
    pub clock: Clock,
    /// Contact with the cluster. Without it the state may be stale, so nothing is swept and no
    /// container is started that did not run before.
    pub contact: Contact,
    /// Counts container starts.
    pub metrics: Metrics,
    /// Routing of the cluster, which a container leaves before it is stopped.
    pub routing: Arc<dyn Spread>,
    /// Files that are mounted into containers.
    pub files: FileMounts,
    /// Receives the report of each replica before it is replicated.
    pub reports: watch::Sender<LocalReports>,
}

impl fmt::Debug for Deps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deps")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// State shared by the actors of one runtime; it outlives their restarts.
pub(crate) struct RuntimeContext {
    pub(crate) deps: Deps,
    pub(crate) documents: Documents,
    pub(crate) pulls: pulls::Pulls,
    /// The engine's event stream is up.
    events_up: AtomicBool,
    /// Engine events, for tasks that wait for a container; a slow subscriber misses some and
    /// receives `Lagged`.
    pub(crate) engine_events: broadcast::Sender<jaco_engine::Event>,
    /// The log tails.
    pub(crate) tails: logs::tail_registry::TailRegistry,
    /// Last contact in which a listing has shown no running container here without a row.
    orphans_cleared: watch::Sender<Option<ContactEpoch>>,
    /// Replicas whose start may be waiting for dependencies.
    pub(crate) deferred: ReplicaIdSet,
    /// Replicas that have no assignment here and whose actor creates nothing any more.
    pub(crate) leaving: ReplicaIdSet,
    /// Replicas whose container uses the network namespace of another one.
    pub(crate) borrowers: ReplicaIdSet,
    /// Handles of the replica actors; they outlive a restart of the manager.
    replica_handles: Mutex<BTreeMap<String, Handle<replica::Msg>>>,
}

impl RuntimeContext {
    fn new(deps: Deps) -> Self {
        Self {
            deps,
            documents: Documents::default(),
            pulls: pulls::Pulls::default(),
            events_up: AtomicBool::new(false),
            engine_events: broadcast::channel(EVENT_CAPACITY).0,
            tails: logs::tail_registry::TailRegistry::default(),
            orphans_cleared: watch::Sender::new(None),
            deferred: ReplicaIdSet::default(),
            leaving: ReplicaIdSet::default(),
            borrowers: ReplicaIdSet::default(),
            replica_handles: Mutex::default(),
        }
    }

    /// Whether, at this moment, the node is in contact with the cluster and no container is running
    /// here without a row, as a listing of this contact has shown.
    pub(crate) fn orphans_cleared(&self) -> bool {
        let contact = self.deps.contact.now();
        contact.is_some() && self.cleared_contact() == contact
    }

    /// Last contact in which orphans were cleared, which may be over.
    pub(crate) fn cleared_contact(&self) -> Option<ContactEpoch> {
        *self.orphans_cleared.borrow()
    }

    /// Records the contact in which orphans were cleared; returns whether it was another before.
    pub(crate) fn set_orphans_cleared(&self, contact: Option<ContactEpoch>) -> bool {
        let differs =
            |known: &mut Option<ContactEpoch>| std::mem::replace(known, contact) != contact;
        self.orphans_cleared.send_if_modified(differs)
    }

    /// Derives the assignment of a replica at this moment; `None` while there is no cluster, as an
    /// empty state does not mean that the row is gone.
    pub(crate) fn assignment(&self, id: &str) -> Option<Assignment> {
        let state = self.deps.raft.state();
        state.cluster.as_ref()?;
        let mut assignment = assignment::of(&state, &self.documents, &self.deps.host, id);
        if let Assignment::Own(wanted) = &mut assignment
            && !self.orphans_cleared()
        {
            wanted.gate = StartGate::NotCaughtUp;
        }
        Some(assignment)
    }

    pub(crate) fn events_up(&self) -> bool {
        self.events_up.load(Ordering::Acquire)
    }

    pub(crate) fn set_events_up(&self, up: bool) -> bool {
        self.events_up.swap(up, Ordering::AcqRel) != up
    }

    pub(crate) fn replica_handles(&self) -> MutexGuard<'_, BTreeMap<String, Handle<replica::Msg>>> {
        self.replica_handles
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Set of replica ids for which one condition holds; each replica's actor maintains its own entry.
#[derive(Debug, Default)]
pub(crate) struct ReplicaIdSet(Mutex<BTreeSet<String>>);

impl ReplicaIdSet {
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
    let shared = Arc::new(RuntimeContext::new(deps));
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

/// Handle to the runtime of a node; clones share it.
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<RuntimeContext>,
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
    /// Returns the manager, so that callers can trigger another reconciliation.
    #[must_use]
    pub fn manager(&self) -> Handle<manager::Msg> {
        self.manager.clone()
    }

    /// The supervisor of every replica actor.
    #[must_use]
    pub fn supervisor(&self) -> SupervisorHandle {
        self.supervisor.clone()
    }

    /// Last contact with the cluster in which this node has stopped every container that was
    /// reassigned meanwhile. Container starts wait for it, and so does the node's return to ready.
    #[must_use]
    pub fn orphans_cleared(&self) -> watch::Receiver<Option<ContactEpoch>> {
        self.shared.orphans_cleared.subscribe()
    }

    /// Output of this host's replicas that `query` selects.
    #[must_use]
    pub fn logs(&self, query: &logs::Query) -> logs::Tail {
        logs::tail(&self.shared, query)
    }
}

#[cfg(test)]
mod tests;
