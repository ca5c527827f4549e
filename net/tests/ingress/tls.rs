//! Tests of the TLS listener: certificates, HTTP/2 and tunnels over it.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{convert::Infallible, net::SocketAddr};

use http::Version;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jaco_net::{
    ingress::{Affinity, AffinityKey, Certificates, RuleLimits, SameSite, certified_key},
    limit::Limits,
};
use jaco_proto::secret::SecretString;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion,
    RootCertStore, SupportedProtocolVersion, sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;

/// A certificate that clients of the tests trust.
#[derive(Clone)]
pub(super) struct Issued {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) der: CertificateDer<'static>,
}

pub(super) fn issue(name: &str) -> Issued {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let pem = SecretString::from(made.signing_key.serialize_pem());
    Issued {
        key: certified_key(&made.cert.pem(), &pem).unwrap(),
        der: made.cert.der().clone(),
    }
}

/// A proxy with a TLS listener that has a certificate for the test domain.
pub(crate) struct Secure {
    pub(crate) proxy: Proxy,
    pub(crate) addr: SocketAddr,
    issued: Issued,
}

impl Secure {
    fn start() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        Self::of(Proxy::new(settings))
    }

    fn of(proxy: Proxy) -> Self {
        let issued = issue(HOST);
        let sockets = ListenSockets::bind(([127, 0, 0, 1], 0).into(), proxy.workers()).unwrap();
        let addr = sockets.local_addr();
        proxy.listen(Scheme::Https, sockets).unwrap();
        let secure = Self {
            proxy,
            addr,
            issued,
        };
        secure.present(&secure.issued);
        secure
    }

    fn present(&self, issued: &Issued) {
        let named = [(HOST.to_owned(), issued.key.clone())];
        self.proxy.certificates().swap(Certificates::new(named));
    }

    pub(crate) fn config(
        &self,
        alpn: &[&str],
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.issued.der.clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(jaco_net::tls::provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    pub(crate) async fn connect(
        &self,
        name: &str,
        config: impl Into<Arc<ClientConfig>>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.addr).await.unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(config.into())
            .connect(name, stream)
            .await
    }

    pub(crate) async fn http2(&self) -> hyper::client::conn::http2::SendRequest<Body> {
        let config = self.config(&["h2", "http/1.1"], version::ALL);
        let stream = self.connect(HOST, config).await.unwrap();
        assert_eq!(session(&stream).alpn_protocol(), Some(&b"h2"[..]));
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

mod version {
    use super::SupportedProtocolVersion;
    pub(super) const ALL: &[&SupportedProtocolVersion] = rustls::ALL_VERSIONS;
    pub(super) const TLS12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
}

fn session(stream: &TlsStream<TcpStream>) -> &ClientConnection {
    stream.get_ref().1
}

/// Sends a request over HTTP/1.1 and returns the answer's head.
async fn ask(stream: &mut TlsStream<TcpStream>) -> String {
    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

pub(crate) fn h2_get(path: &str) -> Request<Body> {
    Request::get(format!("https://{HOST}{path}"))
        .version(Version::HTTP_2)
        .body(full(""))
        .unwrap()
}

#[tokio::test]
async fn both_protocols_and_versions_are_served() {
    let secure = Secure::start();
    let showing = replica(async |request| {
        let field = |name| {
            request
                .headers()
                .get(name)
                .map(|value| value.to_str().unwrap())
        };
        let lines = ["host", "x-forwarded-proto", "cookie"].map(|name| field(name).unwrap_or("-"));
        text(lines.join(" "))
    })
    .await;
    // On the TLS listener a route is served, not redirected.
    secure.proxy.swap(RouteTable::new([Rule {
        redirect_to_https: true,
        ..rule([showing])
    }]));

    for (versions, negotiated) in [
        (version::ALL, ProtocolVersion::TLSv1_3),
        (version::TLS12, ProtocolVersion::TLSv1_2),
    ] {
        let config = secure.config(&["http/1.1"], versions);
        let mut stream = secure.connect(HOST, config).await.unwrap();
        assert_eq!(session(&stream).protocol_version(), Some(negotiated));
        assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200 OK"));
    }

    let mut request = h2_get("/x");
    for cookie in ["a=1", "b=2"] {
        request
            .headers_mut()
            .append("cookie", cookie.parse().unwrap());
    }
    let response = secure.http2().await.send_request(request).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().get("alt-svc").is_none());
    assert_eq!(body(response).await, "a.example https a=1; b=2");
}

#[tokio::test]
async fn names_without_a_certificate_are_refused() {
    let secure = Secure::start();
    for name in ["b.example", "x.a.example", "127.0.0.1"] {
        let config = secure.config(&[], version::ALL);
        let refused = secure.connect(name, config).await.unwrap_err();
        let why = refused.get_ref().unwrap().downcast_ref::<rustls::Error>();
        let alert = rustls::Error::AlertReceived(AlertDescription::UnrecognisedName);
        assert_eq!(why, Some(&alert), "{name}");
    }
}

#[tokio::test]
async fn swapped_certificate_keeps_open_connections() {
    let secure = Secure::start();
    let config = secure.config(&["http/1.1"], version::ALL);
    let mut open = secure.connect(HOST, config).await.unwrap();
    assert!(ask(&mut open).await.starts_with("HTTP/1.1 404"));

    let next = issue(HOST);
    secure.present(&next);
    assert!(ask(&mut open).await.starts_with("HTTP/1.1 404"));
    // A configuration of its own, which has no session to resume.
    let config = secure.config(&[], version::ALL);
    let untrusted = secure.connect(HOST, config).await.unwrap_err();
    assert_eq!(untrusted.kind(), std::io::ErrorKind::InvalidData);
    let trusting = Secure {
        issued: next,
        ..secure
    };
    let config = trusting.config(&[], version::ALL);
    let stream = trusting.connect(HOST, config).await.unwrap();
    let presented = session(&stream).peer_certificates().unwrap();
    assert_eq!(presented, std::slice::from_ref(&trusting.issued.der));
}

#[tokio::test]
async fn sessions_are_resumed_by_tickets() {
    let secure = Secure::start();
    for versions in [version::ALL, version::TLS12] {
        let config = Arc::new(secure.config(&["http/1.1"], versions));
        for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut stream = secure.connect(HOST, config.clone()).await.unwrap();
            // The ticket of TLS 1.3 arrives with the answer.
            ask(&mut stream).await;
            assert_eq!(session(&stream).handshake_kind(), Some(expected));
        }
    }
}

#[tokio::test]
async fn drain_finishes_streams_of_http2() {
    let secure = Secure::start();
    let (chunks, slow) = slow_replica().await;
    secure.proxy.swap(RouteTable::new([rule([slow])]));
    let mut client = secure.http2().await;
    let response = client.send_request(h2_get("/")).await.unwrap();
    let proxy = secure.proxy.clone();
    let drained = tokio::spawn(async move { proxy.drain(TIMEOUT).await });
    while TcpStream::connect(secure.addr).await.is_ok() {}
    chunks.send(Frame::data("rest".into())).unwrap();
    drop(chunks);
    assert_eq!(body(response).await, "rest");
    drained.await.unwrap();
    client.ready().await.unwrap_err();
}

#[tokio::test]
async fn new_http2_client_is_served_while_draining() {
    let secure = Secure::start();
    let addr = replica(async |_| text("x")).await;
    secure.proxy.swap(RouteTable::new([rule([addr])]));
    let mut client = secure.http2().await;
    let proxy = secure.proxy.clone();
    let drained = tokio::spawn(async move { proxy.drain(TIMEOUT).await });
    while TcpStream::connect(secure.addr).await.is_ok() {}
    let response = client.send_request(h2_get("/")).await.unwrap();
    assert_eq!(body(response).await, "x");
    drained.await.unwrap();
}

/// Opens a tunnel over HTTP/2.
async fn extended_connect(secure: &Secure) -> Response<Incoming> {
    let mut client = secure.http2().await;
    // The server's settings, which permit the method, arrive before its first answer.
    let first = client.send_request(h2_get("/")).await.unwrap();
    drop(first);
    let mut request = Request::connect(format!("https://{HOST}/ws"))
        .version(Version::HTTP_2)
        .header("sec-websocket-version", "13")
        .body(full(""))
        .unwrap();
    let protocol = hyper::ext::Protocol::from_static("websocket");
    request.extensions_mut().insert(protocol);
    client.send_request(request).await.unwrap()
}

/// A replica that accepts a WebSocket and then sends every four bytes back in reverse.
async fn websocket_replica() -> SocketAddr {
    replica(async |request: Request<Incoming>| {
        let Some(key) = request.headers().get("sec-websocket-key").cloned() else {
            return text("no upgrade");
        };
        assert_eq!(request.method(), Method::GET);
        assert_eq!(request.headers()["connection"], "upgrade");
        assert_eq!(request.headers()["sec-websocket-version"], "13");
        let accept = proof(key.as_bytes());
        tokio::spawn(async move {
            let mut stream = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
            let mut bytes = [0; 4];
            while stream.read_exact(&mut bytes).await.is_ok() {
                bytes.reverse();
                stream.write_all(&bytes).await.unwrap();
            }
        });
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-accept", accept)
            .header("sec-websocket-protocol", "chat")
            .body(full(""))
            .unwrap()
    })
    .await
}

#[tokio::test]
async fn tunnel_over_http2_becomes_an_upgrade() {
    let secure = Secure::start();
    let echo = websocket_replica().await;
    secure.proxy.swap(RouteTable::new([rule([echo])]));
    let response = extended_connect(&secure).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    assert!(response.headers().get("sec-websocket-accept").is_none());
    let mut tunnel = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    for bytes in [*b"abcd", *b"1234"] {
        tunnel.write_all(&bytes).await.unwrap();
        let mut answer = [0; 4];
        tunnel.read_exact(&mut answer).await.unwrap();
        answer.reverse();
        assert_eq!(answer, bytes);
    }
}

#[tokio::test]
async fn tunnel_needs_a_replica_that_switches() {
    let secure = Secure::start();
    for (status, expected) in [(200, 502), (403, 403)] {
        let refusing = replica(move |request: Request<Incoming>| {
            let asked = request.headers().contains_key("upgrade");
            let status = if asked { status } else { 200 };
            let response = Response::builder().status(status).body(full("no"));
            async move { response.unwrap() }
        })
        .await;
        secure.proxy.swap(RouteTable::new([rule([refusing])]));
        let response = extended_connect(&secure).await;
        assert_eq!(response.status().as_u16(), expected);
    }
}

#[tokio::test]
async fn http2_replica_opens_no_tunnel() {
    let secure = Secure::start();
    let connections = Arc::new(AtomicUsize::new(0));
    let grpc = h2c_replica(connections.clone()).await;
    let routes = RouteTable::new([Rule {
        http2: true,
        path: "/ws".to_owned(),
        ..rule([grpc])
    }]);
    secure.proxy.swap(routes);
    let response = extended_connect(&secure).await;
    assert_eq!(response.status(), StatusCode::NOT_IMPLEMENTED);
    assert_eq!(response.headers()["server"], "jaco");
    assert_eq!(connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn upgrade_to_http2_replica_is_ignored() {
    let secure = Secure::start();
    let grpc = h2c_replica(Arc::default()).await;
    secure.proxy.swap(RouteTable::new([Rule {
        http2: true,
        ..rule([grpc])
    }]));
    let config = secure.config(&["http/1.1"], version::ALL);
    let mut stream = secure.connect(HOST, config).await.unwrap();
    let request = b"GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade, TE\r\n\
                    TE: trailers\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(!head.contains("upgrade: "), "{head}");
}

#[tokio::test]
async fn tunnel_is_counted_but_not_timed() {
    let counted = Arc::new(Counted::default());
    let secure = Secure::of(Proxy::observed(Settings::default(), counted.clone()));
    let routes = RouteTable::new([Rule {
        service: "chat".to_owned(),
        path: "/ws".to_owned(),
        ..rule([websocket_replica().await])
    }]);
    secure.proxy.swap(routes);
    let _open = extended_connect(&secure).await;
    let tunnel = "a.example chat 200 false".to_owned();
    let counted = async {
        while !counted.lines().contains(&tunnel) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, counted).await.unwrap();
}

/// The proof that a server of WebSocket gives (RFC 6455, section 4.2.2).
fn proof(key: &[u8]) -> String {
    use base64::Engine as _;
    use sha1::Digest as _;
    let guid = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let digest = sha1::Sha1::new()
        .chain_update(key)
        .chain_update(guid)
        .finalize();
    base64::engine::general_purpose::STANDARD.encode(digest)
}

/// A replica that speaks cleartext HTTP/2 and answers with what it got, and trailers.
async fn h2c_replica(connections: Arc<AtomicUsize>) -> SocketAddr {
    raw_replica(move |stream| {
        connections.fetch_add(1, Ordering::SeqCst);
        async move {
            let service = service_fn(async |request: Request<Incoming>| {
                assert_eq!(request.version(), Version::HTTP_2);
                assert_eq!(request.uri().authority().unwrap(), HOST);
                assert_eq!(request.headers()["te"], "trailers");
                let (chunks, body) = channel_body();
                let sent = body_of(request.into_body()).await;
                chunks.send(Frame::data(sent.into())).unwrap();
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                chunks.send(Frame::trailers(trailers)).unwrap();
                Ok::<_, Infallible>(Response::new(body))
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
    .await
}

#[tokio::test]
async fn http2_replicas_share_a_connection_and_pass_trailers() {
    let secure = Secure::start();
    let connections = Arc::new(AtomicUsize::new(0));
    let grpc = h2c_replica(connections.clone()).await;
    secure.proxy.swap(RouteTable::new([Rule {
        http2: true,
        ..rule([grpc])
    }]));
    let mut client = secure.http2().await;
    for n in 0..3 {
        let mut request = h2_get("/svc/method");
        *request.method_mut() = Method::POST;
        *request.body_mut() = full(format!("call {n}"));
        let te = "trailers".parse().unwrap();
        request.headers_mut().insert("te", te);
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(collected.to_bytes(), format!("call {n}"));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn host_that_contradicts_the_authority_is_refused() {
    let secure = Secure::start();
    let mut request = h2_get("/");
    let other = "b.example".parse().unwrap();
    request.headers_mut().insert("host", other);
    let response = secure.http2().await.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn cookie_of_sticky_session_is_secure_over_tls() {
    let secure = Secure::start();
    let showing = replica(async |request| {
        let cookie = request.headers().get("cookie");
        text(
            cookie
                .map_or("-", |value| value.to_str().unwrap())
                .to_owned(),
        )
    })
    .await;
    secure.proxy.swap(RouteTable::new([Rule {
        path: "/app".to_owned(),
        affinity: Some(Affinity {
            cookie: "at".to_owned(),
            ttl: Duration::from_secs(60),
            same_site: SameSite::None,
            key: AffinityKey::new([7; 32]),
        }),
        ..rule([showing])
    }]));
    let mut client = secure.http2().await;
    let response = client.send_request(h2_get("/app/x")).await.unwrap();
    let cookie = response.headers()["set-cookie"]
        .to_str()
        .unwrap()
        .to_owned();
    let (held, attributes) = cookie.split_once("; ").unwrap();
    assert_eq!(
        attributes,
        "Path=/app; Max-Age=60; HttpOnly; SameSite=None; Secure"
    );
    // HTTP/2 splits cookies over several fields.
    let mut request = h2_get("/app/x");
    for crumb in ["a=1", held, "b=2"] {
        request
            .headers_mut()
            .append("cookie", crumb.parse().unwrap());
    }
    let response = client.send_request(request).await.unwrap();
    assert!(response.headers().get("set-cookie").is_none());
    assert_eq!(body(response).await, "a=1; b=2");
}

#[tokio::test]
async fn streams_of_http2_count_as_requests_in_flight() {
    let (chunks, slow) = slow_replica().await;
    let secure = Secure::start();
    secure.proxy.swap(RouteTable::new([Rule {
        limits: Some(RuleLimits {
            limits: Limits {
                rps: 1e6,
                burst: 1000,
                connections: 1,
            },
            exempt: Vec::new(),
        }),
        ..rule([slow])
    }]));
    let mut client = secure.http2().await;
    let first = client.send_request(h2_get("/")).await.unwrap();
    let second = client.send_request(h2_get("/")).await.unwrap();
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(chunks);
    assert_eq!(body(first).await, "");
    let passed = async {
        loop {
            let response = client.send_request(h2_get("/")).await.unwrap();
            if response.status() == StatusCode::OK {
                return;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, passed).await.unwrap();
}
