//! The numbered acceptance examples of the manifest contract.

use jaco_proto::{
    Error,
    manifest::{self, ClusterView, Privileged, Resolved, SpecHasher, compose::Project, env_file},
    v1::{ServiceSpec, TransportProtocol, service_spec::PlacementMode},
};

/// A cluster with host `a`; deployment `other` owns port 9000.
struct Cluster {
    /// Identity of the caller, and whether it may admit privileged services.
    caller: (&'static str, bool),
}

impl ClusterView for Cluster {
    fn has_host(&self, hostname: &str) -> bool {
        hostname == "a"
    }

    fn port_owner(&self, port: u16, protocol: TransportProtocol) -> Option<String> {
        (port == 9000 && protocol == TransportProtocol::Tcp).then(|| "other".to_owned())
    }

    fn route_owner(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    fn identity(&self) -> &str {
        self.caller.0
    }

    fn allows_privileged(&self) -> bool {
        self.caller.1
    }
}

const TOKEN: Cluster = Cluster {
    caller: ("ci", false),
};
const SOCKET: Cluster = Cluster {
    caller: ("local", true),
};

/// `J{…}`: a `jaco.yaml` of deployment `d`.
fn jaco(rest: &str) -> String {
    format!("{{deployment: d, {rest}}}")
}

/// `S{…}`: a compose file with service `web`, and a `db` beside it.
fn compose(web: &str) -> String {
    format!("services: {{web: {{image: nginx, {web}}}, db: {{image: pg}}}}")
}

fn apply(jaco_rest: &str, web: &str) -> Result<Resolved, Error> {
    manifest::resolve(jaco(jaco_rest).as_bytes(), compose(web).as_bytes(), &TOKEN)
}

/// Checks the code, a part of the message and some details (`key=value`) of a rejected apply.
#[track_caller]
fn refused(result: Result<Resolved, Error>, code: &str, word: &str, details: &[(&str, &str)]) {
    let error = result.expect_err("accepted");
    assert_eq!(error.code.as_str(), code, "{error}");
    assert!(error.message.contains(word), "{error}");
    for (key, value) in details {
        let got = error.details.get(*key).map(String::as_str);
        assert_eq!(got, Some(*value), "{key} of {error}");
    }
}

fn service<'a>(resolved: &'a Resolved, name: &str) -> &'a ServiceSpec {
    let mut services = resolved.services.iter();
    services.find(|service| service.name == name).unwrap()
}

#[test]
fn example_01_defaults() {
    let resolved = apply("", "").unwrap();
    let web = service(&resolved, "web");
    assert_eq!((web.replicas, web.placement()), (1, PlacementMode::Spread));
    assert_eq!(web.networks, ["_default"]);
}

#[test]
fn example_02_global_with_replicas() {
    let result = apply(
        "services: [{name: web, placement: global, replicas: 1}]",
        "",
    );
    refused(result, "validation_failed", "remove replicas", &[]);
}

#[test]
fn example_03_pinned_without_hosts() {
    let result = apply("services: [{name: web, placement: hosts}]", "");
    refused(result, "validation_failed", "hosts is empty", &[]);
}

#[test]
fn example_04_pinned_to_unknown_host() {
    let result = apply(
        "services: [{name: web, placement: hosts, hosts: [ghost]}]",
        "",
    );
    let details = [("service", "web"), ("host", "ghost")];
    refused(result, "unknown_host", "", &details);
}

#[test]
fn example_05_unknown_services() {
    let only_web = "services: {web: {image: nginx}}";
    for (rest, word) in [
        ("services: [{name: db}]", "not found in the compose file"),
        (
            "routes: [{domain: a.io, service: db, port: 80}]",
            "references unknown service",
        ),
    ] {
        let result = manifest::resolve(jaco(rest).as_bytes(), only_web.as_bytes(), &TOKEN);
        refused(result, "unknown_service", word, &[("service", "db")]);
    }
}

#[test]
fn example_06_replicas_as_text() {
    let result = apply("services: [{name: web, replicas: \"2\"}]", "");
    refused(result, "parse_failed", "", &[("line", "1")]);
}

