//! A cluster with two deployments of two networks each, and a replica of each on every node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_chaos::{Lab, engine::IMAGE, lab::Builder, test_permits, until};
use jaco_proto::v1::{self, NodeStatus};
use serde_json::json;
use tokio::sync::SemaphorePermit;

use crate::traffic::{Endpoint, Traffic};

/// Far more than any step here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// The deployments; each has the networks `front` and `back` with a service on each.
pub(crate) const DEPLOYMENTS: [&str; 2] = ["alpha", "beta"];
/// Services with their networks.
pub(crate) const SERVICES: [(&str, &str); 2] = [("web", "front"), ("db", "back")];

/// Replicas of each service of each deployment; absent deployments are deleted.
pub(crate) type Replicas = BTreeMap<&'static str, [u32; 2]>;

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
        files: Vec::new(),
        secret_values: Default::default(),
    }
}

/// A lab with containers that talk all the time, alone on this machine.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) lab: Lab,
    pub(crate) traffic: Traffic,
    pub(crate) wanted: Replicas,
    /// The containers at the last [`Running::connect`].
    pub(crate) found: Vec<Arc<Endpoint>>,
    /// Released after the lab is removed.
    _permits: Option<SemaphorePermit<'static>>,
}

/// Settings of a lab of `nodes` nodes with engines.
pub(crate) fn builder(nodes: u8) -> Builder {
    Lab::builder().nodes(nodes).engines(true)
}

impl Running {
    /// A cluster of ready nodes without containers.
    pub(crate) async fn idle(builder: Builder) -> Self {
        let permits = test_permits::exclusive().await;
        let mut lab = builder.start().await.unwrap();
        lab.join_all().await.unwrap();
        all_ready(&lab).await;
        Self {
            lab,
            traffic: Traffic::default(),
            wanted: Replicas::new(),
            found: Vec::new(),
            _permits: permits,
        }
    }

    /// A cluster with every deployment, and a replica of each service for each node.
    pub(crate) async fn start(nodes: u8) -> Self {
        Self::of(builder(nodes), nodes).await
    }

    /// Like [`Running::start`], with other settings of the lab.
    pub(crate) async fn of(builder: Builder, nodes: u8) -> Self {
        let mut running = Self::idle(builder).await;
        let replicas = u32::from(nodes);
        let all = DEPLOYMENTS.map(|name| (name, [replicas; 2]));
        running.apply(all.into(), 0).await;
        running
    }

    /// Applies these deployments and waits until their containers are connected.
    pub(crate) async fn apply(&mut self, wanted: Replicas, revision: u64) {
        self.wanted = wanted;
        for (deployment, counts) in &self.wanted {
            let request = request(deployment, *counts, revision);
            let mut api = self.lab.node(1).api().deploy();
            api.apply(request).await.unwrap();
        }
        self.connect().await;
    }

    /// Waits until exactly the wanted containers run, and each pair of one network talks over TCP
    /// and UDP in both directions.
    pub(crate) async fn connect(&mut self) {
        self.found = connected(&self.lab, &mut self.traffic, &self.wanted).await;
    }

    /// Two containers of one network on these nodes.
    pub(crate) fn pair(&self, hosts: [u8; 2]) -> [Arc<Endpoint>; 2] {
        let on = |host: u8, like: Option<&Endpoint>| {
            let wanted = |e: &&Arc<Endpoint>| {
                e.host == host && like.is_none_or(|like| e.scope == like.scope)
            };
            self.found.iter().find(wanted).unwrap().clone()
        };
        let first = on(hosts[0], None);
        let second = on(hosts[1], Some(&first));
        [first, second]
    }

    /// Asserts that no container reaches one of another network, or has reached one so far.
    pub(crate) async fn assert_isolated(&self) {
        assert_eq!(self.traffic.leak(&self.found).await, None);
        self.traffic.assert_isolated().await;
    }
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
        let up = || lab.nodes().iter().filter(|node| node.is_up());
        for node in up() {
            // A member that was started again is ready to the others before it has opened its state.
            let answer = node.api().deployments().await;
            answer.map_err(|error| format!("{}: {error}", node.host()))?;
        }
        if up().all(|node| ready(node.host())) {
            Ok(())
        } else {
            Err(format!("{:?}", status.nodes))
        }
    })
    .await
    .unwrap();
}

/// Waits until exactly the wanted containers run, each pair of one network talks over TCP and UDP
/// in both directions, and returns the containers.
async fn connected(lab: &Lab, traffic: &mut Traffic, wanted: &Replicas) -> Vec<Arc<Endpoint>> {
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
