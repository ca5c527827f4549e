use proptest::prelude::*;

use super::*;

fn affinity(key: u8) -> Affinity {
    Affinity {
        cookie: "route".to_owned(),
        ttl: Duration::from_secs(3600),
        same_site: SameSite::Lax,
        key: AffinityKey::new([key; 32]),
    }
}

fn upstreams(names: &[&str]) -> Vec<Upstream> {
    let upstream = |name: &&str| Upstream {
        replica: (*name).into(),
        addr: ([10, 0, 0, 1], 80).into(),
        fresh_until: None,
        leaving: false,
    };
    names.iter().map(upstream).collect()
}

fn sticky(names: &[&str]) -> StickyRoute {
    StickyRoute::new(&affinity(1), "a.example", "/api", &upstreams(names))
}

/// The cookie that a client sends back.
fn cookie(route: &StickyRoute, upstream: usize) -> String {
    let field = route.set_cookie(upstream, false).unwrap();
    field
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned()
}

fn request(fields: &[&str]) -> HeaderMap {
    let field = |value: &&str| (COOKIE, value.parse().unwrap());
    fields.iter().map(field).collect()
}

fn values(headers: &HeaderMap, name: http::HeaderName) -> Vec<&str> {
    let fields = headers.get_all(name).iter();
    fields.map(|field| field.to_str().unwrap()).collect()
}

#[test]
fn code_is_that_of_an_independent_implementation() {
    // Python: base64.urlsafe_b64encode(hmac.digest(bytes([1]) * 32, b"".join(
    //   len(p).to_bytes(8, "big") + p for p in (b"a.example", b"/api", b"web-0")), "sha256")[:12])
    assert_eq!(cookie(&sticky(&["web-0"]), 0), "route=v03w-ivTjNkFdfsF");
}

#[test]
fn cookie_names_its_replica_whatever_its_position() {
    let here = sticky(&["web-0", "web-1", "web-2"]);
    let there = sticky(&["web-1", "web-2", "web-5"]);
    let held = cookie(&here, 1);
    assert_eq!(here.named_replica(&request(&[&held])), Some(1));
    assert_eq!(there.named_replica(&request(&[&held])), Some(0));
    assert_eq!(sticky(&["web-0"]).named_replica(&request(&[&held])), None);
    for fields in [
        vec!["x=1; route=forged", "route=\"\"", held.as_str()],
        vec!["route; a=b;; ", &held],
    ] {
        let joined = fields.join("; ");
        assert_eq!(here.named_replica(&request(&fields)), Some(1), "{fields:?}");
        assert_eq!(
            here.named_replica(&request(&[&joined])),
            Some(1),
            "{joined}"
        );
    }
    let renamed = held.replace("route", "Route");
    assert_eq!(here.named_replica(&request(&[&renamed])), None);
}

#[test]
fn cookie_counts_for_its_route_and_key_only() {
    let all = upstreams(&["web-0"]);
    let held = cookie(&sticky(&["web-0"]), 0);
    let headers = request(&[&held]);
    for (key, domain, path) in [
        (2, "a.example", "/api"),
        (1, "b.example", "/api"),
        (1, "a.example", ""),
        (1, "a.example/", "api"),
    ] {
        let other = StickyRoute::new(&affinity(key), domain, path, &all);
        assert_eq!(other.named_replica(&headers), None, "{key} {domain} {path}");
    }
}

#[test]
fn cookie_carries_its_attributes() {
    let route = |path, same_site| {
        let affinity = Affinity {
            same_site,
            ..affinity(1)
        };
        StickyRoute::new(&affinity, "a.example", path, &upstreams(&["web-0"]))
    };
    let attributes = |path, same_site, secure| {
        let field = route(path, same_site).set_cookie(0, secure).unwrap();
        let text = field.to_str().unwrap().to_owned();
        text.split_once("; ").unwrap().1.to_owned()
    };
    assert_eq!(
        attributes("/api", SameSite::Lax, false),
        "Path=/api; Max-Age=3600; HttpOnly; SameSite=Lax"
    );
    assert_eq!(
        attributes("", SameSite::None, true),
        "Path=/; Max-Age=3600; HttpOnly; SameSite=None; Secure"
    );
    assert!(attributes("", SameSite::Strict, false).ends_with("SameSite=Strict"));
    assert_eq!(route("", SameSite::Lax).set_cookie(1, false), None);
}

