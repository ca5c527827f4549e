//! Tests the order in which errors of a deployment are reported.

use std::collections::BTreeMap;

use jaco_proto::{
    manifest::{self, ClusterView},
    v1::TransportProtocol,
};

/// Every stage of validation has one fault in the files. Removing the faults one by one, first to
/// last, reveals them in the order of the contract.
#[test]
fn every_stage_masks_the_later_ones() {
    let mut jaco: BTreeMap<&str, &str> = [
        ("00 syntax", "["),
        ("01 compose_service", "x-a: {compose_service: 1}"),
        ("02 shape", "environment: [a]"),
        ("03 deployment", ""),
        ("04 acme", "acme: x"),
        ("05 acme_email", "acme_email: x"),
    ]
    .into();
    // Entries of services and routes, in file order. Where stages and not lines decide the order,
    // later stages come first in the file.
    let mut services: BTreeMap<&str, &str> = [
        ("10 name", "{name: '', replicas: -1, placement: x}"),
        ("11 replicas", "{name: a, replicas: -1, placement: x}"),
        ("12 placement", "{name: a, placement: x}"),
        ("13 global", "{name: a, placement: global, replicas: 1}"),
        ("14 hosts", "{name: a, placement: hosts}"),
        ("15 duplicate", "{name: web}"),
    ]
    .into();
    let mut routes: BTreeMap<&str, &str> = [
        ("20 domain", "{port: 0, tls: x}"),
        ("21 service", "{domain: b.io, port: 0, tls: x}"),
        ("22 port", "{domain: b.io, service: web, port: 0, tls: x}"),
        ("23 tls", "{domain: b.io, service: web, port: 1, tls: x}"),
        (
            "24 mixed",
            "{domain: a.io, service: web, port: 1, tls: off}",
        ),
        ("25 catchall", "{domain: a.io, service: web, port: 1}"),
        (
            "26 repeated",
            "{domain: a.io, service: web, port: 1, path: /p}",
        ),
    ]
    .into();
    let mut compose: BTreeMap<&str, &str> = [
        ("30 syntax", "- a"),
        ("31 top", "include: a"),
        ("32 legacy", "net: host"),
        ("33 allowlist", "link: [db]"),
        ("34 networks", "networks: [nowhere]"),
        ("35 reserved", "'80:1'"),
        ("36 pull_policy", "pull_policy: hourly"),
        ("37 label", "security_opt: [a]"),
        ("38 network_mode", "network_mode: host"),
        ("39 depends_on", "depends_on: [nowhere]"),
        ("40 cycle", "x"),
        ("41 env_file", "env_file: a"),
        ("42 types", "mem_limit: lots"),
    ]
    .into();
    let mut cross: BTreeMap<&str, &str> = [
        ("50 override", "{name: nope}"),
        (
            "51 pinned",
            "{name: db, placement: hosts, hosts: [ghost], replicas: 2}",
        ),
        (
            "52 network",
            "{name: db, networks: [nowhere], placement: hosts, hosts: [ghost]}",
        ),
        ("53 host", "{name: db, placement: hosts, hosts: [ghost]}"),
        ("54 route service", "{domain: c.io, service: nope, port: 1}"),
        ("55 route mode", "{domain: d.io, service: bare, port: 1}"),
        ("56 port within", "'9001:2'"),
        ("57 port across", "'9000:3'"),
        (
            "58 route across",
            "{domain: taken.io, service: web, port: 1}",
        ),
        ("59 privileged", "x"),
    ]
    .into();
    let expected = [
        ("00 syntax", "parse_failed", "did not find"),
        ("01 compose_service", "validation_failed", "compose_service"),
        ("02 shape", "parse_failed", "environment"),
        ("03 deployment", "validation_failed", "deployment name"),
        ("04 acme", "validation_failed", "want on|off"),
        ("05 acme_email", "validation_failed", "email"),
        ("10 name", "validation_failed", "needs a name"),
        ("11 replicas", "validation_failed", "replicas -1"),
        ("12 placement", "validation_failed", "unknown placement"),
        ("13 global", "validation_failed", "remove replicas"),
        ("14 hosts", "validation_failed", "hosts is empty"),
        ("15 duplicate", "validation_failed", "more than once"),
        ("20 domain", "validation_failed", "needs a domain"),
        ("21 service", "validation_failed", "needs a service"),
        ("22 port", "validation_failed", "port 0"),
        ("23 tls", "validation_failed", "unknown tls"),
        ("24 mixed", "route_tls_mixed", ""),
        ("25 catchall", "route_multiple_catchall", ""),
        ("26 repeated", "validation_failed", "route conflict"),
        ("30 syntax", "validation_failed", "compose load"),
        ("31 top", "validation_failed", "include"),
        ("32 legacy", "legacy_compose_field", "net"),
        ("33 allowlist", "validation_failed", "link"),
        ("34 networks", "unknown_network", "nowhere"),
        ("35 reserved", "reserved_port", "80"),
        ("36 pull_policy", "validation_failed", "pull_policy"),
        ("37 label", "validation_failed", "allow-privileged"),
        ("38 network_mode", "validation_failed", "network_mode"),
        ("39 depends_on", "unknown_depends_on_service", ""),
        ("40 cycle", "invalid_depends_on", "wait for each other"),
        ("41 env_file", "env_file_unresolved", ""),
        ("42 types", "validation_failed", "mem_limit"),
        (
            "50 override",
            "unknown_service",
            "not found in the compose file",
        ),
        ("51 pinned", "replicas_exceed_pinned_hosts", ""),
        ("52 network", "unknown_network", ""),
        ("53 host", "unknown_host", ""),
        ("54 route service", "unknown_service", "references"),
        ("55 route mode", "validation_failed", "network_mode"),
        ("56 port within", "port_conflict", "twice"),
        ("57 port across", "port_conflict", "other"),
        ("58 route across", "route_conflict", "other"),
        ("59 privileged", "privilege_denied", ""),
    ];
    for (stage, code, word) in expected {
        let (jaco_text, compose_text) = faulty(&jaco, &services, &routes, &compose, &cross);
        let result = manifest::resolve(jaco_text.as_bytes(), compose_text.as_bytes(), &Owned);
        let error = result.expect_err(stage);
        assert_eq!(
            error.code.as_str(),
            code,
            "{stage}: {error}\n{jaco_text}\n{compose_text}"
        );
        assert!(error.message.contains(word), "{stage}: {error}");
        for faults in [
            &mut jaco,
            &mut services,
            &mut routes,
            &mut compose,
            &mut cross,
        ] {
            faults.remove(stage);
        }
    }
    let (jaco_text, compose_text) = faulty(&jaco, &services, &routes, &compose, &cross);
    manifest::resolve(jaco_text.as_bytes(), compose_text.as_bytes(), &Owned).unwrap();
}

