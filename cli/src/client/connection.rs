//! Connections to daemons over the control socket or TLS, with failover between addresses.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use jaco_net::tls;
use jaco_proto::{chain, config::HostPort, error::DecodedError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tonic::{
    Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};
use tower::service_fn;

use super::{
    failure::{Failure, Local, Stop},
    sanitize::Sanitized,
    transport::Target,
};

/// Timeout of connecting, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of HTTP/2 keep-alive pings on an idle connection.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Maximum size of a response; one response may hold the manifests of many deployments.
pub(crate) const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// A connection whose calls carry the caller's token.
pub(crate) type Connection = InterceptedService<Sanitized<Channel>, Headers>;

/// Metadata of every call.
#[derive(Clone)]
pub(crate) struct Headers {
    bearer: Option<MetadataValue<Ascii>>,
    consistent: bool,
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        if let Some(bearer) = &self.bearer {
            metadata.insert("authorization", bearer.clone());
        }
        if self.consistent {
            metadata.insert("jaco-read", MetadataValue::from_static("linearizable"));
        }
        Ok(request)
    }
}

/// Endpoint of one connection.
#[derive(Clone, Debug)]
enum DaemonAddress {
    Socket(PathBuf),
    Remote(HostPort),
}

impl fmt::Display for DaemonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Remote(address) => address.fmt(f),
        }
    }
}

/// Calls the daemons of one cluster.
pub(crate) struct Client {
    daemons: Vec<DaemonAddress>,
    tls: Option<Arc<ClientConfig>>,
    headers: Headers,
    /// Index of the endpoint that answered last, and the connection to it.
    live: Mutex<Option<(usize, Channel)>>,
}

impl Client {
    /// Creates a client without connecting. `consistent` makes reads linearizable: a majority
    /// confirms them.
    ///
    /// # Errors
    /// `usage_error` for a token that is not a valid header value, `ca_invalid` for a CA that is
    /// not a valid trust anchor.
    pub(crate) fn new(target: Target, consistent: bool) -> Result<Self, Failure> {
        let (daemons, tls, token) = match target {
            Target::Socket(path) => (vec![DaemonAddress::Socket(path)], None, None),
            Target::Remote {
                addresses,
                token,
                trust,
            } => {
                let tls = tls::api_client(&trust).map_err(|error| {
                    Failure::new(
                        Local::CaInvalid,
                        format!("the pinned CA: {}", chain(&error)),
                    )
                })?;
                (
                    addresses.into_iter().map(DaemonAddress::Remote).collect(),
                    Some(tls),
                    token,
                )
            }
        };
        let token = token.map(|token| {
            let bearer = format!("Bearer {}", token.expose()).parse::<MetadataValue<Ascii>>();
            bearer.map_err(|_| Failure::new(Local::UsageError, "the token holds odd characters"))
        });
        let bearer = token.transpose()?.map(|mut bearer| {
            bearer.set_sensitive(true);
            bearer
        });
        Ok(Self {
            daemons,
            tls,
            headers: Headers { bearer, consistent },
            live: Mutex::new(None),
        })
    }

    /// Whether calls go to this machine's daemon over its control socket.
    pub(crate) fn is_local(&self) -> bool {
        self.daemons
            .iter()
            .all(|daemon| matches!(daemon, DaemonAddress::Socket(_)))
    }

    /// Whether calls go to a remote daemon without a token.
    pub(crate) fn is_anonymous(&self) -> bool {
        !self.is_local() && self.headers.bearer.is_none()
    }

    /// The remote daemon that answered last, or the first one if none has yet; `None` on a socket.
    pub(crate) fn server(&self) -> Option<String> {
        let at = self.live().as_ref().map_or(0, |(at, _)| *at);
        match self.daemons.get(at)? {
            DaemonAddress::Socket(_) => None,
            DaemonAddress::Remote(address) => Some(address.to_string()),
        }
    }

    /// Makes a call, trying the addresses in order until one gives a definite answer.
    ///
    /// `deadline` applies to each address.
    ///
    /// # Errors
    /// The first failure that another address would repeat. If there is none: the failure itself
    /// with a single address, else `unavailable`.
    pub(crate) async fn unary<T>(
        &self,
        deadline: Duration,
        call: impl AsyncFn(Connection) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let attempt = async |connection| {
            tokio::time::timeout(deadline, call(connection))
                .await
                .unwrap_or_else(|_| {
                    Err(Status::deadline_exceeded(format!(
                        "no answer within {deadline:?}"
                    )))
                })
        };
        self.call(&attempt).await
    }

    /// As [`Client::unary`], for the start of a stream; an open stream never moves to another
    /// address.
    pub(crate) async fn stream<T>(
        &self,
        call: impl AsyncFn(Connection) -> Result<Response<Streaming<T>>, Status>,
    ) -> Result<Feed<T>, Failure> {
        let inner = self.call(&call).await?;
        let at = self.live().as_ref().map_or(0, |(at, _)| *at);
        Ok(Feed {
            inner,
            daemon: self.daemons[at].clone(),
        })
    }

