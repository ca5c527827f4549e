//! Attempts to get a request answered by a replica.

use std::{fmt, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::super::{
    active::{Target, WorkerTable},
    body::{Origin, Progress, RequestBody},
    headers,
    pool::Sender,
    table::RouteId,
    upstream::Upstream,
    worker::Worker,
};
use super::InterimResponses;

/// Number of replicas tried before a request fails.
const MAX_ATTEMPTS: usize = 3;

/// Why no replica answered the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No replica is eligible.
    NoUpstream,
    /// The replicas that were tried could not be reached or failed.
    Unreachable,
    /// The replica did not answer in time.
    TimedOut,
    /// The client aborted its request.
    Client,
}

impl Failure {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::NoUpstream => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unreachable => StatusCode::BAD_GATEWAY,
            Self::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            Self::Client => StatusCode::BAD_REQUEST,
        }
    }
}

/// Outcome of an attempt without a response.
enum AttemptError {
    /// Nothing was sent: the request is complete.
    Unsent(Request<RequestBody>),
    /// The replica may have seen the request, which is safe to repeat.
    Repeatable(Request<RequestBody>),
    /// The request must not be tried again.
    Final(Failure),
}

/// A request and the replicas it may be sent to.
pub(super) struct Forwarding<'a> {
    pub(super) worker: &'a Arc<Worker>,
    pub(super) table: &'a Arc<WorkerTable>,
    pub(super) route: RouteId,
    /// Whether the replicas speak HTTP/2.
    pub(super) http2: bool,
    pub(super) upstreams: &'a [Upstream],
    /// Position of the replica that the client was given.
    pub(super) preferred: Option<usize>,
    /// Where interim responses go, if the client can get them.
    pub(super) interim: Option<InterimResponses>,
}

impl Forwarding<'_> {
    /// Tries replicas until one answers, at most [`MAX_ATTEMPTS`].
    pub(super) async fn run(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Origin), Failure> {
        let shared = &self.worker.shared;
        let mut tried = Vec::new();
        while tried.len() < MAX_ATTEMPTS {
            let now = Instant::now();
            let wall = shared.settings.wall_clock;
            let (upstreams, rng) = (self.upstreams, &self.worker.rng);
            let picked = shared
                .health
                .pick(upstreams, &tried, self.preferred, now, wall, rng);
            let Some(at) = picked else { break };
            let Some(upstream) = self.upstreams.get(at) else {
                break;
            };
            tried.push(at);
            match self.attempt(at, upstream, request).await {
                Ok(answered) => return Ok(answered),
                Err(AttemptError::Unsent(again) | AttemptError::Repeatable(again)) => {
                    request = again
                }
                Err(AttemptError::Final(failure)) => return Err(failure),
            }
        }
        Err(if tried.is_empty() {
            Failure::NoUpstream
        } else {
            Failure::Unreachable
        })
    }

    /// Sends the request to one replica, over an idle connection if there is one.
    async fn attempt(
        &self,
        at: usize,
        upstream: &Upstream,
        mut request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Origin), AttemptError> {
        let pool = &self.worker.pool;
        if let Some(sender) = pool.take(upstream.addr, self.http2).await {
            match self.send(at, upstream, sender, request).await {
                Err(AttemptError::Unsent(again) | AttemptError::Repeatable(again)) => {
                    // A replica may close an idle connection at any time, so this does not count as
                    // a failure. The other idle connections are as old, so a new connection
                    // decides.
                    pool.forget(upstream.addr);
                    request = again;
                }
                ended @ (Ok(_) | Err(AttemptError::Final(_))) => return ended,
            }
        }
        // Boxed because it is rare: the future of every request would hold its state.
        let sender = match Box::pin(pool.connect(upstream.addr, self.http2)).await {
            Ok(sender) => sender,
            Err(why) => {
                self.mark_down(upstream, &why);
                return Err(AttemptError::Unsent(request));
            }
        };
        let sent = self.send(at, upstream, sender, request).await;
        match &sent {
            Ok(_)
            | Err(AttemptError::Final(Failure::TimedOut | Failure::Client | Failure::NoUpstream)) =>
                {}
            // A reset stream of an open HTTP/2 connection is the application's answer.
            Err(_) if pool.multiplexes(upstream.addr) => {}
            Err(AttemptError::Unsent(_) | AttemptError::Repeatable(_))
            | Err(AttemptError::Final(Failure::Unreachable)) => {
                self.mark_down(upstream, &"it failed before its response");
            }
        }
        sent
    }

    /// Sends the request over one connection and waits for the head of the response.
    async fn send(
        &self,
        at: usize,
        upstream: &Upstream,
        mut sender: Sender,
        mut request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Origin), AttemptError> {
        let progress = request.body().progress();
        let repeatable_copy = repeatable_copy(&request);
        if let Some(interim) = &self.interim {
            interim.follow(&mut request);
        }
        let answered = sender.send(request);
        let limit = self.worker.shared.settings.response_timeout;
        let mut failed = match with_idle_timeout(limit, progress.as_deref(), answered).await {
            Ok(Ok(response)) if !headers::is_only_chunked(response.headers()) => {
                tracing::debug!(subsystem = "ingress", replica_id = %upstream.replica, "upstream sent an unknown transfer coding");
                return Err(AttemptError::Final(Failure::Unreachable));
            }
            Ok(Ok(response)) => {
                let origin = Origin {
                    // Bytes after such a message may be meant as a part of it.
                    reusable: !headers::is_framed_twice(response.headers()),
                    worker: self.worker.clone(),
                    target: Target {
                        table: self.table.clone(),
                        route: self.route,
                        upstream: at,
                    },
                    sender,
                    progress,
                };
                return Ok((response, origin));
            }
            Ok(Err(failed)) => failed,
            Err(TimedOut) => return Err(AttemptError::Final(Failure::TimedOut)),
        };
        if let Some(whole) = failed.take_message() {
            return Err(AttemptError::Unsent(whole));
        }
        let why = failed.into_error();
        tracing::debug!(subsystem = "ingress", replica_id = %upstream.replica, %why, "upstream failed before its response");
        Err(match repeatable_copy {
            // The error comes from the request body, so the client failed.
            _ if why.is_user() => AttemptError::Final(Failure::Client),
            Some(repeatable_copy) => AttemptError::Repeatable(repeatable_copy),
            None => AttemptError::Final(Failure::Unreachable),
        })
    }

    fn mark_down(&self, upstream: &Upstream, why: &dyn fmt::Display) {
        self.worker.pool.forget(upstream.addr);
        let health = &self.worker.shared.health;
        health.mark_down(upstream, Instant::now(), why);
    }
}

