//! Proposals from any node: made locally on the leader, forwarded to it from the others.

#[cfg(test)]
mod tests;

use std::{future::ready, sync::Arc, time::Duration};

use jaco_policy::node::authorize;
use jaco_proto::{
    Error, ErrorCode,
    v1::{self, internal_client::InternalClient},
};
use jaco_raftnode::{
    Committed, ForwardingProposer, LeaderProposer as _, ProposeError, RaftHandle, Role, State,
    StateReader, propose::ProposeFuture,
};
use prost::Message as _;
use tokio::{sync::watch, time::Instant};

use super::{
    MemberContext,
    leader::{CallFailure, Leader, LeaderChannel, LeaderLink, LeaderLocation},
};
use crate::{clock::Clock, commit::CommitLock};

/// Time limit of a forwarded proposal: longer than that of a commit on the leader.
const BUDGET: Duration = Duration::from_secs(6);

/// Proposes locally while this node leads, and through the leader otherwise.
///
/// A forwarded proposal is answered once it is applied locally or the time is up. It is never
/// retried: only the proposer knows whether it is still valid under the next leader.
#[derive(Clone)]
pub(crate) struct Submitter {
    link: LeaderLink,
    /// Hostname of this node, which submits about itself only.
    host: String,
    clock: Clock,
    drain_mark_lock: CommitLock,
}

impl Submitter {
    pub(crate) fn new(node: &MemberContext) -> Self {
        Self {
            link: node.leader.clone(),
            host: node.hostname.clone(),
            clock: node.clock.clone(),
            drain_mark_lock: node.drain_mark_lock.clone(),
        }
    }

    fn raft(&self) -> &RaftHandle {
        self.link.raft()
    }

    /// Proposes a command that clears the drain mark of this node, which leads. As with one that
    /// another member submits, the mark must not change between the check and the commit.
    async fn clear_mark(self, command: v1::Command) -> Result<Committed, ProposeError> {
        let locked = self.drain_mark_lock.lock(self.raft()).await;
        let guard = locked.map_err(refused)?;
        let (state, now) = (self.raft().state(), self.clock.timestamp());
        let admitted = authorize::admit(&self.host, command, &state, now);
        let command = admitted.map_err(ProposeError::Rejected)?;
        guard.propose(self.raft(), command).await.map_err(refused)
    }
}

impl StateReader for Submitter {
    fn state(&self) -> Arc<State> {
        self.raft().state()
    }

    fn subscribe(&self) -> watch::Receiver<Arc<State>> {
        self.raft().subscribe()
    }

    fn follow(&self) -> watch::Receiver<Arc<State>> {
        self.raft().follow()
    }
}

impl ForwardingProposer for Submitter {
    fn submit(&self, command: v1::Command) -> ProposeFuture {
        match self.link.location() {
            LeaderLocation::Local if authorize::clears_mark(&command) => {
                Box::pin(self.clone().clear_mark(command))
            }
            LeaderLocation::Local => self.raft().propose(command),
            LeaderLocation::Remote(leader) => Box::pin(forward(self.link.clone(), leader, command)),
            LeaderLocation::Unknown if self.raft().status().role == Role::Stopped => {
                Box::pin(ready(Err(ProposeError::Unavailable)))
            }
            LeaderLocation::Unknown => Box::pin(ready(Err(ProposeError::NoLeader))),
        }
    }
}

async fn forward(
    link: LeaderLink,
    leader: Leader,
    command: v1::Command,
) -> Result<Committed, ProposeError> {
    let deadline = Instant::now() + BUDGET;
    let channel = LeaderChannel::new(link.clone(), leader, deadline);
    let request = v1::SubmitRequest {
        command_bytes: command.encode_to_vec(),
    };
    let mut client = InternalClient::new(channel);
    let Ok(answer) = tokio::time::timeout_at(deadline, client.submit(request)).await else {
        return Err(ProposeError::Unknown("no answer in time".to_owned()));
    };
    match answer {
        Ok(answer) => {
            let index = answer.into_inner().raft_index;
            link.wait_applied(index, deadline).await;
            Ok(Committed { index })
        }
        Err(status) => Err(match CallFailure::from(status) {
            CallFailure::NotSent => ProposeError::NoLeader,
            CallFailure::Unanswered(reason) => ProposeError::Unknown(reason),
            CallFailure::Refused(error) => refused(error),
        }),
    }
}

/// Maps the error with which a leader answers a submitted command.
fn refused(error: Error) -> ProposeError {
    match error.code {
        ErrorCode::NoLeader | ErrorCode::QuorumLost => ProposeError::NoLeader,
        ErrorCode::RaftUnavailable | ErrorCode::StateUnavailable => ProposeError::Unavailable,
        ErrorCode::RaftApplyFailed => ProposeError::Unknown(error.to_string()),
        _ => ProposeError::Rejected(error),
    }
}
