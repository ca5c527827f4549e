//! Violations of `jaco.yaml` rules.

use super::*;

#[test]
fn invalid_overrides_are_rejected_with_their_code() {
    for (overrides, code, words, details) in [
        (
            "name: web, placement: global, replicas: 1",
            "validation_failed",
            "remove replicas",
            "service=web",
        ),
        (
            "name: web, placement: global, replicas: 0",
            "validation_failed",
            "remove replicas",
            "",
        ),
        (
            "name: web, placement: hosts",
            "validation_failed",
            "hosts is empty",
            "service=web",
        ),
        (
            "name: web, placement: hosts, hosts: [ghost]",
            "unknown_host",
            "not a member",
            "service=web host=ghost",
        ),
        (
            "name: nope",
            "unknown_service",
            "not found in the compose file",
            "service=nope",
        ),
        (
            "name: webb",
            "unknown_service",
            "did you mean \"web\"",
            "service=webb",
        ),
        (
            "name: web, replicas: \"2\"",
            "parse_failed",
            "whole number",
            "line=1",
        ),
        (
            "name: web, replicas: -1",
            "validation_failed",
            "0 to 10000",
            "service=web",
        ),
        (
            "name: web, replicas: 10001",
            "validation_failed",
            "0 to 10000",
            "",
        ),
        (
            "name: web, placement: Spread",
            "validation_failed",
            "unknown placement",
            "value=Spread",
        ),
        (
            "name: web}, {name: web",
            "validation_failed",
            "declared more than once",
            "service=web",
        ),
        ("replicas: 1", "validation_failed", "needs a name", ""),
        (
            "name: web, placement: hosts, hosts: [a], replicas: 2",
            "replicas_exceed_pinned_hosts",
            "",
            "service=web replicas=2 hosts=1",
        ),
        (
            "name: web, placement: hosts, hosts: [a, a], replicas: 2",
            "replicas_exceed_pinned_hosts",
            "",
            "hosts=1",
        ),
        (
            "name: web, networks: [back]",
            "unknown_network",
            "not declared",
            "service=web network=back",
        ),
        (
            "name: web, network: [back]",
            "validation_failed",
            "did you mean \"networks\"",
            "field=network",
        ),
        ("name: web, hosts: a", "parse_failed", "must be a list", ""),
        ("name: [web]", "parse_failed", "must be a string", ""),
    ] {
        let result = apply(&format!("services: [{{{overrides}}}]"), "");
        assert_refused(result, code, words, details);
    }
}

#[test]
fn jaco_yaml_is_a_closed_schema() {
    for (rest, code, words, details) in [
        (
            "notes: {compose_service: x}",
            "validation_failed",
            "compose_service is no longer supported",
            "",
        ),
        (
            "x-notes: [{compose_service: x}]",
            "validation_failed",
            "compose_service",
            "",
        ),
        (
            "replcas: 2",
            "validation_failed",
            "\"replcas\"",
            "field=replcas line=1",
        ),
        (
            "rotues: []",
            "validation_failed",
            "did you mean \"routes\"",
            "field=rotues",
        ),
        ("acme: maybe", "validation_failed", "want on|off", ""),
        (
            "acme_email: nope",
            "validation_failed",
            "is not a valid email address",
            "value=nope",
        ),
        ("routes: {}", "parse_failed", "must be a list", ""),
        (
            "services: a",
            "parse_failed",
            "must be a list",
            "field=services",
        ),
        ("routes: [1]", "parse_failed", "must be a mapping", ""),
        ("a: 1, a: 2", "parse_failed", "already set", "line=1"),
        ("routes: [", "parse_failed", "", "file=jaco.yaml"),
    ] {
        assert_refused(apply(rest, ""), code, words, details);
    }
    apply("x-team: a, routes: , services: ~, environment: .env", "").unwrap();
    for (text, code, words) in [
        ("", "validation_failed", "jaco_yaml is required"),
        (
            "# nothing",
            "validation_failed",
            "deployment name is required",
        ),
        (
            "deployment: ~",
            "validation_failed",
            "deployment name is required",
        ),
        ("- a", "parse_failed", "must be a mapping"),
    ] {
        let result = resolve(text.as_bytes(), compose("", "").as_bytes(), &PLAIN);
        assert_refused(result, code, words, "");
    }
}

#[test]
fn strings_keep_source_text_later_documents_are_ignored() {
    for (text, deployment) in [
        ("deployment: 2024", "2024"),
        ("deployment: off", "off"),
        ("deployment: 1.10", "1.10"),
        ("deployment: d\n---\n[", "d"),
    ] {
        let resolved = resolve(text.as_bytes(), compose("", "").as_bytes(), &PLAIN).unwrap();
        assert_eq!(resolved.deployment, deployment);
    }
}