/// A copy of a request that may be sent twice: a GET or HEAD without a body.
fn repeatable_copy(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let safe = matches!(*request.method(), Method::GET | Method::HEAD);
    if !safe || request.body().progress().is_some() {
        return None;
    }
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// The replica did not answer in time.
struct TimedOut;

/// Waits for `answer`, at most `limit` after the start or after the last progress of the request
/// body.
async fn with_idle_timeout<T>(
    limit: Duration,
    progress: Option<&Progress>,
    answer: impl Future<Output = T>,
) -> Result<T, TimedOut> {
    tokio::pin!(answer);
    let mut since = Instant::now();
    loop {
        if let Ok(answer) = timeout_at(since + limit, &mut answer).await {
            return Ok(answer);
        }
        match progress.map(Progress::last) {
            Some(last) if last > since => since = last,
            Some(_) | None => return Err(TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{advance, sleep};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    #[tokio::test(start_paused = true)]
    async fn silent_replica_times_out_at_its_limit() {
        let start = Instant::now();
        assert!(
            with_idle_timeout(LIMIT, None, pending::<()>())
                .await
                .is_err()
        );
        assert_eq!(start.elapsed(), LIMIT);
        let just = sleep(LIMIT - Duration::from_millis(1));
        assert!(with_idle_timeout(LIMIT, None, just).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn upload_times_out_only_without_progress() {
        let start = Instant::now();
        let progress = Progress::new();
        let upload = async {
            for _ in 0..10 {
                advance(LIMIT - Duration::from_secs(1)).await;
                progress.advance();
            }
            pending::<()>().await;
        };
        assert!(
            with_idle_timeout(LIMIT, Some(&progress), upload)
                .await
                .is_err()
        );
        assert_eq!(
            start.elapsed(),
            (LIMIT - Duration::from_secs(1)) * 10 + LIMIT
        );
    }
}
