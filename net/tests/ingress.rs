//! Tests of the proxy between real clients and real replicas on loopback.

#[path = "ingress/access_log.rs"]
mod access_log;
#[path = "ingress/affinity.rs"]
mod affinity;
#[path = "ingress/fixture.rs"]
mod fixture;
#[path = "ingress/http3.rs"]
mod http3;
#[path = "ingress/limits.rs"]
mod limits;
#[path = "ingress/slow.rs"]
mod slow;
#[path = "ingress/smuggling.rs"]
mod smuggling;
#[path = "ingress/tls.rs"]
mod tls;

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fixture::*;
use http::{Method, Request, Response, StatusCode, header::SERVER};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Frame;
use jaco_net::{
    handover::{
        Inherited,
        channel::{Offer, take_over},
    },
    ingress::{
        Challenge, ListenSockets, PROBE_PATH, ProbeKey, Proxy, RouteTable, Rule, Scheme, Settings,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn replica_receives_request_with_forwarding_headers() {
    let seen = replica(async |request| {
        let mut lines = vec![format!("{} {}", request.method(), request.uri())];
        for (name, value) in request.headers() {
            lines.push(format!("{name}: {}", value.to_str().unwrap()));
        }
        lines.sort();
        text(lines.join("\n"))
    })
    .await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([Rule {
        path: "/api".into(),
        strip_path: true,
        ..rule([seen])
    }]));

    let request = Request::get("/API/a%20b?x=%2F1")
        .header("host", "A.example:8080")
        .header("x-forwarded-for", "6.6.6.6")
        .header("x-forwarded-proto", "https")
        .header("x-forwarded-host", "evil")
        .header("connection", "x-private")
        .header("x-private", "1")
        .header("x-public", "2")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let response = fixture.client().await.send(request).await;

    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().get(SERVER).is_none());
    assert_eq!(
        body(response).await,
        "GET /a%20b?x=%2F1\nhost: A.example:8080\nx-forwarded-for: 127.0.0.1\n\
         x-forwarded-host: A.example:8080\nx-forwarded-proto: http\nx-public: 2"
    );
}

#[tokio::test]
async fn bodies_stream_both_ways_with_their_trailers() {
    let echo = replica(async |request| {
        Response::builder()
            .header("trailer", "x-sum")
            .body(request.into_body().boxed())
            .unwrap()
    })
    .await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([echo])]));

    let (chunks, body) = channel_body();
    let request = Request::post("/")
        .header("host", HOST)
        .header("te", "trailers")
        .header("trailer", "x-sum")
        .body(body)
        .unwrap();
    chunks.send(Frame::data("first".into())).unwrap();
    let mut response = fixture.client().await.send(request).await.into_body();
    let frame = response.frame().await.unwrap().unwrap();
    assert_eq!(
        frame.into_data().unwrap(),
        "first",
        "arrives before the request is complete"
    );
    chunks.send(Frame::data("second".into())).unwrap();
    let frame = response.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "second");
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-sum", "42".parse().unwrap());
    chunks.send(Frame::trailers(trailers.clone())).unwrap();
    drop(chunks);
    let frame = response.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_trailers().unwrap(), trailers);
}

#[tokio::test]
async fn switched_connection_is_relayed_despite_table_swaps() {
    let (echo, mut ended) = switching_replica().await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([echo])]));
    let mut client = fixture.switched().await;
    for round in [b"abcd", b"1234"] {
        assert_echo(&mut client, round).await;
        fixture.proxy.swap(RouteTable::default());
    }
    drop(client);
    ended.recv().await.unwrap();
}

