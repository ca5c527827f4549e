//! A snapshot that is being received, kept on disk until it is complete.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use jaco_state::{Rules, SnapshotError, State};
use sha2::{Digest, Sha256};

use super::{MAGIC, TRAILER, trailer};
use crate::core::Refused;

/// Reason why a received snapshot is rejected; no state has changed.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotRefused {
    /// Raft does not run here.
    #[error("raft is not running")]
    Unavailable,
    /// The snapshot message does not decode.
    #[error("the message does not decode")]
    Undecodable,
    /// The sender named in the message is not the authenticated one.
    #[error("a message of node {claimed} came from node {from}")]
    Sender {
        /// Node authenticated by the connection.
        from: u64,
        /// Sender that the message names.
        claimed: u64,
    },
    /// A correct peer does not send such a message.
    #[error(transparent)]
    Message(#[from] Refused),
    /// The message carries its content inline, or is not a snapshot message.
    #[error("the message is not about a snapshot alone")]
    NotASnapshot,
    /// Another snapshot is being received.
    #[error("another snapshot is being received")]
    Busy,
    /// Another snapshot took the slot.
    #[error("the snapshot was superseded")]
    Superseded,
    /// The content exceeds the size limit.
    #[error("the snapshot exceeds {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// Length or digest differ from those computed by the sender.
    #[error("the snapshot is damaged: {0}")]
    Damaged(&'static str),
    /// The content has fields that this version does not know, so this node has to stop.
    #[error("the snapshot is of a newer version")]
    Newer(#[source] SnapshotError),
    /// The content is not a valid state.
    #[error("the snapshot holds no state")]
    Content(#[source] SnapshotError),
    /// The snapshot file could not be created, written or read.
    #[error("the snapshot cannot be stored")]
    Io(#[source] io::Error),
    /// The storage could not prepare the rows.
    #[error("the snapshot cannot be prepared")]
    Storage(#[source] crate::storage::Error),
}

impl SnapshotRefused {
    /// Returns a stable identifier of the reason, for counters.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Undecodable | Self::Message(_) | Self::NotASnapshot => "message",
            Self::Sender { .. } => "sender",
            Self::Busy => "busy",
            Self::Superseded => "superseded",
            Self::TooLarge { .. } => "too_large",
            Self::Newer(_) => "newer",
            Self::Damaged(_) | Self::Content(_) => "damaged",
            Self::Io(_) | Self::Storage(_) => "storage",
        }
    }
}

/// Removes files of received snapshots left by an earlier run.
pub(crate) fn clear(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// File that a snapshot is received into; deleted on drop.
#[derive(Debug)]
pub(crate) struct Spool {
    path: PathBuf,
    file: File,
    /// The last bytes received, which are the trailer unless more follow.
    held: Vec<u8>,
    /// Bytes in the file.
    length: u64,
    limit: u64,
    hash: Sha256,
}

impl Spool {
    /// Creates `directory` if it is missing, and a file in it.
    pub(crate) fn create(directory: &Path, number: u64, limit: u64) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = directory.join(format!("incoming-{number}"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Self {
            path,
            file,
            held: Vec::new(),
            length: 0,
            limit,
            hash: Sha256::new(),
        })
    }

    /// Appends the next bytes.
    pub(crate) fn write(&mut self, chunk: &[u8]) -> Result<(), SnapshotRefused> {
        let total = self.length + (self.held.len() + chunk.len()) as u64;
        if total > self.limit.saturating_add(TRAILER as u64) {
            return Err(SnapshotRefused::TooLarge { limit: self.limit });
        }
        self.held.extend_from_slice(chunk);
        let content = self.held.len().saturating_sub(TRAILER);
        if content > 0 {
            let bytes = &self.held[..content];
            self.file.write_all(bytes).map_err(SnapshotRefused::Io)?;
            self.hash.update(bytes);
            self.length += content as u64;
            self.held.drain(..content);
        }
        Ok(())
    }

    /// Verifies the received bytes and decodes them as a state at log index `index`.
    pub(crate) fn finish(mut self, index: u64) -> Result<State, SnapshotRefused> {
        if self.held.len() != TRAILER || self.held[..8] != MAGIC {
            return Err(SnapshotRefused::Damaged("it ends too early"));
        }
        let digest = std::mem::take(&mut self.hash).finalize();
        if self.held != trailer(self.length, digest.into()) {
            return Err(SnapshotRefused::Damaged("length or digest do not match"));
        }
        self.file
            .seek(SeekFrom::Start(0))
            .map_err(SnapshotRefused::Io)?;
        let content = BufReader::new((&self.file).take(self.length));
        State::read_snapshot(index, content, &Rules::MEMBER)
            .map(|read| read.state)
            .map_err(|error| match error {
                SnapshotError::Unknown { .. } => SnapshotRefused::Newer(error),
                _ => SnapshotRefused::Content(error),
            })
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // A file that cannot be removed is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}
