//! Tests of HTTP/3 with a client made of h3 and quinn, and with hand-made packets.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "http3/raw.rs"]
mod raw;

use std::{future::poll_fn, net::SocketAddr};

use bytes::Buf;
use h3::{
    client::{RequestStream, SendRequest},
    error::{Code, ConnectionError, StreamError},
};
use http::{HeaderMap, Version};
use jaco_net::ingress::{Certificates, DatagramSockets};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;

use super::{
    tls::{Issued, issue},
    *,
};

const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// A proxy that serves HTTP/3 with a certificate for the test domain.
pub(crate) struct Quic {
    pub(crate) proxy: Proxy,
    addr: SocketAddr,
    issued: Issued,
}

type Requests = SendRequest<h3_quinn::OpenStreams, Bytes>;
pub(crate) type Stream = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// A client's connection.
pub(crate) struct QuicClient {
    quic: quinn::Connection,
    requests: Requests,
    /// How the connection ended.
    ended: tokio::task::JoinHandle<ConnectionError>,
}

impl Quic {
    pub(crate) fn start(settings: Settings) -> Self {
        let (proxy, issued) = (Proxy::new(settings), issue(HOST));
        let sockets = DatagramSockets::bind(LOOPBACK.into(), proxy.workers()).unwrap();
        let addr = sockets.local_addr();
        proxy.listen_http3(sockets).unwrap();
        assert_eq!(proxy.listening_http3(), Some(addr));
        let quic = Self {
            proxy,
            addr,
            issued,
        };
        quic.present(&quic.issued);
        quic
    }

    fn present(&self, issued: &Issued) {
        let named = [(HOST.to_owned(), issued.key.clone())];
        self.proxy.certificates().swap(Certificates::new(named));
    }

    /// A socket of a client that trusts `issued`.
    fn endpoint(issued: &Issued) -> quinn::Endpoint {
        let mut roots = RootCertStore::empty();
        roots.add(issued.der.clone()).unwrap();
        let mut tls = ClientConfig::builder_with_provider(jaco_net::tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let tls = QuicClientConfig::try_from(tls).unwrap();
        let mut endpoint = quinn::Endpoint::client(LOOPBACK.into()).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
        endpoint
    }

    async fn handshake(
        &self,
        name: &str,
        issued: &Issued,
    ) -> Result<quinn::Connection, quinn::ConnectionError> {
        let endpoint = Self::endpoint(issued);
        endpoint.connect(self.addr, name).unwrap().await
    }

    pub(crate) async fn client(&self) -> QuicClient {
        let quic = self.handshake(HOST, &self.issued).await.unwrap();
        let transport = h3_quinn::Connection::new(quic.clone());
        let (mut driver, requests) = h3::client::new(transport).await.unwrap();
        let ended = tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
        QuicClient {
            quic,
            requests,
            ended,
        }
    }
}

impl QuicClient {
    pub(crate) async fn start(&mut self, request: Request<()>) -> Stream {
        self.requests.send_request(request).await.unwrap()
    }

    /// Sends a request without a body and reads the response.
    async fn ask(&mut self, request: Request<()>) -> Response<String> {
        let mut stream = self.start(request).await;
        stream.finish().await.unwrap();
        let response = stream.recv_response().await.unwrap();
        let body = rest(&mut stream).await;
        response.map(|()| String::from_utf8(body).unwrap())
    }
}

pub(crate) async fn rest(stream: &mut Stream) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(mut data) = stream.recv_data().await.unwrap() {
        body.extend(data.copy_to_bytes(data.remaining()));
    }
    body
}

fn request(method: Method, path: &str) -> Request<()> {
    let uri = format!("https://{HOST}{path}");
    let builder = Request::builder().method(method).uri(uri);
    builder.body(()).unwrap()
}

pub(crate) fn h3_get(path: &str) -> Request<()> {
    request(Method::GET, path)
}

async fn echo() -> SocketAddr {
    replica(async |request: Request<hyper::body::Incoming>| {
        Response::builder()
            .header("trailer", "x-sum")
            .body(request.into_body().boxed())
            .unwrap()
    })
    .await
}