#[test]
fn acme_settings_reach_routes_and_account() {
    let tls = |rest: &str| apply(rest, "").unwrap().routes[0].tls_auto;
    assert!(tls("routes: [{domain: a.io, service: web, port: 80}]"));
    assert!(!tls(
        "acme: Off, routes: [{domain: a.io, service: web, port: 80}]"
    ));
    assert!(tls(
        "acme: off, routes: [{domain: a.io, service: web, port: 80, tls: auto}]"
    ));
    assert!(!tls(
        "routes: [{domain: a.io, service: web, port: 80, tls: off}]"
    ));
    let email = |rest: &str| apply(rest, "").unwrap().acme_email;
    assert_eq!(email("acme_email: ops@a.io"), "ops@a.io");
    assert_eq!(email("acme_email: Ops <ops@a.io>"), "Ops <ops@a.io>");
    assert_eq!(email("acme: off, acme_email: nonsense"), "nonsense");
}

#[test]
fn limits_and_affinity_reach_the_route() {
    let route = |more: &str| {
        let rest = format!("routes: [{{domain: a.io, service: web, port: 80, {more}}}]");
        apply(&rest, "").unwrap().routes.remove(0)
    };
    let limits = |rps, burst, connections, exempt: &[&str]| v1::RouteLimits {
        off: false,
        rps,
        burst,
        connections,
        exempt: exempt.iter().map(|path| (*path).to_owned()).collect(),
    };
    let defaults = limits(20.0, 100, 20, &["/health"]);
    for (given, expected) in [
        ("limits: ~", None),
        ("limits: ''", None),
        ("limits: on", Some(defaults.clone())),
        ("limits: {}", Some(defaults)),
        (
            "limits: {rps: 0.5, burst_multiplier: 1, exempt: ~}",
            Some(limits(0.5, 1, 20, &["/health"])),
        ),
        (
            "limits: {rps: 1000000, burst_multiplier: 1000, connections: 1, exempt: []}",
            Some(limits(1e6, 1_000_000_000, 1, &[])),
        ),
        (
            "limits: {rps: 2.5, burst_multiplier: 3, exempt: [/a, /b*], x-why: 1}",
            Some(limits(2.5, 7, 20, &["/a", "/b*"])),
        ),
    ] {
        assert_eq!(route(given).limits, expected, "{given}");
    }
    let off = route("limits: off").limits.unwrap();
    assert!(off.off && off.rps == 0.0 && off.exempt.is_empty());
    for (given, expected) in [
        ("affinity: ~", None),
        ("affinity: cookie", Some(("route", 34_560_000, "lax"))),
        ("affinity: {}", Some(("route", 34_560_000, "lax"))),
        (
            "affinity: {cookie: my.id, ttl: 1h30m, same_site: none}",
            Some(("my.id", 5400, "none")),
        ),
        (
            "affinity: {ttl: 400d, same_site: strict}",
            Some(("route", 34_560_000, "strict")),
        ),
    ] {
        let affinity = route(given).affinity;
        let shown = affinity.as_ref();
        let shown = shown.map(|a| (a.cookie.as_str(), a.ttl_s, a.same_site.as_str()));
        assert_eq!(shown, expected, "{given}");
    }
}

