//! Networks of the in-memory engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream, stream::BoxStream};
use tokio::sync::broadcast;

use super::FakeEngine;
use crate::{
    Endpoint, EngineError, EngineNetwork, EngineResult, NetworkEngine, NetworkEvent, NetworkSpec,
    NetworkedContainer, spec::EndpointConfig,
};

/// Calls that changed the engine, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The network of this name was created.
    Created(String),
    /// The network of this id was removed.
    Removed(String),
    /// This container was removed.
    Evicted(String),
    /// A container was attached to the network of this name.
    Connected(String, Endpoint),
    /// This container was detached from the network of this id.
    Disconnected(String, String),
}

struct Inner {
    networks: Vec<EngineNetwork>,
    /// Linux bridges of the host.
    bridges: BTreeSet<String>,
    attached: BTreeMap<String, Vec<String>>,
    containers: Vec<NetworkedContainer>,
    /// Addresses that a container outside JACO has.
    taken: BTreeSet<Ipv4Addr>,
    events: Vec<Event>,
    /// Number of calls that still succeed before one fails.
    until_failure: Option<usize>,
    /// Latency of a request and of its response.
    latency: Duration,
    next: usize,
    changes: broadcast::Sender<NetworkEvent>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            networks: Vec::new(),
            bridges: BTreeSet::new(),
            attached: BTreeMap::new(),
            containers: Vec::new(),
            taken: BTreeSet::new(),
            events: Vec::new(),
            until_failure: None,
            latency: Duration::ZERO,
            next: 0,
            changes: broadcast::channel(64).0,
        }
    }
}

impl Inner {
    fn name(&self, id: &str) -> Option<String> {
        let found = self.networks.iter().find(|network| network.id == id);
        found.map(|network| network.name.clone())
    }

    fn detach(&mut self, id: &str, container: &str) {
        if let Some(attached) = self.attached.get_mut(id) {
            attached.retain(|other| other != container);
        }
        let name = self.name(id);
        for found in &mut self.containers {
            if found.id == container
                && let Some(name) = &name
            {
                found.networks.remove(name);
            }
        }
    }

    fn drop_network(&mut self, id: &str) {
        let name = self.name(id);
        let (gone, kept) = std::mem::take(&mut self.networks)
            .into_iter()
            .partition::<Vec<_>, _>(|network| network.id == id);
        self.networks = kept;
        for bridge in gone.into_iter().filter_map(|network| network.bridge) {
            self.bridges.remove(&bridge);
        }
        self.attached.remove(id);
        if let Some(name) = name {
            // Fails without subscribers.
            let _ = self.changes.send(NetworkEvent::Destroyed(name));
        }
    }
}

/// Mimics an engine: rejects overlapping subnets, taken bridge names and the removal of networks in
/// use.
#[derive(Clone, Default)]
pub struct FakeNetworks(Arc<Mutex<Inner>>);

fn refused<T>(message: &str) -> Result<T, EngineError> {
    Err(EngineError::Conflict(message.into()))
}

