//! Nodes without a ruleset start no containers.

use std::{
    collections::BTreeMap,
    io::Write as _,
    process::{Child, Stdio},
};

use jaco_chaos::{Lab, lab::Node, until};
use jaco_proto::v1::{self, NodeStatus};

use crate::{
    fixture::{DEPLOYMENTS, LIMIT, Running, builder, hosts, request},
    repair::on,
    traffic::reaches,
};

/// Node that cannot load its ruleset.
const VICTIM: u8 = 2;

/// Takes the table, as soon as the rules show it: no other process can change it as long as this
/// one runs (nft(8), flag `owner`).
async fn seize_table(node: &Node) -> Child {
    let mut process = node
        .command("nft")
        .arg("-i")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The first command lets the second succeed without a table.
    let line = b"add table inet jaco; delete table inet jaco; \
        add table inet jaco { flags owner; }\n";
    process.stdin.as_mut().unwrap().write_all(line).unwrap();
    until("an owner of the table", LIMIT, || async {
        let listed = node.command("nft").args(["list", "ruleset"]).output();
        let listed = String::from_utf8_lossy(&listed.unwrap().stdout).into_owned();
        if listed.contains("flags owner") {
            Ok(())
        } else {
            Err(listed)
        }
    })
    .await
    .unwrap();
    process
}

/// Row of the victim as the first node reports it.
async fn row(lab: &Lab) -> Result<v1::Node, String> {
    let seen = lab.node(1).api().status().await;
    let seen = seen.map_err(|error| error.to_string())?;
    let host = lab.node(VICTIM).host();
    let node = seen.nodes.into_iter().find(|node| node.hostname == host);
    node.ok_or_else(|| format!("no {host}"))
}

