//! Forwarding: every node accepts every request and passes those that only the leader can serve to
//! it, as a whole.
//!
//! A request is retried, locally or on the leader, as long as nothing was appended for it; one that
//! may have been appended is answered with `outcome=unknown`. The answer of the leader carries its
//! applied index and is returned once this node has applied as much, so that a client reads its own
//! writes on the node through which it wrote.

mod answer;
mod timeout;

#[cfg(test)]
mod tests;

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::Full;
use jaco_proto::{Error, ErrorCode};
use jaco_raftnode::{RaftStatus, Role};
use tokio::time::Instant;
use tonic::{Status, body::Body};
use tower::{Service, ServiceExt as _};

use super::{
    caller::Caller,
    forwarded::Forwarded,
    methods::{Effect, Method, ResponseBody},
};
use crate::{
    commit::unknown_outcome,
    node::{
        MemberContext, NodeContext,
        leader::{Leader, LeaderLink, LeaderLocation, not_appended, quorum_lost},
    },
    peer::CallError,
};
use answer::Answer;

pub(super) use timeout::deadline;

/// Applied index of the state that an answer reflects.
pub(super) const APPLIED_INDEX: HeaderName = HeaderName::from_static("jaco-applied-index");
/// Time limit for finding a leader: slightly less than the shortest time limit of clients, so that
/// they get the reason, and enough for an election.
const LEADER_SEARCH_TIMEOUT: Duration = Duration::from_secs(9);
/// Time limit for the local state to reach a committed answer.
const LOCAL_APPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the second attempt; it doubles with each attempt.
const BACKOFF: Duration = Duration::from_millis(20);
/// Longest delay between attempts.
const MAX_BACKOFF: Duration = Duration::from_millis(500);
/// Detail of an error with which a leader hands a [resumable](Method::resumable) call back to the
/// member that forwarded it. A member that does not know it retries, as after each `no_leader`.
const RESUME: &str = "resume";
/// Metadata of the client that is forwarded.
const FORWARDED_METADATA: [&str; 4] = [
    "grpc-encoding",
    "grpc-accept-encoding",
    "jaco-read",
    "traceparent",
];

/// A request whose body has been received.
pub(super) struct BufferedRequest {
    pub(super) method: Method,
    pub(super) caller: Caller,
    /// Whether a linearizable read has to precede it.
    pub(super) confirm: bool,
    /// Time by which the client needs an answer.
    pub(super) deadline: Option<Instant>,
    pub(super) parts: http::request::Parts,
    pub(super) body: Bytes,
}

/// A request that the leader has to serve.
struct Call<'a> {
    node: &'a MemberContext,
    request: BufferedRequest,
}

/// Extension of a request that a leader received before it was lost. The handler of a
/// [resumable](Method::resumable) method then watches the state of this node for the outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resumed;

/// Outcome of one attempt.
enum Attempt {
    /// Final: the response for the client.
    Done(Response<Body>),
    /// The leader received the request, which it may have served, and was lost.
    Lost,
    /// Nothing was appended; with the reason, if one was given.
    Retry(Option<Error>),
}

