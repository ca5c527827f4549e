//! `Cluster.Backup`: the state at one log index, as a stream of pieces.
//!
//! The archive is encoded on its own thread, at most a few pieces ahead of the caller, so its size
//! does not burden the rest of the node. When the caller disconnects, the encoding ends with the
//! next piece.

use std::{
    fmt,
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use futures::{Stream, stream};
use jaco_proto::{
    Error, ErrorCode, chain,
    v1::{self, AuditEventType, command::Payload},
};
use jaco_raftnode::{
    LeaderProposer, State,
    archive::{self, Meta},
    command,
};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use super::{caller::Caller, context::ApiContext};
use crate::{clock::Clock, node::MemberContext};

/// Size of a piece in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Number of pieces encoded ahead of the caller.
const CHUNKS_AHEAD: usize = 4;
/// Time limit of the audit record, for which the last piece waits.
const RECORD_BUDGET: Duration = Duration::from_secs(5);
/// Attempts to read a state together with the term of its index.
const ATTEMPTS: usize = 5;

/// Starts a backup of everything that was acknowledged before the call.
///
/// # Errors
/// `no_cluster`, `backup_failed`, and the errors of a linearizable read.
pub(super) async fn begin(
    api: &ApiContext,
    caller: &Caller,
) -> Result<impl Stream<Item = Result<v1::BackupChunk, Error>> + Send + use<>, Error> {
    let node = api.node().running()?;
    let permit = api
        .try_permit("Cluster/Backup")
        .map_err(|limit| failed(format!("{limit} backups are under way")))?;
    let (state, term) = confirmed(&node).await?;
    let leader = node.raft.status().leader_id;
    let leader = state.nodes.values().find(|n| leader == Some(n.raft_id));
    let leader = leader.map(|node| node.address.as_str()).unwrap_or_default();
    let version = &api.node().config.version;
    let Some(meta) = Meta::new(&state, term, version, leader, node.clock.timestamp()) else {
        return Err(Error::new(
            ErrorCode::NoCluster,
            "there is no cluster to back up",
        ));
    };
    let (sender, pieces) = mpsc::channel(CHUNKS_AHEAD);
    let index = meta.snapshot_index;
    let encoder = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        archive::write(&meta, &state, ChunkWriter::new(sender))
    });
    let backup = Backup {
        pieces,
        encoder: Some(encoder),
        ahead: None,
        record: Some(Record {
            raft: Arc::new(node.raft.clone()),
            clock: node.clock.clone(),
            requested_by: caller.identity.clone(),
            index,
        }),
        handed_out: false,
    };
    Ok(stream::unfold(Some(backup), |backup| async move {
        let mut backup = backup?;
        match backup.next().await {
            Ok(Some(data)) => Some((Ok(v1::BackupChunk { data }), Some(backup))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// Returns a linearizable state and the term of its last entry.
async fn confirmed(node: &MemberContext) -> Result<(Arc<State>, u64), Error> {
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        let state = node.confirmed().await?;
        match node.storage.term_at(state.applied_index) {
            Ok(term) => return Ok((state, term)),
            // The log was compacted past this state, so a newer one exists.
            Err(error) => refused = Some(chain(&error)),
        }
    }
    Err(failed(refused.unwrap_or_default()))
}

fn failed(reason: impl fmt::Display) -> Error {
    Error::new(ErrorCode::BackupFailed, "the backup could not be made").because(reason)
}

/// A backup in progress.
///
/// The audit trail records every caller that received an archive or a part of one: the record is
/// written before the last piece is returned, or, if the caller disconnects earlier, afterwards.
struct Backup {
    pieces: mpsc::Receiver<Vec<u8>>,
    /// `None` once its result was checked.
    encoder: Option<JoinHandle<io::Result<()>>>,
    /// Piece that is returned once it is known whether another one follows.
    ahead: Option<Vec<u8>>,
    /// `None` once it was written.
    record: Option<Record>,
    handed_out: bool,
}

impl Backup {
    /// The next piece; `None` after the last.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.ahead.is_none() {
            self.ahead = self.pieces.recv().await;
        }
        let follows = self.pieces.recv().await;
        if follows.is_none()
            && let Some(encoder) = self.encoder.take()
        {
            match encoder.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(failed(chain(&error))),
                Err(error) => return Err(failed(error)),
            }
            if let Some(record) = &self.record {
                record.write().await;
            }
            self.record = None;
        }
        let piece = std::mem::replace(&mut self.ahead, follows);
        self.handed_out |= piece.is_some();
        Ok(piece)
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        if let Some(record) = self.record.take().filter(|_| self.handed_out)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { record.write().await });
        }
    }
}

/// Audit record of a backup.
struct Record {
    raft: Arc<dyn LeaderProposer>,
    clock: Clock,
    requested_by: String,
    index: u64,
}

impl Record {
    async fn write(&self) {
        let payload = [
            ("snapshot_index".to_owned(), self.index.to_string()),
            ("requested_by".to_owned(), self.requested_by.clone()),
        ];
        let event = v1::AuditEvent {
            r#type: AuditEventType::BackupTaken.into(),
            payload: payload.into(),
            ..Default::default()
        };
        let append = Payload::AuditAppend(v1::AuditAppend { event: Some(event) });
        let command = command(&self.requested_by, self.clock.timestamp(), append);
        // A backup succeeds even if its record cannot be written.
        let written = timeout(RECORD_BUDGET, self.raft.propose(command)).await;
        let reason = match written {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not committed within {RECORD_BUDGET:?}"),
        };
        tracing::warn!(subsystem = "daemon/grpc", %reason, "backup is not in the audit trail");
    }
}