#[test]
fn example_07_compose_service_anywhere() {
    let result = apply("notes: {compose_service: x}", "");
    refused(result, "validation_failed", "compose_service", &[]);
}

#[test]
fn example_08_a_closed_schema_with_extensions() {
    let result = apply("replcas: 2", "");
    refused(
        result,
        "validation_failed",
        "replcas",
        &[("field", "replcas")],
    );
    apply("x-team: a", "").unwrap();
}

#[test]
fn example_08b_more_replicas_than_pinned_hosts() {
    let pinned = "services: [{name: web, placement: hosts, hosts: [a], replicas: 2}]";
    let details = [("service", "web"), ("replicas", "2"), ("hosts", "1")];
    refused(
        apply(pinned, ""),
        "replicas_exceed_pinned_hosts",
        "",
        &details,
    );
}

#[test]
fn example_09_acme_off_and_an_explicit_mode() {
    let tls = |more: &str| {
        let rest = format!("acme: off, routes: [{{domain: a.io, service: web, port: 80{more}}}]");
        apply(&rest, "").unwrap().routes[0].tls_auto
    };
    assert!(!tls(""));
    assert!(tls(", tls: auto"));
}

#[test]
fn example_10_one_domain_two_modes() {
    let route = |path: &str, tls: &str| {
        format!("{{domain: a.io, service: web, port: 80, path: {path}, tls: {tls}}}")
    };
    let rest = format!("routes: [{}, {}]", route("/", "auto"), route("/x", "off"));
    refused(
        apply(&rest, ""),
        "route_tls_mixed",
        "",
        &[("domain", "a.io")],
    );
}

#[test]
fn example_11_repeated_and_similar_paths() {
    let routes = |a: &str, b: &str| {
        let route = |path| format!("{{domain: a.io, service: web, port: 80, path: {path}}}");
        apply(&format!("routes: [{}, {}]", route(a), route(b)), "")
    };
    refused(
        routes("/api", "/api"),
        "validation_failed",
        "route conflict",
        &[],
    );
    assert_eq!(routes("/api", "/api/").unwrap().routes.len(), 2);
}

#[test]
fn example_12_a_key_outside_the_list() {
    let result = apply("", "mac_adress: 02:42:ac:11:65:43");
    let details = [("service", "web"), ("field", "mac_adress")];
    refused(
        result,
        "validation_failed",
        "unsupported compose field",
        &details,
    );
}

#[test]
fn example_13_extensions_on_service_and_top_level() {
    apply("", "x-note: 1").unwrap();
    let text = compose("").replacen("services:", "x-note: 1\nservices:", 1);
    manifest::resolve(jaco("").as_bytes(), text.as_bytes(), &TOKEN).unwrap();
}

#[test]
fn example_14_a_key_of_the_first_formats() {
    let details = [
        ("field", "log_driver"),
        ("modern_equivalent", "logging.driver"),
    ];
    let result = apply("", "log_driver: json-file");
    refused(result, "legacy_compose_field", "", &details);
}

#[test]
fn example_15_an_undeclared_network() {
    let details = [("service", "web"), ("network", "back")];
    refused(
        apply("", "networks: [back]"),
        "unknown_network",
        "",
        &details,
    );
}

#[test]
fn example_16_a_reserved_port_of_another_protocol() {
    let details = [
        ("service", "web"),
        ("port", "443"),
        ("entry", "443:443/udp"),
    ];
    refused(
        apply("", "ports: [\"443:443/udp\"]"),
        "reserved_port",
        "",
        &details,
    );
}

#[test]
fn example_17_one_port_twice() {
    let result = apply("", "ports: [\"9001:1\", \"9001:2\"]");
    refused(
        result,
        "port_conflict",
        "",
        &[("port", "9001"), ("services", "web")],
    );
    let result = apply("", "ports: [\"9000:1\", \"9000:2\"]");
    refused(
        result,
        "port_conflict",
        "",
        &[("port", "9000"), ("services", "web")],
    );
}