#[test]
fn invalid_limits_and_affinity_are_rejected() {
    let many = format!("limits: {{exempt: [{}]}}", ["/x"; 33].join(", "));
    let long = format!("affinity: {{cookie: {}}}", "c".repeat(65));
    for (given, code, words, details) in [
        (
            "limits: maybe",
            "validation_failed",
            "unknown limits",
            "field=routes.limits value=maybe",
        ),
        ("limits: On", "validation_failed", "did you mean \"on\"", ""),
        ("limits: [on]", "parse_failed", "a word or a mapping", ""),
        (
            "limits: {rps: 0}",
            "validation_failed",
            "above 0",
            "field=routes.limits.rps value=0",
        ),
        ("limits: {rps: -1}", "validation_failed", "above 0", ""),
        (
            "limits: {rps: 1000000.5}",
            "validation_failed",
            "at most 1000000",
            "",
        ),
        ("limits: {rps: .inf}", "parse_failed", "a number", ""),
        ("limits: {rps: .nan}", "parse_failed", "a number", ""),
        ("limits: {rps: \"20\"}", "parse_failed", "a number", ""),
        (
            "limits: {burst_multiplier: 0}",
            "validation_failed",
            "1 to 1000",
            "domain=a.io",
        ),
        (
            "limits: {burst_multiplier: 1.5}",
            "parse_failed",
            "whole number",
            "",
        ),
        (
            "limits: {connections: 0}",
            "validation_failed",
            "1 to 1000000",
            "field=routes.limits.connections",
        ),
        (
            "limits: {exempt: health}",
            "parse_failed",
            "must be a list",
            "",
        ),
        (
            "limits: {exempt: [health]}",
            "validation_failed",
            "begins with /",
            "value=health",
        ),
        (
            "limits: {exempt: [~]}",
            "validation_failed",
            "begins with /",
            "",
        ),
        (
            &many,
            "validation_failed",
            "more than 32",
            "field=routes.limits.exempt",
        ),
        (
            "limits: {rpm: 1}",
            "validation_failed",
            "did you mean \"rps\"",
            "field=rpm",
        ),
        (
            "affinity: ip",
            "validation_failed",
            "unknown affinity",
            "field=routes.affinity value=ip",
        ),
        (
            "affinity: {cookie: a b}",
            "validation_failed",
            "want at most 64",
            "field=routes.affinity.cookie",
        ),
        (&long, "validation_failed", "want at most 64", ""),
        (
            "affinity: {ttl: 401d}",
            "validation_failed",
            "1s to 400d",
            "field=routes.affinity.ttl value=401d",
        ),
        (
            "affinity: {ttl: 400d1ms}",
            "validation_failed",
            "1s to 400d",
            "",
        ),
        ("affinity: {ttl: 0}", "validation_failed", "1s to 400d", ""),
        (
            "affinity: {ttl: 999ms}",
            "validation_failed",
            "1s to 400d",
            "",
        ),
        (
            "affinity: {ttl: forever}",
            "validation_failed",
            "1s to 400d",
            "",
        ),
        (
            "affinity: {same_site: Lax}",
            "validation_failed",
            "lax, strict or none",
            "",
        ),
        (
            "affinity: {cookies: x}",
            "validation_failed",
            "did you mean \"cookie\"",
            "",
        ),
    ] {
        let rest = format!("routes: [{{domain: a.io, service: web, port: 80, {given}}}]");
        assert_refused(apply(&rest, ""), code, words, details);
    }
}

#[test]
fn invalid_routes_are_rejected_with_their_code() {
    let route = |more: &str| format!("{{domain: a.io, service: web, port: 80{more}}}");
    let two = |a: &str, b: &str| format!("routes: [{}, {}]", route(a), route(b));
    for (rest, code, words, details) in [
        (
            two(", path: /, tls: auto", ", path: /x, tls: off"),
            "route_tls_mixed",
            "",
            "domain=a.io",
        ),
        (
            two(", path: /api", ", path: /api"),
            "validation_failed",
            "route conflict",
            "",
        ),
        (
            two("", ""),
            "route_multiple_catchall",
            "",
            "domain=a.io services=web,web",
        ),
        (
            "routes: [{service: web, port: 80}]".into(),
            "validation_failed",
            "domain",
            "",
        ),
        (
            "routes: [{domain: a.io, port: 80}]".into(),
            "validation_failed",
            "service",
            "domain=a.io",
        ),
        (
            "routes: [{domain: a.io, service: web}]".into(),
            "validation_failed",
            "port",
            "",
        ),
        (
            "routes: [{domain: a.io, service: web, port: 65536}]".into(),
            "validation_failed",
            "port",
            "value=65536",
        ),
        (
            "routes: [{domain: a.io, service: web, port: x}]".into(),
            "parse_failed",
            "whole number",
            "",
        ),
        (
            format!("routes: [{}]", route(", tls: AUTO")),
            "validation_failed",
            "unknown tls",
            "",
        ),
        (
            format!("routes: [{}]", route(", upstream: h2")),
            "validation_failed",
            "unknown upstream",
            "",
        ),
        (
            format!("routes: [{}]", route(", strip_path: \"yes\"")),
            "parse_failed",
            "boolean",
            "",
        ),
        (
            "routes: [{domain: a.io, service: nope, port: 80}]".into(),
            "unknown_service",
            "references unknown service",
            "service=nope domain=a.io",
        ),
        (
            format!("routes: [{}]", route(", path: /taken")),
            "route_conflict",
            "other",
            "domain=a.io path=/taken deployment=other",
        ),
    ] {
        assert_refused(apply(&rest, ""), code, words, details);
    }
    apply(&two(", path: /api", ", path: /api/"), "").unwrap();
    let resolved = apply(
        &format!(
            "routes: [{}]",
            route(", path: /mine, strip_path: yes, upstream: h2c")
        ),
        "",
    )
    .unwrap();
    assert!(resolved.routes[0].strip_path && resolved.routes[0].upstream_h2c);
    assert_eq!(resolved.routes[0].deployment, "d");
    let result = apply(&format!("routes: [{}]", route("")), "network_mode: none");
    assert_refused(
        result,
        "validation_failed",
        "routes on a service with network_mode",
        "service=web",
    );
}