#[tokio::test]
async fn switched_connection_ends_with_the_drain() {
    let (echo, mut ended) = switching_replica().await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([echo])]));
    let mut client = fixture.switched().await;

    let proxy = fixture.proxy.clone();
    let drained = tokio::spawn(async move { proxy.drain(TIMEOUT).await });
    fixture.closed().await;
    assert_echo(&mut client, b"abcd").await;
    drained.abort();
    ended.recv().await.unwrap();
    assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn requests_without_a_route_get_the_proxys_errors() {
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([Rule {
        path: "/api".into(),
        ..rule([])
    }]));
    let long = "x".repeat(66 * 1024);
    let table = [
        (
            "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n".to_owned(),
            "404",
        ),
        (
            "GET /other HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(),
            "404",
        ),
        (
            "GET /api HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(),
            "503",
        ),
        (
            "GET http://a.example/api HTTP/1.1\r\nHost: b.example\r\n\r\n".to_owned(),
            "503",
        ),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), "404"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "CONNECT a.example:80 HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(),
            "400",
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: a.example\r\nX: {long}\r\n\r\n"),
            "431",
        ),
        ("nonsense\r\n\r\n".to_owned(), "400"),
    ];
    for (request, status) in table {
        let shown: String = request.chars().take(60).collect();
        let mut client = fixture.connect().await;
        client.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut client).await;
        assert_eq!(&head[9..12], status, "{shown:?}");
        if matches!(status, "404" | "503") {
            assert!(
                head.contains("server: jaco") && head.contains("content-length: 0"),
                "{head}"
            );
        }
    }
}

#[tokio::test]
async fn secure_domain_redirects_to_the_same_path() {
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([Rule {
        redirect_to_https: true,
        ..rule([])
    }]));
    let request = Request::post("/a?b=1")
        .header("host", "a.example:8080")
        .body(Full::from("x"));
    let response = fixture.client().await.send(request.unwrap()).await;
    assert_eq!(response.status(), StatusCode::PERMANENT_REDIRECT);
    assert_eq!(response.headers()["location"], "https://a.example/a?b=1");
    assert_eq!(response.headers()[SERVER], "jaco");
}

#[tokio::test]
async fn challenges_are_answered_for_any_host() {
    let answering = replica(async |_| text("replica")).await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([answering])]));
    let challenge = Challenge {
        key_auth: "token.thumbprint".into(),
        expires_at: SystemTime::now() + TIMEOUT,
    };
    let ask = async |path: &str, host: &str| {
        let path = format!("/.well-known/acme-challenge/{path}");
        let request = Request::get(path).header("host", host);
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = fixture.client().await.send(request).await;
        (response.status().as_u16(), body(response).await)
    };
    assert_eq!(ask("token", HOST).await, (200, "replica".to_owned()));
    let known = [("token".to_owned(), challenge)];
    let table = known.into_iter().collect();
    fixture.proxy.swap_challenges(Some(table));
    for host in [HOST, "unknown.example"] {
        let expected = (200, "token.thumbprint".to_owned());
        assert_eq!(ask("token", host).await, expected);
        assert_eq!(ask("other", host).await, (404, String::new()));
        assert_eq!(ask("", host).await, (404, String::new()));
    }
    fixture.proxy.swap_challenges(None);
    assert_eq!(ask("token", HOST).await, (200, "replica".to_owned()));
}

#[tokio::test]
async fn probes_are_signed_for_any_host() {
    let answering = replica(async |_| text("replica")).await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([answering])]));
    let ask = async |nonce: &str, host: &str| {
        let path = format!("{PROBE_PATH}{nonce}");
        let request = Request::get(path).header("host", host);
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = fixture.client().await.send(request).await;
        (response.status().as_u16(), body(response).await)
    };
    let nonce = "0123456789abcdef";
    assert_eq!(ask(nonce, HOST).await, (200, "replica".to_owned()));
    let key = ProbeKey::new([7; 32]);
    fixture.proxy.swap_probe_key(Some(key.clone()));
    let signed = (200, key.answer(nonce).unwrap());
    for host in [HOST, "unknown.example"] {
        assert_eq!(ask(nonce, host).await, signed);
        assert_eq!(ask("short", host).await, (404, String::new()));
        assert_eq!(ask("0123456789abcde%2f", host).await, (404, String::new()));
    }
    fixture.proxy.swap_probe_key(None);
    assert_eq!(ask(nonce, HOST).await, (200, "replica".to_owned()));
}

#[tokio::test]
async fn unreachable_replica_gives_502_and_is_marked_down() {
    let (_held, closed) = closed_port();
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([closed])]));
    let mut client = fixture.client().await;
    let response = client.send(get("/")).await;
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(response.headers()[SERVER], "jaco");
    assert_eq!(
        client.send(get("/")).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
}

