//! A container on two networks: its names, and its packets to other hosts.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use jaco_chaos::engine::IMAGE;
use jaco_proto::v1;
use serde_json::json;

use crate::{
    fixture::{LIMIT, Running, builder},
    resolver::{NXDOMAIN, resolve, resolve_in_turn},
    traffic::{Endpoint, reaches},
};

/// Services with their networks, in the order in which they are attached.
const SERVICES: [(&str, &[&str]); 4] = [
    ("web", &["front"]),
    ("db", &["back"]),
    ("both", &["front", "back"]),
    ("other", &["aside"]),
];

/// Services on `hosts`, of which the first has the container on two networks; all on any without it.
fn request(hosts: Option<[&str; 2]>) -> v1::ApplyRequest {
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
    let settings = SERVICES.map(|(service, _)| {
        let mut settings = json!({ "name": service, "replicas": 1 });
        if let Some([first, other]) = hosts {
            let host = if service == "both" { first } else { other };
            settings["placement"] = "hosts".into();
            settings["hosts"] = json!([host]);
        }
        settings
    });
    let jaco = json!({ "deployment": "gamma", "acme": "off", "services": settings });
    v1::ApplyRequest {
        jaco_yaml: jaco.to_string().into_bytes(),
        compose_yaml: compose.to_string().into_bytes(),
        dry_run: false,
        files: Vec::new(),
        secret_values: Default::default(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_both_networks_of_a_container_resolve() {
    let mut running = Running::idle(builder(1)).await;
    let Running { lab, traffic, .. } = &mut running;
    lab.node(1)
        .api()
        .deploy()
        .apply(request(None))
        .await
        .unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_on_two_networks_talks_to_other_hosts() {
    let mut running = Running::idle(builder(2)).await;
    let Running { lab, traffic, .. } = &mut running;
    let hosts = [lab.node(1).host(), lab.node(2).host()];
    let request = request(Some(hosts));
    lab.node(1).api().deploy().apply(request).await.unwrap();
    let start = std::time::Instant::now();
    loop {
        let found = traffic.refresh(lab).await.unwrap();
        match meets_both(&found) {
            Ok(()) => break,
            Err(why) => assert!(start.elapsed() < LIMIT, "{why:#}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Checks that the remote containers of both networks reach the one that is on both, whose answers
/// leave by the bridge of its default route, and that the one of its default network is reached.
fn meets_both(found: &[std::sync::Arc<Endpoint>]) -> Result<()> {
    let of = |service: &str, network: &str| {
        let mut ends = found.iter().filter(|end| end.scope.1 == network);
        ends.find(|end| end.replica.contains(&format!("-{service}-")))
            .with_context(|| format!("{service} on {network}"))
    };
    for (service, network) in [("web", "front"), ("db", "back")] {
        let (remote, both) = (of(service, network)?, of("both", network)?);
        ensure!(remote.host != both.host, "{service} is on the same host");
        reaches(remote, both).with_context(|| format!("{service} to both"))?;
    }
    // New connections have an address of the default network, which is the first by name.
    reaches(of("both", "back")?, of("db", "back")?).context("both to db")
}
