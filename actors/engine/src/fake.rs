//! In-memory container engine for tests.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::{Stream, StreamExt, stream, stream::BoxStream};
use jaco_proto::manifest::compose::Hook;
use tokio::sync::{broadcast, oneshot, watch};

use crate::{
    CommandExit, Credential, Engine, EngineError, Event, EventKind, Found, Inspected, LogFrame,
    LogRequest, LogStream, NetworkNamespace, Status,
    labels::{LABEL_CLUSTER, LABEL_RAFT_INDEX, LABEL_REPLICA},
    spec::{ContainerSpec, EndpointConfig},
};
use networks::FakeNetworks;

pub mod networks;

/// Fake engine; clones share state.
#[derive(Clone)]
pub struct FakeEngine {
    inner: Arc<Mutex<Inner>>,
    events: broadcast::Sender<Event>,
    /// Incremented when a container writes output or exits.
    written: watch::Sender<u64>,
    /// Its networks.
    pub networks: FakeNetworks,
}

/// Call whose answer a test can hold back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldCall {
    /// [`Engine::list`].
    List,
    /// [`Engine::create`].
    Create,
}

#[derive(Default)]
struct Inner {
    containers: BTreeMap<String, Container>,
    made: u64,
    starts: u64,
    calls: u64,
    down: bool,
    pulls: Vec<(String, Option<String>)>,
    scripts: VecDeque<BoxStream<'static, Result<(), EngineError>>>,
    commands: Vec<Vec<String>>,
    command_exits: VecDeque<CommandExit>,
    outputs: BTreeMap<String, Output>,
    frames_read: u64,
    /// Names of containers in order of creation (`+name`) and removal (`-name`).
    journal: Vec<String>,
    stopping_takes: Duration,
    /// Containers whose removal fails.
    stuck: BTreeSet<String>,
    /// Whose network namespace a container uses, unless its own.
    namespaces: BTreeMap<String, NetworkNamespace>,
    /// Calls whose next answer is held back.
    holds: BTreeMap<HeldCall, oneshot::Receiver<()>>,
    /// Cloned by every open log read; its reference count is the number of open reads.
    reads: Arc<()>,
}

/// Output of a container.
#[derive(Clone, Default)]
pub struct Output {
    frames: Vec<(LogStream, String)>,
    repeats: bool,
    fails: Option<EngineError>,
}

impl Output {
    /// Adds a frame.
    #[must_use]
    pub fn with_output(mut self, stream: LogStream, text: &str) -> Self {
        self.frames.push((stream, text.to_owned()));
        self
    }

    /// Repeats the frames endlessly.
    #[must_use]
    pub fn repeats(mut self) -> Self {
        self.repeats = true;
        self
    }

    /// Makes every read end with `error`.
    #[must_use]
    pub fn fails(mut self, error: EngineError) -> Self {
        self.fails = Some(error);
        self
    }
}

struct Container {
    name: String,
    labels: std::collections::HashMap<String, String>,
    status: Status,
    /// Number of its starts.
    starts: u64,
    exit_code: i64,
}