/// Has `request` served by the leader. If that is this node, `local_service` serves it, after
/// `readmit` has checked its caller again; another node checks the caller itself.
pub(super) async fn serve_on_leader<S>(
    shared: &NodeContext,
    mut local_service: S,
    readmit: impl Fn() -> Result<(), Error>,
    mut request: BufferedRequest,
) -> Response<Body>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let node = match shared.running() {
        Ok(node) => node,
        Err(error) => return Status::from(error).into_http(),
    };
    let started = Instant::now();
    let deadline = request.deadline;
    let mut stopping = shared.stopping_for(request.caller.transport);
    request.parts.extensions.insert(request.caller.clone());
    let call = Call {
        node: &node,
        request,
    };
    let search_end = |start: Instant| {
        let end = start + LEADER_SEARCH_TIMEOUT;
        deadline.map_or(end, |deadline| deadline.min(end))
    };
    let mut until = search_end(started);
    let mut backoff = BACKOFF;
    let mut reason = None;
    let mut lost = false;
    loop {
        let routing_status = node.leader.raft().with_status(routing_status);
        let attempt = match node.leader.location() {
            // The state of this node shows the outcome; no leader is needed.
            _ if lost => call.serve_locally(&mut local_service, &readmit, true).await,
            LeaderLocation::Local => {
                call.serve_locally(&mut local_service, &readmit, false)
                    .await
            }
            LeaderLocation::Remote(leader) => tokio::select! {
                attempt = call.forward_to(&leader) => attempt,
                // The handler of such a call tells its client how far it is.
                _ = stopping.wait_for(|&stopping| stopping), if call.request.method.resumable => {
                    Attempt::Lost
                }
            },
            LeaderLocation::Unknown => Attempt::Retry(None),
        };
        if std::mem::replace(&mut lost, matches!(attempt, Attempt::Lost)) {
            // It knows of no outcome, so a new leader is needed.
            until = search_end(Instant::now());
        }
        match attempt {
            Attempt::Done(response) => return response,
            Attempt::Lost => continue,
            Attempt::Retry(error) => reason = error.or(reason),
        }
        let error = node.leader.leaderless();
        let status = node.leader.raft().status();
        // Waiting cannot help.
        let lost = quorum_lost(&status).is_some() && !status.is_stalled();
        let hopeless = lost || status.halted.is_some();
        let pause = (Instant::now() + backoff).min(until);
        if hopeless || pause <= Instant::now() {
            return Status::from(match reason {
                Some(reason) if !hopeless => reason,
                _ => error,
            })
            .into_http();
        }
        // The status shows a new leader at once, but not that a known leader is reachable again.
        let next = if status.leader_id.is_none() {
            until
        } else {
            pause
        };
        tokio::select! {
            () = wait_for_change(&node.leader, routing_status) => {}
            () = tokio::time::sleep_until(next) => {}
            _ = stopping.wait_for(|&stopping| stopping) => {
                return Status::from(NodeContext::stopped()).into_http();
            }
        }
        backoff = (2 * backoff).min(MAX_BACKOFF);
    }
}

/// Parts of raft's status that decide where a request goes.
fn routing_status(status: &RaftStatus) -> (Option<u64>, bool, bool, bool) {
    (
        status.leader_id,
        status.leading,
        status.role == Role::Stopped,
        quorum_lost(status).is_some(),
    )
}

/// Returns once raft's status differs from `before`.
async fn wait_for_change(leader: &LeaderLink, before: (Option<u64>, bool, bool, bool)) {
    let mut status = leader.raft().subscribe_status();
    // The sender lives as long as the handle.
    let _ = status
        .wait_for(|status| routing_status(status) != before)
        .await;
}

