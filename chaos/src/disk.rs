//! The database of a stopped daemon, read from its data directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use jaco_raftnode::{Storage, storage::LogView};
use jaco_state::{State, fsm};
use raft::{GetEntriesContext, Storage as _, eraftpb::EntryType};

/// Copies a directory recursively.
///
/// # Errors
/// The first error.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&source, &target)?;
        } else if entry.file_type()?.is_file() {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

/// Content of every file below a directory, by relative path.
///
/// # Errors
/// The first file that cannot be read.
pub fn content(dir: &Path) -> io::Result<std::collections::BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = std::collections::BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(below) = todo.pop() {
        for entry in fs::read_dir(dir.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                todo.push(path);
            } else if entry.file_type()?.is_file() {
                found.insert(path, fs::read(entry.path())?);
            }
        }
    }
    Ok(found)
}

/// The opened raft directory of a stopped daemon.
pub struct OfflineDatabase {
    storage: Arc<Storage>,
    /// The entities as last persisted.
    pub state: State,
}

impl std::fmt::Debug for OfflineDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfflineDatabase")
            .field("storage", &self.storage)
            .finish_non_exhaustive()
    }
}

impl OfflineDatabase {
    /// Opens a data directory; pass a copy, because opening runs recovery and so writes.
    ///
    /// # Errors
    /// The errors of the daemon's own storage.
    pub fn open(data_dir: &Path) -> Result<Self> {
        let storage = Storage::open(&data_dir.join("raft"))?;
        let state = storage.load_state()?;
        Ok(Self { storage, state })
    }

    /// Index of the last log entry.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.storage.log_range().1.index
    }

    /// Whether the log still holds the entry after the last one applied to `state`.
    #[must_use]
    pub fn reaches_back_to(&self, state: &State) -> bool {
        self.storage.log_range().0.index <= state.applied_index
    }

    /// Applies the entries of this log to `state`, up to and including entry `to`.
    ///
    /// # Errors
    /// When the log lacks an entry.
    pub fn replay(&self, mut state: State, to: u64) -> Result<State> {
        let first = state.applied_index + 1;
        if to < first {
            ensure!(to == state.applied_index, "asked to replay backwards");
            return Ok(state);
        }
        let log = LogView(Arc::clone(&self.storage));
        let entries = log
            .entries(first, to + 1, None, GetEntriesContext::empty(false))
            .with_context(|| format!("entries {first} to {to}"))?;
        for entry in entries {
            ensure!(
                entry.index == state.applied_index + 1,
                "entry {} is missing",
                entry.index
            );
            if entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty() {
                let command = fsm::decode(&entry.data)?;
                state = fsm::apply(&state, entry.index, &command)?.state;
            }
            state.applied_index = entry.index;
        }
        ensure!(
            state.applied_index == to,
            "the log ends at {}",
            state.applied_index
        );
        Ok(state)
    }
}