impl Default for FakeEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeEngine {
    /// Creates an engine without containers and networks.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: Arc::default(),
            events: broadcast::channel(64).0,
            written: watch::Sender::new(0),
            networks: FakeNetworks::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call; fails while the engine is down.
    fn call(&self) -> Result<MutexGuard<'_, Inner>, EngineError> {
        let mut inner = self.inner();
        inner.calls += 1;
        if inner.down {
            return Err(EngineError::Unreachable("down".into()));
        }
        Ok(inner)
    }

    /// Number of calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.inner().calls
    }

    /// Images pulled, each with the account name used.
    #[must_use]
    pub fn pulls(&self) -> Vec<(String, Option<String>)> {
        self.inner().pulls.clone()
    }

    /// Queues the response of the next pull without one; pulls without a response succeed at once.
    pub fn script_pull(
        &self,
        script: impl Stream<Item = Result<(), EngineError>> + Send + 'static,
    ) {
        self.inner().scripts.push_back(script.boxed());
    }

    /// Containers created (`+name`) and removed (`-name`) so far, in order.
    #[must_use]
    pub fn journal(&self) -> Vec<String> {
        self.inner().journal.clone()
    }

    /// Sets how long every stop takes.
    pub fn set_stopping_takes(&self, time: Duration) {
        self.inner().stopping_takes = time;
    }

    /// Sets whether removing a container fails; stopping it still works.
    pub fn set_stuck(&self, id: &str, stuck: bool) {
        let mut inner = self.inner();
        if stuck {
            inner.stuck.insert(id.to_owned());
        } else {
            inner.stuck.remove(id);
        }
    }

    /// Sets whose network namespace a container uses.
    pub fn set_namespace(&self, id: &str, namespace: NetworkNamespace) {
        self.inner().namespaces.insert(id.to_owned(), namespace);
    }

    /// Holds back the answer of the next such call, which takes place at once, until the sender is
    /// used or dropped.
    pub fn hold_next(&self, call: HeldCall) -> oneshot::Sender<()> {
        let (release, held) = oneshot::channel();
        self.inner().holds.insert(call, held);
        release
    }

    async fn wait_released(&self, call: HeldCall) {
        let held = self.inner().holds.remove(&call);
        if let Some(held) = held {
            // A dropped sender releases the answer, too.
            let _ = held.await;
        }
    }

    /// Sets whether every call fails.
    pub fn set_down(&self, down: bool) {
        self.inner().down = down;
    }

    /// Names of the containers, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let inner = self.inner();
        let mut names: Vec<_> = inner.containers.values().map(|c| c.name.clone()).collect();
        names.sort();
        names
    }

    /// Number of containers whose process is running.
    #[must_use]
    pub fn running(&self) -> usize {
        let inner = self.inner();
        let running = |container: &&Container| container.status == Status::Running;
        inner.containers.values().filter(running).count()
    }

    /// Number of containers started so far.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.inner().starts
    }

    /// Adds a container bypassing the runtime.
    pub fn insert_container(&self, id: &str, labels: &[(&str, &str)]) {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let container = Container {
            name: id.to_owned(),
            labels: labels.collect(),
            status: Status::Running,
            starts: 1,
            exit_code: 1,
        };
        self.inner().containers.insert(id.to_owned(), container);
    }

    /// Sets the output of a container.
    pub fn set_output(&self, id: &str, output: Output) {
        self.inner().outputs.insert(id.to_owned(), output);
    }

    /// Appends a frame to the output of a container.
    pub fn write_output(&self, id: &str, stream: LogStream, text: &str) {
        let mut inner = self.inner();
        let output = inner.outputs.entry(id.to_owned()).or_default();
        output.frames.push((stream, text.to_owned()));
        drop(inner);
        self.written.send_modify(|changes| *changes += 1);
    }

    /// Number of log reads currently open.
    #[must_use]
    pub fn open_reads(&self) -> usize {
        Arc::strong_count(&self.inner().reads) - 1
    }

    /// Number of frames returned by all log reads.
    #[must_use]
    pub fn frames_read(&self) -> u64 {
        self.inner().frames_read
    }

    /// Returns the frame at `index` of a container's output; `None` if there is none for now.
    fn frame(&self, id: &str, index: usize) -> Option<Result<LogFrame, EngineError>> {
        let mut inner = self.inner();
        let output = inner.outputs.get(id)?;
        let count = output.frames.len();
        let index = if output.repeats { index % count } else { index };
        let Some((stream, text)) = output.frames.get(index) else {
            let fails = (index == count).then(|| output.fails.clone()).flatten();
            return fails.map(Err);
        };
        let frame = LogFrame {
            stream: *stream,
            bytes: text.clone().into(),
        };
        inner.frames_read += 1;
        Some(Ok(frame))
    }

    fn is_running(&self, id: &str) -> bool {
        let inner = self.inner();
        let found = inner.containers.get(id);
        found.is_some_and(|container| container.status == Status::Running)
    }

    /// Commands run in containers so far, in order.
    #[must_use]
    pub fn commands(&self) -> Vec<Vec<String>> {
        self.inner().commands.clone()
    }

    /// Queues the end of the next command without one; commands without one end with exit code 0.
    pub fn script_command(&self, exit: CommandExit) {
        self.inner().command_exits.push_back(exit);
    }

    /// Ends the process of a container with exit code 1.
    pub fn die(&self, id: &str) {
        self.exit(id, 1);
    }

    /// Ends the process of a container.
    pub fn exit(&self, id: &str, code: i64) {
        if let Some(container) = self.inner().containers.get_mut(id) {
            container.status = Status::Exited;
            container.exit_code = code;
        }
        self.written.send_modify(|changes| *changes += 1);
        self.emit(id, EventKind::Die);
    }

    fn emit(&self, id: &str, kind: EventKind) {
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

    fn created(&self, name: &str, spec: &ContainerSpec) -> Result<String, EngineError> {
        let mut inner = self.call()?;
        if inner
            .containers
            .values()
            .any(|container| container.name == name)
        {
            return Err(EngineError::Conflict(format!("{name} is in use")));
        }
        inner.made += 1;
        inner.journal.push(format!("+{name}"));
        let id = format!("c{}", inner.made);
        let container = Container {
            name: name.to_owned(),
            labels: spec.labels(),
            status: Status::Created,
            starts: 0,
            exit_code: 1,
        };
        inner.containers.insert(id.clone(), container);
        Ok(id)
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
        let found = Self::matching(&*self.call()?, cluster_id);
        self.wait_released(HeldCall::List).await;
        Ok(found)
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
            started_at: format!("{container} start {}", found.starts),
            exit_code: found.exit_code,
            oom_killed: false,
            health: None,
            namespace: inner.namespaces.get(container).cloned().unwrap_or_default(),
            addresses: BTreeMap::new(),
        })
    }

    fn pull(
        &self,
        image: &str,
        _: Option<&str>,
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

    async fn create(&self, name: &str, spec: &ContainerSpec) -> Result<String, EngineError> {
        let id = self.created(name, spec)?;
        self.wait_released(HeldCall::Create).await;
        Ok(id)
    }

    async fn connect(&self, _: &str, _: &str, _: &EndpointConfig) -> Result<(), EngineError> {
        self.call().map(drop)
    }

    async fn start(&self, container: &str) -> Result<(), EngineError> {
        let mut inner = self.call()?;
        let found = inner.containers.get_mut(container);
        let found = found.ok_or_else(|| missing(container))?;
        found.status = Status::Running;
        found.starts += 1;
        inner.starts += 1;
        Ok(())
    }

    async fn run(&self, container: &str, command: &Hook) -> Result<CommandExit, EngineError> {
        let mut inner = self.call()?;
        let found = inner.containers.get(container);
        let status = found.ok_or_else(|| missing(container))?.status;
        if status != Status::Running {
            return Err(EngineError::Conflict(format!("{container} is not running")));
        }
        inner.commands.push(command.command.clone());
        Ok(inner.command_exits.pop_front().unwrap_or_default())
    }

    async fn pre_stop(&self, _: &str) -> Result<Vec<String>, EngineError> {
        self.call().map(|_| Vec::new())
    }

    async fn stop(&self, container: &str) -> Result<(), EngineError> {
        let takes = self.inner().stopping_takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        if let Some(found) = self.call()?.containers.get_mut(container) {
            found.status = Status::Exited;
        }
        Ok(())
    }

    async fn kill(&self, container: &str, _: &str) -> Result<(), EngineError> {
        self.stop(container).await
    }

    async fn remove(&self, container: &str) -> Result<(), EngineError> {
        let mut inner = self.call()?;
        if inner.stuck.contains(container) {
            return Err(EngineError::Api {
                status: 500,
                message: "device or resource busy".into(),
            });
        }
        if let Some(removed) = inner.containers.remove(container) {
            inner.journal.push(format!("-{}", removed.name));
        }
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

    fn logs(
        &self,
        container: &str,
        request: LogRequest,
    ) -> BoxStream<'static, Result<LogFrame, EngineError>> {
        let (engine, id) = (self.clone(), container.to_owned());
        let (reads, written) = (self.inner().reads.clone(), self.written.subscribe());
        stream::unfold((0, reads, written), move |(index, reads, mut written)| {
            let (engine, id) = (engine.clone(), id.clone());
            async move {
                loop {
                    written.borrow_and_update();
                    if let Some(frame) = engine.frame(&id, index) {
                        return Some((frame, (index + 1, reads, written)));
                    }
                    if !request.follow || !engine.is_running(&id) {
                        return None;
                    }
                    written.changed().await.ok()?;
                }
            }
        })
        .boxed()
    }
}
