//! State of a stopped node: the state it has applied, and the entries of its log behind that.
//!
//! A node writes what it applies without waiting for the disk, and a halted node applies nothing.
//! So its log may hold more acknowledged entries than its rows.

use std::path::Path;

use jaco_proto::chain;
use jaco_state::State;
use raft::{
    RawNode,
    eraftpb::{ConfChangeV2, ConfState},
    storage::MemStorage,
};

use crate::{
    apply::Applier,
    core::{Committed, Decoded, Payload, decode},
    storage::{self, Position, ReadOnlyStorage},
};

/// How many of the log's entries to replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replay {
    /// Those that the node knew to be committed, and for as long as it is the only voter all
    /// others too: such a node commits what is on its own disk.
    #[default]
    Committed,
    /// All. A majority may have an entry that this node does not know to be committed; only the
    /// loss of that majority justifies applying it.
    WholeLog,
}

/// State of a stopped node.
#[derive(Clone, Debug, PartialEq)]
pub struct OfflineState {
    /// State after the last replayed entry.
    pub state: State,
    /// Position of that entry.
    pub position: Position,
    /// Position of the last entry in the log. Of several nodes the one with the highest term, and
    /// among equals the highest index, has every entry that any of them knows to be committed.
    pub last: Position,
}

/// Reason why the state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory cannot be read, or is in use.
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// An entry that is to be replayed is of a newer version, which has to read it.
    #[error("the log is of a newer version: {0}")]
    Newer(String),
}

/// Reads the state of the directory at `path`, which must not be in use; writes nothing.
///
/// # Errors
/// [`Error`].
pub fn read(path: &Path, replay: Replay) -> Result<OfflineState, Error> {
    let storage = ReadOnlyStorage::open(path)?;
    let (state, mut position) = storage.applied()?;
    let mut applier = Applier::new(state);
    let mut configuration = Configuration::new(storage.raft_id(), storage.conf_state())?;
    for entry in storage.unapplied()? {
        let mut entry = entry?;
        // Evaluated for each entry: one before it may have changed the voters.
        let committed = entry.index <= storage.commit() || configuration.is_sole_voter();
        if !committed && replay == Replay::Committed {
            break;
        }
        let (index, term) = (entry.index, entry.term);
        let damaged = |reason: &dyn std::error::Error| {
            storage::Error::corrupt(format!("log entry {index}"), chain(reason))
        };
        let payload = match decode(&mut entry).map_err(|error| damaged(&error))? {
            Decoded::Plain(payload) => payload,
            Decoded::ConfChange(change) => {
                let changed = configuration.change(&change);
                Payload::ConfChange(changed.map_err(|error| damaged(&error))?)
            }
        };
        let one = Committed {
            index,
            term,
            payload,
            ticket: None,
        };
        applier.apply(vec![one], &mut ());
        if let Some(reason) = applier.halted() {
            return Err(Error::Newer(reason.to_owned()));
        }
        position = Position { index, term };
    }
    Ok(OfflineState {
        state: State::clone(applier.state()),
        position,
        last: storage.last(),
    })
}

/// The voters and learners while entries are replayed. raft-rs keeps the rules of their changes.
struct Configuration {
    raft_id: u64,
    current: ConfState,
    raw: RawNode<MemStorage>,
}

impl Configuration {
    fn new(raft_id: u64, conf_state: &ConfState) -> Result<Self, storage::Error> {
        let store = MemStorage::new();
        store.wl().set_conf_state(conf_state.clone());
        let config = raft::Config::new(raft_id);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, store, &logger)
            .map_err(|error| storage::Error::corrupt("meta row conf_state", chain(&error)))?;
        Ok(Self {
            raft_id,
            current: conf_state.clone(),
            raw,
        })
    }

    fn is_sole_voter(&self) -> bool {
        self.current.voters == [self.raft_id] && self.current.voters_outgoing.is_empty()
    }

    fn change(&mut self, change: &ConfChangeV2) -> raft::Result<ConfState> {
        self.current = self.raw.apply_conf_change(change)?;
        Ok(self.current.clone())
    }
}

#[cfg(test)]
mod tests;
