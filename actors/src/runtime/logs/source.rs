//! Task that reads one replica: runs the actions of [`Reattach`] on the engine.

use std::{sync::Arc, time::Duration};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use jaco_engine::{EngineError, Event, EventKind, Found, LogFrame, LogRequest, LogStream};
use jaco_policy::runtime::logs::{
    lines::Line,
    reattach::{Action, Reattach},
};
use jaco_proto::v1::LogLine;
use jaco_state::State;
use tokio::sync::{
    broadcast::{self, error::RecvError},
    watch,
};

use super::{
    Error,
    buffer::{Buffer, Closed},
    tail_registry::TailProgress,
};
use crate::runtime::RuntimeContext;

/// Delay before listing containers again when no engine event arrives.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Output of one replica across its containers.
pub(super) struct LogSource {
    shared: Arc<RuntimeContext>,
    id: String,
    core: Reattach,
    state: watch::Receiver<Arc<State>>,
    engine_events: broadcast::Receiver<Event>,
}

/// Output of the container being read.
type Frames = BoxStream<'static, Result<LogFrame, EngineError>>;

/// Reason a source ends early.
enum StopReason {
    Failed(EngineError),
    Closed,
}

impl From<Closed> for StopReason {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl LogSource {
    pub(super) fn new(shared: Arc<RuntimeContext>, id: String, since: i64, follow: bool) -> Self {
        Self {
            core: Reattach::new(since, follow),
            state: shared.deps.raft.subscribe(),
            // Subscribe before the first listing, so that no event is missed.
            engine_events: shared.engine_events.subscribe(),
            shared,
            id,
        }
    }

    /// Reads until the tail is complete or its consumer is gone.
    pub(super) async fn run(mut self, lines: Buffer) -> Result<(), Error> {
        match self.follow(&lines).await {
            Ok(()) | Err(StopReason::Closed) => Ok(()),
            Err(StopReason::Failed(source)) => Err(Error {
                replica_id: self.id,
                source,
            }),
        }
    }

    async fn follow(&mut self, lines: &Buffer) -> Result<(), StopReason> {
        let mut reader = self.shared.tails.join(&self.id);
        let mut frames: Frames = stream::empty().boxed();
        loop {
            while let Some(action) = self.core.poll_action() {
                match action {
                    Action::Deliver(stream, line) => lines.put(self.line(stream, line)).await?,
                    Action::List => {
                        reader.begin_listing();
                        let found = self.containers().await.map_err(StopReason::Failed)?;
                        let wanted = self.wanted();
                        self.core.handle_found(&found, wanted);
                    }
                    Action::Read {
                        container,
                        since,
                        follow,
                    } => {
                        let request = LogRequest { since, follow };
                        frames = self.shared.deps.engine.logs(&container, request);
                    }
                    Action::Pause => {
                        reader.mark_read();
                        self.pause(&mut reader, lines).await?;
                    }
                    Action::End => return Ok(()),
                }
            }
            // No action is left while a read is open.
            self.read_frame(&mut frames, &reader, lines).await?;
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

    /// Reads the next frame of a container's output; closes `frames` at their end.
    async fn read_frame(
        &mut self,
        frames: &mut Frames,
        reader: &TailProgress,
        lines: &Buffer,
    ) -> Result<(), StopReason> {
        let frame = tokio::select! {
            frame = frames.next() => frame,
            () = lines.closed() => return Err(StopReason::Closed),
        };
        match frame {
            Some(Ok(frame)) => {
                reader.record_progress();
                self.core.handle_frame(frame.stream, &frame.bytes);
            }
            // The container is removed or being removed.
            None | Some(Err(EngineError::NotFound(_) | EngineError::Conflict(_))) => {
                *frames = stream::empty().boxed();
                self.core.handle_ended();
            }
            Some(Err(error)) => return Err(StopReason::Failed(error)),
        }
        Ok(())
    }

    /// Waits for a reason to list the containers again.
    async fn pause(&mut self, reader: &mut TailProgress, lines: &Buffer) -> Result<(), StopReason> {
        tokio::select! {
            () = wait_for_event(&mut self.engine_events, &self.id) => self.core.handle_event(),
            () = reader.stopped() => self.core.handle_event(),
            () = tokio::time::sleep(LOOK_AGAIN) => self.core.handle_pause_ended(),
            () = lines.closed() => return Err(StopReason::Closed),
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
async fn wait_for_event(engine_events: &mut broadcast::Receiver<Event>, id: &str) {
    loop {
        match engine_events.recv().await {
            Ok(event) if event.replica_id == id && is_lifecycle_event(event.kind) => break,
            Ok(_) => {}
            // The missed events may include one of this replica.
            Err(RecvError::Lagged(_)) => break,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
    // The listing that follows covers all queued events.
    while !matches!(
        engine_events.try_recv(),
        Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed)
    ) {}
}

fn is_lifecycle_event(kind: EventKind) -> bool {
    match kind {
        EventKind::Start | EventKind::Die | EventKind::Destroy => true,
        EventKind::Oom | EventKind::Health => false,
    }
}