#[tokio::test]
async fn unsent_request_moves_to_another_replica() {
    let (_held, ports): (Vec<_>, Vec<_>) = [(); 2].map(|()| closed_port()).into_iter().unzip();
    let live = replica(async |request| text(body_of(request.into_body()).await)).await;
    for _ in 0..8 {
        let fixture = ProxyFixture::start(Settings::default());
        fixture
            .proxy
            .swap(RouteTable::new([rule([ports[0], live, ports[1]])]));
        let request = Request::post("/")
            .header("host", HOST)
            .body(Full::from("precious"));
        let response = fixture.client().await.send(request.unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(body(response).await, "precious");
    }
}

#[tokio::test]
async fn only_safe_requests_are_repeated_once_sent() {
    let asked = Arc::new(AtomicUsize::new(0));
    let breaking = breaking_replica(asked.clone()).await;
    let healthy = replica(async |_| text("ok")).await;
    for (method, content) in [
        (Method::GET, ""),
        (Method::HEAD, ""),
        (Method::POST, "x"),
        (Method::DELETE, ""),
    ] {
        // Repeats until the proxy tries the breaking replica first.
        loop {
            asked.store(0, Ordering::SeqCst);
            let fixture = ProxyFixture::start(Settings::default());
            fixture
                .proxy
                .swap(RouteTable::new([rule([breaking, healthy])]));
            let request = Request::builder()
                .method(&method)
                .uri("/")
                .header("host", HOST);
            let request = request.body(Full::from(content)).unwrap();
            let status = fixture.client().await.send(request).await.status();
            if asked.load(Ordering::SeqCst) == 0 {
                assert_eq!(status, StatusCode::OK);
                continue;
            }
            let repeated = matches!(method, Method::GET | Method::HEAD);
            let expected = if repeated {
                StatusCode::OK
            } else {
                StatusCode::BAD_GATEWAY
            };
            assert_eq!(status, expected, "{method}");
            assert_eq!(asked.load(Ordering::SeqCst), 1, "{method}");
            // The breaking replica is marked down now.
            assert_eq!(
                fixture.client().await.send(get("/")).await.status(),
                StatusCode::OK
            );
            assert_eq!(asked.load(Ordering::SeqCst), 1, "{method}");
            break;
        }
    }
}

#[tokio::test]
async fn replica_that_aborts_its_response_is_down() {
    let breaking = raw_replica(async |mut stream| {
        read_head(&mut stream).await;
        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
        stream.write_all(half).await.unwrap();
    })
    .await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([breaking])]));
    let response = fixture.client().await.send(get("/")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(
        response.into_body().collect().await.is_err(),
        "the client must notice"
    );
    let response = fixture.client().await.send(get("/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn silent_replica_gives_504_and_stays_up() {
    let silent = raw_replica(async |mut stream| {
        read_head(&mut stream).await;
        let _ = stream.read_u8().await; // until the proxy gives up
    })
    .await;
    let settings = Settings {
        response_timeout: Duration::from_millis(50),
        ..Settings::default()
    };
    let fixture = ProxyFixture::start(settings);
    fixture.proxy.swap(RouteTable::new([rule([silent])]));
    for _ in 0..2 {
        let response = fixture.client().await.send(get("/")).await;
        assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(response.headers()[SERVER], "jaco");
    }
}

#[tokio::test]
async fn replica_connections_are_reused_until_stale() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let closing = {
        let accepted = accepted.clone();
        // Responds twice, then closes the connection without announcing it.
        raw_replica(move |mut stream| {
            accepted.fetch_add(1, Ordering::SeqCst);
            async move {
                for _ in 0..2 {
                    read_head(&mut stream).await;
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    let _ = stream.write_all(answer).await; // the proxy may have closed the connection
                }
            }
        })
        .await
    };
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([closing])]));
    let mut client = fixture.client().await;
    for _ in 0..6 {
        let response = client.send(get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(body(response).await, "ok");
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn running_response_survives_removal_of_its_route() {
    let (chunks, slow) = slow_replica().await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([slow])]));
    let response = fixture.client().await.send(get("/")).await;

    assert!(fixture.proxy.swap(RouteTable::default()));
    assert!(
        !fixture.proxy.swap(RouteTable::default()),
        "an equal table is not swapped"
    );
    assert_eq!(
        fixture.client().await.send(get("/")).await.status(),
        StatusCode::NOT_FOUND
    );

    chunks.send(Frame::data("rest".into())).unwrap();
    drop(chunks);
    assert_eq!(body(response).await, "rest");
}

