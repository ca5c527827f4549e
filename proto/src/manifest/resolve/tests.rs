use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::manifest::SpecHasher;

/// A cluster of hosts `a` and `b` in which another deployment owns port 9000 and `a.io/taken`.
struct Cluster {
    allows_privileged: bool,
}

impl ClusterView for Cluster {
    fn has_host(&self, hostname: &str) -> bool {
        ["a", "b"].contains(&hostname)
    }

    fn port_owner(&self, port: u16) -> Option<String> {
        (port == 9000).then(|| "other".to_owned())
    }

    fn route_owner(&self, domain: &str, path: &str) -> Option<String> {
        match (domain, path) {
            ("a.io", "/taken") => Some("other".to_owned()),
            ("a.io", "/mine") => Some("d".to_owned()),
            _ => None,
        }
    }

    fn identity(&self) -> &str {
        "ci"
    }

    fn allows_privileged(&self) -> bool {
        self.allows_privileged
    }
}

const PLAIN: Cluster = Cluster {
    allows_privileged: false,
};

/// `jaco.yaml` with `deployment: d` and more in flow style.
fn jaco(rest: &str) -> String {
    match rest {
        "" => "deployment: d".to_owned(),
        rest => format!("{{deployment: d, {rest}}}"),
    }
}

/// A compose file with service `web`, more keys of it and more of the file.
fn compose(web: &str, file: &str) -> String {
    let web = if web.is_empty() {
        "image: nginx".to_owned()
    } else {
        format!("image: nginx, {web}")
    };
    format!("services: {{web: {{{web}}}, db: {{image: pg}}}}\n{file}")
}

fn apply(jaco_rest: &str, web: &str) -> Result<Resolved, Error> {
    apply_file(jaco_rest, web, "")
}

fn apply_file(jaco_rest: &str, web: &str, file: &str) -> Result<Resolved, Error> {
    resolve(
        jaco(jaco_rest).as_bytes(),
        compose(web, file).as_bytes(),
        &PLAIN,
    )
}

/// Checks code, words and details (`key=value` and nothing about places).
#[track_caller]
fn assert_refused(result: Result<Resolved, Error>, code: &str, words: &str, details: &str) {
    let error = result.expect_err("accepted");
    assert_eq!(error.code.as_str(), code, "{error}");
    assert!(error.message.contains(words), "{error}");
    let got: BTreeMap<_, _> = error
        .details
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    for pair in details.split(' ').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap();
        assert_eq!(got.get(key), Some(&value), "{key} of {error}: {got:?}");
    }
    assert!(!error.message.ends_with('.'), "{error}");
}

fn web(resolved: &Resolved) -> &v1::ServiceSpec {
    resolved.services.iter().find(|s| s.name == "web").unwrap()
}

#[test]
fn defaults_are_one_replica_spread_on_the_default_network() {
    let resolved = apply("", "").unwrap();
    assert_eq!(resolved.deployment, "d");
    let names: Vec<_> = resolved.services.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["db", "web"]);
    let web = web(&resolved);
    assert_eq!(web.replicas, 1);
    assert_eq!(web.placement(), PlacementMode::Spread);
    assert_eq!(web.networks, ["_default"]);
    assert!(web.hosts.is_empty());
    assert!(resolved.warnings.is_empty());
}

