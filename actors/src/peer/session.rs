//! Tasks of one connection.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jaco_net::quic::{
    Closed, Connection, FrameReader, Kind, Reason, Receiver, Sender as StreamSender, StreamError,
    frame::Batch,
};
use jaco_policy::peer::{gossip::MembershipView, members::rows};
use jaco_raftnode::{State, StateReader as _};
use tokio::{sync::watch, task::JoinSet, time::timeout};

use super::{
    HeartbeatHandler, Sender, Services,
    heartbeat_timer::HeartbeatTimer,
    receive::BUDGET_WAIT,
    routes::{PeerTransport, Route},
    snapshots,
    wire::{self, ControlFrame},
};
use crate::telemetry::Metrics;

/// Largest raft message: the largest command, with room for its envelope.
const MESSAGE_BYTES: usize = 16 << 20;
/// Time limit for the kind byte of a new stream.
const KIND: Duration = Duration::from_secs(10);

/// Dependencies of the tasks of a connection.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) transport: Arc<PeerTransport>,
    pub(super) route: Arc<Route>,
    pub(super) services: Services,
    pub(super) heartbeat: Arc<dyn HeartbeatHandler>,
    pub(super) metrics: Metrics,
    /// The member, authenticated by its certificate.
    pub(super) member: Sender,
    /// Key of its record.
    pub(super) key: String,
    /// Number of the connection in the outbox.
    pub(super) number: u64,
}

/// Protocol violation of the peer.
#[derive(Debug, thiserror::Error)]
enum Violation {
    #[error("{0}")]
    Stream(StreamError),
    #[error("{0}")]
    Message(wire::WireError),
    #[error("unexpected stream of kind {0:?}")]
    Kind(Kind),
}

type Served = Result<(), Violation>;

impl Session {
    /// Serves `connection` until it ends. Dropping the future aborts all streams.
    pub(super) async fn run(self, connection: Connection) -> Closed {
        let mut tasks = JoinSet::new();
        // The traffic of a cluster at rest.
        let io = connection.io();
        tasks.spawn_on(self.clone().write_messages(connection.clone()), io);
        tasks.spawn_on(self.clone().write_heartbeats(connection.clone()), io);
        tasks.spawn(self.clone().write_snapshots(connection.clone()));
        loop {
            tokio::select! {
                stream = connection.accept_uni() => match stream {
                    Ok(stream) => { tasks.spawn_on(self.clone().serve_stream(stream), io); }
                    Err(closed) => return closed,
                },
                stream = connection.accept_bi() => match stream {
                    Ok((to, from)) => { tasks.spawn(self.clone().serve_call(to, from)); }
                    Err(closed) => return closed,
                },
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(violation)) => {
                        tracing::warn!(
                            subsystem = "peer",
                            peer = %self.member.hostname,
                            error = %violation,
                            "protocol violation"
                        );
                        connection.close(Reason::Protocol);
                    }
                    // The connection cannot be used without this task; a new connection restarts
                    // it.
                    Err(error) => {
                        tracing::error!(
                            subsystem = "peer",
                            peer = %self.member.hostname,
                            %error,
                            "a task of the connection failed"
                        );
                        connection.close(Reason::Leaving);
                    }
                }
            }
        }
    }

    /// Closes a connection after a stream to the peer failed. The peer may have stopped only that
    /// stream, and the connection would look healthy.
    fn close_broken(connection: &Connection) -> Served {
        connection.close(Reason::Leaving);
        Ok(())
    }

    async fn write_messages(self, connection: Connection) -> Served {
        let Ok(mut stream) = connection.open_uni(Kind::Raft).await else {
            return Self::close_broken(&connection);
        };
        let mut taken = Vec::new();
        let mut batch = Batch::default();
        loop {
            self.route.outbox().take(self.number, &mut taken).await;
            for message in taken.drain(..) {
                if batch.push(message).is_err() {
                    continue; // over the frame limit, above any raft message
                }
            }
            if stream.batch(&mut batch).await.is_err() {
                return Self::close_broken(&connection);
            }
        }
    }

    async fn write_heartbeats(self, connection: Connection) -> Served {
        let Ok(mut stream) = connection.open_uni(Kind::Heartbeat).await else {
            return Self::close_broken(&connection);
        };
        let mut timer = HeartbeatTimer::new(self.transport.heartbeat_origin());
        let mut sent: Option<Arc<State>> = None;
        let mut live = self.heartbeat.live();
        loop {
            let by_time = heartbeat_due(&mut timer, &mut live).await;
            let heartbeat = self.heartbeat.next_heartbeat();
            if !by_time && !heartbeat.leads {
                continue;
            }
            let state = self.transport.raft().state();
            if sent
                .as_ref()
                .is_none_or(|sent| !sent.nodes.ptr_eq(&state.nodes))
            {
                let frame = wire::encode_view(&MembershipView {
                    applied: state.applied_index,
                    members: rows(&state).collect(),
                });
                if let Ok(frame) = frame
                    && stream.frame(frame).await.is_err()
                {
                    return Self::close_broken(&connection);
                }
                sent = Some(state);
            }
            if let Ok(beat) = wire::heartbeat(&heartbeat)
                && stream.frame(beat).await.is_err()
            {
                return Self::close_broken(&connection);
            }
            self.metrics.peer_rtt(&self.key, connection.rtt());
        }
    }

    async fn write_snapshots(self, connection: Connection) -> Served {
        loop {
            let snapshot = self.route.outbox().take_snapshot(self.number).await;
            snapshots::send(&connection, self.member.raft_id, snapshot).await;
        }
    }

    async fn serve_stream(self, mut stream: Receiver) -> Served {
        match kind(&mut stream).await? {
            None => Ok(()),
            Some(Kind::Raft) => {
                let limits = self.route.receive();
                let served = limits.raft_stream.serve(self.read_messages(stream));
                served.await.unwrap_or(Ok(()))
            }
            Some(Kind::Heartbeat) => {
                let limits = self.route.receive();
                let served = limits.heartbeat_stream.serve(self.read_heartbeats(stream));
                served.await.unwrap_or(Ok(()))
            }
            Some(other) => Err(Violation::Kind(other)),
        }
    }

    async fn read_messages(&self, stream: Receiver) -> Served {
        let (limits, raft) = (self.route.receive(), self.transport.raft());
        let mut queue = limits.raft_queue(raft, self.member.raft_id).await;
        let mut frames = stream.frames(MESSAGE_BYTES);
        while let Some(message) = next(&mut frames).await? {
            queue.deliver(&message).await;
        }
        Ok(())
    }

    async fn read_heartbeats(&self, stream: Receiver) -> Served {
        let mut frames = stream.frames(wire::HEARTBEAT_BYTES);
        while let Some(frame) = next(&mut frames).await? {
            match wire::read_control_frame(&frame).map_err(Violation::Message)? {
                ControlFrame::Heartbeat(beat) => self.heartbeat.on_heartbeat(&self.member, beat),
                ControlFrame::Membership(view) => {
                    self.transport.record_report(&self.key, &self.member, view);
                }
                ControlFrame::Unknown => {}
            }
        }
        Ok(())
    }

    async fn serve_call(self, to: StreamSender, mut from: Receiver) -> Served {
        match kind(&mut from).await? {
            None => Ok(()),
            Some(Kind::Call) => {
                let budget = self.route.receive().calls();
                let frames = from.frames(wire::CALL_FRAME);
                let frames = frames.assembled_within(budget, BUDGET_WAIT);
                self.services.serve(self.member, to, frames).await;
                Ok(())
            }
            Some(Kind::Snapshot) => {
                let raft = self.transport.raft();
                let budget = self.route.receive().calls();
                snapshots::receive(raft, self.member.raft_id, to, from, budget).await;
                Ok(())
            }
            Some(other) => Err(Violation::Kind(other)),
        }
    }
}

