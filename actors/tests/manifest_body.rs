//! The table of manifest cases in `proto/tests/manifest/`: the create request that the engine is
//! sent for a service, without what every container has.

#[path = "../../proto/tests/manifest/cases.rs"]
mod cases;

use std::{collections::BTreeMap, fmt::Write as _};

use cases::Case;
use jaco_actors::{
    network::names::NetworkId,
    runtime::projection::{self, Attachment, Networking, Source},
};
use jaco_proto::{
    manifest::{self, ClusterView, compose::Project},
    v1::ReplicaDesired,
};
use serde_json::Value;

/// A cluster that has every host, owns nothing and lets anyone do anything.
struct Anything;

impl ClusterView for Anything {
    fn has_host(&self, _: &str) -> bool {
        true
    }

    fn port_owner(&self, _: u16) -> Option<String> {
        None
    }

    fn route_owner(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    fn identity(&self) -> &str {
        "local"
    }

    fn allows_privileged(&self) -> bool {
        true
    }
}

#[test]
fn every_service_becomes_the_create_request_of_the_table() {
    let plain = request("deployment: d", "services: {web: {}}", "web");
    let asked = cases::check(&["body"], |case: &Case, section| {
        let service = match section.argument.as_str() {
            "" => "web",
            name => name,
        };
        difference(&plain, &request(case.jaco(), &case.compose(), service))
    });
    assert!(asked > 150, "{asked}");
}

#[test]
fn a_service_without_keys_becomes_a_bare_container() {
    let text = request("deployment: d", "services: {web: {image: nginx}}", "web");
    let expected = r#"
C.Env []
C.Image "nginx"
C.Labels {"jaco.cluster_id":"c1","jaco.deployment":"d","jaco.raft_index":"7","jaco.replica_id":"d-web-0","jaco.replica_index":"0","jaco.service":"web"}
C.NetworkingConfig {"EndpointsConfig":{"jaco_d__default":{"Aliases":["web","web.d","web.d.jaco.internal"]}}}
H.Dns ["10.0.0.1"]
H.NetworkMode "jaco_d__default"
H.Privileged false
H.ReadonlyRootfs false
"#;
    assert_eq!(
        difference(&Request::default(), &text),
        expected.trim_start()
    );
}

/// Keys of the create request, host configuration apart, and the networks joined after it.
#[derive(Default)]
struct Request {
    keys: BTreeMap<String, Value>,
    connects: Vec<String>,
}

/// Goes the way of a start: resolve, read the document, make networks, project.
fn request(jaco: &str, compose: &str, name: &str) -> Request {
    let resolved = manifest::resolve(jaco.as_bytes(), compose.as_bytes(), &Anything)
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{compose}", error.details));
    let document = Project::parse(compose.as_bytes()).unwrap();
    let service = &document.services[name];
    let spec = resolved.services.iter().find(|spec| spec.name == name);
    let networks = projection::networks(spec, service);
    let bridges: Vec<Attachment> = networks
        .iter()
        .enumerate()
        .map(|(index, network)| Attachment {
            engine_network: NetworkId::new(&resolved.deployment, network).engine_name(),
            gateway: format!("10.0.{index}.1"),
        })
        .collect();
    let lenders = projection::lending_services(service)
        .into_iter()
        .map(|name| (name.to_owned(), format!("<id of {name}>")))
        .collect();
    let networking = match projection::joined_service(service) {
        Some(lender) => Networking::Joined(lender),
        None if bridges.is_empty() => Networking::None,
        None => Networking::Attached(&bridges),
    };
    let row = ReplicaDesired {
        id: format!("{}-{name}-0", resolved.deployment),
        deployment: resolved.deployment.clone(),
        service: name.to_owned(),
        raft_index: 7,
        ..Default::default()
    };
    let body = projection::project(&Source {
        cluster_id: "c1",
        row: &row,
        service,
        volumes: &document.volumes,
        networking,
        lenders: &lenders,
        home: "/home/jaco",
    });
    let Value::Object(mut body) = serde_json::to_value(body).unwrap() else {
        panic!("a create request is an object");
    };
    let Some(Value::Object(host)) = body.remove("HostConfig") else {
        panic!("a create request has a host configuration");
    };
    let top = body
        .into_iter()
        .map(|(key, value)| (format!("C.{key}"), value));
    let host = host
        .into_iter()
        .map(|(key, value)| (format!("H.{key}"), value));
    let rest = bridges.into_iter().skip(1);
    Request {
        keys: top.chain(host).collect(),
        connects: rest.map(|bridge| bridge.engine_network).collect(),
    }
}

/// One line per key in which a request differs from the plain one.
fn difference(plain: &Request, request: &Request) -> String {
    let mut text = String::new();
    for (key, value) in &request.keys {
        let value = match (plain.keys.get(key), value) {
            (Some(common), value) if common == value => continue,
            (Some(Value::Object(common)), Value::Object(map)) if key == "C.Labels" => {
                let mut own = map.clone();
                own.retain(|label, value| common.get(label) != Some(value));
                Value::Object(own)
            }
            (Some(_), value) | (None, value) => value.clone(),
        };
        let _ = writeln!(text, "{key} {value}");
    }
    for key in plain
        .keys
        .keys()
        .filter(|key| !request.keys.contains_key(*key))
    {
        let _ = writeln!(text, "{key} none");
    }
    for network in &request.connects {
        let _ = writeln!(text, "connect {network}");
    }
    if text.is_empty() {
        text += "nothing\n";
    }
    text
}
