//! Runs the golden cases whose questions the library answers itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io,
};

use crate::cases::{self, Case, Section};
use jaco_proto::{
    Error, chain,
    manifest::{self, ClusterView, Resolved, SpecHasher, env_file},
    v1::TransportProtocol,
};

/// A cluster of hosts `a` and `b` in which deployment `other` owns port 9000 and `a.io/taken`.
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
        ((domain, path) == ("a.io", "/taken")).then(|| "other".to_owned())
    }

    fn identity(&self) -> &str {
        "ci"
    }

    fn allows_privileged(&self) -> bool {
        self.allows_privileged
    }
}

#[test]
fn every_case_has_the_expected_result() {
    let kinds = [
        "apply",
        "validate",
        "interpolate",
        "fold",
        "variables",
        "hash",
    ];
    let asked = cases::check(&kinds, answer);
    assert!(asked > 200, "{asked}");
}

#[test]
fn case_names_are_unique() {
    let mut seen = BTreeSet::new();
    for case in cases::all() {
        assert!(
            seen.insert(case.name.clone()),
            "{}: {}",
            case.place,
            case.name
        );
    }
}

fn answer(case: &Case, section: &Section) -> String {
    let compose = case.compose();
    match section.kind.as_str() {
        "apply" => {
            let cluster = Cluster {
                allows_privileged: section.argument == "privileged",
            };
            let result = manifest::resolve(case.jaco().as_bytes(), compose.as_bytes(), &cluster);
            result.map_or_else(refused, |resolved| admitted(&resolved))
        }
        "validate" => {
            let jaco = case.input("jaco").map(str::as_bytes);
            let alone = jaco.is_some() && case.input("compose").or(case.input("web")).is_none();
            let compose = (!alone).then_some(compose.as_bytes());
            match manifest::validate(jaco, compose) {
                Ok(warnings) if warnings.is_empty() => "valid\n".to_owned(),
                Ok(warnings) => format!("valid\n{}\n", warnings.join("\n")),
                Err(error) => refused(error),
            }
        }
        "interpolate" => {
            let variables = variables(case).unwrap().values;
            match manifest::interpolate(compose.as_bytes(), "compose.yml", &variables) {
                Ok(done) => text_and_unset(&done.bytes, &done.unset),
                Err(error) => format!("{}\n", chain(&error)),
            }
        }
        "fold" => match fold(case, &compose) {
            Ok(done) => text_and_unset(&done.bytes, &done.unset),
            Err(error) => format!("{}\n", chain(&error)),
        },
        "variables" => match variables(case) {
            Ok(read) => {
                let mut text = String::new();
                for (key, value) in &read.values {
                    let _ = writeln!(text, "{key}={value:?}");
                }
                text + &unset(&read.unset)
            }
            Err(error) => format!("{error}\n"),
        },
        "hash" => {
            let of = |text: &str| {
                SpecHasher::new(text.as_bytes())
                    .unwrap()
                    .hash("web", &[], &[])
            };
            let other = case.input("other").unwrap();
            assert!(
                of(&compose).is_some() && of(other).is_some(),
                "{}",
                case.place
            );
            let same = of(&compose) == of(other);
            if same { "same\n" } else { "differs\n" }.to_owned()
        }
        other => panic!("{}: {other}", case.place),
    }
}

fn variables(case: &Case) -> Result<env_file::Variables, env_file::Error> {
    env_file::parse(case.input("env").unwrap_or_default().as_bytes(), |_| None)
}

fn fold(case: &Case, compose: &str) -> Result<env_file::Folded, env_file::FoldError> {
    let mut read = |path: &str| {
        let mut files = case.sections.iter();
        let file = files.find(|section| section.kind == "envfile" && section.argument == path);
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        file.map(|file| file.text.clone().into_bytes())
            .ok_or_else(missing)
    };
    env_file::fold(compose.as_bytes(), Some(&mut read))
}

fn text_and_unset(bytes: &[u8], names: &BTreeSet<String>) -> String {
    String::from_utf8(bytes.to_vec()).unwrap() + &unset(names)
}

fn unset(names: &BTreeSet<String>) -> String {
    match names.is_empty() {
        true => String::new(),
        false => format!("unset {}\n", Vec::from_iter(names.clone()).join(" ")),
    }
}

