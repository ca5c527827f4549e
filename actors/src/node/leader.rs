//! Location of the leader, and calls to it.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Request, Response};
use jaco_proto::{Error, ErrorCode};
use jaco_raftnode::{RaftHandle, RaftStatus, Role, StateReader as _, Writes};
use tokio::{sync::watch, time::Instant};
use tonic::{Status, body::Body};
use tower::Service;

use crate::{
    health::LeaderClaim,
    peer::{CallError, Peers},
};

/// Time that a replaced or lost leader has left to answer earlier requests.
const REPLACED_LEADER_GRACE: Duration = Duration::from_millis(500);

/// A member that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) hostname: String,
    pub(crate) raft_id: u64,
}

/// Location of the leader, as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaderLocation {
    /// This node leads, and its state includes every write that was acknowledged before.
    Local,
    /// Another member leads.
    Remote(Leader),
    /// No leader is known.
    Unknown,
}

/// Routes calls from this node to the current leader.
#[derive(Clone)]
pub(crate) struct LeaderLink {
    raft: RaftHandle,
    peers: Peers,
    /// Consulted while this node's raft is stalled and cannot learn of a new leader.
    claim: LeaderClaim,
}

impl LeaderLink {
    pub(crate) fn new(raft: RaftHandle, peers: Peers, claim: LeaderClaim) -> Self {
        Self { raft, peers, claim }
    }

    pub(crate) fn raft(&self) -> &RaftHandle {
        &self.raft
    }

    pub(crate) fn location(&self) -> LeaderLocation {
        let (leading, leader) = self
            .raft
            .with_status(|status| (status.leading, self.other_leader(status)));
        if leading {
            return LeaderLocation::Local;
        }
        let Some(raft_id) = leader else {
            return LeaderLocation::Unknown;
        };
        let state = self.raft.state();
        let row = state.nodes.values().find(|node| node.raft_id == raft_id);
        row.map_or(LeaderLocation::Unknown, |node| {
            LeaderLocation::Remote(Leader {
                hostname: node.hostname.clone(),
                raft_id,
            })
        })
    }

    /// Raft id of the other member that leads, as far as this node knows.
    fn other_leader(&self, status: &RaftStatus) -> Option<u64> {
        let claimed = || self.claim.leader(status.term);
        let claimed = if status.is_stalled() { claimed() } else { None };
        let leader = claimed.or(status.leader_id);
        leader.filter(|id| *id != status.raft_id)
    }

    /// Returns the error that explains why no write is possible now.
    pub(crate) fn leaderless(&self) -> Error {
        let status = self.raft.status();
        if status.role == Role::Stopped || status.halted.is_some() {
            return Error::new(ErrorCode::RaftUnavailable, "raft does not run on this node");
        }
        let other = self.other_leader(&status);
        if status.is_stalled() && other.is_none() {
            let message = "raft on this node makes no progress; its disk does not answer";
            return Error::new(ErrorCode::RaftUnavailable, message);
        }
        if let Some(lost) = quorum_lost(&status).filter(|_| !status.is_stalled()) {
            return lost.into();
        }
        let state = self.raft.state();
        let leader = state
            .nodes
            .values()
            .find(|node| other == Some(node.raft_id));
        let Some(leader) = leader else {
            return Error::new(ErrorCode::NoLeader, "no leader can be reached");
        };
        let hint = match leader.grpc_address.as_str() {
            "" => leader.hostname.as_str(),
            address => address,
        };
        let message = format!("the leader {:?} cannot be reached", leader.hostname);
        Error::new(ErrorCode::NoLeader, message).with("leader_hint", hint)
    }

    /// Returns the error of a read that was not confirmed in time.
    pub(crate) fn quorum_lost(&self) -> Error {
        match quorum_lost(&self.raft.status()) {
            Some(lost) => lost.into(),
            None => Error::new(ErrorCode::QuorumLost, "no majority confirmed the leader"),
        }
    }

    /// Calls `leader`; see [`Self::await_answer`].
    pub(crate) async fn call(
        &self,
        leader: &Leader,
        request: Request<Body>,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, CallError> {
        let call = self.peers.call(&leader.hostname, request);
        self.await_answer(leader, deadline, call).await
    }

    /// Waits for an answer of `leader`, at most until the deadline or shortly after it was
    /// replaced.
    ///
    /// # Errors
    /// [`CallError`]; it is [`CallError::Unanswered`] if the leader was replaced or the deadline
    /// passed.
    pub(crate) async fn await_answer<T>(
        &self,
        leader: &Leader,
        deadline: Option<Instant>,
        answer: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let unanswered = |reason: &str| CallError::Unanswered {
            host: leader.hostname.clone(),
            reason: reason.to_owned(),
        };
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.replaced(leader) => Err(unanswered("it no longer leads")),
            () = until_deadline(deadline) => Err(unanswered("no answer in time")),
        }
    }