#[tokio::test]
async fn replica_receives_request_of_http3() {
    let quic = Quic::start(Settings::default());
    let seen = replica(async |request: Request<hyper::body::Incoming>| {
        let mut lines = vec![format!("{} {}", request.method(), request.uri())];
        for (name, value) in request.headers() {
            lines.push(format!("{name}: {}", value.to_str().unwrap()));
        }
        lines.sort();
        text(lines.join("\n"))
    })
    .await;
    quic.proxy.swap(RouteTable::new([Rule {
        redirect_to_https: true,
        ..rule([seen])
    }]));
    let mut asked = h3_get("/a?b=1");
    for (name, value) in [
        ("x-forwarded-for", "6.6.6.6"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
    ] {
        asked.headers_mut().append(name, value.parse().unwrap());
    }
    let response = quic.client().await.ask(asked).await;
    assert_eq!(response.status(), StatusCode::OK);
    let announced = format!("h3=\":{}\"; ma=2592000", quic.addr.port());
    assert_eq!(response.headers()["alt-svc"], announced);
    assert!(response.headers().contains_key("date"));
    assert_eq!(
        response.body(),
        "GET /a?b=1\ncookie: a=1; b=2\nhost: a.example\nx-forwarded-for: 127.0.0.1\n\
         x-forwarded-host: a.example\nx-forwarded-proto: https"
    );
}

#[tokio::test]
async fn http3_is_announced_while_it_is_served() {
    let quic = Quic::start(Settings::default());
    let sockets = ListenSockets::bind(LOOPBACK.into(), quic.proxy.workers()).unwrap();
    let plain = sockets.local_addr();
    quic.proxy.listen(Scheme::Http, sockets).unwrap();
    let mut stream = TcpStream::connect(plain).await.unwrap();
    let asked = b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n";
    stream.write_all(asked).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(!head.contains("alt-svc"), "{head}");
    quic.proxy.drain(TIMEOUT).await;
    assert_eq!(quic.proxy.listening_http3(), None);
}

#[tokio::test]
async fn large_bodies_stream_both_ways() {
    const CHUNK: usize = 64 * 1024;
    const CHUNKS: usize = 128; // many times the flow control windows
    let quic = Quic::start(Settings::default());
    quic.proxy.swap(RouteTable::new([rule([echo().await])]));
    let mut client = quic.client().await;
    let stream = client.start(request(Method::POST, "/")).await;
    let (mut send, mut receive) = stream.split();
    let sent = tokio::spawn(async move {
        for n in 0..CHUNKS {
            let chunk = vec![n as u8; CHUNK];
            send.send_data(chunk.into()).await.unwrap();
        }
        send.finish().await.unwrap();
    });
    let response = receive.recv_response().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut length = 0;
    while let Some(mut data) = receive.recv_data().await.unwrap() {
        let data = data.copy_to_bytes(data.remaining());
        for byte in &data {
            assert_eq!(usize::from(*byte), length / CHUNK);
            length += 1;
        }
    }
    assert_eq!(length, CHUNK * CHUNKS);
    sent.await.unwrap();
}

#[tokio::test]
async fn trailers_and_empty_data_frames_pass() {
    let quic = Quic::start(Settings::default());
    quic.proxy.swap(RouteTable::new([rule([echo().await])]));
    let mut client = quic.client().await;
    let mut asked = request(Method::POST, "/");
    for (name, value) in [("te", "trailers"), ("trailer", "x-sum")] {
        asked.headers_mut().insert(name, value.parse().unwrap());
    }
    let mut stream = client.start(asked).await;
    stream.send_data("first".into()).await.unwrap();
    let response = stream.recv_response().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut data = stream.recv_data().await.unwrap().unwrap();
    assert_eq!(data.copy_to_bytes(data.remaining()), "first");
    stream.send_data(Bytes::new()).await.unwrap();
    stream.send_data("second".into()).await.unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "42".parse().unwrap());
    stream.send_trailers(trailers.clone()).await.unwrap();
    stream.finish().await.unwrap();
    assert_eq!(rest(&mut stream).await, b"second");
    assert_eq!(stream.recv_trailers().await.unwrap(), Some(trailers));
}

