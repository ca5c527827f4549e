//! Messages of peers, checked before raft sees them.
//!
//! Raft panics on a message that no correct peer sends, and a peer is other people's software.

use raft::{
    RawNode, Storage,
    eraftpb::{Message, MessageType},
};

/// A message that no correct peer sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is for another node, or from this one.
    #[error("message from {from} to {to} is not for this node")]
    Address {
        /// Its sender.
        from: u64,
        /// Its receiver.
        to: u64,
    },
    /// Its type exists inside a node only, or is not known.
    #[error("message type {0} does not travel between nodes")]
    Type(i32),
    /// Its entries do not follow each other.
    #[error("entries do not follow log index {0}")]
    Entries(u64),
    /// A term or an index that no cluster reaches.
    #[error("term or index {0} is out of range")]
    Range(u64),
    /// It lacks what its type must carry.
    #[error("message type {0} is incomplete")]
    Incomplete(i32),
    /// Its commit index is beyond this node's log, which a leader of this log never claims.
    #[error("commit index {commit} is beyond the log, which ends at {last}")]
    Commit {
        /// What it claims.
        commit: u64,
        /// Where the log ends.
        last: u64,
    },
}

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
    // Raft counts upwards from these without checking for overflow.
    let largest = message.index.max(message.term).max(message.commit);
    if largest > u64::MAX / 2 {
        return Err(Refused::Range(largest));
    }
    match kind {
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum => Err(Refused::Type(message.msg_type)),
        MessageType::MsgAppend => {
            let expected = (message.index + 1..).zip(&message.entries);
            for (index, entry) in expected {
                if entry.index != index {
                    return Err(Refused::Entries(message.index));
                }
            }
            Ok(())
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
            match metadata.and_then(|m| m.conf_state.as_ref()) {
                Some(conf) if !conf.voters.is_empty() => Ok(()),
                _ => Err(Refused::Incomplete(message.msg_type)),
            }
        }
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => {
            if message.entries.len() == 1 {
                Ok(())
            } else {
                Err(Refused::Incomplete(message.msg_type))
            }
        }
        MessageType::MsgAppendResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgTransferLeader
        | MessageType::MsgTimeoutNow
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse => Ok(()),
    }
}
