//! The log tail of this host's replicas.
//!
//! - [`lines`]: the engine's frames as lines.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt;
use jaco_proto::v1::LogLine;
use jaco_raftnode::State;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    Shared,
    engine::{EngineError, Found, LogRequest, LogStream, Status},
};
use lines::{Cutter, Line};

pub mod lines;

/// Lines of one replica that wait for their reader; then the engine waits.
const BUFFER: usize = 64;
/// Wait for the container that follows one whose stream ended.
const REATTACH: Duration = Duration::from_secs(1);

/// Which output is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Deployment name.
    pub deployment: String,
    /// Service name; empty for all.
    pub service: String,
    /// One replica; empty for all.
    pub replica_id: String,
    /// Unix seconds of the oldest line; 0 for all.
    pub since: i64,
    /// Stay attached after the newest line.
    pub follow: bool,
}

/// Why one source of a tail ended early; the others went on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log stream of replica `{replica_id}` broke")]
pub struct Error {
    /// The replica.
    pub replica_id: String,
    /// What the engine said.
    #[source]
    pub source: EngineError,
}

/// Lines in the order they arrive; dropping it ends every stream.
#[derive(Debug)]
pub struct Tail {
    lines: mpsc::Receiver<LogLine>,
    sources: JoinSet<Result<(), Error>>,
}

impl Tail {
    /// The next line; `None` when all sources are drained.
    ///
    /// # Cancel safety
    /// No line is lost.
    pub async fn next(&mut self) -> Option<LogLine> {
        self.lines.recv().await
    }

    /// Waits for every source and returns the first that failed.
    ///
    /// # Errors
    /// [`Error`] of one source; the lines of the others were delivered.
    pub async fn finish(mut self) -> Result<(), Error> {
        self.lines.close();
        let mut first = Ok(());
        while let Some(source) = self.sources.join_next().await {
            if let (Ok(()), Ok(Err(error))) = (&first, source) {
                first = Err(error);
            }
        }
        first
    }
}

pub(super) fn tail(shared: &Arc<Shared>, query: &Query) -> Tail {
    let (lines, receiver) = mpsc::channel(1);
    let mut sources = JoinSet::new();
    let state = shared.deps.raft.state();
    for id in selected(&state, &shared.deps.host, query) {
        let source = Source {
            shared: Arc::clone(shared),
            id,
            request: LogRequest {
                since: query.since,
                follow: query.follow,
            },
        };
        let (buffer, mut buffered) = mpsc::channel(BUFFER);
        let lines = lines.clone();
        // Each replica has a buffer of its own, so a noisy one does not silence the others.
        sources.spawn(async move {
            while let Some(line) = buffered.recv().await {
                if lines.send(line).await.is_err() {
                    break;
                }
            }
            Ok(())
        });
        sources.spawn(source.run(buffer));
    }
    Tail {
        lines: receiver,
        sources,
    }
}

fn selected(state: &State, host: &str, query: &Query) -> Vec<String> {
    let matches = |wanted: &str, value: &str| wanted.is_empty() || wanted == value;
    state
        .replicas_desired
        .values()
        .filter(|row| row.host == host && row.deployment == query.deployment)
        .filter(|row| matches(&query.service, &row.service) && matches(&query.replica_id, &row.id))
        .map(|row| row.id.clone())
        .collect()
}

/// One replica's output, across its containers.
struct Source {
    shared: Arc<Shared>,
    id: String,
    request: LogRequest,
}

impl Source {
    async fn run(self, lines: mpsc::Sender<LogLine>) -> Result<(), Error> {
        let mut request = self.request;
        let mut done: Option<String> = None;
        let mut state = self.shared.deps.raft.subscribe();
        loop {
            let container = match self.container().await {
                Ok(container) => container,
                Err(error) => return Err(self.error(error)),
            };
            match container {
                Some(found) if done.as_ref() != Some(&found.id) => {
                    if done.is_some() {
                        // A successor is read from its beginning.
                        request.since = 0;
                    }
                    match self.stream(&found.id, request, &lines).await {
                        Ok(true) => {}
                        Ok(false) => return Ok(()),
                        // It was replaced while it was read.
                        Err(EngineError::NotFound(_)) if request.follow => {}
                        Err(error) => return Err(self.error(error)),
                    }
                    done = Some(found.id);
                }
                Some(found) if found.status == Status::Running && request.follow => {
                    // The same container was started again: only what is new.
                    request.since = self.now();
                    done = None;
                }
                Some(_) | None => {}
            }
            if !request.follow || !self.wanted(&mut state) || lines.is_closed() {
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(REATTACH) => {}
                () = lines.closed() => return Ok(()),
            }
        }
    }

    fn error(&self, source: EngineError) -> Error {
        Error {
            replica_id: self.id.clone(),
            source,
        }
    }

    fn now(&self) -> i64 {
        self.shared.deps.clock.timestamp().seconds
    }

    fn wanted(&self, state: &mut watch::Receiver<Arc<State>>) -> bool {
        let state = state.borrow_and_update();
        let row = state.replicas_desired.get(&self.id);
        row.is_some_and(|row| row.host == self.shared.deps.host)
    }

    /// The replica's container, the running one first.
    async fn container(&self) -> Result<Option<Found>, EngineError> {
        let deps = &self.shared.deps;
        let Some(cluster) = deps.raft.state().cluster.clone() else {
            return Ok(None);
        };
        let found = deps.engine.find(&cluster.cluster_id, &self.id).await?;
        let running = found.iter().find(|found| found.status == Status::Running);
        Ok(running.or(found.first()).cloned())
    }

    /// Reads a container to its end; false when nobody listens any more.
    async fn stream(
        &self,
        container: &str,
        request: LogRequest,
        lines: &mpsc::Sender<LogLine>,
    ) -> Result<bool, EngineError> {
        let mut frames = self.shared.deps.engine.logs(container, request);
        let mut cutters: BTreeMap<LogStream, Cutter> = BTreeMap::new();
        loop {
            let frame = tokio::select! {
                frame = frames.next() => frame,
                () = lines.closed() => return Ok(false),
            };
            let Some(frame) = frame else { break };
            let frame = frame?;
            for line in cutters.entry(frame.stream).or_default().feed(&frame.bytes) {
                if lines.send(self.line(frame.stream, line)).await.is_err() {
                    return Ok(false);
                }
            }
        }
        for (stream, mut cutter) in cutters {
            if let Some(line) = cutter.finish()
                && lines.send(self.line(stream, line)).await.is_err()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn line(&self, stream: LogStream, line: Line) -> LogLine {
        LogLine {
            replica_id: self.id.clone(),
            host: self.shared.deps.host.clone(),
            stream: stream.to_string(),
            ts: line.ts,
            line: String::from_utf8_lossy(&line.text).into_owned(),
        }
    }
}
