//! Further names of services: `container_name`, aliases on a network, and links, across machines.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use jaco_chaos::engine::IMAGE;
use jaco_proto::v1;
use serde_json::json;

use crate::{
    fixture::{LIMIT, Running, builder},
    resolver::resolve,
    traffic::Endpoint,
};

/// Name, and for each service that asks for it the services that it stands for.
const NAMES: [(&str, &str, &[&str]); 10] = [
    ("database", "app", &["db"]),
    ("Database", "web", &["db"]),
    ("database.delta", "web", &["db"]),
    ("shared", "db", &["app", "web"]),
    ("www", "app", &["web"]),
    ("www", "db", &["web"]),
    ("store", "app", &["db"]),
    // The link of another service.
    ("store", "web", &[]),
    // A link comes before a service of the same name, and only for the linking service.
    ("web", "app", &["db"]),
    ("web", "db", &["web"]),
];

/// A deployment with `app` on the first host and the others on the second.
fn request(hosts: [&str; 2]) -> v1::ApplyRequest {
    let service = |more: serde_json::Value| {
        let mut service = json!({
            "image": IMAGE, "pull_policy": "never", "command": ["sleep", "86400"],
            "stop_signal": "SIGKILL", "tty": true, "expose": ["9000"], "x-note": "kept",
        });
        let map = service.as_object_mut().unwrap();
        map.extend(more.as_object().unwrap().clone());
        service
    };
    let on_default = |aliases: &[&str]| json!({ "default": { "aliases": aliases } });
    let compose = json!({
        "services": {
            "db": service(json!({ "container_name": "Database" })),
            "web": service(json!({ "networks": on_default(&["shared", "www"]) })),
            "app": service(json!({ "networks": on_default(&["shared"]), "links": ["db:store", "db:web"] })),
        },
        "networks": { "default": {} },
    });
    let settings = ["app", "db", "web"].map(|name| {
        let host = hosts[usize::from(name != "app")];
        json!({ "name": name, "placement": "hosts", "hosts": [host], "replicas": 1 })
    });
    let jaco = json!({ "deployment": "delta", "acme": "off", "services": settings });
    v1::ApplyRequest {
        jaco_yaml: jaco.to_string().into_bytes(),
        compose_yaml: compose.to_string().into_bytes(),
        dry_run: false,
        files: Vec::new(),
        secret_values: Default::default(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_names_of_services_resolve_on_every_host() {
    let mut running = Running::idle(builder(2)).await;
    let Running { lab, traffic, .. } = &mut running;
    let hosts = [lab.node(1).host(), lab.node(2).host()];
    let request = request(hosts);
    lab.node(1).api().deploy().apply(request).await.unwrap();
    let start = std::time::Instant::now();
    loop {
        let found = traffic.refresh(lab).await.unwrap();
        match check(&found) {
            Ok(()) => break,
            Err(why) => assert!(start.elapsed() < LIMIT, "{why:#}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn check(found: &[std::sync::Arc<Endpoint>]) -> Result<()> {
    let of = |service: &str| {
        let mut ends = found.iter();
        ends.find(|end| end.replica.contains(&format!("-{service}-")))
            .with_context(|| format!("no container of {service}"))
    };
    for (name, client, services) in NAMES {
        let expected: Result<BTreeSet<_>> = services
            .iter()
            .map(|service| Ok(of(service)?.address))
            .collect();
        let answer = resolve(of(client)?, name)?;
        // Containers on the client's own host are preferred, and the engine knows those only.
        let expected = expected?;
        let is_preferred = !answer.is_empty() && answer.is_subset(&expected);
        ensure!(
            answer == expected || is_preferred,
            "{name} for {client}: {answer:?}, want {expected:?}"
        );
    }
    Ok(())
}
