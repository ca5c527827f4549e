//! A cluster whose nodes run containers.

use std::{collections::BTreeMap, time::Duration};

use jaco_chaos::{Container, Lab, Service, Workload, until};
use jaco_proto::v1::{NodeStatus, ReplicaDetail, ReplicaState};

/// Far more than any step here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A cluster of this number of ready nodes, all with an engine.
pub(crate) async fn cluster(nodes: u8, seed: u64) -> Lab {
    let mut lab = Lab::builder()
        .nodes(nodes)
        .engines(true)
        .seed(seed)
        .start()
        .await
        .unwrap();
    lab.join_all().await.unwrap();
    all_ready(&lab).await;
    lab
}

/// A cluster of three voters without engines.
pub(crate) async fn three_voters(seed: u64) -> Lab {
    let mut lab = Lab::builder().nodes(3).seed(seed).start().await.unwrap();
    lab.join_all().await.unwrap();
    lab.wait_voters(3).await.unwrap();
    lab
}

/// Waits until the leader reports every node as ready.
pub(crate) async fn all_ready(lab: &Lab) {
    until("all nodes ready", LIMIT, || async {
        let leader = lab.leader().await.map_err(|error| error.to_string())?;
        let status = lab
            .node(leader)
            .api()
            .status()
            .await
            .map_err(|e| e.to_string())?;
        let ready = status
            .nodes
            .iter()
            .filter(|node| node.status() == NodeStatus::Ready)
            .count();
        if ready == lab.nodes().len() {
            Ok(())
        } else {
            Err(format!("{:?}", status.nodes))
        }
    })
    .await
    .unwrap();
}

/// A deployment of one service without volumes. Health checks start a process in the container, so
/// their interval is long enough for dozens of replicas on one machine.
pub(crate) fn stateless(replicas: u32) -> Workload {
    let mut service = Service::new("web").replicas(replicas);
    service.health_interval = "2s";
    Workload::new("lab", [service])
}

/// Waits until all replicas run on nodes that satisfy `wanted`, by the API of one node and by the
/// engines of these nodes: the API may still show the container from before a move.
pub(crate) async fn running(
    lab: &Lab,
    through: u8,
    workload: &Workload,
    wanted: impl Fn(&str) -> bool,
) -> Vec<ReplicaDetail> {
    let count: usize = workload.services.iter().map(|s| s.replicas as usize).sum();
    until("replicas where they are wanted", LIMIT, || async {
        let replicas = lab.node(through).api().replicas(&workload.name).await;
        let replicas = replicas.map_err(|error| error.to_string())?;
        let good = |r: &&ReplicaDetail| r.state() == ReplicaState::Running && wanted(&r.host);
        if replicas.len() == count && replicas.iter().all(|r| good(&r)) {
            let seen = containers(lab).await;
            let runs = |r: &&ReplicaDetail| {
                let mut there = seen[&r.host].iter();
                there.any(|container| container.replica == r.id && container.running)
            };
            return match replicas.iter().find(|r| !runs(r)) {
                None => Ok(replicas),
                Some(r) => Err(format!("no container of {} on {}", r.id, r.host)),
            };
        }
        let bad = replicas.iter().filter(|r| !good(r));
        let bad: Vec<_> = bad
            .map(|r| format!("{} {} {:?}", r.id, r.host, r.state()))
            .collect();
        Err(format!(
            "{} replicas, of these not: {bad:?}",
            replicas.len()
        ))
    })
    .await
    .unwrap()
}

/// Containers of the cluster on each engine, by hostname.
pub(crate) async fn containers(lab: &Lab) -> BTreeMap<String, Vec<Container>> {
    let mut found = BTreeMap::new();
    for node in lab.nodes() {
        let engine = node.engine().await.unwrap();
        let containers = engine.containers(lab.cluster_id()).await.unwrap();
        found.insert(node.host().to_owned(), containers);
    }
    found
}

/// Waits until the engines run exactly the replicas that the state assigns to each.
pub(crate) async fn containers_as_placed(lab: &Lab, through: u8, workload: &Workload) {
    until("containers as placed", LIMIT, || async {
        let replicas = lab.node(through).api().replicas(&workload.name).await;
        let replicas = replicas.map_err(|error| error.to_string())?;
        let mut placed: Vec<_> = replicas.into_iter().map(|r| (r.host, r.id)).collect();
        let mut seen = Vec::new();
        for (host, containers) in containers(lab).await {
            let running = containers.into_iter().filter(|container| container.running);
            seen.extend(running.map(|container| (host.clone(), container.replica)));
        }
        placed.sort();
        seen.sort();
        if seen == placed {
            Ok(())
        } else {
            Err(format!("{seen:?} instead of {placed:?}"))
        }
    })
    .await
    .unwrap();
}