impl Call<'_> {
    async fn serve_locally<S>(
        &self,
        service: &mut S,
        readmit: &impl Fn() -> Result<(), Error>,
        resumed: bool,
    ) -> Attempt
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    {
        let BufferedRequest {
            confirm,
            parts,
            body,
            ..
        } = &self.request;
        if *confirm && let Err(error) = self.node.confirmed().await {
            return Attempt::Done(Status::from(error).into_http());
        }
        if let Err(error) = readmit() {
            return Attempt::Done(Status::from(error).into_http());
        }
        let body = Body::new(Full::new(body.clone()));
        let mut request = Request::from_parts(parts.clone(), body);
        if resumed {
            request.extensions_mut().insert(Resumed);
        }
        let response = match service.ready().await {
            Ok(service) => match service.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
            Err(never) => match never {},
        };
        match answer::error(response.headers()) {
            Some(error) if self.lost_leadership(&error) => Attempt::Retry(Some(error)),
            Some(_) | None => Attempt::Done(response),
        }
    }

    /// Whether this node could not write because it no longer leads or raft restarts.
    fn lost_leadership(&self, error: &Error) -> bool {
        match error.code {
            ErrorCode::NoLeader => true,
            ErrorCode::RaftUnavailable => (self.node.raft)
                .with_status(|status| status.role == Role::Stopped || !status.leading),
            _ => false,
        }
    }

    async fn forward_to(&self, leader: &Leader) -> Attempt {
        let method = self.request.method;
        let deadline = self
            .request
            .deadline
            .unwrap_or_else(|| Instant::now() + method.forward_timeout);
        let request = self.request(deadline);
        let link = &self.node.leader;
        let called = match method.response {
            ResponseBody::Stream => link
                .call(leader, request, Some(deadline))
                .await
                .map(Answer::Streaming),
            ResponseBody::Message => {
                let exchange = answer::exchange(link.peers(), &leader.hostname, request);
                link.await_answer(leader, Some(deadline), exchange).await
            }
        };
        tracing::debug!(
            subsystem = "daemon/grpc",
            method = self.request.parts.uri.path(),
            request_id = %self.request.caller.request_id,
            leader = %leader.hostname,
            answered = called.is_ok(),
            "request passed on"
        );
        match called {
            Ok(answer) => match answer.error() {
                Some(error) if method.resumable && error.details.contains_key(RESUME) => {
                    Attempt::Lost
                }
                Some(error) if not_appended(&error) => Attempt::Retry(Some(error)),
                Some(_) => Attempt::Done(answer.into_response()),
                None => {
                    if let Some(index) = answer.applied() {
                        let until = deadline.min(Instant::now() + LOCAL_APPLY_TIMEOUT);
                        link.wait_applied(index, until).await;
                    }
                    Attempt::Done(answer.into_response())
                }
            },
            Err(CallError::NotSent { .. }) => Attempt::Retry(None),
            // Reading twice does no harm.
            Err(CallError::Unanswered { .. }) if method.effect == Effect::Read => {
                Attempt::Retry(None)
            }
            Err(CallError::Unanswered { .. }) if method.resumable && Instant::now() < deadline => {
                Attempt::Lost
            }
            Err(error @ CallError::Unanswered { .. }) => {
                let error = unknown_outcome(error.to_string());
                Attempt::Done(Status::from(error).into_http())
            }
        }
    }

    /// Builds the request that is sent to the leader.
    fn request(&self, deadline: Instant) -> Request<Body> {
        let mut request = Request::new(Body::new(Full::new(self.request.body.clone())));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.request.parts.uri.clone();
        *request.version_mut() = http::Version::HTTP_2;
        let headers = request.headers_mut();
        headers.insert("te", HeaderValue::from_static("trailers"));
        let given = &self.request.parts.headers;
        if let Some(kind) = given.get(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, kind.clone());
        }
        for name in FORWARDED_METADATA {
            if let Some(value) = given.get(name) {
                headers.insert(name, value.clone());
            }
        }
        if let Ok(id) = HeaderValue::from_str(&self.request.caller.request_id) {
            headers.insert("x-request-id", id);
        }
        timeout::write(headers, deadline.saturating_duration_since(Instant::now()));
        self.forwarded().write(headers);
        request
    }

    fn forwarded(&self) -> Forwarded {
        use super::methods::Class;
        match self.request.method.class {
            Class::InBody => Forwarded::default(),
            Class::Public | Class::Setup | Class::Operator | Class::LocalOperator | Class::Peer => {
                Forwarded {
                    identity: Some(self.request.caller.identity.clone()),
                    token: self.request.caller.token,
                }
            }
        }
    }
}

/// Returns the error with which a leader ends a call that the member that forwarded it can
/// [resume](Resumed), for this `reason`.
pub(super) fn to_be_resumed(reason: &str) -> Error {
    Error::new(ErrorCode::NoLeader, reason).with(RESUME, true)
}

/// Adds the applied index to a successful response that does not carry one.
pub(super) fn stamp(headers: &mut HeaderMap, shared: &NodeContext) {
    if headers.contains_key("grpc-status") || headers.contains_key(APPLIED_INDEX) {
        return;
    }
    if let Some(state) = shared.state() {
        headers.insert(APPLIED_INDEX, HeaderValue::from(state.applied_index));
    }
}