impl FakeNetworks {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Inner) -> Result<T, EngineError> + Send + 'static,
    ) -> EngineResult<T> {
        let this = self.clone();
        async move {
            let latency = this.with(|inner| inner.latency);
            tokio::time::sleep(latency).await;
            let result = this.with(|inner| match inner.until_failure {
                Some(0) => {
                    inner.until_failure = None;
                    Err(EngineError::Unreachable("down".into()))
                }
                left => {
                    inner.until_failure = left.map(|left| left - 1);
                    f(inner)
                }
            });
            tokio::time::sleep(latency).await;
            result
        }
        .boxed()
    }

    /// Adds a network and its bridge.
    pub fn put(&self, network: EngineNetwork) {
        self.with(|inner| {
            inner.bridges.extend(network.bridge.clone());
            inner.networks.push(network);
        });
    }

    /// Adds a running container that is attached to nothing.
    pub fn put_container(&self, id: &str, replica_id: &str, raft_index: u64) {
        let container = NetworkedContainer {
            id: id.to_owned(),
            replica_id: Some(replica_id.to_owned()),
            raft_index: Some(raft_index),
            running: true,
            networks: BTreeMap::new(),
        };
        self.with(|inner| inner.containers.push(container));
    }

    /// Attaches a container of [`FakeNetworks::put_container`] to the network of a name.
    ///
    /// # Panics
    /// If there is no network of that name.
    pub fn join(&self, name: &str, container: &str, address: [u8; 4]) {
        self.attach(name, container);
        self.with(|inner| {
            let found = inner.containers.iter_mut().find(|c| c.id == container);
            if let Some(found) = found {
                let address = Some(address.into());
                found.networks.insert(name.to_owned(), address);
            }
        });
    }

    /// Containers with their networks.
    #[must_use]
    pub fn joined(&self) -> Vec<NetworkedContainer> {
        self.with(|inner| inner.containers.clone())
    }

    /// Lets a container outside JACO have an address.
    pub fn take_address(&self, address: [u8; 4]) {
        self.with(|inner| inner.taken.insert(address.into()));
    }

    /// Detaches all containers from the network of a name and removes it, as an operator does.
    pub fn destroy(&self, name: &str) {
        self.with(|inner| {
            let networks = inner.networks.iter().filter(|n| n.name == name);
            let ids: Vec<_> = networks.map(|network| network.id.clone()).collect();
            for id in ids {
                for container in inner.attached.remove(&id).unwrap_or_default() {
                    inner.detach(&id, &container);
                }
                inner.drop_network(&id);
            }
        });
    }

    /// Linux bridges of the host.
    #[must_use]
    pub fn bridges(&self) -> BTreeSet<String> {
        self.with(|inner| inner.bridges.clone())
    }

    /// Adds a Linux bridge that is no network.
    pub fn put_bridge(&self, name: &str) {
        self.with(|inner| inner.bridges.insert(name.to_owned()));
    }

    /// Deletes a Linux bridge; its network stays.
    pub fn delete_bridge(&self, name: &str) {
        self.with(|inner| inner.bridges.remove(name));
    }

    /// Attaches a container to the network of a name.
    ///
    /// # Panics
    /// If there is no network of that name.
    pub fn attach(&self, name: &str, container: &str) {
        self.with(|inner| {
            let Some(found) = inner.networks.iter().find(|n| n.name == name) else {
                panic!("no network {name}");
            };
            let id = found.id.clone();
            inner.attached.entry(id).or_default().push(container.into());
        });
    }

    /// Detaches all containers.
    pub fn detach_all(&self) {
        self.with(|inner| inner.attached.clear());
    }

    /// Sets the latency of every request and response.
    pub fn slow_down(&self, latency: Duration) {
        self.with(|inner| inner.latency = latency);
    }

    /// Lets `calls` calls succeed and the next one fail.
    pub fn fail_after(&self, calls: usize) {
        self.with(|inner| inner.until_failure = Some(calls));
    }

    /// All networks.
    #[must_use]
    pub fn networks(&self) -> Vec<EngineNetwork> {
        self.with(|inner| inner.networks.clone())
    }

    /// Names of all networks.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.networks()
            .into_iter()
            .map(|network| network.name)
            .collect()
    }

    /// Calls so far that changed the engine.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.with(|inner| inner.events.clone())
    }
}

impl NetworkEngine for FakeNetworks {
    fn list(&self) -> EngineResult<Vec<EngineNetwork>> {
        self.call(|inner| Ok(inner.networks.clone()))
    }

    fn create(&self, spec: NetworkSpec) -> EngineResult<String> {
        self.call(move |inner| {
            for other in &inner.networks {
                if other.bridge.as_ref() == Some(&spec.bridge) {
                    return refused("bridge name exists");
                }
                let mut blocks = other
                    .subnets
                    .iter()
                    .filter_map(|subnet| subnet.parse().ok());
                if blocks.any(|block| spec.cidr.overlaps(block)) {
                    return refused("pool overlaps");
                }
            }
            inner.next += 1;
            let id = format!("id{}", inner.next);
            inner.events.push(Event::Created(spec.name.clone()));
            inner.bridges.insert(spec.bridge.clone());
            inner.networks.push(EngineNetwork {
                id: id.clone(),
                name: spec.name,
                labels: spec.labels,
                subnets: vec![spec.cidr.to_string()],
                bridge: Some(spec.bridge),
            });
            Ok(id)
        })
    }

    fn remove(&self, id: String) -> EngineResult<()> {
        self.call(move |inner| {
            if inner
                .attached
                .get(&id)
                .is_some_and(|containers| !containers.is_empty())
            {
                return refused("network has active endpoints");
            }
            inner.drop_network(&id);
            inner.events.push(Event::Removed(id));
            Ok(())
        })
    }

