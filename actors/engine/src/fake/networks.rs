//! Networks of the in-memory engine.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::FutureExt;

use super::FakeEngine;
use crate::{EngineError, EngineNetwork, EngineResult, NetworkEngine, NetworkSpec};

/// Calls that changed the engine, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The network of this name was created.
    Created(String),
    /// The network of this id was removed.
    Removed(String),
    /// This container was removed.
    Evicted(String),
}

#[derive(Default)]
struct Inner {
    networks: Vec<EngineNetwork>,
    attached: BTreeMap<String, Vec<String>>,
    events: Vec<Event>,
    /// Number of calls that still succeed before one fails.
    until_failure: Option<usize>,
    /// Latency of a request and of its response.
    latency: Duration,
    next: usize,
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

    /// Adds a network.
    pub fn put(&self, network: EngineNetwork) {
        self.with(|inner| inner.networks.push(network));
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
            inner.networks.retain(|network| network.id != id);
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
            inner.events.push(Event::Evicted(container));
            Ok(())
        })
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
}
