//! Backup of a stopped node, from the state it has applied.

use std::{io::Write, path::Path};

use jaco_proto::{Error, ErrorCode, chain};
use jaco_raftnode::{
    State,
    archive::{self, ArchiveLimits, Meta},
    storage,
};

use super::files::Layout;
use crate::clock::Clock;

/// The state of a stopped node, ready to be written.
#[derive(Debug)]
pub struct Export {
    /// Description of the archive.
    pub meta: Meta,
    state: State,
}

impl Export {
    /// Reads the state in a data directory for a program of version `version`; writes nothing.
    ///
    /// # Errors
    /// `no_cluster` without a cluster in the directory, `backup_failed` with the reason if a
    /// daemon uses it or it cannot be read.
    pub fn read(data_dir: &Path, version: &str, clock: &Clock) -> Result<Self, Error> {
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
        let (state, position) =
            storage::read_offline(&layout.raft()).map_err(|error| failed(&error))?;
        // A larger archive could not be restored.
        archive::check_size(&state, &ArchiveLimits::default()).map_err(|error| failed(&error))?;
        // The host of the leader is empty: a stopped node knows none.
        let meta = Meta::new(&state, position.term, version, "", clock.timestamp());
        let meta = meta.ok_or_else(none)?;
        Ok(Self { meta, state })
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
