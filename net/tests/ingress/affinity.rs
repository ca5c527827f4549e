//! Tests of sticky sessions: the cookie between client and proxy, and the replica it leads to.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;

use http::HeaderMap;
use hyper::body::Incoming;
use jaco_net::ingress::{Affinity, AffinityKey, SameSite};

use super::*;

/// A replica that answers with its name and the cookies it received, and sets cookies of its own.
async fn named(name: &'static str) -> SocketAddr {
    replica(move |request: Request<Incoming>| async move {
        let cookies = request.headers().get_all("cookie").iter();
        let cookies: Vec<_> = cookies.map(|field| field.to_str().unwrap()).collect();
        let mut response = text(format!("{name} {}", cookies.join("|")));
        let headers = response.headers_mut();
        headers.append("set-cookie", "route=theirs; Path=/".parse().unwrap());
        headers.append("set-cookie", "session=1".parse().unwrap());
        response
    })
    .await
}

fn sticky<const N: usize>(addrs: [SocketAddr; N]) -> Rule {
    Rule {
        affinity: Some(Affinity {
            cookie: "route".to_owned(),
            ttl: Duration::from_secs(3600),
            same_site: SameSite::Lax,
            key: AffinityKey::new([7; 32]),
        }),
        ..rule(addrs)
    }
}

fn with_cookie(cookie: &str) -> Request<Full<Bytes>> {
    let mut request = get("/");
    if !cookie.is_empty() {
        let value = cookie.parse().unwrap();
        request.headers_mut().insert("cookie", value);
    }
    request
}

/// The cookie of the proxy in a response, as a client sends it back; checks the replica's own.
fn given(headers: &HeaderMap) -> Option<String> {
    let fields = headers.get_all("set-cookie").iter();
    let fields: Vec<_> = fields.map(|field| field.to_str().unwrap()).collect();
    let all = fields.iter().copied();
    let (own, ours): (Vec<&str>, Vec<&str>) = all.partition(|f| f.starts_with("session="));
    assert_eq!(own, ["session=1"], "{fields:?}");
    assert!(ours.len() <= 1, "{ours:?}");
    let ours = ours.first()?;
    let rest = "; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax";
    Some(ours.strip_suffix(rest).unwrap().to_owned())
}

/// The replica that answers a request with `cookie`, what it received, and a new cookie.
async fn ask(fixture: &ProxyFixture, cookie: &str) -> (String, String, Option<String>) {
    let response = fixture.client().await.send(with_cookie(cookie)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let new = given(response.headers());
    let body = body(response).await;
    let (name, received) = body.split_once(' ').unwrap();
    (name.to_owned(), received.to_owned(), new)
}

#[tokio::test]
async fn client_stays_on_its_replica_through_every_node() {
    let addrs = [named("zero").await, named("one").await, named("two").await];
    let nodes = [(); 2].map(|()| ProxyFixture::start(Settings::default()));
    for node in &nodes {
        node.proxy.swap(RouteTable::new([sticky(addrs)]));
    }
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let (first, received, new) = ask(&nodes[0], "").await;
        assert_eq!(received, "");
        let cookie = new.unwrap();
        assert_eq!(cookie.len(), "route=".len() + 16);
        for node in nodes.iter().cycle().take(6) {
            let (name, received, new) = ask(node, &format!("a=1; {cookie}; b=2")).await;
            assert_eq!(
                (name.as_str(), received.as_str()),
                (first.as_str(), "a=1; b=2")
            );
            assert_eq!(new, None, "the cookie is given once");
        }
        seen.insert(first);
    }
    assert!(seen.len() > 1, "clients are spread: {seen:?}");
}

#[tokio::test]
async fn forged_cookie_counts_as_none() {
    let fixture = ProxyFixture::start(Settings::default());
    let addr = named("zero").await;
    fixture.proxy.swap(RouteTable::new([sticky([addr])]));
    let (_, _, cookie) = ask(&fixture, "").await;
    for forged in ["route=web-0", "route=", "route=AAAAAAAAAAAAAAAA"] {
        let (_, received, new) = ask(&fixture, forged).await;
        assert_eq!((received.as_str(), &new), ("", &cookie), "{forged}");
    }
}

