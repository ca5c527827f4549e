//! The clients: kept and new connections to the nodes.

use std::{cell::RefCell, collections::HashMap, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Method, StatusCode, header::HOST};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jaco_chaos::upstream::{REPLICA_HEADER, SLOW_PATH, STREAM_PATH};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufStream},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::{
    Target,
    account::Ledger,
    mix::{Kind, Request, Way},
};

/// Longer than the start of a daemon, for which requests wait in the accept queue.
const PATIENCE: Duration = Duration::from_secs(60);
/// Kept connections per node and protocol.
const KEPT_MAX: usize = 256;
/// Body of a POST.
const BODY: &[u8] = &[b'x'; 2000];
/// Line that the published port echoes.
const LINE: &str = "a line\n";

/// A connection for HTTP requests.
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn ready(&mut self) -> hyper::Result<()> {
        match self {
            Self::Http1(sender) => sender.ready().await,
            Self::Http2(sender) => sender.ready().await,
        }
    }

    /// The connection for the next request during this one; `None` if it takes one at a time.
    fn shared(&self) -> Option<Self> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(sender) => Some(Self::Http2(sender.clone())),
        }
    }

    async fn send(
        &mut self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<http::Response<hyper::body::Incoming>, Failed> {
        match self {
            Self::Http1(sender) => sender.send_request(request).await.map_err(|error| Failed {
                unanswered: error.is_canceled()
                    || error.is_closed()
                    || error.is_incomplete_message()
                    || is_reset(&error),
                ..Failed::new(format!("{error:?}"))
            }),
            Self::Http2(sender) => sender.send_request(request).await.map_err(|error| Failed {
                unanswered: error.is_canceled() || error.is_closed() || is_refused(&error),
                ..Failed::new(format!("{error:?}"))
            }),
        }
    }
}

/// Clients of all nodes, on one thread.
pub(super) struct Client {
    target: Target,
    http1: TlsConnector,
    http2: TlsConnector,
    kept: RefCell<HashMap<(u8, Way), Vec<Sender>>>,
}

/// Why a request has no answer.
struct Failed {
    replica: Option<String>,
    why: String,
    /// Whether the request may be repeated: the connection ended before the answer began, which
    /// HTTP/1.1 cannot tell from an end before the request arrived, or HTTP/2 says that it was refused.
    unanswered: bool,
}

impl Failed {
    fn new(why: impl ToString) -> Self {
        Self {
            replica: None,
            why: why.to_string(),
            unanswered: false,
        }
    }
}

impl Client {
    pub(super) fn new(target: Target) -> Self {
        let (http1, http2) = (target.tls(&["http/1.1"]), target.tls(&["h2"]));
        Self {
            target,
            http1: http1.into(),
            http2: http2.into(),
            kept: RefCell::default(),
        }
    }

    pub(super) fn nodes(&self) -> u8 {
        u8::try_from(self.target.nodes.len()).unwrap()
    }

    /// Sends a request and records its end.
    pub(super) async fn send(&self, request: Request, ledger: &Ledger) {
        let entry = ledger.begin();
        let exchange = tokio::time::timeout(PATIENCE, self.exchange(request, ledger)).await;
        let outcome = match exchange {
            Ok(Ok(replica)) => Ok(replica),
            Ok(Err(failed)) => Err((failed.replica, failed.why)),
            Err(_) => Err((None, format!("no answer in {PATIENCE:?}"))),
        };
        ledger.end(&entry, request, outcome);
    }

    /// Closes the kept connections to a node, as a balancer that sees it fail.
    pub(super) fn forget(&self, node: u8) {
        self.kept.borrow_mut().retain(|(of, _), _| *of != node);
    }

    async fn exchange(&self, request: Request, ledger: &Ledger) -> Result<String, Failed> {
        if request.way == Way::Port {
            return self.echo(request).await;
        }
        while let Some(mut kept) = self.take(request) {
            if kept.ready().await.is_err() {
                continue;
            }
            if let Some(shared) = kept.shared() {
                self.keep(shared, request);
            }
            match self.over(kept, request, true).await {
                Err(failed) if failed.unanswered => ledger.repeat(),
                ended => return ended,
            }
        }
        let opened = self.open(request).await?;
        self.over(opened, request, false).await
    }

    /// A kept connection, unless the request wants one of its own.
    fn take(&self, request: Request) -> Option<Sender> {
        let mut kept = self.kept.borrow_mut();
        let of = kept.get_mut(&(request.node, request.way))?;
        if request.fresh { None } else { of.pop() }
    }

