//! Replicas, clients and a proxy between them, all on loopback ports chosen by the system.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http1::{SendRequest, handshake},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use jaco_net::ingress::{
    Finished, ListenSockets, Meter, Observe, Proxy, Rule, Scheme, Settings, Upstream,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc,
};

pub(crate) const HOST: &str = "a.example";

pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

/// A running proxy with one listener.
pub(crate) struct ProxyFixture {
    pub(crate) proxy: Proxy,
    pub(crate) addr: SocketAddr,
}

impl ProxyFixture {
    pub(crate) fn start(settings: Settings) -> Self {
        Self::bind(([127, 0, 0, 1], 0).into(), &Proxy::new(settings))
    }

    pub(crate) fn bind(addr: SocketAddr, proxy: &Proxy) -> Self {
        let sockets = ListenSockets::bind(addr, proxy.workers()).unwrap();
        let addr = sockets.local_addr();
        proxy.listen(Scheme::Http, sockets).unwrap();
        let proxy = proxy.clone();
        Self { proxy, addr }
    }

    /// Waits until nothing accepts connections.
    pub(crate) async fn closed(&self) {
        while TcpStream::connect(self.addr).await.is_ok() {}
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    pub(crate) async fn client(&self) -> Client {
        let (sender, connection) = handshake(TokioIo::new(self.connect().await)).await.unwrap();
        tokio::spawn(connection);
        Client(sender)
    }
}

impl ProxyFixture {
    /// A connection on which the replica has switched protocols.
    pub(crate) async fn switched(&self) -> TcpStream {
        let mut client = self.connect().await;
        let request = b"GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive, Upgrade\r\n\
                        Upgrade: websocket\r\nSec-WebSocket-Key: abc\r\n\r\n";
        client.write_all(request).await.unwrap();
        let head = read_head(&mut client).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert!(head.contains("upgrade: websocket"), "{head}");
        assert!(head.contains("sec-websocket-accept: xyz"), "{head}");
        client
    }
}

/// A client with one connection.
pub(crate) struct Client(SendRequest<Body>);

impl Client {
    pub(crate) async fn send<B>(&mut self, request: Request<B>) -> Response<Incoming>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: std::fmt::Debug,
    {
        self.0.ready().await.unwrap();
        let request = request.map(|body| body.map_err(|why| unreachable!("{why:?}")).boxed());
        self.0.send_request(request).await.unwrap()
    }
}

pub(crate) fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path)
        .header("host", HOST)
        .body(Full::default())
        .unwrap()
}

/// A catch-all rule for the test domain.
pub(crate) fn rule<const N: usize>(addrs: [SocketAddr; N]) -> Rule {
    let upstream = |(n, addr)| Upstream {
        replica: format!("web-{n}").into(),
        addr,
        fresh_until: None,
        leaving: false,
    };
    Rule {
        domain: HOST.to_owned(),
        upstreams: addrs.into_iter().enumerate().map(upstream).collect(),
        ..Rule::default()
    }
}

/// A replica that responds with `answer`.
pub(crate) async fn replica<F, R>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let answer = Arc::new(answer);
    raw_replica(move |stream| {
        let answer = answer.clone();
        async move {
            let service = service_fn(move |request| {
                let answered = answer(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .auto_date_header(false)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
        }
    })
    .await
}

/// A replica that runs `serve` for every connection.
pub(crate) async fn raw_replica<F, R>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    addr
}

/// A replica that reads a request, counts it and closes the connection.
pub(crate) async fn breaking_replica(asked: Arc<AtomicUsize>) -> SocketAddr {
    raw_replica(move |mut stream| {
        let asked = asked.clone();
        async move {
            read_head(&mut stream).await;
            asked.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await
}

/// A port that refuses connections while the socket is held.
pub(crate) fn closed_port() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

/// Reads up to the empty line; empty if the stream ends before.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return String::new(),
        }
    }
    String::from_utf8(head).unwrap()
}

pub(crate) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed()
}

pub(crate) fn text(text: impl Into<Bytes>) -> Response<Body> {
    Response::new(full(text))
}

pub(crate) async fn body(response: Response<Incoming>) -> String {
    body_of(response.into_body()).await
}

pub(crate) async fn body_of(body: Incoming) -> String {
    let bytes = body.collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A body fed by a channel; it ends when the sender is dropped.
pub(crate) fn channel_body() -> (mpsc::UnboundedSender<Frame<Bytes>>, Body) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, ChannelBody(receiver).boxed())
}

struct ChannelBody(mpsc::UnboundedReceiver<Frame<Bytes>>);

impl hyper::body::Body for ChannelBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

/// A replica whose first response is fed by the channel; further ones are empty.
pub(crate) async fn slow_replica() -> (mpsc::UnboundedSender<Frame<Bytes>>, SocketAddr) {
    let (chunks, body) = channel_body();
    let first = std::sync::Mutex::new(Some(body));
    let addr = replica(move |_| {
        let body = first.lock().unwrap().take();
        async move { Response::new(body.unwrap_or_else(|| full(""))) }
    })
    .await;
    (chunks, addr)
}

/// A replica that switches protocols and then sends every four bytes back in reverse; the channel
/// reports the end of each stream.
pub(crate) async fn switching_replica() -> (SocketAddr, mpsc::UnboundedReceiver<()>) {
    let (ended, end) = mpsc::unbounded_channel();
    let addr = replica(move |request: Request<Incoming>| {
        assert_eq!(request.headers()["connection"], "upgrade");
        assert_eq!(request.headers()["sec-websocket-key"], "abc");
        let ended = ended.clone();
        tokio::spawn(async move {
            let mut stream = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
            let mut bytes = [0; 4];
            while stream.read_exact(&mut bytes).await.is_ok() {
                bytes.reverse();
                stream.write_all(&bytes).await.unwrap();
            }
            ended.send(()).unwrap();
        });
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-accept", "xyz")
            .body(full(""));
        async move { response.unwrap() }
    })
    .await;
    (addr, end)
}

/// Checks that four bytes come back in reverse.
pub(crate) async fn assert_echo(client: &mut TcpStream, bytes: &[u8; 4]) {
    client.write_all(bytes).await.unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).await.unwrap();
    answer.reverse();
    assert_eq!(&answer, bytes);
}

/// Records each finished request as `domain service status timed`, and each refused one as
/// `deployment service limited`.
#[derive(Clone, Default)]
pub(crate) struct Counted(Arc<Mutex<Vec<String>>>);

impl Counted {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Observe for Counted {
    fn meter(&self, domain: Option<&str>, service: &str) -> Arc<dyn Meter> {
        let name = format!("{} {service}", domain.unwrap_or("-"));
        Arc::new(Named(name, self.0.clone()))
    }

    fn limited(&self, deployment: &str, service: &str) {
        let line = format!("{deployment} {service} limited");
        self.0.lock().unwrap().push(line);
    }
}

struct Named(String, Arc<Mutex<Vec<String>>>);

impl Meter for Named {
    fn finished(&self, finished: &Finished) {
        let (status, timed) = (finished.status.as_u16(), finished.took.is_some());
        let line = format!("{} {status} {timed}", self.0);
        self.1.lock().unwrap().push(line);
    }
}