    fn attached(&self, network: &EngineNetwork) -> EngineResult<Vec<String>> {
        let id = network.id.clone();
        self.call(move |inner| Ok(inner.attached.get(&id).cloned().unwrap_or_default()))
    }

    fn evict(&self, container: String, _grace: Duration) -> EngineResult<()> {
        self.call(move |inner| {
            for containers in inner.attached.values_mut() {
                containers.retain(|id| *id != container);
            }
            inner.containers.retain(|found| found.id != container);
            inner.events.push(Event::Evicted(container));
            Ok(())
        })
    }

    fn containers(&self, _: &str) -> EngineResult<Vec<NetworkedContainer>> {
        self.call(|inner| Ok(inner.containers.clone()))
    }

    fn endpoints(&self, network: &EngineNetwork) -> EngineResult<Vec<Endpoint>> {
        let network = network.clone();
        self.call(move |inner| {
            let ids = inner.attached.get(&network.id).cloned().unwrap_or_default();
            let endpoint = |container: String| {
                let found = inner.containers.iter().find(|c| c.id == container);
                Endpoint {
                    config: EndpointConfig {
                        aliases: vec![format!("alias-of-{container}")],
                        ..Default::default()
                    },
                    address: found.and_then(|found| *found.networks.get(&network.name)?),
                    container,
                }
            };
            Ok(ids.into_iter().map(endpoint).collect())
        })
    }

    fn connect(&self, network: &str, endpoint: Endpoint) -> EngineResult<()> {
        let name = network.to_owned();
        self.call(move |inner| {
            let found = inner.networks.iter().find(|n| n.name == name);
            let Some(id) = found.map(|network| network.id.clone()) else {
                return Err(EngineError::NotFound(format!("network {name} not found")));
            };
            if endpoint.address.is_some_and(|a| inner.taken.contains(&a)) {
                return refused("Address already in use");
            }
            let chosen = Ipv4Addr::from([10, 244, 0, 100]);
            let attached = inner.attached.entry(id).or_default();
            attached.push(endpoint.container.clone());
            for found in &mut inner.containers {
                if found.id == endpoint.container {
                    let address = endpoint.address.or(Some(chosen));
                    found.networks.insert(name.clone(), address);
                }
            }
            inner.events.push(Event::Connected(name, endpoint));
            Ok(())
        })
    }

    fn disconnect(&self, network: String, container: String) -> EngineResult<()> {
        self.call(move |inner| {
            inner.detach(&network, &container);
            inner.events.push(Event::Disconnected(network, container));
            Ok(())
        })
    }

    fn network_events(&self) -> BoxStream<'static, Result<NetworkEvent, EngineError>> {
        let changes = self.with(|inner| inner.changes.subscribe());
        stream::unfold(changes, |mut changes| async {
            changes.recv().await.ok().map(|event| (Ok(event), changes))
        })
        .boxed()
    }
}

impl NetworkEngine for FakeEngine {
    fn list(&self) -> EngineResult<Vec<EngineNetwork>> {
        self.networks.list()
    }

    fn create(&self, spec: NetworkSpec) -> EngineResult<String> {
        self.networks.create(spec)
    }

    fn remove(&self, id: String) -> EngineResult<()> {
        self.networks.remove(id)
    }

    fn attached(&self, network: &EngineNetwork) -> EngineResult<Vec<String>> {
        self.networks.attached(network)
    }

    fn evict(&self, container: String, grace: Duration) -> EngineResult<()> {
        self.networks.evict(container, grace)
    }

    fn containers(&self, cluster_id: &str) -> EngineResult<Vec<NetworkedContainer>> {
        self.networks.containers(cluster_id)
    }

    fn endpoints(&self, network: &EngineNetwork) -> EngineResult<Vec<Endpoint>> {
        self.networks.endpoints(network)
    }

    fn connect(&self, network: &str, endpoint: Endpoint) -> EngineResult<()> {
        self.networks.connect(network, endpoint)
    }

    fn disconnect(&self, network: String, container: String) -> EngineResult<()> {
        self.networks.disconnect(network, container)
    }

    fn network_events(&self) -> BoxStream<'static, Result<NetworkEvent, EngineError>> {
        self.networks.network_events()
    }
}
