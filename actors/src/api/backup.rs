//! `Cluster.Backup`: the state at one log index, in pieces.
//!
//! The archive is encoded on a thread of its own, a few pieces ahead of the caller, so neither
//! the archive nor its size matters to the rest of the node. A caller that goes away ends the
//! encoding with the next piece.

use std::{
    fmt,
    io::{self, Write},
    sync::Arc,
};

use futures::{Stream, stream};
use jaco_proto::{
    Error, ErrorCode, chain,
    v1::{self, AuditEventType, command::Payload},
};
use jaco_raftnode::{
    Propose, State,
    archive::{self, Meta},
};
use tokio::{sync::mpsc, task::JoinHandle};

use super::caller::Caller;
use crate::node::{Running, Shared};

/// Bytes of one message.
const PIECE: usize = 64 << 10;
/// Pieces that may wait for the caller.
const AHEAD: usize = 4;
/// Backups at the same time; each keeps a thread and a state.
pub(crate) const CONCURRENT: usize = 4;
/// How often the position of a state is looked up before somebody else must try.
const ATTEMPTS: usize = 5;

/// Begins a backup of everything that was acknowledged before the call.
///
/// # Errors
/// `no_cluster`, `backup_failed`, and what a confirmed read fails with.
pub(super) async fn begin(
    shared: &Shared,
    caller: &Caller,
) -> Result<impl Stream<Item = Result<v1::BackupChunk, Error>> + Send + use<>, Error> {
    let node = shared.running()?;
    let permit = shared
        .backups
        .clone()
        .try_acquire_owned()
        .map_err(|_| failed(format!("{CONCURRENT} backups are under way")))?;
    let (state, term) = confirmed(&node).await?;
    let leader = node.raft.status().leader_id;
    let leader = state.nodes.values().find(|n| leader == Some(n.raft_id));
    let leader = leader.map(|node| node.address.as_str()).unwrap_or_default();
    let version = &shared.config.version;
    let Some(meta) = Meta::new(&state, term, version, leader, node.clock.timestamp()) else {
        return Err(Error::new(
            ErrorCode::NoCluster,
            "there is no cluster to back up",
        ));
    };
    let (sender, pieces) = mpsc::channel(AHEAD);
    let index = meta.snapshot_index;
    let encoder = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        archive::write(&meta, &state, Pieces::new(sender))
    });
    let backup = Backup {
        node,
        requested_by: caller.identity.clone(),
        index,
        pieces,
        encoder,
    };
    Ok(stream::unfold(Some(backup), |backup| async move {
        let mut backup = backup?;
        if let Some(data) = backup.pieces.recv().await {
            return Some((Ok(v1::BackupChunk { data }), Some(backup)));
        }
        backup.end().await.err().map(|error| (Err(error), None))
    }))
}

/// The newest state that a majority knows, and the term of its last entry.
async fn confirmed(node: &Running) -> Result<(Arc<State>, u64), Error> {
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        let state = node.confirmed().await?;
        match node.storage.term_at(state.applied_index) {
            Ok(term) => return Ok((state, term)),
            // The log was compacted past this state; there is a newer one.
            Err(error) => refused = Some(chain(&error)),
        }
    }
    Err(failed(refused.unwrap_or_default()))
}

fn failed(reason: impl fmt::Display) -> Error {
    Error::new(ErrorCode::BackupFailed, "the backup could not be made").with("reason", reason)
}

/// A backup under way.
struct Backup {
    node: Arc<Running>,
    requested_by: String,
    index: u64,
    pieces: mpsc::Receiver<Vec<u8>>,
    encoder: JoinHandle<io::Result<()>>,
}

impl Backup {
    /// Tells how the encoding ended, and the audit trail if it ended well. The caller sees the
    /// end of the stream after that, so whoever has an archive finds it in the trail.
    async fn end(self) -> Result<(), Error> {
        match self.encoder.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(chain(&error))),
            Err(error) => return Err(failed(error)),
        }
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
        let command = self.node.command(&self.requested_by, append);
        // The archive is complete and the caller has it, whatever becomes of the record.
        if let Err(error) = self.node.raft.propose(command).await {
            tracing::warn!(subsystem = "daemon/grpc", %error, "backup is not in the audit trail");
        }
        Ok(())
    }
}

/// Cuts what is written into pieces and hands them over.
struct Pieces {
    sender: mpsc::Sender<Vec<u8>>,
    piece: Vec<u8>,
}

impl Pieces {
    fn new(sender: mpsc::Sender<Vec<u8>>) -> Self {
        Self {
            sender,
            piece: Vec::with_capacity(PIECE),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.sender
            .blocking_send(piece)
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() == PIECE {
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
    use super::*;

    #[tokio::test]
    async fn pieces_are_full_but_for_the_last() {
        let (sender, mut pieces) = mpsc::channel(2);
        let content: Vec<u8> = (0..3 * PIECE + 100).map(|n| (n % 251) as u8).collect();
        let written = content.clone();
        let writer = tokio::task::spawn_blocking(move || {
            let mut pieces = Pieces::new(sender);
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
        assert_eq!(sizes, [PIECE, PIECE, PIECE, 100]);
        assert_eq!(found.concat(), content);
    }

    #[test]
    fn a_caller_that_has_gone_ends_the_writing() {
        let (sender, pieces) = mpsc::channel(1);
        drop(pieces);
        let error = Pieces::new(sender).write_all(&[0; 2 * PIECE]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
