//! Committed entries, as passed to the state machine.

use std::fmt;

use raft::eraftpb::{ConfChange, ConfChangeSingle, ConfChangeV2, ConfState, Entry, EntryType};

use super::{Error, Ticket};

/// A committed entry that is to be applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// Log index of the entry.
    pub index: u64,
    /// Term the entry was proposed in.
    pub term: u64,
    /// Content of the entry.
    pub payload: Payload,
    /// Ticket of the proposal, if it was made in this node's current run and term.
    pub ticket: Option<Ticket>,
}

/// Content of an entry; `Debug` redacts a command.
#[derive(Clone, PartialEq)]
pub enum Payload {
    /// First entry of a leader's term; only advances the applied index.
    Noop,
    /// Encoded command.
    Command(Vec<u8>),
    /// Change of voters or learners, which raft has applied, with the configuration after it. The
    /// configuration is stored with the applied index: one of a later entry would be changed again
    /// when a restart replays that entry.
    ConfChange(ConfState),
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Noop => "Noop",
            Self::Command(_) => "Command(<redacted>)",
            Self::ConfChange(_) => "ConfChange",
        })
    }
}

/// Decoded entry, with a configuration change that raft has not applied yet.
pub(crate) enum Decoded {
    Plain(Payload),
    ConfChange(ConfChangeV2),
}

pub(crate) fn decode(entry: &mut Entry) -> Result<Decoded, Error> {
    use protobuf::Message as _;
    let damaged = |_| Error::ConfChange { index: entry.index };
    Ok(match entry.get_entry_type() {
        EntryType::EntryNormal if entry.data.is_empty() => Decoded::Plain(Payload::Noop),
        EntryType::EntryNormal => Decoded::Plain(Payload::Command(std::mem::take(&mut entry.data))),
        EntryType::EntryConfChange => {
            let mut change = ConfChange::default();
            change.merge_from_bytes(&entry.data).map_err(damaged)?;
            let single = ConfChangeSingle {
                change_type: change.change_type,
                node_id: change.node_id,
            };
            Decoded::ConfChange(ConfChangeV2 {
                changes: vec![single],
                context: change.context,
                ..ConfChangeV2::default()
            })
        }
        // Empty data is a change too: it leaves a joint configuration.
        EntryType::EntryConfChangeV2 => {
            let mut change = ConfChangeV2::default();
            change.merge_from_bytes(&entry.data).map_err(damaged)?;
            Decoded::ConfChange(change)
        }
    })
}
