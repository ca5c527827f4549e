//! Tests of limits per client: what is refused, and what a refusal looks like on the wire.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use hyper::body::Incoming;
use jaco_net::{
    ingress::{RuleLimits, TrustedProxies},
    limit::Limits,
};

use super::*;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A clock that stands still, so that no request is admitted because time passes.
fn frozen() -> Instant {
    *START
}

fn settings() -> Settings {
    Settings {
        clock: frozen,
        ..Settings::default()
    }
}

fn limited(rps: f64, burst: u32, connections: u32, addr: std::net::SocketAddr) -> Rule {
    Rule {
        limits: Some(RuleLimits {
            limits: Limits {
                rps,
                burst,
                connections,
            },
            exempt: vec!["/health".to_owned()],
        }),
        ..rule([addr])
    }
}

/// A proxy whose only route has these limits.
async fn limiting(rps: f64, burst: u32, connections: u32) -> ProxyFixture {
    let fixture = ProxyFixture::start(settings());
    let route = limited(rps, burst, connections, ok().await);
    fixture.proxy.swap(RouteTable::new([route]));
    fixture
}

async fn ok() -> std::net::SocketAddr {
    replica(async |request| {
        let from = request.headers()["x-forwarded-for"].to_str().unwrap();
        text(from.to_owned())
    })
    .await
}

fn with(path: &str, fields: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::get(path).header("host", HOST);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

fn trusting(rules: impl IntoIterator<Item = Rule>) -> RouteTable {
    let loopback = ([127, 0, 0, 0].into(), 8);
    RouteTable::new(rules).trusting(TrustedProxies::new([loopback]))
}

async fn refused(response: Response<Incoming>, retry_after: &str, line: &str) {
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["retry-after"], retry_after);
    assert_eq!(response.headers()["server"], "jaco");
    assert!(response.headers().get("connection").is_none());
    assert_eq!(body(response).await, line);
}