#[test]
fn cookie_path_covers_every_request_of_the_route() {
    for (configured, path) in [
        ("", "/"),
        ("/", "/"),
        ("/api", "/api"),
        ("/api/", "/api"),
        ("/api*", "/"),
        ("/v1/api*", "/v1/"),
        ("/api/*", "/api/"),
        ("*", "/"),
        ("api", "/"),
        ("/a b", "/"),
        ("/a;b", "/"),
        ("/a%20b", "/"),
        ("/é", "/"),
    ] {
        assert_eq!(cookie_path(configured), path, "{configured}");
    }
}

#[test]
fn cookies_of_the_proxy_are_hidden_from_containers() {
    let names: [Box<str>; 2] = ["route".into(), "other".into()];
    let token = "AAAAbbbb0000-_-_";
    let foreign = format!("other={token}; a=1");
    for (own, fields, left) in [
        (Some("route"), &["a=1; route=x; b=2"][..], &["a=1; b=2"][..]),
        (Some("route"), &["route=x", "b=2"], &["b=2"]),
        (Some("route"), &["route=x; route=y"], &[]),
        (
            Some("route"),
            &["Route=x; aroute=y; b"],
            &["Route=x; aroute=y; b"],
        ),
        (Some("route"), &[&foreign], &["a=1"]),
        // Another deployment's path of the domain may use the name for itself.
        (None, &["route=x; other=short"], &["route=x; other=short"]),
        (None, &[&foreign], &["a=1"]),
        (None, &["a=\"b;c\"; d"], &["a=\"b;c\"; d"]),
    ] {
        let mut headers = request(fields);
        hide_from_replica(&mut headers, own, &names);
        assert_eq!(values(&headers, COOKIE), left, "{fields:?}");
    }
}

#[test]
fn containers_cookie_of_that_name_is_hidden() {
    let given = [
        "route=theirs; Path=/",
        "a=route=1; Path=/",
        " route =x",
        "b=2; route=3",
        "ROUTE=1",
    ];
    let field = |value: &str| (SET_COOKIE, value.parse().unwrap());
    let mut headers: HeaderMap = given.map(field).into_iter().collect();
    sticky(&["web-0"]).hide_from_client(&mut headers);
    assert_eq!(
        values(&headers, SET_COOKIE),
        ["a=route=1; Path=/", "b=2; route=3", "ROUTE=1"]
    );
}

#[test]
fn key_is_not_shown() {
    let shown = format!("{:?}", affinity(77));
    assert!(
        shown.contains("redacted") && !shown.contains("77"),
        "{shown}"
    );
}

proptest! {
    /// Arbitrary fields name no replica, and what stays of them is unchanged in order and text.
    #[test]
    fn arbitrary_cookies_name_no_replica(field in "[ -~]{0,120}") {
        let route = sticky(&["web-0", "web-1"]);
        let mut headers = request(&[&field]);
        prop_assert_eq!(route.named_replica(&headers), None);
        hide_from_replica(&mut headers, Some("route"), &[]);
        let left = values(&headers, COOKIE).concat();
        let kept: Vec<&str> = field
            .split(';')
            .map(str::trim)
            .filter(|member| !member.is_empty())
            .filter(|member| member.split_once('=').is_none_or(|(name, _)| name.trim() != "route"))
            .collect();
        let left: Vec<&str> = left.split(';').map(str::trim).filter(|m| !m.is_empty()).collect();
        prop_assert_eq!(left, kept);
    }

    /// A cookie of one replica with any change names none, or is not a change.
    #[test]
    fn changed_cookie_names_no_replica(at in 0_usize..TOKEN_CHARS, to in "[A-Za-z0-9_-]") {
        let route = sticky(&["web-0", "web-1"]);
        let held = cookie(&route, 0);
        let mut forged = held.clone();
        let at = "route=".len() + at;
        forged.replace_range(at..=at, &to);
        let named = route.named_replica(&request(&[&forged]));
        prop_assert_eq!(named, (forged == held).then_some(0));
    }
}