/// Waits until the victim has this status.
async fn wait_status(lab: &Lab, wanted: NodeStatus) -> v1::Node {
    until("the status of the victim", LIMIT, || async {
        match row(lab).await? {
            node if node.status() == wanted => Ok(node),
            node => Err(format!("{node:?}")),
        }
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_isolation_takes_no_replicas() {
    let mut running = Running::idle(builder(2)).await;
    let mut owner = seize_table(running.lab.node(VICTIM)).await;
    let unavailable = wait_status(&running.lab, NodeStatus::IsolationUnavailable).await;
    let reason = unavailable.status_details.get("reason");
    assert!(
        reason.is_some_and(|reason| !reason.is_empty()),
        "{unavailable:?}"
    );

    running.apply([("alpha", [2, 2])].into(), 0).await;
    assert_eq!(hosts(&running.found), [1].into());

    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_status(&running.lab, NodeStatus::Ready).await;
}

/// Ids of the victim's containers, and when each was last started.
async fn started(lab: &Lab) -> BTreeMap<String, String> {
    let engine = lab.node(VICTIM).engine().await.unwrap();
    let containers = engine.containers(lab.cluster_id()).await.unwrap();
    let started = containers.into_iter().map(|c| (c.id, c.started_at));
    started.collect()
}

/// Number of the victim's replicas that neither wait for its isolation nor were moved.
async fn undecided(lab: &Lab) -> Result<usize, String> {
    let mut count = 0;
    for deployment in DEPLOYMENTS {
        let replicas = lab.node(1).api().replicas(deployment).await;
        let replicas = replicas.map_err(|error| error.to_string())?.into_iter();
        let is_undecided = |replica: &v1::ReplicaDetail| {
            replica.host == lab.node(VICTIM).host() && replica.code != "isolation_unavailable"
        };
        count += replicas.filter(is_undecided).count();
    }
    Ok(count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn booted_node_starts_no_container_before_its_rules() {
    let mut running = Running::start(2).await;
    let before = started(&running.lab).await;
    assert!(!before.is_empty());
    running.lab.crash(VICTIM).unwrap();
    running.lab.power_on(VICTIM).await.unwrap();
    assert_eq!(started(&running.lab).await, before, "stopped by the crash");
    // The traffic of the stopped containers ends.
    running.traffic.refresh(&running.lab).await.unwrap();

    let mut owner = seize_table(running.lab.node(VICTIM)).await;
    running.lab.node_mut(VICTIM).start().await.unwrap();
    let lab = &running.lab;
    until("replicas to wait or to move", LIMIT, || async {
        for (id, at) in started(lab).await {
            assert_eq!(before.get(&id), Some(&at), "{id} ran without rules");
        }
        match undecided(lab).await? {
            0 => Ok(()),
            count => Err(format!("{count} undecided")),
        }
    })
    .await
    .unwrap();

    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_status(lab, NodeStatus::Ready).await;
    running.connect().await;
    running.assert_isolated().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_containers_stay_apart_without_isolation() {
    let mut running = Running::start(2).await;
    let mut owner = seize_table(running.lab.node(VICTIM)).await;
    wait_status(&running.lab, NodeStatus::IsolationUnavailable).await;
    // Until the loss was noticed packets passed as long as the pass took.
    let (before, _) = running.traffic.violations();
    assert_eq!(running.traffic.leak(&running.found).await, None);
    let (after, _) = running.traffic.violations();
    assert_eq!(after[before.len()..], [""; 0]);
    let rules = running.lab.node(VICTIM).command("iptables");
    let listed = listing(rules);
    assert!(!listed.contains("10.244.0.0/16"), "{listed}");

    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_status(&running.lab, NodeStatus::Ready).await;
    running.connect().await;
    assert_eq!(running.traffic.leak(&running.found).await, None);
}

/// Rules of the chain in which the engine's users put their own.
fn listing(mut iptables: std::process::Command) -> String {
    let listed = iptables.args(["-S", "DOCKER-USER"]).output().unwrap();
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

/// Reason why the mesh of the victim does not work, as it says.
async fn mesh_reason(lab: &Lab) -> Result<String, String> {
    let mut api = lab.node(VICTIM).api().cluster();
    let seen = api.network_status(v1::NetworkStatusRequest {}).await;
    let seen = seen.map_err(|error| error.to_string())?.into_inner();
    let host = lab.node(VICTIM).host();
    let node = seen.nodes.into_iter().find(|node| node.hostname == host);
    let mesh = node.and_then(|node| node.mesh);
    Ok(mesh.ok_or("no mesh")?.reason)
}

async fn wait_reason(lab: &Lab, part: &str) {
    until("the reason of the mesh", LIMIT, || async {
        match mesh_reason(lab).await? {
            reason if part.is_empty() == reason.is_empty() && reason.contains(part) => Ok(()),
            reason => Err(reason),
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaves_by_foreign_routes() {
    let mut running = Running::idle(builder(2)).await;
    running.apply([("alpha", [2, 2])].into(), 0).await;
    let [near, far] = running.pair([VICTIM, 1]);
    let on_victim = |running: &Running, line: &str| on(running.lab.node(VICTIM), line);
    // The route of another program takes packets to one container, and all that is left of them is
    // counted.
    let address = running.lab.node(1).address();
    let to_peer = on_victim(&running, &format!("ip route get {address}"));
    let words: Vec<&str> = to_peer.split_whitespace().collect();
    let hop = words
        .windows(2)
        .filter(|pair| matches!(pair[0], "via" | "dev"));
    let hop: Vec<String> = hop.map(|pair| pair.join(" ")).collect();
    let route = format!("{}/32 {}", far.address, hop.join(" "));
    on_victim(&running, "nft add table ip watch");
    let chain = "add chain ip watch out { type filter hook postrouting priority 300; }";
    on_victim(&running, &format!("nft {chain}"));
    let counter = format!("ip daddr {} oifname != jaco0 counter", far.address);
    on_victim(&running, &format!("nft add rule ip watch out {counter}"));
    let named = format!("{}/32 dev ", far.address);
    let nothing_left = |running: &Running| {
        assert!(reaches(&near, &far).is_err());
        let listed = on_victim(running, "nft list table ip watch");
        assert!(listed.contains("counter packets 0 bytes 0"), "{listed}");
    };
    on_victim(&running, &format!("ip route add {route}"));
    nothing_left(&running);
    wait_reason(&running.lab, &named).await;
    nothing_left(&running);

    // Nor does a container start beside it.
    let before = started(&running.lab).await;
    let mut api = running.lab.node(1).api().deploy();
    api.apply(request("beta", [2, 2], 0)).await.unwrap();
    until("replicas to wait or to move", LIMIT, || async {
        assert_eq!(started(&running.lab).await, before);
        let replicas = running.lab.node(1).api().replicas("beta").await;
        let replicas = replicas.map_err(|error| error.to_string())?;
        let waits = |replica: &v1::ReplicaDetail| {
            let names_route = replica.message.contains(&far.address.to_string());
            replica.host != running.lab.node(VICTIM).host()
                || replica.state() == v1::ReplicaState::Pending && names_route
        };
        match replicas.iter().all(waits) && !replicas.is_empty() {
            true => Ok(()),
            false => Err(format!("{replicas:?}")),
        }
    })
    .await
    .unwrap();

    on_victim(&running, &format!("ip route del {route}"));
    wait_reason(&running.lab, "").await;
    running.wanted = DEPLOYMENTS.map(|name| (name, [2, 2])).into();
    running.connect().await;

    // A daemon finds one that was there before it.
    running.lab.node_mut(VICTIM).kill().unwrap();
    on_victim(&running, &format!("ip route add {route}"));
    nothing_left(&running);
    running.lab.node_mut(VICTIM).start().await.unwrap();
    wait_reason(&running.lab, &named).await;
    nothing_left(&running);
    on_victim(&running, &format!("ip route del {route}"));
    on_victim(&running, "nft delete table ip watch");
    wait_reason(&running.lab, "").await;
    running.connect().await;
    running.assert_isolated().await;
}
