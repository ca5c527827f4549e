//! Changes by other programs in the kernel or the engine are repaired, and other pairs of containers
//! stay connected.

use std::process::Output;

use jaco_chaos::{Lab, lab::Node, until};
use jaco_proto::v1::{AuditEventType, AuditQueryRequest, FailureMode};

use crate::{
    fixture::{LIMIT, Running},
    held::Held,
    traffic::{Endpoint, reaches},
};

/// The node on which things are broken.
const VICTIM: u8 = 2;

/// Runs a command of iproute2, nftables or the engine on a node and returns what it prints.
fn on(node: &Node, line: &str) -> String {
    let mut words = line.split(' ');
    let output: Output = node
        .command(words.next().unwrap())
        .args(words)
        .env(
            "DOCKER_HOST",
            format!("unix://{}", node.engine_socket().display()),
        )
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Arguments of `nft` that list the ruleset, without handles.
const LIST: [&str; 4] = ["list", "table", "inet", "jaco"];

/// The rules of a node as the kernel lists them.
fn rules(node: &Node) -> String {
    on(node, &format!("nft {}", LIST.join(" ")))
}

/// Number of audit events of a kind that the cluster has.
async fn audited(lab: &Lab, kind: AuditEventType) -> usize {
    let mut api = lab.node(1).api().audit();
    let mut events = api
        .query(AuditQueryRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut count = 0;
    while let Some(event) = events.message().await.unwrap() {
        count += usize::from(event.r#type() == kind);
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_by_others_are_repaired() {
    let mut running = Running::start(3).await;
    let before = rules(running.lab.node(VICTIM));
    let [one, other] = running.pair([1, 3]);
    let mut held = Held::open(&one, &other);
    let [near, _] = running.pair([VICTIM, 1]);
    let bridge = bridge_of(running.lab.node(VICTIM), &near);
    let set = format!("dep_net_{}_{}", near.scope.0, near.scope.1);
    let block = block_of(&near);
    let pool = "nft delete element inet jaco jaco_pool";
    let changes = [
        "nft flush table inet jaco".to_owned(),
        "nft delete table inet jaco".to_owned(),
        "nft flush chain inet jaco forward".to_owned(),
        "nft insert rule inet jaco forward drop".to_owned(),
        format!("{pool} {{ {block} }}"),
        format!("nft flush set inet jaco {set}"),
        "ip link delete jaco0".to_owned(),
        "ip address flush dev jaco0".to_owned(),
        "ip route flush dev jaco0".to_owned(),
        "ip link set jaco0 down".to_owned(),
        format!("ip link delete {bridge}"),
    ];
    for change in changes {
        let start = std::time::Instant::now();
        let victim = running.lab.node(VICTIM);
        on(victim, &change);
        until("the rules as before", LIMIT, || async {
            let now = victim.command("nft").args(LIST).output().unwrap();
            let now = String::from_utf8_lossy(&now.stdout).into_owned();
            if now == before { Ok(()) } else { Err(now) }
        })
        .await
        .unwrap();
        let rules_after = start.elapsed();
        running.connect().await;
        held.assert_alive();
        // A flow that began while the rules were gone counts as established and passes on.
        assert_eq!(running.traffic.leak(&running.found).await, None);
        println!(
            "{change}: rules after {rules_after:?}, all connected after {:?}",
            start.elapsed()
        );
    }
    assert!(audited(&running.lab, AuditEventType::IsolationRulesetReconciled).await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actors_that_end_cut_no_connection() {
    let mut running = Running::start(2).await;
    let containers = running.found.len();
    let [one, other] = running.pair([1, 2]);
    let mut held = Held::open(&one, &other);
    let api = running.lab.node(2).api().clone();
    let actors = api.actors().await.unwrap().into_iter();
    let network: Vec<String> = actors
        .map(|actor| actor.path)
        .filter(|path| path.contains("/network"))
        .collect();
    assert!(
        network.iter().any(|path| path.ends_with("/mesh")),
        "{network:?}"
    );
    assert!(
        network.iter().any(|path| path.ends_with("/firewall")),
        "{network:?}"
    );
    for path in network {
        api.kill_actor(&path, FailureMode::Panic).await.unwrap();
        api.actor(&path, "runs again", |actor| actor.state == "running")
            .await
            .unwrap();
        running.connect().await;
        assert_eq!(running.found.len(), containers);
        held.assert_alive();
        running.traffic.assert_isolated();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn displaced_exemptions_return_to_the_top() {
    let running = Running::start(2).await;
    let [from, to] = running.pair([1, 2]);
    let mut held = Held::open(&from, &to);
    // The engine drops new connections from other interfaces unless a rule before its own accepts.
    on(running.lab.node(2), "iptables -I DOCKER-USER 1 -j RETURN");
    let start = std::time::Instant::now();
    until("the pair talks", LIMIT, || async { reaches(&from, &to) })
        .await
        .unwrap();
    println!("connected again after {:?}", start.elapsed());
    held.assert_alive();
    running.traffic.assert_isolated();
}

/// Name of the Linux bridge of a container's network.
fn bridge_of(node: &Node, endpoint: &Endpoint) -> String {
    let name = format!("jaco_{}_{}", endpoint.scope.0, endpoint.scope.1);
    let format = "{{index .Options \"com.docker.network.bridge.name\"}}";
    let output = node
        .command("docker")
        .args(["network", "inspect", "-f", format, &name])
        .env(
            "DOCKER_HOST",
            format!("unix://{}", node.engine_socket().display()),
        )
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The address block of a container's network on its node, a /24.
fn block_of(endpoint: &Endpoint) -> String {
    let [a, b, c, _] = endpoint.address.octets();
    format!("{a}.{b}.{c}.0/24")
}
