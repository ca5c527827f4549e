//! Why a directory could not be created, opened or written.

use std::{io, path::PathBuf};

/// Failure of the storage.
///
/// Every variant is final for this process: nothing after it may be acknowledged. None is ever
/// answered with a fresh start, because a node that forgets its vote or its log breaks the
/// promises it made to its peers.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is at the path.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// A directory to create in has content.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// Another process, or this one, has the directory open.
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The directory was written by a version with another layout.
    #[error("format {found} is not supported, this version reads format {supported}")]
    Format {
        /// What the directory says.
        found: u32,
        /// What this version reads.
        supported: u32,
    },
    /// The content is damaged or incomplete; `what` names the part.
    #[error("{what} is damaged: {reason}")]
    Corrupt {
        /// File, table or row.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Acknowledged writes are gone: the disk lost or was robbed of synced data.
    #[error("write-ahead log ends at write {recovered}, but write {synced} was acknowledged")]
    LostWrites {
        /// Sequence number of the last write found.
        recovered: u64,
        /// Sequence number of the last write known to be synced.
        synced: u64,
    },
    /// The initial voters do not make a cluster.
    #[error("voters {voters:?} do not include node {raft_id}, or are not distinct ids above 0")]
    Voters {
        /// Id of this node.
        raft_id: u64,
        /// What was given.
        voters: Vec<u64>,
    },
    /// A file could not be read or written.
    #[error("{what} cannot be accessed")]
    Io {
        /// Path or operation.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The database refused a write: disk full, disk error, or a directory that went away.
    #[error("write failed")]
    Write(#[source] rocksdb::Error),
    /// The database could not read what it holds.
    #[error("read failed")]
    Read(#[source] rocksdb::Error),
    /// An earlier failure ended this storage; the text is that failure's.
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
