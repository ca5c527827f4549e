//! Tower layer of every call: admission, correlation id, one log line per call.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;
use jaco_proto::{Error, ErrorCode};
use tokio::time::Instant as Deadline;
use tonic::{Status, body::Body, transport::server::UdsConnectInfo};
use tower::{Layer, Service};

use super::{
    admission::Transport,
    body,
    caller::Caller,
    connection::ConnectionGuard,
    context::ApiContext,
    credentials::Credentials,
    error_details,
    forward::{self, BufferedRequest},
    methods::{Class, Effect, Method, RateLimit, ServedBy, method},
};
use crate::{node::NodeContext, peer::Sender};

/// Metadata that requests a linearizable read.
const READ: &str = "jaco-read";

/// Wraps the services of one listener in an [`Admission`].
#[derive(Clone)]
pub(super) struct AdmissionLayer {
    pub(super) transport: Transport,
    pub(super) api: Arc<ApiContext>,
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Admission {
            inner,
            transport: self.transport,
            api: self.api.clone(),
        }
    }
}

/// Admits a call or rejects it; the services behind it see a [`Caller`].
#[derive(Clone)]
pub(crate) struct Admission<S> {
    inner: S,
    transport: Transport,
    api: Arc<ApiContext>,
}

impl<S> Service<Request<Body>> for Admission<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // The service that is ready must be the one that is called; the clone becomes ready on its
        // own.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let (transport, api) = (self.transport, self.api.clone());
        Box::pin(async move {
            let started = Instant::now();
            let name = request.uri().path().to_owned();
            let method = method(&name);
            let request_id = request_id(&request);
            let credentials = Credentials::take(transport, method, &mut request);
            let connection = request.extensions().get::<ConnectionGuard>().cloned();
            let call_guard = connection.as_ref().map(ConnectionGuard::call);
            let peer = connection.as_ref().map(ConnectionGuard::address);
            let peer_text = describe(transport, &request, peer, credentials.sender());
            tracing::debug!(
                subsystem = "daemon/grpc",
                method = %name, %request_id, peer = %peer_text,
                "request started"
            );
            let decided = credentials.admit(api.node());
            let joiner = peer.filter(|_| method.rate_limit == RateLimit::JoinAttempts);
            let decided = match joiner {
                Some(peer) => decided.and_then(|admitted| {
                    let wait = api.join_attempt(peer.ip(), started);
                    wait.map(|()| admitted).map_err(too_many_joins)
                }),
                None => decided,
            };
            let served = match decided {
                Ok(admitted) => {
                    let call = Call {
                        shared: api.node(),
                        method,
                        credentials: &credentials,
                        caller: Caller {
                            identity: admitted.identity,
                            token: admitted.token,
                            transport,
                            sender: credentials.sender().cloned(),
                            request_id: request_id.clone(),
                        },
                    };
                    if let Some(call_guard) = &call_guard
                        && !call.caller.is_anonymous()
                    {
                        call_guard.authenticate();
                    }
                    call.serve(inner, request).await
                }
                Err(error) => {
                    // Frees the part of the body that has arrived before the delay.
                    drop(request);
                    if let (ErrorCode::TokenInvalid, Some(peer)) = (error.code, peer) {
                        let delay = api.failed_token_check(peer.ip(), started);
                        tokio::time::sleep(delay).await;
                    }
                    Err(error)
                }
            };
            let response = served.unwrap_or_else(|error| Status::from(error).into_http());
            if let Some(peer) = joiner.filter(|_| !response.headers().contains_key("grpc-status")) {
                api.joined_from(peer.ip());
            }
            outcome(&name, method, &request_id, &peer_text, &response, started);
            Ok(response)
        })
    }
}

fn too_many_joins(wait: Duration) -> Error {
    let message = "too many joins from this address";
    Error::new(ErrorCode::StateUnavailable, message)
        .with("retry_after", format!("{}s", wait.as_secs() + 1))
}

/// Services whose library errors get typed details.
struct WithDetails<S>(S);

impl<S> Service<Request<Body>> for WithDetails<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let name = request.uri().path().to_owned();
        let answer = self.0.call(request);
        Box::pin(async move { Ok(error_details::add_details(&name, answer.await?)) })
    }
}

/// A call that was admitted by its headers.
struct Call<'a> {
    shared: &'a NodeContext,
    method: Method,
    credentials: &'a Credentials,
    caller: Caller,
}

