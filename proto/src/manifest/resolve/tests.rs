mod compose_rules;
mod jaco_rules;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::v1::TransportProtocol;

/// A cluster of hosts `a` and `b` in which another deployment owns port 9000 and `a.io/taken`.
struct Cluster {
    allows_privileged: bool,
}

impl ClusterView for Cluster {
    fn has_host(&self, hostname: &str) -> bool {
        ["a", "b"].contains(&hostname)
    }

    fn port_owner(&self, port: u16, protocol: TransportProtocol) -> Option<String> {
        (port == 9000 && protocol == TransportProtocol::Tcp).then(|| "other".to_owned())
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

/// A `jaco.yaml` with `deployment: d` and `rest` in flow style.
fn jaco(rest: &str) -> String {
    match rest {
        "" => "deployment: d".to_owned(),
        rest => format!("{{deployment: d, {rest}}}"),
    }
}

/// A compose file with a service `web`; `web` and `file` are further keys of the service and the
/// file.
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

/// Checks the code, a part of the message and the details (`key=value`, without positions).
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
fn domains_that_write_their_tls_are_known() {
    let entry =
        |domain: &str, tls: &str| format!("{{domain: {domain}, service: web, port: 80{tls}}}");
    let routes = [
        entry("a.example", ", tls: off"),
        entry("b.example", ""),
        entry("c.example", ", tls: auto"),
    ];
    let routes = format!("routes: [{}]", routes.join(", "));
    let resolved = apply(&routes, "").unwrap();
    let written: Vec<_> = resolved.tls_written.iter().map(String::as_str).collect();
    assert_eq!(written, ["a.example", "c.example"]);
}

#[test]
fn defaults_are_one_spread_replica_on_default_network() {
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
fn shared_networks_are_named_for_the_cluster() {
    let file = "networks: {default: {external: true}, front: {external: true, name: proxy}, \
                back: {name: x}, edge: {external: {name: proxy}}, off: {external: no}}";
    for (jaco, keys, expected) in [
        ("", "", &["shared/_default"][..]),
        ("", "networks: [front, back]", &["back", "shared/proxy"]),
        ("", "networks: [front, edge]", &["shared/proxy"]),
        ("", "networks: [off]", &["off"]),
        (
            "services: [{name: web, networks: [front, default, edge]}]",
            "",
            &["shared/proxy", "shared/_default"],
        ),
    ] {
        let resolved = apply_file(jaco, keys, file).unwrap();
        assert_eq!(web(&resolved).networks, expected, "{jaco} {keys}");
        assert_eq!(resolved.networks, []);
    }
    let text = "services: {web: {networks: {front: {aliases: [www]}}}}\n\
                networks: {front: {external: true, name: proxy}}";
    let project = Project::parse(text.as_bytes()).unwrap();
    let settings = &project.services["web"].network_settings["shared/proxy"];
    assert_eq!(settings.aliases, ["www"]);
}

#[test]
fn compose_applies_where_no_override_is_set() {
    let resolved = apply_file(
        "services: [{name: web, placement: global}]",
        "deploy: {replicas: 5}, networks: {b: {priority: 9}, a: }",
        "networks: {a: , b: }",
    )
    .unwrap();
    assert_eq!(web(&resolved).replicas, 5);
    assert_eq!(web(&resolved).networks, ["b", "a"]);
    let resolved = apply("services: [{name: web}]", "network_mode: none").unwrap();
    assert!(web(&resolved).networks.is_empty());
}

#[test]
fn pinned_hosts_are_checked_against_compose_replicas() {
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
fn listeners_come_from_single_tcp_and_udp_ports() {
    let resolved = apply(
        "",
        "ports: [\"127.0.0.1:9000:1\", \"9001:1\", \"9002-9003:5-6\", \"8000-8010:80\", \"9004:1/udp\", \"9004:2\", 7000, \
         {target: 9, published: 9005, host_ip: 0.0.0.0}, {target: 9, published: \"9006-9007\"}, \"0.0.0.0:9008:1\", \
         \"[::1]:9009:1\", \"[::]:9010:1\"]",
    )
    .unwrap();
    let listeners: Vec<_> = resolved
        .tcp_routes
        .iter()
        .map(|route| (route.published_port, route.protocol(), route.container_port))
        .collect();
    let (tcp, udp) = (TransportProtocol::Tcp, TransportProtocol::Udp);
    assert_eq!(
        listeners,
        [
            (9001, tcp, 1),
            (9002, tcp, 5),
            (9003, tcp, 6),
            (9004, tcp, 2),
            (9004, udp, 1),
            (9005, tcp, 9),
            (9008, tcp, 1)
        ]
    );
}

#[test]
fn privileged_services_need_permission_and_are_reported() {
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
fn validation_skips_unresolved_variables() {
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
fn checks_run_jaco_yaml_then_compose_then_cluster() {
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

proptest! {
    #[test]
    fn resolving_arbitrary_text_does_not_panic(
        jaco_yaml in "(deployment: |d|\n|routes:|services:| - |\\{|\\}|\\[|\\]|name|: |,|web|hosts|-1|x){0,30}",
        compose_yaml in "(services:|web:| |\n|image|ports|volumes|depends_on|: |-|\\{|\\}|\\[|\\]|,|'|\"|80|\\$|~|/|a|:){0,40}",
    ) {
        let _ = resolve(jaco_yaml.as_bytes(), compose_yaml.as_bytes(), &PLAIN);
        let _ = validate(Some(jaco_yaml.as_bytes()), Some(compose_yaml.as_bytes()));
    }

    #[test]
    fn reading_arbitrary_values_does_not_panic(
        index in any::<prop::sample::Index>(),
        value in "([a-z0-9:/.$=\\-]{0,6}|\\[[a-z0-9:/.$=, \\-]{0,12}\\]|\\{[a-z]{1,4}: [a-z0-9:/.$=\\-]{0,6}\\}|\\[\\{(type|target|source|published|device_ids): [a-z0-9:/.$=\\-]{0,6}\\}\\])",
    ) {
        let keys: Vec<&str> = crate::manifest::compose::service_keys().collect();
        let key = index.get(&keys);
        let text = compose(&format!("{key}: {value}"), "");
        let _ = resolve(b"deployment: d", text.as_bytes(), &PLAIN);
        let _ = validate(None, Some(text.as_bytes()));
    }

}