#[tokio::test]
async fn lost_replica_costs_one_cookie() {
    let (down, refusing) = closed_port();
    let living = named("one").await;
    let fixture = ProxyFixture::start(Settings::default());
    // Its position and so its cookie are learnt while it is the only replica that listens.
    let held = {
        let listening = named("zero").await;
        fixture.proxy.swap(RouteTable::new([sticky([listening])]));
        ask(&fixture, "").await.2.unwrap()
    };
    // `web-0` refuses connections: nothing was sent, so another one gets even a POST.
    fixture
        .proxy
        .swap(RouteTable::new([sticky([refusing, living])]));
    let mut post = with_cookie(&held);
    *post.method_mut() = Method::POST;
    *post.body_mut() = Full::from("order");
    let response = fixture.client().await.send(post).await;
    assert_eq!(response.status(), StatusCode::OK);
    let new = given(response.headers()).unwrap();
    assert_ne!(new, held);
    assert_eq!(body(response).await, "one ");
    let (name, _, again) = ask(&fixture, &new).await;
    assert_eq!((name.as_str(), again), ("one", None));
    drop(down);
    // `web-0` is gone from the table.
    let mut left = sticky([refusing, living]);
    left.upstreams.remove(0);
    fixture.proxy.swap(RouteTable::new([left]));
    let (name, _, again) = ask(&fixture, &held).await;
    assert_eq!((name.as_str(), again), ("one", Some(new)));
}

#[tokio::test]
async fn leaving_replica_keeps_its_clients_only() {
    let addrs = [named("zero").await, named("one").await];
    let fixture = ProxyFixture::start(Settings::default());
    let mut alone = sticky(addrs);
    alone.upstreams.truncate(1);
    fixture.proxy.swap(RouteTable::new([alone.clone()]));
    let held = ask(&fixture, "").await.2.unwrap();
    let mut leaving = sticky(addrs);
    leaving.upstreams[0].leaving = true;
    fixture.proxy.swap(RouteTable::new([leaving]));
    for _ in 0..10 {
        let (name, _, new) = ask(&fixture, &held).await;
        assert_eq!((name.as_str(), new), ("zero", None));
        let (name, _, new) = ask(&fixture, "").await;
        assert_eq!((name.as_str(), new.is_some()), ("one", true));
    }
    // The last one serves all, but promises nothing.
    alone.upstreams[0].leaving = true;
    fixture.proxy.swap(RouteTable::new([alone]));
    let (name, _, new) = ask(&fixture, "").await;
    assert_eq!((name.as_str(), new), ("zero", None));
}

#[tokio::test]
async fn switched_connection_follows_its_cookie() {
    let (echo, _ended) = switching_replica().await;
    let fixture = ProxyFixture::start(Settings::default());
    let other = named("one").await;
    let mut alone = sticky([echo]);
    fixture.proxy.swap(RouteTable::new([alone.clone()]));
    let switch = async |cookie: &str| {
        let mut client = fixture.connect().await;
        let request = format!(
            "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: abc\r\nCookie: {cookie}\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut client).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert_echo(&mut client, b"abcd").await;
        let cookie = head
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        cookie.map(|cookie| cookie.split(';').next().unwrap().to_owned())
    };
    let held = switch("x=1").await.unwrap();
    alone.upstreams = sticky([echo, other]).upstreams;
    fixture.proxy.swap(RouteTable::new([alone]));
    for _ in 0..10 {
        assert_eq!(switch(&held).await, None);
    }
}

#[tokio::test]
async fn other_routes_do_not_see_the_cookie() {
    let fixture = ProxyFixture::start(Settings::default());
    let (root, api) = (named("root").await, named("api").await);
    let beside = Rule {
        path: "/api".to_owned(),
        ..rule([api])
    };
    fixture
        .proxy
        .swap(RouteTable::new([sticky([root]), beside]));
    let held = ask(&fixture, "").await.2.unwrap();
    let mut request = with_cookie(&format!("{held}; route=x; a=1"));
    *request.uri_mut() = "/api".parse().unwrap();
    let response = fixture.client().await.send(request).await;
    // Its container may use the name for itself.
    let fields = response.headers().get_all("set-cookie").iter();
    assert_eq!(fields.count(), 2);
    assert_eq!(body(response).await, "api route=x; a=1");
}