    async fn call<T>(
        &self,
        call: &impl AsyncFn(Connection) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let first = self.live().as_ref().map_or(0, |(at, _)| *at);
        let mut failures = Vec::new();
        for at in (0..self.daemons.len()).map(|step| (first + step) % self.daemons.len()) {
            let daemon = &self.daemons[at];
            let channel = match self.channel(at).await {
                Ok(channel) => channel,
                Err(failure) => {
                    failures.push((daemon, failure));
                    continue;
                }
            };
            let connection =
                InterceptedService::new(Sanitized(channel.clone()), self.headers.clone());
            match call(connection).await {
                Ok(response) => {
                    *self.live() = Some((at, channel));
                    return Ok(response.into_inner());
                }
                Err(status) => {
                    *self.live() = None;
                    let retry = DecodedError::from_status(&status).retry_elsewhere();
                    let failure = refused(daemon, &status);
                    if !retry {
                        return Err(failure);
                    }
                    failures.push((daemon, failure));
                }
            }
        }
        Err(exhausted(failures))
    }

    async fn channel(&self, at: usize) -> Result<Channel, Failure> {
        if let Some((live, channel)) = self.live().as_ref()
            && *live == at
        {
            return Ok(channel.clone());
        }
        let daemon = &self.daemons[at];
        tracing::debug!(subsystem = "cliclient", target = %daemon, "dialling");
        let endpoint = Endpoint::from_static("http://jaco")
            .user_agent(format!("jaco/{}", crate::version()))
            .map_err(|error| Failure::new(Local::Internal, chain(&error)))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE);
        let connected = match daemon {
            DaemonAddress::Socket(path) => {
                let path = path.clone();
                let connect = service_fn(move |_| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                endpoint.connect_with_connector(connect).await
            }
            DaemonAddress::Remote(address) => {
                let (address, tls) = (address.clone(), self.tls.clone());
                let connect = service_fn(move |_| secured(address.clone(), tls.clone()));
                endpoint.connect_with_connector(connect).await
            }
        };
        connected.map_err(|error| unreachable(daemon, &chain(&error)))
    }

    fn live(&self) -> std::sync::MutexGuard<'_, Option<(usize, Channel)>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects with TLS; returns only after the peer was authenticated, so secrets are never sent to
/// another server.
async fn secured(
    address: HostPort,
    tls: Option<Arc<ClientConfig>>,
) -> std::io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
    let tls = tls.ok_or_else(|| std::io::Error::other("no TLS configuration"))?;
    let name = ServerName::try_from(address.host.clone()).map_err(std::io::Error::other)?;
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    tokio_rustls::TlsConnector::from(tls)
        .connect(name, stream)
        .await
        .map(TokioIo::new)
}

/// Limits the total time of `work`.
pub(crate) async fn within<T>(
    deadline: Option<Duration>,
    work: impl Future<Output = Result<T, Stop>>,
) -> Result<T, Stop> {
    match deadline {
        None => work.await,
        Some(deadline) => tokio::time::timeout(deadline, work)
            .await
            .unwrap_or_else(|_| {
                let message = format!("not finished within {deadline:?}");
                Err(Failure::new(Local::DeadlineExceeded, message).into())
            }),
    }
}

/// A response stream of a daemon.
pub(crate) struct Feed<T> {
    inner: Streaming<T>,
    daemon: DaemonAddress,
}

impl<T> Feed<T> {
    /// The next message; `None` when the daemon ended the stream.
    ///
    /// # Errors
    /// The daemon's error; `unavailable` if the connection was lost.
    pub(crate) async fn next(&mut self) -> Result<Option<T>, Failure> {
        self.inner
            .message()
            .await
            .map_err(|status| match transport_error(&status) {
                Some(reason) => Failure::new(
                    Local::Unavailable,
                    format!("the connection to {} was lost: {reason}", self.daemon),
                ),
                None => DecodedError::from_status(&status).into(),
            })
    }
}

fn refused(daemon: &DaemonAddress, status: &Status) -> Failure {
    match transport_error(status) {
        Some(reason) => unreachable(daemon, &reason),
        None => DecodedError::from_status(status).into(),
    }
}

/// The cause, if the status was created locally because the connection failed.
fn transport_error(status: &Status) -> Option<String> {
    // A status received from the server has no source.
    std::error::Error::source(status).map(chain)
}

fn unreachable(daemon: &DaemonAddress, reason: &str) -> Failure {
    Failure::new(Local::Unavailable, format!("connect to {daemon}: {reason}"))
}

fn exhausted(mut failures: Vec<(&DaemonAddress, Failure)>) -> Failure {
    if failures.len() == 1
        && let Some((_, failure)) = failures.pop()
    {
        return failure;
    }
    let reasons: Vec<String> = failures
        .iter()
        .map(|(daemon, failure)| match failure.message.is_empty() {
            true => format!("{daemon}: {}", failure.code),
            false => format!("{daemon}: {}", failure.message),
        })
        .collect();
    let message = format!("all endpoints unreachable: {}", reasons.join("; "));
    Failure::new(Local::Unavailable, message)
}

#[cfg(test)]
mod tests;