    fn domain(&self, request: Request) -> &'static str {
        match request.way {
            Way::Tls | Way::Http2 => self.target.secure,
            Way::Plain | Way::Port => self.target.plain,
        }
    }

    async fn connect(&self, request: Request) -> Result<TcpStream, Failed> {
        let node = self.target.nodes[usize::from(request.node) - 1];
        let port = match request.way {
            Way::Plain => 80,
            Way::Tls | Way::Http2 => 443,
            Way::Port => self.target.port,
        };
        let to = SocketAddr::from((node, port));
        let socket = TcpStream::connect(to).await;
        let socket = socket.map_err(|error| Failed::new(format!("connect: {error}")))?;
        socket.set_nodelay(true).map_err(Failed::new)?;
        Ok(socket)
    }

    async fn open(&self, request: Request) -> Result<Sender, Failed> {
        let socket = self.connect(request).await?;
        let connector = match request.way {
            Way::Plain | Way::Port => {
                return spawned(http1::handshake(TokioIo::new(socket)).await);
            }
            Way::Tls => &self.http1,
            Way::Http2 => &self.http2,
        };
        let name = ServerName::try_from(self.domain(request)).unwrap();
        let stream = connector.connect(name, socket).await;
        let stream = stream.map_err(|error| Failed::new(format!("TLS: {error}")))?;
        if request.way == Way::Tls {
            return spawned(http1::handshake(TokioIo::new(stream)).await);
        }
        let opened = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(Failed::new)?;
        // The sender reports its end.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(Sender::Http2(sender))
    }

    /// Sends a line to the published port, and returns the container that echoed it.
    async fn echo(&self, request: Request) -> Result<String, Failed> {
        let mut stream = BufStream::new(self.connect(request).await?);
        let mut replica = String::new();
        let read = stream.read_line(&mut replica).await.map_err(Failed::new)?;
        let replica = replica.trim_end().to_owned();
        let failed = |why: String| Failed {
            replica: (read > 0).then(|| replica.clone()),
            ..Failed::new(why)
        };
        if read == 0 {
            return Err(failed("the port closed before the name".to_owned()));
        }
        let mut echoed = String::new();
        let exchange = async {
            stream.write_all(LINE.as_bytes()).await?;
            stream.flush().await?;
            stream.read_line(&mut echoed).await
        };
        exchange.await.map_err(|error| failed(error.to_string()))?;
        match echoed == LINE {
            true => Ok(replica),
            false => Err(failed(format!("{echoed:?} is echoed"))),
        }
    }

    async fn over(
        &self,
        mut sender: Sender,
        request: Request,
        reused: bool,
    ) -> Result<String, Failed> {
        let (method, path) = match request.kind {
            Kind::Get => (Method::GET, "/"),
            Kind::Slow => (Method::GET, SLOW_PATH),
            Kind::Stream => (Method::GET, STREAM_PATH),
            Kind::Post => (Method::POST, "/"),
        };
        let body = match request.kind {
            Kind::Post => Full::from(BODY),
            Kind::Get | Kind::Slow | Kind::Stream => Full::default(),
        };
        let domain = self.domain(request);
        let head = http::Request::builder().method(method);
        let head = match request.way {
            Way::Http2 => head.uri(format!("https://{domain}{path}")),
            Way::Plain | Way::Tls | Way::Port => head.uri(path).header(HOST, domain),
        };
        let response = sender.send(head.body(body).unwrap()).await?;
        let replica = response.headers().get(REPLICA_HEADER);
        let replica = replica.and_then(|value| Some(value.to_str().ok()?.to_owned()));
        let status = response.status();
        let failed = |why: String| Failed {
            replica: replica.clone(),
            ..Failed::new(why)
        };
        let body = response.into_body().collect().await;
        body.map_err(|error| failed(format!("body: {error:?}")))?;
        let Some(replica) = replica.clone().filter(|_| status == StatusCode::OK) else {
            return Err(failed(format!("status {status}")));
        };
        // One of HTTP/2 is kept since its request began, unless it is new.
        if reused && request.way == Way::Http2 {
            return Ok(replica);
        }
        self.keep(sender, request);
        Ok(replica)
    }

    fn keep(&self, sender: Sender, request: Request) {
        let mut kept = self.kept.borrow_mut();
        let of = kept.entry((request.node, request.way)).or_default();
        if !request.fresh && of.len() < KEPT_MAX {
            of.push(sender);
        }
    }
}

/// Whether the peer has reset the connection.
fn is_reset(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let cause = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
        matches!(cause.kind(), ConnectionReset | BrokenPipe)
    })
}

/// Whether the peer says that it did nothing with the request (RFC 9113, section 8.7).
fn is_refused(error: &hyper::Error) -> bool {
    // The type of the cause is not public.
    let cause = format!("{error:?}");
    cause.contains("REFUSED_STREAM") || cause.contains("GoAway(") && cause.contains("NO_ERROR")
}

type Connection<T> = http1::Connection<TokioIo<T>, Full<Bytes>>;

fn spawned<T>(
    opened: hyper::Result<(http1::SendRequest<Full<Bytes>>, Connection<T>)>,
) -> Result<Sender, Failed>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
{
    let (sender, connection) = opened.map_err(Failed::new)?;
    // The sender reports its end.
    tokio::task::spawn_local(async move { drop(connection.await) });
    Ok(Sender::Http1(sender))
}
