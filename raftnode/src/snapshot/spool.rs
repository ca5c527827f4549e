//! A snapshot that is being received, on disk until it is whole.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{MAGIC, TRAILER, trailer};
use crate::{
    State,
    core::Refused,
    state::{Rules, SnapshotError},
};

/// Why a snapshot of a peer is not taken; nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotRefused {
    /// Raft does not run here.
    #[error("raft is not running")]
    Unavailable,
    /// The message about it does not decode.
    #[error("the message does not decode")]
    Undecodable,
    /// The message says that somebody else sent it.
    #[error("a message of node {claimed} came from node {from}")]
    Sender {
        /// Who it came from.
        from: u64,
        /// Who it says it is from.
        claimed: u64,
    },
    /// No correct peer sends such a message.
    #[error(transparent)]
    Message(#[from] Refused),
    /// The message carries its content in itself, or is about something else.
    #[error("the message is not about a snapshot alone")]
    NotASnapshot,
    /// Another one is being received.
    #[error("another snapshot is being received")]
    Busy,
    /// A newer one took its place.
    #[error("the snapshot was superseded")]
    Superseded,
    /// More bytes than a snapshot may have.
    #[error("the snapshot exceeds {limit} bytes")]
    TooLarge {
        /// How many are allowed.
        limit: u64,
    },
    /// Length or digest differ from what the sender had.
    #[error("the snapshot is damaged: {0}")]
    Damaged(&'static str),
    /// It holds what this version does not know, so this node has to stop.
    #[error("the snapshot is of a newer version")]
    Newer(#[source] SnapshotError),
    /// Its bytes are no state.
    #[error("the snapshot holds no state")]
    Content(#[source] SnapshotError),
    /// It could not be kept or prepared here.
    #[error("the snapshot cannot be stored")]
    Io(#[source] io::Error),
    /// The storage could not take its rows.
    #[error("the snapshot cannot be prepared")]
    Storage(#[source] crate::storage::Error),
}

impl SnapshotRefused {
    /// A stable word for the reason, for counters.
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

/// Removes what an earlier run left of received snapshots.
pub(crate) fn clear(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A file that fills up with a snapshot; it is deleted when this is dropped.
#[derive(Debug)]
pub(crate) struct Spool {
    path: PathBuf,
    file: File,
    /// The last bytes received, which are the trailer if no more come.
    held: Vec<u8>,
    /// Bytes in the file.
    length: u64,
    limit: u64,
    hash: Sha256,
}

impl Spool {
    /// Creates `directory` if need be, and a file in it.
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

    /// Takes the next bytes.
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

    /// Verifies what was received, and decodes it as a state at log index `index`.
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
        // A file that stays is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}
