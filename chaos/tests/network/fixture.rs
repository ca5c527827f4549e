//! A cluster with two deployments of two networks each, and a replica of each on every node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_chaos::{Lab, engine::IMAGE, until};
use jaco_proto::v1::{self, NodeStatus};
use serde_json::json;

use crate::traffic::{Endpoint, Traffic};

/// Far more than any step here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// The deployments; each has the networks `front` and `back` with a service on each.
pub(crate) const DEPLOYMENTS: [&str; 2] = ["alpha", "beta"];
/// Services with their networks.
pub(crate) const SERVICES: [(&str, &str); 2] = [("web", "front"), ("db", "back")];

/// Replicas of each service of each deployment; absent deployments are deleted.
pub(crate) type Replicas = BTreeMap<&'static str, [u32; 2]>;

/// One replica of every service for each of `nodes` nodes.
pub(crate) fn one_each(nodes: u32) -> Replicas {
    DEPLOYMENTS.map(|name| (name, [nodes; 2])).into()
}

/// The apply request of a deployment; another `revision` replaces every container.
pub(crate) fn request(deployment: &str, replicas: [u32; 2], revision: u64) -> v1::ApplyRequest {
    let mut services = serde_json::Map::new();
    let mut settings = Vec::new();
    for ((service, network), count) in SERVICES.into_iter().zip(replicas) {
        let compose = json!({
            "image": IMAGE, "pull_policy": "never", "command": ["sleep", "86400"],
            "stop_signal": "SIGKILL", "networks": [network],
            "environment": { "REVISION": revision.to_string() },
            "healthcheck": {
                "test": ["CMD", "true"], "interval": "2s", "timeout": "5s", "retries": 3,
            },
        });
        services.insert(service.to_owned(), compose);
        settings.push(json!({ "name": service, "replicas": count }));
    }
    let compose = json!({ "services": services, "networks": { "front": {}, "back": {} } });
    let jaco = json!({ "deployment": deployment, "acme": "off", "services": settings });
    v1::ApplyRequest {
        jaco_yaml: jaco.to_string().into_bytes(),
        compose_yaml: compose.to_string().into_bytes(),
        dry_run: false,
    }
}

/// A cluster of ready nodes with engines.
pub(crate) async fn cluster(nodes: u8) -> Lab {
    let lab = Lab::builder().nodes(nodes).engines(true);
    let mut lab = lab.start().await.unwrap();
    lab.join_all().await.unwrap();
    all_ready(&lab).await;
    lab
}

/// Waits until the leader reports every running node as ready.
pub(crate) async fn all_ready(lab: &Lab) {
    until("all nodes ready", LIMIT, || async {
        let leader = lab.leader().await.map_err(|error| error.to_string())?;
        let status = lab.node(leader).api().status().await;
        let status = status.map_err(|error| error.to_string())?;
        let ready = |host: &str| {
            let mut nodes = status.nodes.iter();
            nodes.any(|n| n.hostname == host && n.status() == NodeStatus::Ready)
        };
        let mut up = lab.nodes().iter().filter(|node| node.is_up());
        if up.all(|node| ready(node.host())) {
            Ok(())
        } else {
            Err(format!("{:?}", status.nodes))
        }
    })
    .await
    .unwrap();
}

/// Applies every deployment through the first node.
pub(crate) async fn apply_all(lab: &Lab, replicas: &Replicas, revision: u64) {
    for (deployment, counts) in replicas {
        let request = request(deployment, *counts, revision);
        lab.node(1).api().deploy().apply(request).await.unwrap();
    }
}

/// Waits until exactly the wanted containers run, each pair of one network talks over TCP and UDP
/// in both directions, and returns the containers.
pub(crate) async fn connected(
    lab: &Lab,
    traffic: &mut Traffic,
    wanted: &Replicas,
) -> Vec<Arc<Endpoint>> {
    let start = std::time::Instant::now();
    loop {
        let found = traffic.refresh(lab).await.unwrap();
        let why = match missing(&found, wanted) {
            Some(why) => why,
            None => match traffic.unreachable(&found).await {
                None => return found,
                Some(why) => why,
            },
        };
        assert!(start.elapsed() < LIMIT, "{why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// How the running containers differ from the wanted ones.
fn missing(found: &[Arc<Endpoint>], wanted: &Replicas) -> Option<String> {
    let mut expected = BTreeMap::new();
    for (deployment, counts) in wanted {
        for ((_, network), count) in SERVICES.into_iter().zip(counts) {
            expected.insert((deployment.to_string(), network.to_owned()), *count);
        }
    }
    expected.retain(|_, count| *count > 0);
    let mut seen = BTreeMap::new();
    for endpoint in found {
        *seen.entry(endpoint.scope.clone()).or_insert(0) += 1;
    }
    (seen != expected).then(|| format!("{seen:?} run, {expected:?} are wanted"))
}

/// Hosts of these containers.
pub(crate) fn hosts(endpoints: &[Arc<Endpoint>]) -> BTreeSet<u8> {
    endpoints.iter().map(|endpoint| endpoint.host).collect()
}