/// Formats an error like the command line.
fn refused(error: Error) -> String {
    let mut text = format!("{}: {}\n", error.code, error.message);
    for (key, value) in error.details {
        let _ = writeln!(text, "  {key}={value}");
    }
    text
}

/// Formats the differences from one replica, spread, on the default network.
fn admitted(resolved: &Resolved) -> String {
    let mut text = format!("deployment {}\n", resolved.deployment);
    for service in &resolved.services {
        let placement = service.placement();
        let mut facts = BTreeMap::new();
        if service.replicas != 1 {
            facts.insert("replicas", service.replicas.to_string());
        }
        if placement != jaco_proto::v1::service_spec::PlacementMode::Spread {
            facts.insert("placement", format!("{placement:?}").to_lowercase());
        }
        if !service.hosts.is_empty() {
            facts.insert("hosts", service.hosts.join(","));
        }
        for one in &service.constraints {
            let operator = if one.excludes { "!=" } else { "==" };
            let text = format!("{}{operator}{}", one.attribute, one.value);
            let texts: &mut String = facts.entry("constraints").or_default();
            *texts = format!("{texts}[{text}]");
        }
        if service.max_replicas_per_node != 0 {
            facts.insert("per_node", service.max_replicas_per_node.to_string());
        }
        if !service.platform.is_empty() {
            facts.insert("platform", service.platform.clone());
        }
        if service.host_network {
            facts.insert("host_network", "true".to_owned());
        }
        if service.networks != ["_default"] {
            facts.insert("networks", service.networks.join(","));
        }
        if !facts.is_empty() {
            let facts = facts
                .into_iter()
                .map(|(key, value)| format!(" {key}={value}"));
            let _ = writeln!(
                text,
                "service {}{}",
                service.name,
                facts.collect::<String>()
            );
        }
        for file in &service.files {
            let origin = &resolved.file_sources[&(file.kind(), file.name.clone())];
            let (uid, gid, mode) = (file.uid, file.gid, file.mode);
            let _ = writeln!(
                text,
                "file {} {} -> {} {uid}:{gid} {mode:04o} {origin:?}",
                service.name, file.name, file.target
            );
        }
    }
    for route in &resolved.routes {
        let (tls, strip) = (route.tls_auto, route.strip_path);
        let _ = writeln!(
            text,
            "route {}{} -> {}:{}{}{}",
            route.domain,
            route.path,
            route.service,
            route.port,
            if tls { "" } else { " tls=off" },
            if strip { " strip_path" } else { "" },
        );
        if let Some(limits) = &route.limits {
            let (rps, burst, connections) = (limits.rps, limits.burst, limits.connections);
            let exempt = limits.exempt.join(",");
            let _ = match limits.off {
                true => writeln!(text, "  limits off"),
                false => writeln!(
                    text,
                    "  limits rps={rps} burst={burst} connections={connections} exempt={exempt}"
                ),
            };
        }
        if let Some(affinity) = &route.affinity {
            let (cookie, ttl, same_site) = (&affinity.cookie, affinity.ttl_s, &affinity.same_site);
            let _ = writeln!(text, "  affinity {cookie} ttl={ttl}s same_site={same_site}");
        }
    }
    for route in &resolved.tcp_routes {
        let (port, service) = (route.published_port, &route.service);
        let protocol = match route.protocol() {
            TransportProtocol::Tcp => "tcp",
            TransportProtocol::Udp => "udp",
        };
        let proxy = match route.proxy_protocol {
            0 => String::new(),
            version => format!(" proxy_protocol={version}"),
        };
        let container_port = route.container_port;
        let _ = writeln!(
            text,
            "{protocol} {port} -> {service}:{container_port}{proxy}"
        );
    }
    if !resolved.acme_email.is_empty() {
        let _ = writeln!(text, "acme_email {}", resolved.acme_email);
    }
    for admitted in &resolved.privileged {
        let _ = writeln!(text, "privileged {}: {}", admitted.service, admitted.fields);
    }
    for warning in &resolved.warnings {
        let _ = writeln!(text, "warning {warning}");
    }
    text
}