/// Splits the output into pieces and sends them.
struct ChunkWriter {
    sender: mpsc::Sender<Vec<u8>>,
    piece: Vec<u8>,
}

impl ChunkWriter {
    fn new(sender: mpsc::Sender<Vec<u8>>) -> Self {
        Self {
            sender,
            piece: Vec::with_capacity(CHUNK_BYTES),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(CHUNK_BYTES));
        self.sender
            .blocking_send(piece)
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() == CHUNK_BYTES {
            self.send()?;
        }
        Ok(count)
    }

    /// Sends the last piece; nothing may be written after it.
    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        self.send()
    }
}

#[cfg(test)]
mod tests {
    use jaco_raftnode::{StateReader as _, testing::MemoryRaft};

    use super::*;

    /// A backup of this many pieces, whose encoder succeeds if `ends_well`.
    fn backup(raft: &MemoryRaft, pieces: u8, ends_well: bool) -> Backup {
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        for piece in 0..pieces {
            sender.try_send(vec![piece]).unwrap();
        }
        let encoder = tokio::task::spawn_blocking(move || match ends_well {
            true => Ok(()),
            false => Err(io::ErrorKind::OutOfMemory.into()),
        });
        Backup {
            pieces: receiver,
            encoder: Some(encoder),
            ahead: None,
            record: Some(Record {
                raft: Arc::new(raft.clone()),
                clock: Clock::system(),
                requested_by: "ci".to_owned(),
                index: 7,
            }),
            handed_out: false,
        }
    }

    fn records(state: &State) -> usize {
        let kind = AuditEventType::BackupTaken;
        let events = state.audit.values().filter(|event| event.r#type() == kind);
        events
            .inspect(|event| {
                assert_eq!(event.identity, "ci");
                assert_eq!(event.payload["snapshot_index"], "7");
                assert_eq!(event.payload["requested_by"], "ci");
            })
            .count()
    }

    #[tokio::test]
    async fn record_is_written_before_the_last_piece() {
        for pieces in 1..=3 {
            let raft = MemoryRaft::with_ready_nodes(&["n1"]);
            let mut backup = backup(&raft, pieces, true);
            for piece in 0..pieces {
                assert_eq!(records(&raft.state()), 0);
                assert_eq!(backup.next().await, Ok(Some(vec![piece])));
            }
            assert_eq!(records(&raft.state()), 1);
            assert_eq!(backup.next().await, Ok(None));
            drop(backup);
            tokio::task::yield_now().await;
            assert_eq!(records(&raft.state()), 1);
        }
    }

    #[tokio::test]
    async fn disconnect_after_a_piece_is_recorded() {
        for (taken, expected) in [(0, 0), (1, 1), (2, 1)] {
            let raft = MemoryRaft::with_ready_nodes(&["n1"]);
            let mut states = raft.subscribe();
            let mut backup = backup(&raft, 3, true);
            for _ in 0..taken {
                backup.next().await.unwrap();
            }
            assert_eq!(records(&raft.state()), 0);
            drop(backup);
            if expected == 1 {
                states.wait_for(|state| records(state) == 1).await.unwrap();
            }
            tokio::task::yield_now().await;
            assert_eq!(records(&raft.state()), expected, "after {taken} pieces");
        }
    }

    #[tokio::test]
    async fn encoder_failure_withholds_the_last_piece() {
        let raft = MemoryRaft::with_ready_nodes(&["n1"]);
        let mut states = raft.subscribe();
        let mut backup = backup(&raft, 2, false);
        assert_eq!(backup.next().await, Ok(Some(vec![0])));
        let error = backup.next().await.unwrap_err();
        assert_eq!(error.code, ErrorCode::BackupFailed);
        drop(backup);
        let recorded = states.wait_for(|state| records(state) == 1);
        recorded.await.unwrap();
        assert_eq!(records(&raft.state()), 1);
    }

    #[tokio::test]
    async fn all_pieces_but_the_last_are_full() {
        let (sender, mut pieces) = mpsc::channel(2);
        let content: Vec<u8> = (0..3 * CHUNK_BYTES + 100)
            .map(|n| (n % 251) as u8)
            .collect();
        let written = content.clone();
        let writer = tokio::task::spawn_blocking(move || {
            let mut pieces = ChunkWriter::new(sender);
            for part in written.chunks(7001) {
                pieces.write_all(part)?;
            }
            pieces.flush()?;
            pieces.flush()
        });
        let mut found = Vec::new();
        while let Some(piece) = pieces.recv().await {
            found.push(piece);
        }
        writer.await.unwrap().unwrap();
        let sizes: Vec<_> = found.iter().map(Vec::len).collect();
        assert_eq!(sizes, [CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES, 100]);
        assert_eq!(found.concat(), content);
    }

    #[test]
    fn disconnect_ends_the_encoding() {
        let (sender, pieces) = mpsc::channel(1);
        drop(pieces);
        let error = ChunkWriter::new(sender)
            .write_all(&[0; 2 * CHUNK_BYTES])
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