#[test]
fn overrides_are_refused_by_the_rule_they_break() {
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
            "0 or more",
            "service=web",
        ),
        (
            "name: web, replicas: 99999999999",
            "validation_failed",
            "0 or more",
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
fn overrides_win_over_compose() {
    let resolved = apply_file(
        "services: [{name: web, replicas: 0, placement: hosts, hosts: [b, a], networks: [front, default]}]",
        "deploy: {replicas: 5}, networks: [back]",
        "networks: {front: , back: , default: }",
    )
    .unwrap();
    let web = web(&resolved);
    assert_eq!(web.replicas, 0);
    assert_eq!(web.placement(), PlacementMode::Hosts);
    assert_eq!(web.hosts, ["b", "a"]);
    assert_eq!(web.networks, ["front", "_default"]);
}

#[test]
fn compose_gives_what_no_override_sets() {
    let resolved = apply_file(
        "services: [{name: web, placement: global}]",
        "deploy: {replicas: 5}, networks: {b: {priority: 9}, a: }",
        "networks: {a: , b: }",
    )
    .unwrap();
    assert_eq!(web(&resolved).replicas, 5);
    assert_eq!(web(&resolved).networks, ["a", "b"]);
    let resolved = apply("services: [{name: web}]", "network_mode: none").unwrap();
    assert!(web(&resolved).networks.is_empty());
}

#[test]
fn pinned_hosts_count_the_replicas_of_the_compose_file_too() {
    let result = apply(
        "services: [{name: web, placement: hosts, hosts: [a]}]",
        "deploy: {replicas: 2}",
    );
    assert_refused(
        result,
        "replicas_exceed_pinned_hosts",
        "",
        "replicas=2 hosts=1",
    );
    let hosts_without_pinning = "services: [{name: web, hosts: [ghost], replicas: 9}]";
    assert_eq!(
        web(&apply(hosts_without_pinning, "").unwrap()).hosts,
        ["ghost"]
    );
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
fn strings_take_the_source_text_and_later_documents_are_ignored() {
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
fn routes_are_refused_by_the_rule_they_break() {
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
        &format!("routes: [{}]", route(", path: /mine, strip_path: yes")),
        "",
    )
    .unwrap();
    assert!(resolved.routes[0].strip_path);
    assert_eq!(resolved.routes[0].deployment, "d");
    let result = apply(&format!("routes: [{}]", route("")), "network_mode: none");
    assert_refused(
        result,
        "validation_failed",
        "routes on a service with network_mode",
        "service=web",
    );
}

#[test]
fn compose_services_are_refused_by_the_rule_they_break() {
    for (web, code, words, details) in [
        (
            "mac_address: x",
            "validation_failed",
            "unsupported compose field",
            "service=web field=mac_address line=1 file=compose.yaml",
        ),
        (
            "x-note: 1",
            "validation_failed",
            "unsupported compose field",
            "service=web field=x-note",
        ),
        (
            "enviroment: {}",
            "validation_failed",
            "did you mean \"environment\"",
            "field=enviroment",
        ),
        (
            "log_driver: json-file, aaa: 1",
            "legacy_compose_field",
            "",
            "field=log_driver modern_equivalent=logging.driver",
        ),
        (
            "net: host",
            "legacy_compose_field",
            "",
            "field=net modern_equivalent=network_mode",
        ),
        (
            "volume_driver: x",
            "legacy_compose_field",
            "",
            "field=volume_driver",
        ),
        (
            "networks: [back]",
            "unknown_network",
            "back",
            "service=web network=back",
        ),
        ("networks: {back: }", "unknown_network", "back", ""),
        ("networks: [default]", "unknown_network", "default", ""),
        (
            "ports: [\"443:443/udp\"]",
            "reserved_port",
            "",
            "service=web port=443 entry=443:443/udp",
        ),
        (
            "ports: [\"127.0.0.1:443:1\"]",
            "reserved_port",
            "",
            "port=443",
        ),
        ("ports: [\"79-81:79-81\"]", "reserved_port", "", "port=80"),
        (
            "ports: [{target: 1, published: 80}]",
            "reserved_port",
            "",
            "port=80 entry=80:1/tcp",
        ),
        (
            "ports: [{target: 1, published: \"79-81\"}]",
            "reserved_port",
            "",
            "port=80",
        ),
        (
            "ports: [\"9001:1\", \"9001:2\"]",
            "port_conflict",
            "twice",
            "port=9001 services=web",
        ),
        (
            "ports: [\"9000:1\"]",
            "port_conflict",
            "other",
            "port=9000 deployment=other",
        ),
        (
            "ports: [\"9001:1\", \"9001:1\"]",
            "validation_failed",
            "repeats",
            "service=web field=ports",
        ),
        ("ports: [\"1-2:1-3\"]", "validation_failed", "unequal", ""),
        ("ports: [\"a:b\"]", "validation_failed", "compose load", ""),
        (
            "ports: [70000]",
            "validation_failed",
            "compose load",
            "field=ports",
        ),
        (
            "ports: [0]",
            "validation_failed",
            "compose load",
            "field=ports",
        ),
        (
            "pull_policy: daily",
            "validation_failed",
            "pull_policy",
            "field=pull_policy value=daily",
        ),
        (
            "pull_policy: 1",
            "validation_failed",
            "pull_policy",
            "field=pull_policy",
        ),
        (
            "privileged: true",
            "validation_failed",
            "jaco.io/allow-privileged",
            "service=web fields=privileged label=jaco.io/allow-privileged",
        ),
        (
            "privileged: \"true\"",
            "validation_failed",
            "",
            "fields=privileged",
        ),
        (
            "privileged: \"Yes\", security_opt: [a]",
            "validation_failed",
            "",
            "fields=privileged,security_opt",
        ),
        (
            "privileged: true, labels: {jaco.io/allow-privileged: true}",
            "validation_failed",
            "",
            "fields=privileged",
        ),
        (
            "privileged: true, labels: {jaco.io/allow-privileged: \"1\"}",
            "validation_failed",
            "",
            "",
        ),
        (
            "privileged: true, labels: [jaco.io/allow-privileged=True]",
            "validation_failed",
            "",
            "",
        ),
        (
            "privileged: true, labels: {jaco.io/allow-privileged: \"true\"}",
            "privilege_denied",
            "ci",
            "service=web fields=privileged identity=ci",
        ),
        (
            "network_mode: host",
            "validation_failed",
            "network_mode",
            "service=web field=network_mode value=host",
        ),
        (
            "network_mode: \"service:\"",
            "validation_failed",
            "network_mode",
            "",
        ),
        (
            "network_mode: 1",
            "validation_failed",
            "network_mode",
            "value=1",
        ),
        (
            "network_mode: [none]",
            "validation_failed",
            "network_mode",
            "",
        ),
        (
            "network_mode: \"service:nope\"",
            "validation_failed",
            "",
            "target_service=nope",
        ),
        (
            "network_mode: \"service:web\"",
            "validation_failed",
            "itself",
            "",
        ),
        (
            "pid: \"service:nope\"",
            "validation_failed",
            "",
            "field=pid target_service=nope",
        ),
        (
            "depends_on: [web]",
            "invalid_depends_on",
            "itself",
            "service=web depends_on=web",
        ),
        (
            "depends_on: [bd]",
            "unknown_depends_on_service",
            "did you mean \"db\"",
            "depends_on=bd",
        ),
        (
            "depends_on: {nope: {condition: service_started, required: false}}",
            "unknown_depends_on_service",
            "",
            "",
        ),
        (
            "depends_on: {db: {condition: service_completed_successfully}}",
            "unsupported_depends_on_condition",
            "",
            "service=web depends_on=db condition=service_completed_successfully",
        ),
        (
            "depends_on: {db: }",
            "validation_failed",
            "needs a condition",
            "",
        ),
        (
            "depends_on: {db: {required: true}}",
            "validation_failed",
            "needs a condition",
            "",
        ),
        (
            "env_file: .env",
            "env_file_unresolved",
            "env_file",
            "service=web",
        ),
    ] {
        assert_refused(apply("", web), code, words, details);
    }
}

#[test]
fn wrong_types_are_compose_load_errors_of_their_service() {
    for web in [
        "command: {}",
        "command: [1]",
        "command: \"open 'quote\"",
        "entrypoint: [[a]]",
        "environment: [[a]]",
        "environment: {A: [1]}",
        "environment: text",
        "environment: [A=1, A=1]",
        "labels: 1",
        "working_dir: 1",
        "user: 1000",
        "stop_grace_period: 10",
        "stop_grace_period: soon",
        "healthcheck: []",
        "healthcheck: {test: {}}",
        "healthcheck: {intervall: 1s}",
        "healthcheck: {retries: many}",
        "volumes: {}",
        "volumes: [1]",
        "volumes: [\"./rel:/x\"]",
        "volumes: [\"../rel:/x\"]",
        "volumes: [\"data:rel\"]",
        "volumes: [\":/x\"]",
        "volumes: [\"a:/b:c:d\"]",
        "volumes: [{source: a, target: /b}]",
        "volumes: [{type: bind, target: /b}]",
        "volumes: [{type: bind, source: rel, target: /b}]",
        "volumes: [\"a:/b\", \"a:/b\"]",
        "read_only: 1",
        "read_only: perhaps",
        "cap_add: ALL",
        "cap_add: [A, A]",
        "ulimits: {nofile: {soft: 1}}",
        "ulimits: {nofile: lots}",
        "devices: [\"a:b:c:d\"]",
        "devices: [{target: /x}]",
        "gpus: some",
        "gpus: [{count: 1, device_ids: [a]}]",
        "ports: {}",
        "ports: [{published: 9001}]",
        "dns: {}",
        "extra_hosts: [nope]",
        "init: 3",
        "shm_size: big",
        "cgroup: shared",
        "logging: text",
        "logging: {driver: 1}",
        "deploy: []",
        "deploy: {replicas: -1}",
        "deploy: {replicas: two}",
        "deploy: {replcas: 2}",
        "deploy: {resources: {limits: {cpus: half}}}",
        "deploy: {update_config: {order: sideways}}",
        "deploy: {update_config: {parallelism: -1}}",
        "cpus: half",
        "mem_limit: lots",
        "pids_limit: 1.5",
        "image: [nginx]",
    ] {
        let compose = format!("services: {{web: {{{web}}}}}");
        let result = resolve(b"deployment: d", compose.as_bytes(), &PLAIN);
        assert_refused(result, "validation_failed", "compose load", "service=web");
    }
}

#[test]
fn compose_documents_are_refused_by_the_rule_they_break() {
    for (text, words) in [
        ("", "compose_yaml is required"),
        ("{}", "empty compose file"),
        ("# nothing", "empty compose file"),
        ("- a", "expected a mapping"),
        ("services: []", "must be a mapping"),
        ("services: {web: }", "must be a mapping"),
        ("services: {\"a b\": {image: x}}", "letters, digits"),
        ("networks: {\"a/b\": }", "letters, digits"),
        ("volumes: {\"a/b\": }", "letters, digits"),
        ("volumes: {a: {external: true, driver: x}}", "external"),
        ("volumes: {a: []}", "must be a mapping"),
        ("include: [a.yaml]", "unsupported compose field"),
        ("service: {}", "did you mean \"services\""),
        ("services: {}\n---\nservices: {}", "second"),
        ("services: {a: {image: x}, a: {image: y}}", "already set"),
        ("services: {a: {image: x, image: y}}", "already set"),
        ("services: [", "compose load"),
        ("a: \u{0}", "compose load"),
    ] {
        let result = resolve(b"deployment: d", text.as_bytes(), &PLAIN);
        assert_refused(result, "validation_failed", words, "");
    }
    for accepted in [
        "services: {}",
        "name: x",
        "x-note: 1\nversion: '3'\nsecrets: {}\nconfigs: {}\nmodels: {}\nservices: {}",
        "volumes: {a: {external: true, name: b, x-c: d}}",
    ] {
        resolve(b"deployment: d", accepted.as_bytes(), &PLAIN).unwrap();
    }
}

#[test]
fn dependencies_must_not_run_in_circles() {
    let circle = |edges: &str| {
        resolve(
            b"deployment: d",
            format!("services: {{{edges}}}").as_bytes(),
            &PLAIN,
        )
    };
    let result = circle("a: {depends_on: [b]}, b: {depends_on: [c]}, c: {depends_on: [b]}, z: {}");
    assert_refused(result, "invalid_depends_on", "b -> c -> b", "service=b");
    let result = circle("a: {network_mode: 'service:b'}, b: {pid: 'service:a'}");
    assert_refused(result, "invalid_depends_on", "a -> b -> a", "service=a");
    let optional = "{condition: service_started, required: false}";
    circle(&format!(
        "a: {{depends_on: [b]}}, b: {{depends_on: {{a: {optional}}}}}"
    ))
    .unwrap();
    circle("a: {depends_on: [b, c]}, b: {depends_on: [c]}, c: {}").unwrap();
}

#[test]
fn a_long_chain_of_dependencies_is_no_circle() {
    let mut text = String::from("services:\n  s0: {image: x}\n");
    for n in 1..20_000 {
        text += &format!("  s{n}: {{image: x, depends_on: [s{}]}}\n", n - 1);
    }
    let resolved = resolve(b"deployment: d", text.as_bytes(), &PLAIN).unwrap();
    assert_eq!(resolved.services.len(), 20_000);
}

#[test]
fn listeners_come_from_plain_tcp_ports() {
    let resolved = apply(
        "",
        "ports: [\"127.0.0.1:9000:1\", \"9001:1\", \"9002-9003:5-6\", \"8000-8010:80\", \"9004:1/udp\", 7000, \
         {target: 9, published: 9005, host_ip: 0.0.0.0}, {target: 9, published: \"9006-9007\"}, \"0.0.0.0:9008:1\", \
         \"[::1]:9009:1\", \"[::]:9010:1\"]",
    )
    .unwrap();
    let listeners: Vec<_> = resolved
        .tcp_routes
        .iter()
        .map(|route| (route.published_port, route.container_port))
        .collect();
    assert_eq!(
        listeners,
        [(9001, 1), (9002, 5), (9003, 6), (9005, 9), (9008, 1)]
    );
}

#[test]
fn privileged_services_are_admitted_and_reported_to_those_who_may() {
    let text = compose(
        "privileged: true, security_opt: [a], labels: [jaco.io/allow-privileged=true]",
        "",
    );
    let allowed = Cluster {
        allows_privileged: true,
    };
    let resolved = resolve(b"deployment: d", text.as_bytes(), &allowed).unwrap();
    let expected = Privileged {
        service: "web".into(),
        fields: "privileged,security_opt".into(),
    };
    assert_eq!(resolved.privileged, [expected]);
}

#[test]
fn validation_waits_for_open_variables() {
    let open = "services: {web: {image: \"${IMG}\", env_file: .env, pull_policy: $P, network_mode: $N, \
                init: $I, ports: [\"${P}:80\", $Q], volumes: [\"${D}:/x\"], mem_limit: $M, deploy: {replicas: $R}, \
                healthcheck: {interval: $T}, depends_on: {db: {condition: $C}}, cgroup: $G, logging: $L}, db: {}}";
    let warnings = validate(None, Some(open.as_bytes())).unwrap();
    assert_eq!(
        warnings,
        ["service \"db\" has no image and will stay pending"]
    );
    assert!(resolve(b"deployment: d", open.as_bytes(), &PLAIN).is_err());
    let both = validate(
        Some(b"{deployment: d, services: [{name: nope}]}"),
        Some(b"services: {}"),
    );
    assert_eq!(both.unwrap_err().code, ErrorCode::UnknownService);
    let bad = validate(None, Some(b"services: {web: {ports: ['80:$X', '443:1']}}"));
    assert_eq!(bad.unwrap_err().code, ErrorCode::ReservedPort);
    assert!(validate(Some(b"deployment: d"), None).unwrap().is_empty());
}

#[test]
fn jaco_yaml_is_judged_before_compose_and_compose_before_the_cluster() {
    let ghost = "services: [{name: web, placement: hosts, hosts: [ghost]}]";
    let code = |jaco_rest: &str, web: &str| apply(jaco_rest, web).unwrap_err().code;
    assert_eq!(
        code("acme: x", "mac_address: x"),
        ErrorCode::ValidationFailed
    );
    assert_eq!(code(ghost, "mem_limit: lots"), ErrorCode::ValidationFailed);
    assert_eq!(
        code(ghost, "env_file: x, mem_limit: lots"),
        ErrorCode::EnvFileUnresolved
    );
    assert_eq!(code(ghost, "ports: ['9000:1']"), ErrorCode::UnknownHost);
}

fn hash(text: &str, networks: &[&str]) -> [u8; 32] {
    let networks: Vec<String> = networks.iter().map(|&name| name.to_owned()).collect();
    let hasher = SpecHasher::new(text.as_bytes()).unwrap();
    hasher.hash("web", &networks).unwrap()
}

#[test]
fn hashes_follow_meaning_and_not_layout() {
    let base = "services:\n  web:\n    image: nginx\n    environment: {A: 1, B: x}\n    volumes: [data:/d]\n";
    let same = "# note\nservices: {db: {image: pg}, web: {volumes: ['data:/d'], environment: {'B': x, A: 0x1}, image: nginx}}";
    assert_eq!(hash(base, &[]), hash(same, &[]));
    let merged = "x-w: &w {image: nginx, environment: {A: 1, B: x}}\nservices: {web: {<<: *w, volumes: [data:/d]}}";
    assert_eq!(hash(base, &[]), hash(merged, &[]));
    for other in [
        base.replace("A: 1", "A: 2"),
        base.replace("A: 1", "A: \"1\""),
        base.replace("{A: 1, B: x}", "[A=1, B=x]"),
        base.replace("nginx", "nginx:2"),
        format!("{base}volumes: {{data: {{name: x}}}}"),
        format!("{base}volumes: {{data: {{external: true}}}}"),
    ] {
        assert_ne!(hash(base, &[]), hash(&other, &[]), "{other}");
    }
    assert_ne!(hash(base, &["a"]), hash(base, &[]));
    assert_ne!(hash(base, &["a", "b"]), hash(base, &["b", "a"]));
    let unmounted = format!("{base}volumes: {{other: {{name: x}}}}");
    assert_eq!(hash(base, &[]), hash(&unmounted, &[]));
    assert!(
        SpecHasher::new(base.as_bytes())
            .unwrap()
            .hash("nope", &[])
            .is_none()
    );
}

#[test]
fn hash_of_a_known_subtree_is_the_digest_of_its_canonical_json() {
    use sha2::{Digest, Sha256};
    let json = r#"{"a":[1,"1",null,true,1.5],"image":"x\ny"}"#;
    let text = "services: {web: {image: \"x\\ny\", a: [1, '1', ~, true, 1.50]}}";
    let digest: [u8; 32] = Sha256::digest(json).into();
    assert_eq!(hash(text, &[]), digest);
}

proptest! {
    #[test]
    fn no_text_makes_resolution_panic(
        jaco_yaml in "(deployment: |d|\n|routes:|services:| - |\\{|\\}|\\[|\\]|name|: |,|web|hosts|-1|x){0,30}",
        compose_yaml in "(services:|web:| |\n|image|ports|volumes|depends_on|: |-|\\{|\\}|\\[|\\]|,|'|\"|80|\\$|~|/|a|:){0,40}",
    ) {
        let _ = resolve(jaco_yaml.as_bytes(), compose_yaml.as_bytes(), &PLAIN);
        let _ = validate(Some(jaco_yaml.as_bytes()), Some(compose_yaml.as_bytes()));
    }

    #[test]
    fn no_value_of_a_known_key_makes_reading_panic(
        index in 0..52_usize,
        value in "([a-z0-9:/.$=\\-]{0,6}|\\[[a-z0-9:/.$=, \\-]{0,12}\\]|\\{[a-z]{1,4}: [a-z0-9:/.$=\\-]{0,6}\\}|\\[\\{(type|target|source|published|device_ids): [a-z0-9:/.$=\\-]{0,6}\\}\\])",
    ) {
        let key = crate::manifest::compose::SERVICE_KEYS[index];
        let text = compose(&format!("{key}: {value}"), "");
        let _ = resolve(b"deployment: d", text.as_bytes(), &PLAIN);
        let _ = validate(None, Some(text.as_bytes()));
    }

    #[test]
    fn hashes_do_not_depend_on_key_order(order in Just(vec!["image: x", "user: u", "init: true", "labels: {b: 1, a: 2}", "command: [a, b]"]).prop_shuffle()) {
        let text = format!("services: {{web: {{{}}}}} # {}", order.join(", "), order[0]);
        let sorted = "services: {web: {command: [a, b], image: x, init: true, labels: {a: 2, b: 1}, user: u}}";
        prop_assert_eq!(hash(&text, &[]), hash(sorted, &[]));
    }
}
