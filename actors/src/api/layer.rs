//! The tower layer every call passes: admission, correlation id, one log line per call.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response};
use jaco_proto::{Error, ErrorCode};
use tonic::{
    Status,
    body::Body,
    transport::server::{TcpConnectInfo, TlsConnectInfo, UdsConnectInfo},
};
use tower::{Layer, Service};

use super::{
    admission::{Admitted, Facts, Shown, Transport, admit},
    caller::Caller,
    forward,
    forwarded::Forwarded,
    methods::{Class, Effect, Method, Place, method},
    typed,
};
use crate::{
    node::{Shared, leader::Whereabouts, removed},
    peer::Sender,
};

/// Metadata by which a caller asks for a confirmed read.
const READ: &str = "jaco-read";

/// Puts [`Admission`] in front of the services of one listener.
#[derive(Clone)]
pub(super) struct AdmissionLayer {
    pub(super) transport: Transport,
    pub(super) shared: Arc<Shared>,
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Admission {
            inner,
            transport: self.transport,
            shared: self.shared.clone(),
        }
    }
}

/// Admits a call or answers for it; the services behind see a [`Caller`].
#[derive(Clone)]
pub(crate) struct Admission<S> {
    inner: S,
    transport: Transport,
    shared: Arc<Shared>,
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
        // The ready service must be the one that is called; the clone waits for its own turn.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (transport, shared) = (self.transport, self.shared.clone());
        Box::pin(async move {
            let started = Instant::now();
            let name = request.uri().path().to_owned();
            let method = method(&name);
            let request_id = request_id(&request);
            let sender = match transport {
                Transport::Peer => request.extensions_mut().remove::<Sender>(),
                Transport::Process | Transport::Local | Transport::Api => None,
            };
            let peer = peer(&request);
            let peer_text = describe(transport, &request, peer, sender.as_ref());
            tracing::debug!(
                subsystem = "daemon/grpc",
                method = %name, %request_id, peer = %peer_text,
                "request started"
            );
            let linearizable = linearizable(request.headers());
            let decided = decide(transport, method, &request, sender.as_ref(), &shared);
            let joiner = peer.filter(|_| method.class == Class::InBody);
            let decided = match joiner {
                Some(peer) => decided.and_then(|admitted| {
                    let wait = shared.join_attempt(peer.ip(), started);
                    wait.map(|()| admitted).map_err(too_many_joins)
                }),
                None => decided,
            };
            // From anybody else it means nothing, and nobody behind this shall take it for more.
            Forwarded::strip(request.headers_mut());
            // Whoever serves a request that is passed on confirms what it reads as well.
            let passed_on = method.place == Place::Leader && transport != Transport::Peer;
            let admitted = match decided {
                Ok(admitted) => match linearizable {
                    // Who proved nothing is told nothing that a majority has to be asked for.
                    Ok(true) if admitted.is_stranger() => Ok((admitted, false)),
                    Ok(true) if !passed_on => confirm(&shared).await.map(|()| (admitted, true)),
                    Ok(linearizable) => Ok((admitted, linearizable)),
                    Err(error) => Err(error),
                },
                Err(error) => {
                    if let (ErrorCode::TokenInvalid, Some(peer)) = (error.code, peer) {
                        let delay = shared.failed_token_check(peer.ip(), started);
                        tokio::time::sleep(delay).await;
                    }
                    Err(error)
                }
            };
            let response = match admitted {
                Ok((Admitted { identity, token }, linearizable)) => {
                    let caller = Caller {
                        identity,
                        token,
                        transport,
                        sender,
                        request_id: request_id.clone(),
                    };
                    let mut response = if passed_on {
                        let here = Typed(inner);
                        forward::to_leader(&shared, here, method, caller, linearizable, request)
                            .await
                    } else {
                        request.extensions_mut().insert(caller);
                        typed::typed(&name, inner.call(request).await?)
                    };
                    if method.place == Place::Leader {
                        forward::stamp(response.headers_mut(), &shared);
                    }
                    response
                }
                Err(error) => Status::from(error).into_http(),
            };
            if let Some(peer) = joiner.filter(|_| !response.headers().contains_key("grpc-status")) {
                shared.joined_from(peer.ip());
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

/// The services, with their refusals in the words of the API.
struct Typed<S>(S);

impl<S> Service<Request<Body>> for Typed<S>
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
        Box::pin(async move { Ok(typed::typed(&name, answer.await?)) })
    }
}

fn decide(
    transport: Transport,
    method: Method,
    request: &Request<Body>,
    sender: Option<&Sender>,
    shared: &Shared,
) -> Result<Admitted, Error> {
    if shared.is_removed() && method.class != Class::Public {
        return Err(removed());
    }
    if transport == Transport::Peer && method.place == Place::Leader {
        // A request is passed on once; who has lost the lead says so before anything else, for
        // it may not know a token that the next leader does.
        let node = shared.running()?;
        if node.leader.whereabouts() != Whereabouts::Here {
            return Err(node.leader.leaderless());
        }
    }
    let state = shared.state();
    let facts = Facts {
        state: state.as_deref(),
        member: shared.is_member(),
        setup_token: shared.setup_token(),
    };
    let headers = request.headers();
    let forwarded = match sender {
        Some(_) => Forwarded::read(headers)?,
        None => None,
    };
    let shown = Shown {
        authorization: headers.get("authorization").map(HeaderValue::as_bytes),
        sender,
        forwarded: forwarded.as_ref(),
    };
    admit(transport, method, shown, &facts)
}

fn request_id(request: &Request<Body>) -> String {
    request
        .headers()
        .get("x-request-id")
        .and_then(|value| value.to_str().ok())
        .filter(|id| !id.is_empty() && id.len() <= 128)
        .map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned)
}

fn peer(request: &Request<Body>) -> Option<SocketAddr> {
    request
        .extensions()
        .get::<TlsConnectInfo<TcpConnectInfo>>()
        .and_then(|info| info.get_ref().remote_addr())
}

/// The caller as the log shows it: an address, a member, or the process at the other end of the
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

/// Whether the caller wants to read nothing older than what is committed when it asks.
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

/// Waits until the state here is not older than what a majority knows.
async fn confirm(shared: &Shared) -> Result<(), Error> {
    shared.running()?.confirmed().await.map(drop)
}

/// Writes are worth a line at info, reads only at debug.
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
    // A status of ours says its error code, and nothing else, in the message.
    let error = response
        .headers()
        .get("grpc-message")
        .and_then(|value| value.to_str().ok())
        .filter(|message| message.parse::<ErrorCode>().is_ok());
    let millis = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let notable = method.effect == Effect::Write || method.place == Place::Leader;
    // What members submit for themselves is their daily bread.
    if notable && method.class != Class::Peer {
        tracing::info!(subsystem = "daemon/grpc", method = %name, %request_id, %peer, code, error, millis, "request");
    } else {
        tracing::debug!(subsystem = "daemon/grpc", method = %name, %request_id, %peer, code, error, millis, "request");
    }
}