impl Call<'_> {
    /// Serves the call, locally or through the leader, once its body has arrived and its caller was
    /// admitted again.
    async fn serve<S>(self, mut inner: S, request: Request<Body>) -> Result<Response<Body>, Error>
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
        S::Future: Send + 'static,
    {
        let Self {
            shared,
            method,
            credentials,
            caller,
        } = self;
        // Anonymous callers get no data that a quorum has to confirm.
        let confirm = linearizable(request.headers())? && !caller.is_anonymous();
        let deadline = forward::deadline(request.headers(), Deadline::now());
        let (mut parts, body) = request.into_parts();
        let name = parts.uri.path().to_owned();
        let mut stopping = shared.stopping_for(caller.transport);
        let body = tokio::select! {
            biased;
            body = body::collect(method.request, body) => body?,
            _ = stopping.wait_for(|&stopping| stopping) => return Err(NodeContext::stopped()),
        };
        let readmit = || credentials.admit(shared).map(drop);
        // The node that serves a forwarded request confirms its reads too.
        let mut response =
            if method.served_by == ServedBy::Leader && caller.transport != Transport::Peer {
                let inner = WithDetails(inner);
                let buffered = BufferedRequest {
                    method,
                    caller,
                    confirm,
                    deadline,
                    parts,
                    body,
                };
                forward::serve_on_leader(shared, inner, readmit, buffered).await
            } else {
                if confirm {
                    shared.running()?.confirmed().await?;
                }
                readmit()?;
                parts.extensions.insert(caller);
                let request = Request::from_parts(parts, Body::new(Full::new(body)));
                let response = match inner.call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                };
                error_details::add_details(&name, response)
            };
        if method.served_by == ServedBy::Leader {
            forward::stamp(response.headers_mut(), shared);
        }
        Ok(response)
    }
}

fn request_id(request: &Request<Body>) -> String {
    request
        .headers()
        .get("x-request-id")
        .and_then(|value| value.to_str().ok())
        .filter(|id| !id.is_empty() && id.len() <= 128)
        .map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned)
}

/// Describes the caller for the log: an address, a member, or the process at the other end of the
/// socket.
fn describe(
    transport: Transport,
    request: &Request<Body>,
    peer: Option<SocketAddr>,
    sender: Option<&Sender>,
) -> String {
    if let Some(peer) = peer {
        return peer.to_string();
    }
    if let Some(sender) = sender {
        return format!("member {}", sender.hostname);
    }
    if transport == Transport::Process {
        return "this process".to_owned();
    }
    let credentials = request
        .extensions()
        .get::<UdsConnectInfo>()
        .and_then(|info| info.peer_cred);
    match credentials {
        Some(credentials) => match credentials.pid() {
            Some(pid) => format!("uid={} pid={pid}", credentials.uid()),
            None => format!("uid={}", credentials.uid()),
        },
        None => "unknown".to_owned(),
    }
}

/// Whether the caller requests a linearizable read.
fn linearizable(headers: &HeaderMap) -> Result<bool, Error> {
    match headers.get(READ).map(HeaderValue::as_bytes) {
        None => Ok(false),
        Some(b"linearizable") => Ok(true),
        Some(other) => Err(Error::new(
            ErrorCode::ValidationFailed,
            format!("metadata {READ} must be `linearizable` or absent"),
        )
        .with("field", READ)
        .with("value", String::from_utf8_lossy(other))),
    }
}

/// Logs the outcome of a call: writes at info, reads at debug.
fn outcome(
    name: &str,
    method: Method,
    request_id: &str,
    peer: &str,
    response: &Response<Body>,
    started: Instant,
) {
    let code = response
        .headers()
        .get("grpc-status")
        .and_then(|value| value.to_str().ok())
        .unwrap_or("0");
    // The message of a typed status is its error code and nothing else.
    let error = response
        .headers()
        .get("grpc-message")
        .and_then(|value| value.to_str().ok())
        .filter(|message| message.parse::<ErrorCode>().is_ok());
    let millis = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let notable = method.effect == Effect::Write || method.served_by == ServedBy::Leader;
    // Members submit all the time, so their calls are logged at debug.
    if notable && method.class != Class::Peer {
        tracing::info!(subsystem = "daemon/grpc", method = %name, %request_id, %peer, code, error, millis, "request");
    } else {
        tracing::debug!(subsystem = "daemon/grpc", method = %name, %request_id, %peer, code, error, millis, "request");
    }
}

#[cfg(test)]
mod tests;