#[tokio::test]
async fn burst_passes_at_once_then_the_rate() {
    static MILLIS: AtomicU64 = AtomicU64::new(0);
    // Begins with the first request, so after the proxy.
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let settings = Settings {
        clock: || *BEGIN + Duration::from_millis(MILLIS.load(Ordering::SeqCst)),
        ..Settings::default()
    };
    let fixture = ProxyFixture::start(settings);
    let addr = ok().await;
    fixture
        .proxy
        .swap(RouteTable::new([limited(20.0, 100, 20, addr)]));
    let mut client = fixture.client().await;
    // 200 requests a second over one connection.
    for second in 0..3 {
        let mut passed = 0;
        for _ in 0..200 {
            let response = client.send(get("/")).await;
            match response.status() {
                StatusCode::OK => passed += 1,
                StatusCode::TOO_MANY_REQUESTS => {
                    assert_eq!(response.headers()["retry-after"], "1");
                }
                other => panic!("{other}"),
            }
            drop(body(response).await);
            MILLIS.fetch_add(5, Ordering::SeqCst);
        }
        let expected = if second == 0 { 115..=125 } else { 18..=22 };
        assert!(expected.contains(&passed), "{passed} in second {second}");
    }
    // A client that waits for the seconds of `Retry-After` passes.
    let refusal = loop {
        let response = client.send(get("/")).await;
        if response.status() != StatusCode::OK {
            break response;
        }
    };
    refused(refusal, "1", "too many requests\n").await;
    MILLIS.fetch_add(1000, Ordering::SeqCst);
    assert_eq!(client.send(get("/")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn refusal_is_json_if_asked_for() {
    let fixture = limiting(0.1, 1, 20).await;
    let mut client = fixture.client().await;
    assert_eq!(client.send(get("/")).await.status(), StatusCode::OK);
    let asked = with("/", &[("accept", "application/json")]);
    let response = client.send(asked).await;
    assert_eq!(response.headers()["content-type"], "application/json");
    let text = "{\"error\":{\"code\":\"rate_limited\"}}\n";
    refused(response, "10", text).await;
}

#[tokio::test]
async fn forged_addresses_change_nothing() {
    let fixture = limiting(1.0, 2, 20).await;
    let mut client = fixture.client().await;
    for number in 0..10 {
        let forged = format!("203.0.113.{number}");
        let request = with(
            "/",
            &[("x-forwarded-for", &forged), ("forwarded", "for=9.9.9.9")],
        );
        let response = client.send(request).await;
        if number < 2 {
            assert_eq!(body(response).await, "127.0.0.1");
        } else {
            refused(response, "1", "too many requests\n").await;
        }
    }
}

#[tokio::test]
async fn trusted_proxy_names_the_client() {
    let fixture = ProxyFixture::start(settings());
    let addr = ok().await;
    fixture.proxy.swap(trusting([limited(1.0, 1, 20, addr)]));
    let mut client = fixture.client().await;
    for (field, seen) in [
        ("203.0.113.1", Some("203.0.113.1, 127.0.0.1")),
        ("203.0.113.2", Some("203.0.113.2, 127.0.0.1")),
        // Left of it the client may have written anything.
        ("198.51.100.9, 203.0.113.1", None),
        (
            "203.0.113.3, 127.0.0.9",
            Some("203.0.113.3, 127.0.0.9, 127.0.0.1"),
        ),
        ("x, 203.0.113.4", Some("203.0.113.4, 127.0.0.1")),
        // Networks of 64 bits count as one client.
        ("2001:db8::1", Some("2001:db8::1, 127.0.0.1")),
        ("2001:db8::2", None),
        ("garbage", Some("127.0.0.1")),
        ("rubbish", None),
    ] {
        let response = client.send(with("/", &[("x-forwarded-for", field)])).await;
        match seen {
            Some(seen) => assert_eq!(body(response).await, seen),
            None => refused(response, "1", "too many requests\n").await,
        }
    }
}

#[tokio::test]
async fn exempt_and_challenge_paths_pass() {
    let fixture = limiting(1.0, 1, 20).await;
    let mut client = fixture.client().await;
    assert_eq!(client.send(get("/")).await.status(), StatusCode::OK);
    for (path, passes) in [
        ("/health", true),
        ("/health/db", true),
        ("/Health?x", true),
        ("/.well-known/acme-challenge/token", true),
        ("/.well-known/jaco-probe/nonce", true),
        ("/healthy", false),
        ("/health/../api", false),
        ("/.well-known/acme-challenge/../../api", false),
        ("/api", false),
    ] {
        let status = client.send(get(path)).await.status();
        assert_eq!(status == StatusCode::OK, passes, "{path}: {status}");
    }
}

#[tokio::test]
async fn refused_body_is_skipped_and_the_connection_kept() {
    let fixture = limiting(1.0, 1, 20).await;
    assert_eq!(
        fixture.client().await.send(get("/")).await.status(),
        StatusCode::OK
    );
    let mut client = fixture.connect().await;
    let after = b"GET /health HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let long = "x".repeat(60_000);
    for (head, sent) in [
        ("Content-Length: 60000", long.as_str()),
        ("Content-Length: 4", "GET "),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: a.example\r\n{head}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let refusal = read_head(&mut client).await;
        assert!(refusal.starts_with("HTTP/1.1 429"), "{refusal}");
        assert!(!refusal.contains("connection: close"), "{refusal}");
        let mut line = [0; 18];
        client.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"too many requests\n");
        // The body arrives after the answer, then the next request.
        client.write_all(sent.as_bytes()).await.unwrap();
        client.write_all(after).await.unwrap();
        let answer = read_head(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{head}: {answer}");
        client.read_exact(&mut [0; 9]).await.unwrap();
    }
}

#[tokio::test]
async fn body_that_cannot_be_skipped_ends_the_connection() {
    let fixture = limiting(1.0, 1, 20).await;
    assert_eq!(
        fixture.client().await.send(get("/")).await.status(),
        StatusCode::OK
    );
    for head in [
        "Content-Length: 1000000000",
        "Content-Length: 5\r\nExpect: 100-continue",
    ] {
        let mut client = fixture.connect().await;
        let request = format!("POST / HTTP/1.1\r\nHost: a.example\r\n{head}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let refusal = read_head(&mut client).await;
        assert!(refusal.starts_with("HTTP/1.1 429"), "{refusal}");
        assert!(refusal.contains("connection: close"), "{refusal}");
        let chunk = vec![b'x'; 64 * 1024];
        // The client sends on until it sees that the connection has ended.
        while client.write_all(&chunk).await.is_ok() {}
    }
}

#[tokio::test]
async fn request_is_in_flight_until_its_response_ends() {
    let (chunks, slow) = slow_replica().await;
    let fixture = ProxyFixture::start(settings());
    fixture
        .proxy
        .swap(RouteTable::new([limited(1e6, 1000, 1, slow)]));
    let response = fixture.client().await.send(get("/")).await;
    let asked = with("/", &[("accept", "application/json")]);
    let second = fixture.client().await.send(asked).await;
    let text = "{\"error\":{\"code\":\"too_many_connections\"}}\n";
    refused(second, "1", text).await;
    drop(chunks);
    drop(body(response).await);
    passes_eventually(&fixture).await;
}

#[tokio::test]
async fn switched_connection_counts_for_its_life() {
    let (echo, _ended) = switching_replica().await;
    let fixture = ProxyFixture::start(settings());
    fixture
        .proxy
        .swap(RouteTable::new([limited(1e6, 1000, 1, echo)]));
    let mut client = fixture.switched().await;
    assert_echo(&mut client, b"abcd").await;
    let line = "too many requests at once\n";
    let request = || with("/x", &[]);
    refused(fixture.client().await.send(request()).await, "1", line).await;
    assert_echo(&mut client, b"1234").await;
    drop(client);
    let mut again = fixture.connect().await;
    let upgrade = b"GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\n\
                    Upgrade: websocket\r\nSec-WebSocket-Key: abc\r\n\r\n";
    let switched = async {
        loop {
            again.write_all(upgrade).await.unwrap();
            let head = read_head(&mut again).await;
            if head.starts_with("HTTP/1.1 101") {
                return;
            }
            again.read_exact(&mut vec![0; line.len()]).await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, switched).await.unwrap();
}

/// Waits until the end of other requests is noticed.
async fn passes_eventually(fixture: &ProxyFixture) {
    let mut client = fixture.client().await;
    let passed = async { while client.send(get("/")).await.status() != StatusCode::OK {} };
    tokio::time::timeout(TIMEOUT, passed).await.unwrap();
}

#[tokio::test]
async fn new_table_keeps_the_counts_of_unchanged_routes() {
    let fixture = ProxyFixture::start(settings());
    let addr = ok().await;
    let (kept, other) = (limited(1.0, 2, 20, addr), limited(1.0, 3, 20, addr));
    fixture.proxy.swap(RouteTable::new([kept.clone()]));
    let mut client = fixture.client().await;
    for status in [
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
    ] {
        assert_eq!(client.send(get("/")).await.status(), status);
    }
    let beside = Rule {
        domain: "b.example".to_owned(),
        ..rule([addr])
    };
    fixture.proxy.swap(RouteTable::new([kept, beside]));
    let status = client.send(get("/")).await.status();
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    // Other limits begin anew.
    fixture.proxy.swap(RouteTable::new([other]));
    assert_eq!(client.send(get("/")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn more_clients_than_remembered_are_admitted_uncounted() {
    let fixture = ProxyFixture::start(Settings {
        max_limited_clients: 128,
        ..settings()
    });
    let addr = ok().await;
    fixture.proxy.swap(trusting([limited(1.0, 1, 20, addr)]));
    let mut client = fixture.client().await;
    for number in 0..2000_u32 {
        let from = std::net::Ipv4Addr::from(0x0a00_0000 | number).to_string();
        let response = client.send(with("/", &[("x-forwarded-for", &from)])).await;
        assert_eq!(response.status(), StatusCode::OK, "{from}");
        drop(body(response).await);
    }
    let limiter = fixture.proxy.limiter();
    assert!(limiter.clients() <= 128, "{}", limiter.clients());
    assert!(limiter.untracked() >= 2000 - 128, "{}", limiter.untracked());
}

#[tokio::test]
async fn routes_without_limits_count_nothing() {
    let fixture = ProxyFixture::start(settings());
    fixture.proxy.swap(RouteTable::new([rule([ok().await])]));
    let mut client = fixture.client().await;
    for _ in 0..50 {
        assert_eq!(client.send(get("/")).await.status(), StatusCode::OK);
    }
    assert_eq!(fixture.proxy.limiter().clients(), 0);
}

#[tokio::test]
async fn refusals_are_counted_by_deployment_and_service() {
    let counted = Counted::default();
    let lines = counted.clone();
    let proxy = Proxy::observed(settings(), std::sync::Arc::new(counted));
    let fixture = ProxyFixture::bind(([127, 0, 0, 1], 0).into(), &proxy);
    let route = Rule {
        deployment: "shop".to_owned(),
        service: "web".to_owned(),
        ..limited(1.0, 1, 20, ok().await)
    };
    proxy.swap(RouteTable::new([route]));
    let mut client = fixture.client().await;
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let response = client.send(get("/")).await;
        assert_eq!(response.status(), status);
        drop(body(response).await);
    }
    let limited = lines.lines().into_iter();
    let limited: Vec<_> = limited.filter(|line| line.ends_with("limited")).collect();
    assert_eq!(limited, ["shop web limited"]);
}
