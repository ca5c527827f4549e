//! Names for a container on two networks.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use jaco_chaos::engine::IMAGE;
use jaco_proto::v1;
use serde_json::json;

use crate::{
    fixture::{LIMIT, Running, builder},
    resolver::{NXDOMAIN, resolve, resolve_in_turn},
    traffic::Endpoint,
};

/// Services with their networks, in the order in which they are attached.
const SERVICES: [(&str, &[&str]); 4] = [
    ("web", &["front"]),
    ("db", &["back"]),
    ("both", &["front", "back"]),
    ("other", &["aside"]),
];

fn request() -> v1::ApplyRequest {
    let mut services = serde_json::Map::new();
    for (service, networks) in SERVICES {
        let compose = json!({
            "image": IMAGE, "pull_policy": "never", "command": ["sleep", "86400"],
            "stop_signal": "SIGKILL", "networks": networks,
        });
        services.insert(service.to_owned(), compose);
    }
    let networks = json!({ "front": {}, "back": {}, "aside": {} });
    let compose = json!({ "services": services, "networks": networks });
    let settings = SERVICES.map(|(service, _)| json!({ "name": service, "replicas": 1 }));
    let jaco = json!({ "deployment": "gamma", "acme": "off", "services": settings });
    v1::ApplyRequest {
        jaco_yaml: jaco.to_string().into_bytes(),
        compose_yaml: compose.to_string().into_bytes(),
        dry_run: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_both_networks_of_a_container_resolve() {
    let mut running = Running::idle(builder(1)).await;
    let Running { lab, traffic, .. } = &mut running;
    lab.node(1).api().deploy().apply(request()).await.unwrap();
    let start = std::time::Instant::now();
    loop {
        let found = traffic.refresh(lab).await.unwrap();
        let found: Vec<_> = found.iter().map(AsRef::as_ref).collect();
        match check(&found) {
            Ok(()) => break,
            Err(why) => assert!(start.elapsed() < LIMIT, "{why:#}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn check(found: &[&Endpoint]) -> Result<()> {
    ensure!(found.len() == 5, "{} ends of containers", found.len());
    for (service, networks) in SERVICES {
        let of_service = |endpoint: &&&Endpoint| endpoint.replica.contains(&format!("-{service}-"));
        let mut ends: Vec<_> = found.iter().filter(of_service).copied().collect();
        ensure!(
            ends.len() == networks.len(),
            "{service}: {} ends",
            ends.len()
        );
        for _ in 0..ends.len() {
            for (name, on) in SERVICES {
                let reachable = on.iter().any(|network| networks.contains(network));
                let through_engine = resolve(ends[0], name)?;
                ensure!(
                    through_engine.is_empty() != reachable,
                    "{name} for {service}"
                );
                let (code, in_turn) = resolve_in_turn(&ends, name)?;
                ensure!(
                    in_turn.is_empty() != reachable,
                    "{name} for {service} in turn"
                );
                ensure!(
                    reachable || code == NXDOMAIN,
                    "{name} for {service}: {code}"
                );
                let of_scopes = found
                    .iter()
                    .filter(|to| ends.iter().any(|end| end.scope == to.scope));
                let allowed: BTreeSet<_> = of_scopes.map(|to| to.address).collect();
                ensure!(
                    in_turn.is_subset(&allowed),
                    "{name} for {service}: {in_turn:?}"
                );
            }
            ends.reverse();
        }
    }
    Ok(())
}
