//! Committed entries, as the state machine receives them.

use std::fmt;

use raft::eraftpb::{ConfChange, ConfChangeSingle, ConfChangeV2, Entry, EntryType};

use super::{Error, Ticket};

/// An entry that is committed and is to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its log index.
    pub index: u64,
    /// Term it was proposed in.
    pub term: u64,
    /// What it asks for.
    pub payload: Payload,
    /// The proposal it answers, if it was proposed here and its proposer still waits.
    pub ticket: Option<Ticket>,
}

/// Content of an entry; `Debug` hides that of a command.
#[derive(Clone, PartialEq, Eq)]
pub enum Payload {
    /// A leader's first entry; only the applied index moves.
    Noop,
    /// Encoded command.
    Command(Vec<u8>),
    /// Change of voters or learners; raft has applied it, only the applied index moves.
    ConfChange,
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Noop => "Noop",
            Self::Command(_) => "Command(<redacted>)",
            Self::ConfChange => "ConfChange",
        })
    }
}

/// What an entry holds, before raft has seen a configuration change in it.
pub(super) enum Decoded {
    Plain(Payload),
    ConfChange(ConfChangeV2),
}

pub(super) fn decode(entry: &mut Entry) -> Result<Decoded, Error> {
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