#[test]
fn example_18_port_on_one_address_used_elsewhere() {
    let resolved = apply("", "ports: [\"127.0.0.1:9000:1\"]").unwrap();
    assert!(resolved.tcp_routes.is_empty());
}

#[test]
fn example_19_privileged_with_a_boolean_label() {
    let result = apply(
        "",
        "privileged: true, labels: {jaco.io/allow-privileged: true}",
    );
    let details = [("service", "web"), ("fields", "privileged")];
    refused(
        result,
        "validation_failed",
        "jaco.io/allow-privileged",
        &details,
    );
}

#[test]
fn example_20_privileged_by_token_and_by_socket() {
    let web = "privileged: true, labels: {jaco.io/allow-privileged: \"true\"}";
    let details = [
        ("service", "web"),
        ("fields", "privileged"),
        ("identity", "ci"),
    ];
    refused(apply("", web), "privilege_denied", "", &details);
    let resolved = manifest::resolve(jaco("").as_bytes(), compose(web).as_bytes(), &SOCKET);
    let admitted = Privileged {
        service: "web".to_owned(),
        fields: "privileged".to_owned(),
    };
    assert_eq!(resolved.unwrap().privileged, [admitted]);
}

#[test]
fn example_21_route_to_service_without_network() {
    let rest = "routes: [{domain: a.io, service: web, port: 80}]";
    let result = apply(rest, "network_mode: none");
    refused(
        result,
        "validation_failed",
        "routes on a service with network_mode",
        &[],
    );
}

#[test]
fn example_22_a_condition_for_jobs() {
    let web = "depends_on: {db: {condition: service_ready}}";
    let details = [("depends_on", "db"), ("condition", "service_ready")];
    refused(
        apply("", web),
        "unsupported_depends_on_condition",
        "",
        &details,
    );
}

#[test]
fn example_23_env_file_straight_to_the_daemon() {
    let result = apply("", "env_file: .env");
    refused(result, "env_file_unresolved", "", &[("service", "web")]);
}

fn interpolated(text: &str) -> Result<String, String> {
    let variables = env_file::parse(b"", |_| None).unwrap().values;
    manifest::interpolate(text.as_bytes(), "compose.yml", &variables)
        .map(|done| String::from_utf8(done.bytes).unwrap())
        .map_err(|error| error.to_string())
}

#[test]
fn example_24_a_required_variable_without_value() {
    let text = "services:\n  web:\n    image: x\n    user: ${DB:?need db}\n";
    let error = interpolated(text).unwrap_err();
    assert!(
        error.starts_with("interpolate compose.yml: interpolate ${DB} at"),
        "{error}"
    );
    assert!(error.contains("line 4 col 11"), "{error}");
    assert!(
        error.ends_with("required variable DB is missing a value: need db"),
        "{error}"
    );
}

#[test]
fn example_25_dollars() {
    let text = "services: {web: {command: [a$$b, $5, \"${X:-${Y:-z}}\"]}}";
    let document = Project::parse(interpolated(text).unwrap().as_bytes()).unwrap();
    let command = document.services["web"].command.clone().unwrap();
    assert_eq!(command, ["a$b", "$5", "z"]);
}

#[test]
fn example_26_reservations_replace_the_flat_limit() {
    let web = "deploy: {resources: {reservations: {memory: 64M}}}, mem_limit: 1g";
    apply("", web).unwrap();
    let document = Project::parse(compose(web).as_bytes()).unwrap();
    let resources = &document.services["web"].resources;
    assert_eq!(resources.memory_reservation, Some(64 << 20));
    assert_eq!(resources.memory, None);
}

#[test]
fn example_27_what_makes_another_hash() {
    let text = compose("environment: {A: 1}");
    let hash = |text: &str| {
        SpecHasher::new(text.as_bytes())
            .unwrap()
            .hash("web", &[], &[])
            .unwrap()
    };
    assert_eq!(hash(&text), hash(&format!("# note\n{text} # and another")));
    assert_ne!(hash(&text), hash(&text.replace("A: 1", "A: 2")));
}
