//! An engine in memory, for tests.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use bollard::models::ContainerCreateBody;
use futures::{Stream, StreamExt, stream, stream::BoxStream};
use tokio::sync::broadcast;

use super::{
    Engine, EngineError, Event, EventKind, Found, Inspected, LogFrame, LogRequest, Status,
};
use crate::{
    labels::{LABEL_CLUSTER, LABEL_RAFT_INDEX, LABEL_REPLICA},
    runtime::registry_key::Credential,
};

/// A fake engine; a clone is the same one.
#[derive(Clone)]
pub(crate) struct FakeEngine {
    inner: Arc<Mutex<Inner>>,
    events: broadcast::Sender<Event>,
}

#[derive(Default)]
struct Inner {
    containers: BTreeMap<String, Container>,
    made: u64,
    calls: u64,
    down: bool,
    pulls: Vec<(String, Option<String>)>,
    scripts: VecDeque<BoxStream<'static, Result<(), EngineError>>>,
}

struct Container {
    name: String,
    labels: std::collections::HashMap<String, String>,
    status: Status,
}

impl FakeEngine {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::default(),
            events: broadcast::channel(64).0,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Counts a call and refuses it while the engine is down.
    fn call(&self) -> Result<MutexGuard<'_, Inner>, EngineError> {
        let mut inner = self.inner();
        inner.calls += 1;
        if inner.down {
            return Err(EngineError::Unreachable("down".into()));
        }
        Ok(inner)
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.inner().calls
    }

    /// Images asked of the registry, with the account that asked.
    pub(crate) fn pulls(&self) -> Vec<(String, Option<String>)> {
        self.inner().pulls.clone()
    }

    /// What the next pull answers that has no answer yet; others succeed at once.
    pub(crate) fn script_pull(
        &self,
        script: impl Stream<Item = Result<(), EngineError>> + Send + 'static,
    ) {
        self.inner().scripts.push_back(script.boxed());
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.inner().down = down;
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let inner = self.inner();
        let mut names: Vec<_> = inner.containers.values().map(|c| c.name.clone()).collect();
        names.sort();
        names
    }

    /// Adds a container past the runtime.
    pub(crate) fn plant(&self, id: &str, labels: &[(&str, &str)]) {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let container = Container {
            name: id.to_owned(),
            labels: labels.collect(),
            status: Status::Running,
        };
        self.inner().containers.insert(id.to_owned(), container);
    }

    /// The process of a container ends.
    pub(crate) fn die(&self, id: &str) {
        if let Some(container) = self.inner().containers.get_mut(id) {
            container.status = Status::Exited;
        }
        self.tell(id, EventKind::Die);
    }

    fn tell(&self, id: &str, kind: EventKind) {
        let replica = self
            .inner()
            .containers
            .get(id)
            .and_then(|c| c.labels.get(LABEL_REPLICA).cloned());
        if let Some(replica_id) = replica {
            let event = Event {
                container_id: id.to_owned(),
                replica_id,
                kind,
            };
            let _ = self.events.send(event);
        }
    }

    fn matching(inner: &Inner, cluster_id: &str) -> Vec<Found> {
        let ours = |c: &Container| {
            c.labels
                .get(LABEL_CLUSTER)
                .is_some_and(|id| id == cluster_id)
        };
        inner
            .containers
            .iter()
            .filter(|(_, container)| ours(container))
            .map(|(id, container)| Found {
                id: id.clone(),
                replica_id: container.labels.get(LABEL_REPLICA).cloned(),
                raft_index: container
                    .labels
                    .get(LABEL_RAFT_INDEX)
                    .and_then(|i| i.parse().ok()),
                status: container.status,
            })
            .collect()
    }
}

fn missing(id: &str) -> EngineError {
    EngineError::NotFound(format!("no such container: {id}"))
}

#[async_trait]
impl Engine for FakeEngine {
    async fn ping(&self) -> Result<(), EngineError> {
        self.call().map(drop)
    }

    async fn find(&self, cluster_id: &str, replica_id: &str) -> Result<Vec<Found>, EngineError> {
        let mut found = Self::matching(&*self.call()?, cluster_id);
        found.retain(|container| container.replica_id.as_deref() == Some(replica_id));
        Ok(found)
    }

    async fn list(&self, cluster_id: &str) -> Result<Vec<Found>, EngineError> {
        Ok(Self::matching(&*self.call()?, cluster_id))
    }

    async fn inspect(&self, container: &str) -> Result<Inspected, EngineError> {
        let inner = self.call()?;
        let found = inner
            .containers
            .get(container)
            .ok_or_else(|| missing(container))?;
        Ok(Inspected {
            id: container.to_owned(),
            status: Some(found.status),
            exit_code: 1,
            oom_killed: false,
            health: None,
            addresses: BTreeMap::new(),
        })
    }

    fn pull(
        &self,
        image: &str,
        auth: Option<&Credential>,
    ) -> BoxStream<'static, Result<(), EngineError>> {
        let account = auth.map(|credential| credential.username.clone());
        let mut inner = match self.call() {
            Ok(inner) => inner,
            Err(error) => return stream::once(async { Err(error) }).boxed(),
        };
        inner.pulls.push((image.to_owned(), account));
        match inner.scripts.pop_front() {
            Some(script) => script,
            None => stream::empty().boxed(),
        }
    }

    async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String, EngineError> {
        let mut inner = self.call()?;
        if inner
            .containers
            .values()
            .any(|container| container.name == name)
        {
            return Err(EngineError::Conflict(format!("{name} is in use")));
        }
        inner.made += 1;
        let id = format!("c{}", inner.made);
        let container = Container {
            name: name.to_owned(),
            labels: body.labels.unwrap_or_default(),
            status: Status::Created,
        };
        inner.containers.insert(id.clone(), container);
        Ok(id)
    }

    async fn connect(&self, _: &str, _: &str, _: &[String]) -> Result<(), EngineError> {
        self.call().map(drop)
    }

    async fn start(&self, container: &str) -> Result<(), EngineError> {
        let mut inner = self.call()?;
        let found = inner.containers.get_mut(container);
        found.ok_or_else(|| missing(container))?.status = Status::Running;
        Ok(())
    }

    async fn stop(&self, container: &str) -> Result<(), EngineError> {
        if let Some(found) = self.call()?.containers.get_mut(container) {
            found.status = Status::Exited;
        }
        Ok(())
    }

    async fn kill(&self, container: &str, _: &str) -> Result<(), EngineError> {
        self.stop(container).await
    }

    async fn remove(&self, container: &str) -> Result<(), EngineError> {
        self.call()?.containers.remove(container);
        Ok(())
    }

    fn events(&self, _: &str) -> BoxStream<'static, Result<Event, EngineError>> {
        if let Err(error) = self.call() {
            return stream::once(async { Err(error) }).boxed();
        }
        let events = self.events.subscribe();
        stream::unfold(events, |mut events| async {
            events.recv().await.ok().map(|event| (Ok(event), events))
        })
        .boxed()
    }

    fn logs(&self, _: &str, _: LogRequest) -> BoxStream<'static, Result<LogFrame, EngineError>> {
        stream::empty().boxed()
    }
}
