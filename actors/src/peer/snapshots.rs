//! Transfer of raft snapshots, each on its own stream: the raft message, then chunks; the receiver
//! answers with one byte for accepted or rejected.

use std::time::Duration;

use jaco_net::quic::{Connection, Kind, ReceiveBudget, Receiver, Reservation, Sender};
use jaco_raftnode::{OutgoingSnapshot, RaftHandle, SnapshotContent};
use tokio::{sync::mpsc, task::spawn_blocking, time::timeout};

/// Largest frame; a chunk is 64 KiB, the raft message of a snapshot is far smaller.
const FRAME_BYTES: usize = 1 << 20;
/// Chunks buffered between disk and connection.
const WAITING: usize = 8;
/// Longest wait for the receiver to apply a complete snapshot.
const ANSWER: Duration = Duration::from_secs(300);
/// Longest gap between frames of a snapshot.
const SILENCE: Duration = Duration::from_secs(30);

const TAKEN: u8 = 1;
const REFUSED: u8 = 0;

/// Sends a snapshot and reports the outcome to raft. A cancelled transfer counts as failed.
pub(super) async fn send(connection: &Connection, to: u64, snapshot: OutgoingSnapshot) {
    let OutgoingSnapshot {
        message,
        content,
        report,
    } = snapshot;
    match transfer(connection, message, content).await {
        Ok(()) => {
            report.delivered();
            tracing::info!(subsystem = "peer", peer_id = to, "snapshot delivered");
        }
        Err(reason) => {
            tracing::warn!(subsystem = "peer", peer_id = to, %reason, "snapshot not delivered");
        }
    }
}

async fn transfer(
    connection: &Connection,
    message: Vec<u8>,
    mut content: SnapshotContent,
) -> Result<(), String> {
    let text = |error: jaco_net::quic::StreamError| error.to_string();
    let (mut stream, answer) = connection.open_bi(Kind::Snapshot).await.map_err(text)?;
    stream.frame(message).await.map_err(text)?;
    let (chunks, mut made) = mpsc::channel(WAITING);
    let making = spawn_blocking(move || {
        while let Some(chunk) = content.next_chunk() {
            if chunks.blocking_send(chunk).is_err() {
                return; // the transfer ended early
            }
        }
    });
    let mut answer = answer.frames(1);
    let mut empty = true;
    while let Some(chunk) = made.recv().await {
        empty = false;
        tokio::select! {
            sent = stream.frame(chunk) => if let Err(error) = sent {
                // The receiver stopped reading; its answer may already be here.
                let early = timeout(SILENCE, answer.next()).await;
                return early.map_or_else(|_| Err(text(error)), verdict);
            },
            // The receiver may reject the snapshot, or already have it, before the end.
            early = answer.next() => return verdict(early),
        }
    }
    making.await.map_err(|error| error.to_string())?;
    if empty {
        return Err("the state is too large".to_owned());
    }
    stream.finish();
    let answered = timeout(ANSWER, answer.next()).await;
    answered.map_or_else(|_| Err("no answer".to_owned()), verdict)
}

fn verdict(answer: Result<Option<Vec<u8>>, jaco_net::quic::StreamError>) -> Result<(), String> {
    match answer {
        Ok(Some(frame)) if frame == [TAKEN] => Ok(()),
        Ok(_) => Err("rejected by the peer".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Receives a snapshot from member `from` within its `budget`; raft logs the reason of a rejection.
pub(super) async fn receive(
    raft: &RaftHandle,
    from: u64,
    mut to: Sender,
    stream: Receiver,
    budget: &ReceiveBudget,
) {
    let mut frames = stream.frames(FRAME_BYTES).within(budget);
    let Ok(Ok(Some(message))) = timeout(SILENCE, frames.next()).await else {
        return;
    };
    let (chunks, mut received) = mpsc::channel::<Option<(Vec<u8>, Reservation)>>(WAITING);
    let raft = raft.clone();
    let writing = spawn_blocking(move || {
        let Some(mut snapshot) = raft.receive_snapshot(from, message)? else {
            return Ok(true);
        };
        loop {
            match received.blocking_recv() {
                Some(Some((chunk, _reservation))) => snapshot.write(&chunk)?,
                Some(None) => return snapshot.finish().map(|()| true),
                None => return Ok(false), // the stream ended early
            }
        }
    });
    loop {
        let frame = match timeout(SILENCE, frames.next()).await {
            Ok(Ok(frame)) => frame.map(|chunk| (chunk, frames.take_reservation())),
            Ok(Err(_)) | Err(_) => break,
        };
        let last = frame.is_none();
        // A send error means that the writer has rejected the snapshot.
        if chunks.send(frame).await.is_err() || last {
            break;
        }
    }
    drop(chunks);
    let taken = matches!(
        writing.await,
        Ok(Ok::<bool, jaco_raftnode::SnapshotRefused>(true))
    );
    let answer = vec![if taken { TAKEN } else { REFUSED }];
    if to.frame(answer).await.is_ok() {
        to.finish();
    }
}
