//! The table of manifest cases in `proto/tests/manifest/`: the create request of a service, without
//! the parts that every container has.

use std::{collections::BTreeMap, fmt::Write as _};

use jaco_proto::manifest::compose::service_keys;
use serde_json::Value;

use crate::{
    cases::{self, Case},
    request,
};

#[test]
fn create_requests_match_the_table() {
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
fn every_service_key_is_in_the_table() {
    let cases = cases::all();
    for key in service_keys() {
        // The client resolves these keys, so they never get here.
        if matches!(key, "extends" | "label_file" | "profiles") {
            continue;
        }
        let question = if key == "env_file" { "fold" } else { "body" };
        let line = format!("{key}:");
        let cases = cases.iter().filter(|case| {
            let keys = case.input("web").unwrap_or_default().lines();
            keys.map(str::trim_start)
                .any(|text| text.starts_with(&line))
        });
        let mut sections = cases.flat_map(|case| &case.sections);
        assert!(sections.any(|section| section.kind == question), "{key}");
    }
}

#[test]
fn service_without_keys_becomes_a_bare_container() {
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
H.Sysctls {"net.ipv4.tcp_mtu_probing":"1"}
"#;
    assert_eq!(
        difference(&Request::default(), &text),
        expected.trim_start()
    );
}

/// Keys of the create request, those of the host configuration apart, its platform, and the networks
/// joined after it.
#[derive(Default)]
struct Request {
    keys: BTreeMap<String, Value>,
    platform: Option<String>,
    connects: Vec<String>,
}

/// Returns the request for a service of two manifests.
fn request(jaco: &str, compose: &str, name: &str) -> Request {
    let start = request::start(jaco, compose, name);
    let Value::Object(mut body) = serde_json::to_value(start.body).unwrap() else {
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
    Request {
        keys: top.chain(host).collect(),
        platform: start.platform,
        connects: start.connects,
    }
}

/// Returns one line per key in which a request differs from the plain one.
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
    if let Some(platform) = &request.platform {
        let _ = writeln!(text, "platform {platform}");
    }
    for network in &request.connects {
        let _ = writeln!(text, "connect {network}");
    }
    if text.is_empty() {
        text += "nothing\n";
    }
    text
}