#[tokio::test]
async fn drain_finishes_running_requests_and_closes_idle_connections() {
    let (chunks, slow) = slow_replica().await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([slow])]));
    let mut resting = fixture.connect().await;
    let response = fixture.client().await.send(get("/")).await;

    let proxy = fixture.proxy.clone();
    let drained = tokio::spawn(async move { proxy.drain(TIMEOUT).await });
    assert_eq!(resting.read(&mut [0]).await.unwrap(), 0, "closed soon");
    fixture.closed().await;
    assert!(!drained.is_finished());
    chunks.send(Frame::data("rest".into())).unwrap();
    drop(chunks);
    assert_eq!(body(response).await, "rest");
    drained.await.unwrap();

    let again = ProxyFixture::bind(fixture.addr, &fixture.proxy);
    assert_eq!(
        again.client().await.send(get("/none")).await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn drain_aborts_requests_after_its_grace_period() {
    let (_chunks, slow) = slow_replica().await;
    let fixture = ProxyFixture::start(Settings::default());
    fixture.proxy.swap(RouteTable::new([rule([slow])]));
    let response = fixture.client().await.send(get("/")).await;
    fixture.proxy.drain(Duration::from_millis(20)).await;
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn inherited_sockets_serve_while_the_previous_drain() {
    let (chunks, slow) = slow_replica().await;
    let (before, after) = (
        ProxyFixture::start(Settings::default()),
        Proxy::new(Settings::default()),
    );
    let table = RouteTable::new([rule([slow])]);
    before.proxy.swap(table.clone());
    after.swap(table);
    let response = before.client().await.send(get("/")).await;

    for (scheme, sockets) in before.proxy.sockets().unwrap() {
        let inherited = ListenSockets::inherited(sockets.into_fds()).unwrap();
        after.listen(scheme, inherited).unwrap();
    }
    assert_eq!(after.listening(Scheme::Http), Some(before.addr));
    let previous = before.proxy.clone();
    let drained = tokio::spawn(async move { previous.drain(TIMEOUT).await });
    while before.proxy.listening(Scheme::Http).is_some() {
        tokio::task::yield_now().await;
    }
    // Either process may accept a connection that arrives now, and each serves it.
    chunks.send(Frame::data("rest".into())).unwrap();
    drop(chunks);
    assert_eq!(body(response).await, "rest");
    drained.await.unwrap();
    for _ in 0..8 {
        assert_eq!(
            before.client().await.send(get("/")).await.status(),
            StatusCode::OK
        );
    }
}

/// Opens connections to `addr` one after the other, with one request each, and returns the number of requests
/// until `stop`. Every one must be answered.
async fn load(addr: std::net::SocketAddr, stop: Arc<AtomicBool>) -> usize {
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut client = TcpStream::connect(addr).await.expect("not refused");
        let sent = client.write_all(request.as_bytes()).await;
        sent.expect("not reset");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("not reset");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        answered += 1;
        // There are only so many ports for connections to one address.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successors_lose_no_connection() {
    let settings = Settings {
        workers: NonZeroUsize::new(3).unwrap(),
        ..Settings::default()
    };
    let table = RouteTable::new([rule([replica(async |_| text("x")).await])]);
    let ProxyFixture { mut proxy, addr } = ProxyFixture::start(settings.clone());
    proxy.swap(table.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..16)
        .map(|_| tokio::spawn(load(addr, stop.clone())))
        .collect();
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handover.sock");
        let offer = Offer::bind(&path).unwrap();
        let mut named = Vec::new();
        for (scheme, sockets) in proxy.sockets().unwrap() {
            let fds = sockets.into_fds().into_iter();
            named.extend(fds.map(|fd| (scheme.socket_name().to_owned(), fd)));
        }
        assert_eq!(named.len(), 3);
        let passing =
            tokio::task::spawn_blocking(move || offer.accept().unwrap().send(&named).unwrap());
        let taken = tokio::task::spawn_blocking(move || take_over(&path)).await;
        let inherited = Inherited::new(taken.unwrap().unwrap().unwrap());
        passing.await.unwrap();
        let sockets = || ListenSockets::inherited(inherited.take(Scheme::Http.socket_name()));
        let next = Proxy::new(settings.clone());
        next.swap(table.clone());
        // The next process begins to accept while the previous one still does, or after its end.
        if round % 2 == 0 {
            next.listen(Scheme::Http, sockets().unwrap()).unwrap();
            proxy.drain(TIMEOUT).await;
        } else {
            proxy.drain(TIMEOUT).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            next.listen(Scheme::Http, sockets().unwrap()).unwrap();
        }
        proxy = next;
    }
    stop.store(true, Ordering::Relaxed);
    let mut answered = 0;
    for client in clients {
        answered += client.await.unwrap();
    }
    assert!(answered > 100, "{answered}");
}

#[tokio::test]
async fn every_worker_serves_the_newest_table() {
    let settings = Settings {
        workers: NonZeroUsize::new(4).unwrap(),
        ..Settings::default()
    };
    let fixture = ProxyFixture::start(settings);
    let mut clients = Vec::new();
    for _ in 0..32 {
        clients.push(fixture.client().await);
    }
    let answering = replica(async |_| text("x")).await;
    for (upstreams, status) in [
        (Some(answering), StatusCode::OK),
        (None, StatusCode::NOT_FOUND),
        (Some(answering), StatusCode::OK),
    ] {
        let rules = upstreams.map(|addr| rule([addr]));
        assert!(fixture.proxy.swap(RouteTable::new(rules)));
        for client in &mut clients {
            let response = client.send(get("/")).await;
            assert_eq!(response.status(), status);
            body(response).await;
        }
    }
}

#[tokio::test]
async fn connections_end_with_the_last_handle() {
    let fixture = ProxyFixture::start(Settings::default());
    let mut client = fixture.connect().await;
    let addr = fixture.addr;
    drop(fixture);
    assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
    while tokio::net::TcpStream::connect(addr).await.is_ok() {}
}

#[tokio::test]
async fn incomplete_request_head_times_out() {
    let settings = Settings {
        request_head_timeout: Duration::from_millis(30),
        ..Settings::default()
    };
    let fixture = ProxyFixture::start(settings);
    let mut client = fixture.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await; // the connection may be reset or closed
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn idle_client_is_disconnected() {
    let settings = Settings {
        idle_timeout: Duration::from_millis(500),
        ..Settings::default()
    };
    let fixture = ProxyFixture::start(settings);
    let mut client = fixture.connect().await;
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
        .await
        .unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 404"));
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn requests_are_counted_by_domain_and_service() {
    let answering = replica(async |_| text("x")).await;
    let counted = Arc::new(Counted::default());
    let proxy = Proxy::observed(Settings::default(), counted.clone());
    let fixture = ProxyFixture::bind(([127, 0, 0, 1], 0).into(), &proxy);
    let api = Rule {
        path: "/api".into(),
        service: "api".into(),
        ..rule([answering])
    };
    let idle = Rule {
        path: "/idle".into(),
        service: "idle".into(),
        ..rule([])
    };
    fixture.proxy.swap(RouteTable::new([api, idle]));

    let ask = async |host: &str, path: &str| {
        let request = Request::get(path)
            .header("host", host)
            .body(Empty::<Bytes>::new())
            .unwrap();
        let response = fixture.client().await.send(request).await;
        body(response).await;
    };
    ask("A.example", "/api/x?secret=1").await;
    ask("a.example", "/idle").await;
    ask("a.example", "/nowhere").await;
    ask("attacker-chosen.example", "/").await;
    // The guard is dropped when the server drops the body, which the client cannot observe.
    while counted.lines().len() < 4 {
        tokio::task::yield_now().await;
    }

    let mut lines = counted.lines();
    lines.sort();
    assert_eq!(
        lines,
        [
            "-  404 true",
            "a.example  404 true",
            "a.example api 200 true",
            "a.example idle 503 true",
        ]
    );
}

#[tokio::test]
async fn protocol_switch_is_counted_but_not_timed() {
    let (echo, _ended) = switching_replica().await;
    let counted = Arc::new(Counted::default());
    let proxy = Proxy::observed(Settings::default(), counted.clone());
    let fixture = ProxyFixture::bind(([127, 0, 0, 1], 0).into(), &proxy);
    fixture.proxy.swap(RouteTable::new([rule([echo])]));
    let _open = fixture.switched().await;
    while counted.lines().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(counted.lines(), ["a.example  101 false"]);
}
