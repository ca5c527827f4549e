//! Errors of creating, opening and writing a directory.

use std::{io, path::PathBuf};

/// Failure of the storage.
///
/// Every variant is final for this process: no later write may be acknowledged. The directory is
/// never re-created after one, because a node that loses its vote or its log breaks raft's
/// guarantees.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path does not exist.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// The directory to create the storage in is not empty.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// Another process, or this one, has the directory open.
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The directory was written by a version with another layout.
    #[error("format {found} is not supported, this version reads format {supported}")]
    Format {
        /// Format of the directory.
        found: u32,
        /// Format that this version reads.
        supported: u32,
    },
    /// The content is damaged or incomplete; `what` names the part.
    #[error("{what} is damaged: {reason}")]
    Corrupt {
        /// File, table or row.
        what: String,
        /// Description of the damage.
        reason: String,
    },
    /// Acknowledged writes are missing: the disk lost synced data, or it was removed.
    #[error("write-ahead log ends at write {recovered}, but write {synced} was acknowledged")]
    LostWrites {
        /// Sequence number of the last write found.
        recovered: u64,
        /// Sequence number of the last write known to be synced.
        synced: u64,
    },
    /// The initial voters are not a valid configuration.
    #[error("voters {voters:?} do not include node {raft_id}, or are not distinct ids above 0")]
    Voters {
        /// Id of this node.
        raft_id: u64,
        /// The given voters.
        voters: Vec<u64>,
    },
    /// A file could not be read or written.
    #[error("{what} cannot be accessed")]
    Io {
        /// Path or operation.
        what: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// RocksDB rejected a write: disk full, disk error, or the directory was removed.
    #[error("write failed")]
    Write(#[source] rocksdb::Error),
    /// RocksDB could not read stored data.
    #[error("read failed")]
    Read(#[source] rocksdb::Error),
    /// An earlier failure ended this storage; carries its text.
    #[error("storage failed before: {0}")]
    Failed(String),
}

impl Error {
    pub(crate) fn corrupt(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Corrupt {
            what: what.into(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn io(what: impl ToString, source: io::Error) -> Self {
        Self::Io {
            what: what.to_string(),
            source,
        }
    }
}
