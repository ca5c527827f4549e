//! Validates messages of peers before raft-rs sees them.
//!
//! raft-rs panics on messages that no correct peer sends, and a peer may run another
//! implementation.

use std::collections::BTreeSet;

use raft::{
    RawNode, StateRole, Storage,
    eraftpb::{ConfState, EntryType, Message, MessageType},
};

/// A message that no correct peer sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The receiver is another node, or the sender is this one.
    #[error("message from {from} to {to} is not for this node")]
    Address {
        /// Sender of the message.
        from: u64,
        /// Receiver of the message.
        to: u64,
    },
    /// The message type is unknown or only used inside a node.
    #[error("message type {0} does not travel between nodes")]
    Type(i32),
    /// Entries are not consecutive, have a later term than the message, or are of unknown type.
    #[error("entries do not follow log index {0}")]
    Entries(u64),
    /// The configuration in the snapshot is not one that raft can reach.
    #[error("the configuration of the snapshot at index {0} is impossible")]
    Configuration(u64),
    /// The message acknowledges an entry that this leader never had.
    #[error("index {index} is acknowledged, but the log ends at {last}")]
    Acknowledged {
        /// Index that the message acknowledges.
        index: u64,
        /// Last index of the log.
        last: u64,
    },
    /// A term or an index that no cluster reaches.
    #[error("term or index {0} is out of range")]
    Range(u64),
    /// A vote request to a node that has just been created and has no vote.
    #[error("this node has no vote yet")]
    Newcomer,
    /// A field that the message type requires is missing.
    #[error("message type {0} is incomplete")]
    Incomplete(i32),
    /// The commit index is beyond this node's log, which a leader of this log never sends.
    #[error("commit index {commit} is beyond the log, which ends at {last}")]
    Commit {
        /// Commit index in the message.
        commit: u64,
        /// Last index of the log.
        last: u64,
    },
}

/// Largest accepted term or index: raft-rs increments them without checking for overflow.
const LARGEST: u64 = u64::MAX / 2;

pub(super) fn check<S: Storage>(raw: &RawNode<S>, message: &Message) -> Result<(), Refused> {
    let raft = &raw.raft;
    if message.to != raft.id || message.from == raft.id || message.from == raft::INVALID_ID {
        return Err(Refused::Address {
            from: message.from,
            to: message.to,
        });
    }
    let Some(kind) = MessageType::from_i32(message.msg_type) else {
        return Err(Refused::Type(message.msg_type));
    };
    let numbers = [
        message.index,
        message.term,
        message.log_term,
        message.commit,
        message.commit_term,
        message.reject_hint,
        message.request_snapshot,
        message
            .snapshot
            .as_ref()
            .map_or(0, |s| s.get_metadata().index),
        message
            .snapshot
            .as_ref()
            .map_or(0, |s| s.get_metadata().term),
    ];
    if let Some(&number) = numbers.iter().find(|&&number| number > LARGEST) {
        return Err(Refused::Range(number));
    }
    // raft-rs treats a message without a term as local; only read requests have none.
    if (message.term == 0) != (kind == MessageType::MsgReadIndex) {
        return Err(Refused::Range(message.term));
    }
    match kind {
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgTransferLeader
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum => Err(Refused::Type(message.msg_type)),
        MessageType::MsgAppend => {
            let mut before = message.log_term;
            let mut follow = (message.index + 1..).zip(&message.entries);
            let sound = follow.all(|(index, entry)| {
                let term = std::mem::replace(&mut before, entry.term);
                let known = EntryType::from_i32(entry.entry_type).is_some();
                entry.index == index && known && (term..=message.term).contains(&entry.term)
            });
            // raft-rs returns term 0 for every index beyond its log, so 0 would match there.
            let anchored = (message.log_term == 0) == (message.index == 0);
            if sound && anchored {
                Ok(())
            } else {
                Err(Refused::Entries(message.index))
            }
        }
        MessageType::MsgHeartbeat => {
            let last = raft.raft_log.last_index();
            if message.term >= raft.term && message.commit > last {
                return Err(Refused::Commit {
                    commit: message.commit,
                    last,
                });
            }
            Ok(())
        }
        MessageType::MsgSnapshot => {
            let metadata = message.snapshot.as_ref().and_then(|s| s.metadata.as_ref());
            let Some(metadata) = metadata.filter(|m| m.index > 0 && m.term > 0) else {
                return Err(Refused::Incomplete(message.msg_type));
            };
            if metadata.term > message.term {
                return Err(Refused::Range(metadata.term));
            }
            match &metadata.conf_state {
                None => Err(Refused::Incomplete(message.msg_type)),
                Some(conf) if is_possible(conf) => Ok(()),
                Some(_) => Err(Refused::Configuration(metadata.index)),
            }
        }
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => {
            if message.entries.len() == 1 {
                Ok(())
            } else {
                Err(Refused::Incomplete(message.msg_type))
            }
        }
        MessageType::MsgAppendResponse => {
            let (index, last) = (message.index, raft.raft_log.last_index());
            let counts = raft.state == StateRole::Leader && message.term == raft.term;
            if counts && !message.reject && index > last {
                return Err(Refused::Acknowledged { index, last });
            }
            Ok(())
        }
        // raft-rs would respond in its own term, and panics if that is 0.
        MessageType::MsgRequestPreVote if raft.term == 0 => Err(Refused::Newcomer),
        MessageType::MsgRequestPreVote
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgTimeoutNow
        | MessageType::MsgRequestPreVoteResponse => Ok(()),
    }
}

/// Whether raft can have produced this configuration. raft-rs panics on one it cannot restore.
fn is_possible(conf: &ConfState) -> bool {
    let set = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<_>>();
    let lists = [
        &conf.voters,
        &conf.voters_outgoing,
        &conf.learners,
        &conf.learners_next,
    ];
    let distinct = lists
        .iter()
        .all(|ids| set(ids).len() == ids.len() && !ids.contains(&0));
    let [voters, outgoing, learners, next] = lists.map(|ids| set(ids));
    // Voters that become learners wait for the end of the joint configuration.
    let joint = !outgoing.is_empty() || (next.is_empty() && !conf.auto_leave);
    distinct
        && joint
        && !voters.is_empty()
        && learners.is_disjoint(&voters)
        && learners.is_disjoint(&outgoing)
        && next.is_disjoint(&voters)
        && next.is_disjoint(&learners)
        && next.is_subset(&outgoing)
}