    /// Connections to the members, leader or not.
    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Returns once `leader` no longer leads and its time to answer is over.
    async fn replaced(&self, leader: &Leader) {
        let mut status = self.raft.subscribe_status();
        let gone = status.wait_for(|status| {
            let other = status.leader_id.is_some_and(|id| id != leader.raft_id);
            // A stalled raft does not know.
            !status.is_stalled() && (other || quorum_lost(status).is_some())
        });
        // The sender lives as long as the handle.
        let _ = gone.await;
        tokio::time::sleep(REPLACED_LEADER_GRACE).await;
    }

    /// Waits until the local state includes the log up to `index`; `false` if it does not by
    /// `until`.
    pub(crate) async fn wait_applied(&self, index: u64, until: Instant) -> bool {
        let mut states = self.raft.subscribe();
        let shown = states.wait_for(|state| state.applied_index >= index);
        matches!(tokio::time::timeout_at(until, shown).await, Ok(Ok(_)))
    }
}

/// Returns at the deadline; never without one.
pub(crate) async fn until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Loss of the quorum: voters in reach, and voters needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuorumLost {
    reachable: usize,
    needed: usize,
}

impl From<QuorumLost> for Error {
    fn from(QuorumLost { reachable, needed }: QuorumLost) -> Self {
        Self::new(
            ErrorCode::QuorumLost,
            format!(
                "this node cannot reach a majority of the voters: {reachable} of {needed} needed"
            ),
        )
        .with("reachable", reachable)
        .with("needed", needed)
    }
}

/// Returns the loss of the quorum on this side of the cluster, once it has lasted two election
/// timeouts.
pub(crate) fn quorum_lost(status: &RaftStatus) -> Option<QuorumLost> {
    match status.writes() {
        Writes::QuorumLost { reachable, needed } => Some(QuorumLost { reachable, needed }),
        Writes::Ok | Writes::NoLeader => None,
    }
}

/// Transport for the generated clients that calls one leader and keeps the cause of a failure,
/// which says whether the call may have been served.
#[derive(Clone)]
pub(crate) struct LeaderChannel {
    link: LeaderLink,
    leader: Leader,
    deadline: Instant,
}

impl LeaderChannel {
    pub(crate) fn new(link: LeaderLink, leader: Leader, deadline: Instant) -> Self {
        Self {
            link,
            leader,
            deadline,
        }
    }
}

impl Service<Request<Body>> for LeaderChannel {
    type Response = Response<Body>;
    type Error = CallError;
    type Future = BoxFuture<'static, Result<Self::Response, CallError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self {
            link,
            leader,
            deadline,
        } = self.clone();
        Box::pin(async move { link.call(&leader, request, Some(deadline)).await })
    }
}

/// Failure of a call on a [`LeaderChannel`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// The leader refused the request with this error.
    Refused(Error),
    /// The request was not sent.
    NotSent,
    /// The request may have been served.
    Unanswered(String),
}

impl From<Status> for CallFailure {
    fn from(status: Status) -> Self {
        let call = std::error::Error::source(&status)
            .and_then(|source| source.downcast_ref::<CallError>());
        match call {
            Some(CallError::NotSent { .. }) => Self::NotSent,
            Some(error @ CallError::Unanswered { .. }) => Self::Unanswered(error.to_string()),
            None => match decode_error(&status) {
                Some(error) => Self::Refused(error),
                // Members always send a typed error: the stream broke.
                None => Self::Unanswered(format!("the answer broke off: {}", status.message())),
            },
        }
    }
}

/// Decodes the typed error in a status.
pub(crate) fn decode_error(status: &Status) -> Option<Error> {
    if status.details().is_empty() {
        return None;
    }
    let decoded = jaco_proto::error::DecodedError::from_status(status);
    let code = decoded.code.parse().ok()?;
    Some(Error {
        code,
        message: decoded.message,
        details: decoded.details,
    })
}

/// Whether `error` of a leader implies that nothing was appended, so that a retry is safe.
pub(crate) fn not_appended(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::NoLeader | ErrorCode::RaftUnavailable | ErrorCode::StateUnavailable
    )
}

/// Follows whether this node leads and has applied an entry of its own term.
pub(crate) fn leading(raft: &RaftHandle) -> watch::Receiver<bool> {
    follow(raft, |status| status.leading)
}

/// Follows whether this node knows the leader.
pub(crate) fn leader_known(raft: &RaftHandle) -> watch::Receiver<bool> {
    follow(raft, |status| status.leader_id.is_some())
}

/// Follows a condition of raft.
fn follow(raft: &RaftHandle, holds: fn(&RaftStatus) -> bool) -> watch::Receiver<bool> {
    let mut status = raft.subscribe_status();
    let (sender, receiver) = watch::channel(holds(&status.borrow()));
    tokio::spawn(async move {
        loop {
            let now = holds(&status.borrow_and_update());
            sender.send_if_modified(|held| std::mem::replace(held, now) != now);
            tokio::select! {
                changed = status.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    });
    receiver
}