type Faults<'a> = BTreeMap<&'a str, &'a str>;

/// Returns both files with all remaining faults.
fn faulty(
    jaco: &Faults<'_>,
    services: &Faults<'_>,
    routes: &Faults<'_>,
    compose: &Faults<'_>,
    cross: &Faults<'_>,
) -> (String, String) {
    let has = |faults: &Faults<'_>, stage: &str| faults.contains_key(stage);
    let mut top: Vec<String> = Vec::new();
    if !has(jaco, "03 deployment") {
        top.push("deployment: d".to_owned());
    }
    let plain = jaco.iter().filter(|(stage, _)| **stage != "03 deployment");
    top.extend(plain.map(|(_, text)| (*text).to_owned()));
    // Faults within one entry come before those that compare it with another entry.
    let mut entries = vec!["{name: web}".to_owned()];
    let first_service = services.values().next().into_iter();
    entries.extend(first_service.map(|text| (*text).to_owned()));
    let overrides = ["50 override", "51 pinned", "52 network", "53 host"];
    let mut named: Vec<&str> = overrides
        .iter()
        .filter_map(|s| cross.get(s).copied())
        .collect();
    // One override of `db` at a time: its name must be unique.
    let mut dbs = named.iter().filter(|text| text.contains("db"));
    let db = dbs.next().copied();
    named.retain(|text| !text.contains("db"));
    entries.extend(named.into_iter().chain(db).map(str::to_owned));
    top.push(format!("services: [{}]", entries.join(", ")));
    let mut entries = vec![
        "{domain: a.io, service: web, port: 1}".to_owned(),
        "{domain: a.io, service: web, port: 1, path: /p}".to_owned(),
    ];
    for stage in ["58 route across", "55 route mode", "54 route service"] {
        entries.extend(cross.get(stage).map(|text| (*text).to_owned()));
    }
    let first_route = routes.values().next().into_iter();
    entries.extend(first_route.map(|text| (*text).to_owned()));
    top.push(format!("routes: [{}]", entries.join(", ")));

    let mut web: Vec<String> = vec!["image: x".to_owned()];
    let in_ports = ["35 reserved", "56 port within", "57 port across"];
    let ports = in_ports
        .iter()
        .filter_map(|s| compose.get(s).or(cross.get(s)));
    let ports: Vec<&str> = std::iter::once("'9001:1'").chain(ports.copied()).collect();
    web.push(format!("ports: [{}]", ports.join(", ")));
    for (stage, text) in compose {
        let elsewhere = [
            "30 syntax",
            "31 top",
            "35 reserved",
            "39 depends_on",
            "40 cycle",
        ];
        if !elsewhere.contains(stage) {
            web.push((*text).to_owned());
        }
    }
    let mut waits = Vec::new();
    if has(compose, "39 depends_on") {
        waits.push("nowhere");
    }
    if has(compose, "40 cycle") {
        waits.push("db");
    }
    web.push(format!("depends_on: [{}]", waits.join(", ")));
    let privileged = match has(cross, "59 privileged") {
        true => ", privileged: true, labels: {jaco.io/allow-privileged: 'true'}",
        false => "",
    };
    let db = match has(compose, "40 cycle") {
        true => "{image: x, depends_on: [web]}",
        false => "{image: x}",
    };
    let mut file = vec![format!(
        "services: {{bare: {{image: x, network_mode: none{privileged}}}, db: {db}, web: {{{}}}}}",
        web.join(", ")
    )];
    for stage in ["31 top", "30 syntax"] {
        file.extend(compose.get(stage).map(|text| (*text).to_owned()));
    }
    (top.join("\n"), file.join("\n"))
}

/// A cluster in which deployment `other` owns port 9000 and all of `taken.io`.
struct Owned;

impl ClusterView for Owned {
    fn has_host(&self, _: &str) -> bool {
        false
    }

    fn port_owner(&self, port: u16, protocol: TransportProtocol) -> Option<String> {
        (port == 9000 && protocol == TransportProtocol::Tcp).then(|| "other".to_owned())
    }

    fn route_owner(&self, domain: &str, _: &str) -> Option<String> {
        (domain == "taken.io").then(|| "other".to_owned())
    }

    fn identity(&self) -> &str {
        "ci"
    }

    fn allows_privileged(&self) -> bool {
        false
    }
}