#[tokio::test]
async fn interim_responses_reach_the_client() {
    let hinting = raw_replica(async |mut stream: TcpStream| {
        while !read_head(&mut stream).await.is_empty() {
            let hints = "HTTP/1.1 100 Continue\r\n\r\n\
                         HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n";
            stream.write_all(hints.as_bytes()).await.unwrap();
            // More than are kept for a client that does not read.
            for number in 0..20 {
                let hint = format!("HTTP/1.1 103 Early Hints\r\nLink: </{number}>\r\n\r\n");
                stream.write_all(hint.as_bytes()).await.unwrap();
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let quic = Quic::start(Settings::default());
    quic.proxy.swap(RouteTable::new([rule([hinting])]));
    let mut client = quic.client().await;
    for _ in 0..2 {
        let mut stream = client.start(h3_get("/")).await;
        stream.finish().await.unwrap();
        let first = stream.recv_response().await.unwrap();
        assert_eq!(first.status(), StatusCode::EARLY_HINTS);
        assert_eq!(first.headers()["link"], "</a.css>");
        assert!(first.headers().get("x-hop").is_none());
        let last = loop {
            let response = stream.recv_response().await.unwrap();
            if response.status() != StatusCode::EARLY_HINTS {
                break response;
            }
        };
        assert_eq!(last.status(), StatusCode::OK);
        assert_eq!(rest(&mut stream).await, b"ok");
    }
}

#[tokio::test]
async fn requests_without_a_body_are_sent_without_one() {
    let quic = Quic::start(Settings::default());
    let framing = replica(async |request: Request<hyper::body::Incoming>| {
        let has = |name| request.headers().contains_key(name);
        text(format!(
            "{} {}",
            has("transfer-encoding"),
            has("content-length")
        ))
    })
    .await;
    quic.proxy.swap(RouteTable::new([rule([framing])]));
    let mut client = quic.client().await;
    for method in [Method::GET, Method::DELETE, Method::OPTIONS] {
        let response = client.ask(request(method.clone(), "/")).await;
        assert_eq!(response.body(), "false false", "{method}");
    }
    let head = client.ask(request(Method::HEAD, "/")).await;
    assert_eq!(head.status(), StatusCode::OK);
    assert_eq!(head.headers()["content-length"], "11");
    assert_eq!(head.body(), "");
}

#[tokio::test]
async fn proxy_answers_over_http3_itself() {
    let quic = Quic::start(Settings::default());
    quic.proxy.swap(RouteTable::new([Rule {
        path: "/api".into(),
        ..rule([])
    }]));
    let mut client = quic.client().await;
    let unknown = Request::get("https://b.example/").body(()).unwrap();
    for (asked, status) in [
        (unknown, 404),
        (h3_get("/"), 404),
        (h3_get("/api"), 503),
        (request(Method::CONNECT, ""), 400),
    ] {
        let response = client.ask(asked).await;
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.headers()[SERVER], "jaco");
        assert_eq!(response.headers()["content-length"], "0");
        assert_eq!(response.body(), "");
    }
}

#[tokio::test]
async fn request_given_up_ends_at_the_replica() {
    let (ended, mut end) = tokio::sync::mpsc::unbounded_channel();
    let (begun, mut begin) = tokio::sync::mpsc::unbounded_channel();
    let silent = raw_replica(move |mut stream| {
        let (begun, ended) = (begun.clone(), ended.clone());
        async move {
            read_head(&mut stream).await;
            begun.send(()).unwrap();
            let closed = stream.read_u8().await.is_err();
            ended.send(closed).unwrap();
        }
    })
    .await;
    let quic = Quic::start(Settings::default());
    quic.proxy.swap(RouteTable::new([rule([silent])]));
    let mut client = quic.client().await;
    let mut stream = client.start(h3_get("/")).await;
    stream.finish().await.unwrap();
    begin.recv().await.unwrap();
    stream.stop_sending(Code::H3_REQUEST_CANCELLED);
    assert_eq!(end.recv().await, Some(true));
    // The connection serves other requests.
    quic.proxy.swap(RouteTable::default());
    assert_eq!(client.ask(h3_get("/")).await.status(), 404);
}

#[tokio::test]
async fn broken_response_resets_its_stream() {
    let breaking = raw_replica(async |mut stream| {
        read_head(&mut stream).await;
        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
        stream.write_all(half).await.unwrap();
    })
    .await;
    let quic = Quic::start(Settings::default());
    quic.proxy.swap(RouteTable::new([rule([breaking])]));
    let mut client = quic.client().await;
    let mut stream = client.start(h3_get("/")).await;
    stream.finish().await.unwrap();
    // The reset may overtake the head.
    let mut ended = stream.recv_response().await.err();
    while ended.is_none() {
        match stream.recv_data().await {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(why) => ended = Some(why),
        }
    }
    let reset = |why: &StreamError| matches!(why, StreamError::RemoteTerminate { code, .. } if *code == Code::H3_INTERNAL_ERROR);
    assert!(ended.as_ref().is_some_and(reset), "{ended:?}");
}

#[tokio::test]
async fn certificate_is_chosen_by_name_and_replaceable() {
    let quic = Quic::start(Settings::default());
    let refused = quic.handshake("b.example", &quic.issued).await;
    assert!(matches!(
        refused,
        Err(quinn::ConnectionError::ConnectionClosed(_))
    ));
    let mut open = quic.client().await;
    let next = issue(HOST);
    quic.present(&next);
    assert_eq!(open.ask(h3_get("/")).await.status(), 404);
    let untrusted = quic.handshake(HOST, &quic.issued).await;
    assert!(matches!(
        untrusted,
        Err(quinn::ConnectionError::TransportError(_))
    ));
    quic.handshake(HOST, &next).await.unwrap();
}

#[tokio::test]
async fn client_that_moves_keeps_its_connection() {
    let settings = Settings {
        workers: NonZeroUsize::new(4).unwrap(),
        ..Settings::default()
    };
    let quic = Quic::start(settings);
    let endpoint = Quic::endpoint(&quic.issued);
    let connected = endpoint.connect(quic.addr, HOST).unwrap().await.unwrap();
    let transport = h3_quinn::Connection::new(connected.clone());
    let (mut driver, requests) = h3::client::new(transport).await.unwrap();
    let ended = tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
    let mut client = QuicClient {
        quic: connected,
        requests,
        ended,
    };
    // With four workers a wrong one would get most of these ports.
    for _ in 0..6 {
        let socket = std::net::UdpSocket::bind(SocketAddr::from(LOOPBACK)).unwrap();
        endpoint.rebind(socket).unwrap();
        let asked = tokio::time::timeout(TIMEOUT, client.ask(h3_get("/"))).await;
        assert_eq!(asked.unwrap().status(), 404);
    }
    assert!(client.quic.close_reason().is_none());
}

#[tokio::test]
async fn drain_finishes_requests_of_http3() {
    let quic = Quic::start(Settings::default());
    let (chunks, slow) = slow_replica().await;
    quic.proxy.swap(RouteTable::new([rule([slow])]));
    let mut client = quic.client().await;
    let mut stream = client.start(h3_get("/")).await;
    stream.finish().await.unwrap();
    stream.recv_response().await.unwrap();
    let mut idle = quic.client().await;
    assert_eq!(idle.ask(h3_get("/")).await.status(), 200);

    let proxy = quic.proxy.clone();
    let drained = tokio::spawn(async move { proxy.drain(TIMEOUT).await });
    assert!(idle.ended.await.unwrap().is_h3_no_error());
    let refused = quic.handshake(HOST, &quic.issued).await;
    assert!(refused.is_err());
    chunks.send(Frame::data("rest".into())).unwrap();
    drop(chunks);
    assert_eq!(rest(&mut stream).await, b"rest");
    assert!(client.ended.await.unwrap().is_h3_no_error());
    drained.await.unwrap();
    // The port is free again.
    DatagramSockets::bind(quic.addr, quic.proxy.workers()).unwrap();
}

#[tokio::test]
async fn client_that_connects_as_drain_begins_is_served() {
    let quic = Quic::start(Settings::default());
    let addr = replica(async |_| text("x")).await;
    quic.proxy.swap(RouteTable::new([rule([addr])]));
    let mut client = quic.client().await;
    let proxy = quic.proxy.clone();
    let drained = tokio::spawn(async move { proxy.drain(TIMEOUT).await });
    while quic.proxy.listening_http3().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.ask(h3_get("/")).await.into_body(), "x");
    assert!(client.ended.await.unwrap().is_h3_no_error());
    drained.await.unwrap();
}

/// Connects anew for each request until `stop`; returns the number of requests. Every one must be
/// answered.
async fn h3_load(quic: Quic, stop: Arc<AtomicBool>) -> usize {
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut client = quic.client().await;
        assert_eq!(client.ask(h3_get("/")).await.status(), StatusCode::OK);
        client.quic.close(0x100_u32.into(), b"");
        answered += 1;
    }
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successors_of_http3_refuse_no_client() {
    let settings = Settings {
        workers: NonZeroUsize::new(3).unwrap(),
        ..Settings::default()
    };
    let fast = replica(async |_| text("x")).await;
    let table = RouteTable::new([rule([fast])]);
    let Quic {
        mut proxy,
        addr,
        issued,
    } = Quic::start(settings.clone());
    proxy.swap(table.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let quic = Quic {
                proxy: proxy.clone(),
                addr,
                issued: issued.clone(),
            };
            tokio::spawn(h3_load(quic, stop.clone()))
        })
        .collect();
    for round in 0..8 {
        // A response that takes longer than the change of processes.
        let (chunks, slow) = slow_replica().await;
        let running = Quic {
            proxy: proxy.clone(),
            addr,
            issued: issued.clone(),
        };
        let slow_rule = Rule {
            path: "/slow".to_owned(),
            ..rule([slow])
        };
        proxy.swap(RouteTable::new([rule([fast]), slow_rule]));
        let mut client = running.client().await;
        let mut stream = client.start(h3_get("/slow")).await;
        stream.finish().await.unwrap();
        stream.recv_response().await.unwrap();

        let passed = proxy.hand_over_http3().unwrap().unwrap();
        let sockets = DatagramSockets::inherited(passed.into_named()).unwrap();
        let next = Proxy::new(settings.clone());
        next.swap(table.clone());
        let named = [(HOST.to_owned(), issued.key.clone())];
        next.certificates().swap(Certificates::new(named));
        let previous = proxy.clone();
        let drained = tokio::spawn(async move { previous.drain(TIMEOUT).await });
        let finish = async {
            chunks.send(Frame::data("rest".into())).unwrap();
            drop(chunks);
            assert_eq!(rest(&mut stream).await, b"rest");
            drained.await.unwrap();
        };
        // The successor begins to serve while the previous process still does, or after its end.
        if round % 2 == 0 {
            next.listen_http3(sockets).unwrap();
            let asked = Quic {
                proxy: next.clone(),
                addr,
                issued: issued.clone(),
            };
            let answer = asked.client().await.ask(h3_get("/")).await;
            assert_eq!(answer.status(), StatusCode::OK);
            finish.await;
        } else {
            finish.await;
            next.listen_http3(sockets).unwrap();
        }
        proxy = next;
    }
    stop.store(true, Ordering::Relaxed);
    let mut answered = 0;
    for client in clients {
        answered += client.await.unwrap();
    }
    assert!(answered > 20, "{answered}");
}

#[tokio::test]
async fn drain_of_http3_ends_after_its_grace() {
    let quic = Quic::start(Settings::default());
    let (_chunks, slow) = slow_replica().await;
    quic.proxy.swap(RouteTable::new([rule([slow])]));
    let mut client = quic.client().await;
    let mut stream = client.start(h3_get("/")).await;
    stream.finish().await.unwrap();
    stream.recv_response().await.unwrap();
    quic.proxy.drain(Duration::from_millis(20)).await;
    assert!(stream.recv_data().await.is_err());
}

#[tokio::test]
async fn idle_client_of_http3_is_disconnected() {
    let quic = Quic::start(Settings {
        idle_timeout: Duration::from_millis(300),
        ..Settings::default()
    });
    let mut client = quic.client().await;
    assert_eq!(client.ask(h3_get("/")).await.status(), 404);
    let ended = tokio::time::timeout(TIMEOUT, client.ended).await;
    assert!(ended.unwrap().unwrap().is_h3_no_error());
}

#[tokio::test]
async fn requests_of_http3_are_counted_with_their_protocol() {
    struct Versions(tokio::sync::mpsc::UnboundedSender<Version>);
    impl jaco_net::ingress::Meter for Versions {
        fn finished(&self, finished: &jaco_net::ingress::Finished) {
            self.0.send(finished.version).unwrap();
        }
    }
    impl jaco_net::ingress::Observe for Versions {
        fn meter(&self, _: Option<&str>, _: &str) -> Arc<dyn jaco_net::ingress::Meter> {
            Arc::new(Self(self.0.clone()))
        }

        fn limited(&self, _: &str, _: &str) {}
    }
    let (sender, mut versions) = tokio::sync::mpsc::unbounded_channel();
    let proxy = Proxy::observed(Settings::default(), Arc::new(Versions(sender)));
    let issued = issue(HOST);
    let sockets = DatagramSockets::bind(LOOPBACK.into(), proxy.workers()).unwrap();
    let addr = sockets.local_addr();
    proxy.listen_http3(sockets).unwrap();
    let quic = Quic {
        proxy,
        addr,
        issued,
    };
    quic.present(&quic.issued);
    quic.client().await.ask(h3_get("/")).await;
    assert_eq!(versions.recv().await, Some(Version::HTTP_3));
}
