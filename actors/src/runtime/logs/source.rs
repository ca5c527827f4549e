//! Task that reads one replica: executes the steps of [`Reattach`] on the engine.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use jaco_engine::{EngineError, Event, EventKind, Found, LogRequest, LogStream};
use jaco_proto::v1::LogLine;
use jaco_state::State;
use tokio::sync::{
    broadcast::{self, error::RecvError},
    watch,
};

use super::{
    Error,
    buffer::{Buffer, Closed},
    lines::Line,
    readers::Reader,
    reattach::{Next, Reattach},
};
use crate::runtime::Shared;

/// Delay before listing containers again when no engine event arrives.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Output of one replica across its containers.
pub(super) struct Source {
    shared: Arc<Shared>,
    id: String,
    core: Reattach,
    state: watch::Receiver<Arc<State>>,
    news: broadcast::Receiver<Event>,
}

/// Reason a source ends early.
enum Stop {
    Failed(EngineError),
    Closed,
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl Source {
    pub(super) fn new(shared: Arc<Shared>, id: String, since: i64, follow: bool) -> Self {
        Self {
            core: Reattach::new(since, follow),
            state: shared.deps.raft.subscribe(),
            // Subscribe before the first listing, so that no event is missed.
            news: shared.news.subscribe(),
            shared,
            id,
        }
    }

    /// Reads until the tail is complete or its consumer is gone.
    pub(super) async fn run(mut self, lines: Buffer) -> Result<(), Error> {
        match self.follow(&lines).await {
            Ok(()) | Err(Stop::Closed) => Ok(()),
            Err(Stop::Failed(source)) => Err(Error {
                replica_id: self.id,
                source,
            }),
        }
    }

    async fn follow(&mut self, lines: &Buffer) -> Result<(), Stop> {
        let mut reader = self.shared.readers.join(&self.id);
        let mut next = Next::Look;
        loop {
            next = match next {
                Next::Look => {
                    reader.look();
                    let found = self.containers().await.map_err(Stop::Failed)?;
                    let wanted = self.wanted();
                    self.core.handle_found(&found, wanted)
                }
                Next::Read {
                    container,
                    since,
                    follow,
                } => {
                    self.read(&container, LogRequest { since, follow }, &reader, lines)
                        .await?
                }
                Next::Pause => {
                    reader.read_all();
                    self.pause(&mut reader, lines).await?;
                    Next::Look
                }
                Next::End => return Ok(()),
            };
            self.deliver(lines).await?;
        }
    }

    /// The replica's containers in any state.
    async fn containers(&self) -> Result<Vec<Found>, EngineError> {
        let deps = &self.shared.deps;
        match &deps.raft.state().cluster {
            Some(cluster) => deps.engine.find(&cluster.cluster_id, &self.id).await,
            None => Ok(Vec::new()),
        }
    }

    fn wanted(&mut self) -> bool {
        let state = self.state.borrow_and_update();
        let row = state.replicas_desired.get(&self.id);
        row.is_some_and(|row| row.host == self.shared.deps.host)
    }

    /// Reads a container's output to its end.
    async fn read(
        &mut self,
        container: &str,
        request: LogRequest,
        reader: &Reader,
        lines: &Buffer,
    ) -> Result<Next, Stop> {
        let mut frames = self.shared.deps.engine.logs(container, request);
        loop {
            let frame = tokio::select! {
                frame = frames.next() => frame,
                () = lines.closed() => return Err(Stop::Closed),
            };
            match frame {
                Some(Ok(frame)) => {
                    reader.come_on();
                    self.core.handle_frame(frame.stream, &frame.bytes);
                }
                // The container is removed or being removed.
                None | Some(Err(EngineError::NotFound(_) | EngineError::Conflict(_))) => {
                    return Ok(self.core.handle_ended());
                }
                Some(Err(error)) => return Err(Stop::Failed(error)),
            }
            self.deliver(lines).await?;
        }
    }

    async fn deliver(&mut self, lines: &Buffer) -> Result<(), Stop> {
        while let Some((stream, line)) = self.core.poll_line() {
            lines.put(self.line(stream, line)).await?;
        }
        Ok(())
    }

    /// Waits for a reason to list the containers again.
    async fn pause(&mut self, reader: &mut Reader, lines: &Buffer) -> Result<(), Stop> {
        tokio::select! {
            () = told(&mut self.news, &self.id) => self.core.handle_news(),
            () = reader.stopped() => self.core.handle_news(),
            () = tokio::time::sleep(LOOK_AGAIN) => {}
            () = lines.closed() => return Err(Stop::Closed),
        }
        Ok(())
    }

    fn line(&self, stream: LogStream, line: Line) -> LogLine {
        LogLine {
            replica_id: self.id.clone(),
            host: self.shared.deps.host.clone(),
            stream: stream.to_string(),
            ts: line.ts,
            line: String::from_utf8(line.text)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
        }
    }
}

/// Waits for a start, exit or removal of one of the replica's containers.
async fn told(news: &mut broadcast::Receiver<Event>, id: &str) {
    loop {
        match news.recv().await {
            Ok(event) if event.replica_id == id && matters(event.kind) => break,
            Ok(_) => {}
            // The missed events may include one of this replica.
            Err(RecvError::Lagged(_)) => break,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
    // The listing that follows covers all queued events.
    while !matches!(
        news.try_recv(),
        Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed)
    ) {}
}

fn matters(kind: EventKind) -> bool {
    match kind {
        EventKind::Start | EventKind::Die | EventKind::Destroy => true,
        EventKind::Oom | EventKind::Health => false,
    }
}
