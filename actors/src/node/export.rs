//! Backup of a stopped node, from its rows and its log.

use std::{io::Write, path::Path};

use jaco_proto::{Error, ErrorCode, chain};
use jaco_raftnode::{
    State,
    archive::{self, ArchiveLimits, Meta},
    offline::{self, OfflineState, Replay},
    storage::Position,
};

use super::files::Layout;
use crate::clock::Clock;

/// The state of a stopped node, ready to be written.
#[derive(Debug)]
pub struct Export {
    /// Description of the archive.
    pub meta: Meta,
    /// Position of the last entry in the node's log; entries after [`Export::meta`]'s position are
    /// not in the archive. By it the survivors of a lost majority are compared: first by term, then
    /// by index.
    pub last: Position,
    state: State,
}

impl Export {
    /// Reads the state in a data directory for a program of version `version`, with the entries of
    /// its log that `replay` selects; writes nothing.
    ///
    /// # Errors
    /// `no_cluster` without a cluster in the directory, `backup_failed` with the reason if a
    /// daemon uses it, it cannot be read, or an entry is of a newer version.
    pub fn read(
        data_dir: &Path,
        version: &str,
        clock: &Clock,
        replay: Replay,
    ) -> Result<Self, Error> {
        let failed = |error: &dyn std::error::Error| {
            Error::new(
                ErrorCode::BackupFailed,
                format!("{} cannot be backed up", data_dir.display()),
            )
            .with("data_dir", data_dir.display())
            .because(chain(error))
        };
        let none = || {
            Error::new(
                ErrorCode::NoCluster,
                format!("there is no cluster in {}", data_dir.display()),
            )
            .with("data_dir", data_dir.display())
        };
        let layout = Layout::new(data_dir);
        // Held while the state is read. There is no lock file if no daemon ever used the directory.
        let _lock = layout.lock_existing().map_err(|error| failed(&error))?;
        if !layout.is_member().map_err(|error| failed(&error))? {
            return Err(none());
        }
        let OfflineState {
            state,
            position,
            last,
        } = offline::read(&layout.raft(), replay).map_err(|error| failed(&error))?;
        // A larger archive could not be restored.
        archive::check_size(&state, &ArchiveLimits::default()).map_err(|error| failed(&error))?;
        // The host of the leader is empty: a stopped node knows none.
        let meta = Meta::new(&state, position.term, version, "", clock.timestamp());
        let meta = meta.ok_or_else(none)?;
        Ok(Self { meta, last, state })
    }

    /// SHA-256 over every entity of the state; the same on each member at this log index.
    #[must_use]
    pub fn state_digest(&self) -> [u8; 32] {
        self.state.digest()
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, out: impl Write) -> std::io::Result<()> {
        archive::write(&self.meta, &self.state, out)
    }
}