/// Waits until the next heartbeat is due: by time, for which it returns true, or because the live
/// members changed.
async fn heartbeat_due(
    timer: &mut HeartbeatTimer,
    live: &mut watch::Receiver<Arc<BTreeSet<String>>>,
) -> bool {
    tokio::select! {
        biased;
        () = timer.tick() => true,
        Ok(()) = live.changed() => false,
    }
}

/// Reads the kind of a stream; `None` if the stream is gone or the kind is late.
async fn kind(stream: &mut Receiver) -> Result<Option<Kind>, Violation> {
    match timeout(KIND, stream.kind()).await {
        Ok(Ok(kind)) => Ok(Some(kind)),
        Ok(Err(error)) => violation_of(error),
        Err(_) => Ok(None),
    }
}

async fn next(frames: &mut FrameReader) -> Result<Option<Vec<u8>>, Violation> {
    match frames.next().await {
        Ok(frame) => Ok(frame),
        Err(error) => violation_of(error),
    }
}

/// Passes malformed data on as a violation; a stream that merely ends early is not one.
fn violation_of<T>(error: StreamError) -> Result<Option<T>, Violation> {
    match error {
        StreamError::Frame(_) | StreamError::Kind => Err(Violation::Stream(error)),
        StreamError::Lost(_)
        | StreamError::Reset
        | StreamError::Stopped
        | StreamError::Ended
        | StreamError::Busy => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::peer::heartbeat_timer::HEARTBEAT_INTERVAL;

    #[tokio::test(start_paused = true)]
    async fn change_of_live_members_is_sent_at_once() {
        let begun = Instant::now();
        let mut timer = HeartbeatTimer::new(begun);
        let (members, mut live) = watch::channel(Arc::new(BTreeSet::new()));
        assert!(heartbeat_due(&mut timer, &mut live).await);
        members.send_replace(Arc::new(["b".to_owned()].into()));
        assert!(!heartbeat_due(&mut timer, &mut live).await);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(heartbeat_due(&mut timer, &mut live).await);
        assert_eq!(begun.elapsed(), HEARTBEAT_INTERVAL);
        drop(members);
        assert!(heartbeat_due(&mut timer, &mut live).await);
        assert_eq!(begun.elapsed(), 2 * HEARTBEAT_INTERVAL);
    }
}
