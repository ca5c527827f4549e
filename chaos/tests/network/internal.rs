//! An internal network: its containers reach each other on every host, and nothing outside.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use jaco_chaos::{Lab, engine::IMAGE, lab::netns};
use jaco_proto::v1;
use serde_json::json;

use crate::{
    fixture::{LIMIT, Running, builder},
    resolver::{REFUSED, resolve, resolve_in_turn},
    traffic::{Endpoint, reaches},
};

/// Port of a listener outside of the cluster's networks.
const OUTSIDE: u16 = 9_444;

/// Services with their networks and hosts; `front` is an ordinary network.
const SERVICES: [(&str, &[&str], u8); 4] = [
    ("db", &["back"], 1),
    ("cache", &["back"], 2),
    ("both", &["back", "front"], 1),
    ("web", &["front"], 2),
];

fn request(lab: &Lab, internal: bool) -> v1::ApplyRequest {
    let mut services = serde_json::Map::new();
    let mut settings = Vec::new();
    for (service, networks, node) in SERVICES {
        let compose = json!({
            "image": IMAGE, "pull_policy": "never", "command": ["sleep", "86400"],
            "stop_signal": "SIGKILL", "networks": networks,
        });
        services.insert(service.to_owned(), compose);
        let host = lab.node(node).host();
        settings.push(json!({ "name": service, "placement": "hosts", "hosts": [host] }));
    }
    let networks = json!({ "back": { "internal": internal }, "front": {} });
    let compose = json!({ "services": services, "networks": networks });
    let jaco = json!({ "deployment": "quiet", "acme": "off", "services": settings });
    v1::ApplyRequest {
        jaco_yaml: jaco.to_string().into_bytes(),
        compose_yaml: compose.to_string().into_bytes(),
        ..Default::default()
    }
}

/// Whether a new connection of a container to a machine beside the cluster is established.
fn leads_out(from: &Endpoint, to: SocketAddr) -> Result<bool> {
    let connect = || std::net::TcpStream::connect_timeout(&to, Duration::from_millis(400)).is_ok();
    Ok(from.namespace.within(connect)?)
}

fn check(found: &[std::sync::Arc<Endpoint>], outside: SocketAddr, internal: bool) -> Result<()> {
    let of = |service: &str, network: &str| {
        let mut ends = found.iter().filter(|end| end.scope.1 == network);
        ends.find(|end| end.replica.contains(&format!("-{service}-")))
            .with_context(|| format!("{service} on {network}"))
    };
    let (db, cache, web) = (of("db", "back")?, of("cache", "back")?, of("web", "front")?);
    reaches(db, cache).context("db to cache")?;
    reaches(cache, db).context("cache to db")?;
    ensure!(!resolve(db, "cache")?.is_empty(), "no name");
    for (end, out) in [(db, !internal), (cache, !internal), (web, true)] {
        ensure!(
            leads_out(end, outside)? == out,
            "{} leads out: {}",
            end.replica,
            !out
        );
    }
    // Its default route may lead through either network.
    let both = [of("both", "back")?.as_ref(), of("both", "front")?.as_ref()];
    ensure!(
        leads_out(both[0], outside)?,
        "a container on both is shut in"
    );
    if internal {
        let (code, _) = resolve_in_turn(&[db], "example.org")?;
        ensure!(code == REFUSED, "an external name: {code}");
    }
    Ok(())
}

async fn becomes(running: &mut Running, outside: SocketAddr, internal: bool) {
    let start = std::time::Instant::now();
    loop {
        let found = running.traffic.refresh(&running.lab).await.unwrap();
        match check(&found, outside, internal) {
            Ok(()) => break,
            Err(why) => assert!(start.elapsed() < LIMIT, "{why:#}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn internal_network_reaches_its_members_only() {
    let mut running = Running::idle(builder(3)).await;
    // The third machine stands for the world: no container runs there.
    let world = running.lab.node(3);
    let outside = SocketAddr::from((world.address(), OUTSIDE));
    let listener = netns::within(world.namespace(), || std::net::TcpListener::bind(outside));
    let listener = listener.unwrap().unwrap();
    for internal in [true, false, true] {
        let request = request(&running.lab, internal);
        let api = running.lab.node(1).api();
        api.deploy().apply(request).await.unwrap();
        becomes(&mut running, outside, internal).await;
    }
    running.lab.node_mut(1).kill().unwrap();
    running.lab.node_mut(1).start().await.unwrap();
    becomes(&mut running, outside, true).await;
    drop(listener);
}
