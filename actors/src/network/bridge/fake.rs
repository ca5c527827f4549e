//! In-memory network engine for tests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::FutureExt;

use crate::network::engine::{
    EngineError, EngineNetwork, EngineResult, NetworkEngine, NetworkSpec,
};

/// Calls that changed the engine, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Created(String),
    Removed(String),
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
pub(crate) struct FakeEngine(Arc<Mutex<Inner>>);

fn refused<T>(message: &str) -> Result<T, EngineError> {
    Err(EngineError::Conflict(message.into()))
}

impl FakeEngine {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap())
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

    pub(crate) fn put(&self, network: EngineNetwork) {
        self.with(|inner| inner.networks.push(network));
    }

    pub(crate) fn attach(&self, name: &str, container: &str) {
        self.with(|inner| {
            let id = inner
                .networks
                .iter()
                .find(|n| n.name == name)
                .unwrap()
                .id
                .clone();
            inner.attached.entry(id).or_default().push(container.into());
        });
    }

    pub(crate) fn detach_all(&self) {
        self.with(|inner| inner.attached.clear());
    }

    /// Sets the latency of every request and response.
    pub(crate) fn slow_down(&self, latency: Duration) {
        self.with(|inner| inner.latency = latency);
    }

    /// Lets `calls` calls succeed and the next one fail.
    pub(crate) fn fail_after(&self, calls: usize) {
        self.with(|inner| inner.until_failure = Some(calls));
    }

    pub(crate) fn networks(&self) -> Vec<EngineNetwork> {
        self.with(|inner| inner.networks.clone())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.networks()
            .into_iter()
            .map(|network| network.name)
            .collect()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.with(|inner| inner.events.clone())
    }
}

impl NetworkEngine for FakeEngine {
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
