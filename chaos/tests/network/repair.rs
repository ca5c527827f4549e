//! Changes by other programs in the kernel or the engine are repaired, and other pairs of containers
//! stay connected.

use std::{
    process::Output,
    time::{Duration, Instant},
};

use jaco_chaos::{Lab, lab::Node, time_limits, until};
use jaco_proto::v1::{AuditEvent, AuditEventType, AuditQueryRequest, FailureMode};

use crate::{
    fixture::{LIMIT, Running},
    held::Held,
    traffic::{Endpoint, reaches},
};

/// The node on which things are broken.
const VICTIM: u8 = 2;

/// Longest time from a change of the ruleset to its repair.
const DRIFT: Duration = Duration::from_secs(1);

/// Runs a command of iproute2, nftables or the engine on a node and returns what it prints.
pub(crate) fn on(node: &Node, line: &str) -> String {
    try_on(node, line).unwrap()
}

fn try_on(node: &Node, line: &str) -> Result<String, String> {
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
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(format!("{line:?}: {errors}"))
    }
}

/// Arguments of `nft` that list the ruleset, without handles and counters.
const LIST: [&str; 5] = ["-s", "list", "table", "inet", "jaco"];

/// The rules of a node as the kernel lists them.
fn rules(node: &Node) -> String {
    on(node, &format!("nft {}", LIST.join(" ")))
}

/// A change by another program, and what the audit log says once it is repaired.
struct Damage {
    /// Commands, repeated together until all of them succeed.
    lines: Vec<String>,
    event: AuditEventType,
    /// Entry of the event's payload: the device of the mesh, or the network.
    by: Option<(&'static str, String)>,
    /// Beginnings of entries of the event's summary.
    summary: Vec<String>,
    /// Whether the event follows at once: the mesh has one event a minute, with all repairs.
    is_audited_at_once: bool,
}

impl Damage {
    fn of_rules(line: impl Into<String>, summary: &[&str]) -> Self {
        Self {
            lines: vec![line.into()],
            event: AuditEventType::IsolationRulesetReconciled,
            by: None,
            summary: summary.iter().map(ToString::to_string).collect(),
            is_audited_at_once: true,
        }
    }

    fn of_mesh(line: impl Into<String>, summary: impl Into<String>) -> Self {
        Self {
            lines: vec![line.into()],
            event: AuditEventType::NetworkRepaired,
            by: Some(("device", "jaco0".to_owned())),
            summary: vec![summary.into()],
            is_audited_at_once: false,
        }
    }

    fn of_network(of: &Endpoint, lines: Vec<String>, summary: impl Into<String>) -> Self {
        Self {
            lines,
            event: AuditEventType::NetworkRepaired,
            by: Some(("network", of.scope.1.clone())),
            summary: vec![summary.into()],
            is_audited_at_once: true,
        }
    }

    fn is_told_by(&self, event: &AuditEvent, host: &str) -> bool {
        let has = |key: &str, value: &str| event.payload.get(key).is_some_and(|v| v == value);
        let items = event.payload.get("summary");
        let items: Vec<_> = items.map_or(Vec::new(), |items| items.split(',').collect());
        let begins = |part: &String| items.iter().any(|item| item.starts_with(part.as_str()));
        event.r#type() == self.event
            && has("node", host)
            && self.by.iter().all(|(key, value)| has(key, value))
            && self.summary.iter().all(begins)
    }
}

/// Every kind of damage to the node of `near`, whose other containers stay as they are.
fn damages(node: &Node, near: &Endpoint) -> Vec<Damage> {
    let bridge = bridge_of(node, near);
    let set = format!("dep_net_{}_{}", near.scope.0, near.scope.1);
    let block = block_of(near);
    let network = network_of(near);
    let container = container_of(node, near);
    let detach = format!("docker network disconnect -f {network} {container}");
    let blackhole = on(node, "ip route show type blackhole");
    let blackhole = blackhole.lines().next().unwrap().trim();
    let unreachable = blackhole.split(' ').nth(1).unwrap();
    vec![
        Damage::of_rules("nft flush table inet jaco", &["missing:rule:forward[0]"]),
        Damage::of_rules(
            "nft delete table inet jaco",
            &["missing:chain:forward", &format!("missing:set:{set}")],
        ),
        Damage::of_rules(
            "nft flush chain inet jaco forward",
            &["missing:rule:forward[0]"],
        ),
        Damage::of_rules(
            "nft flush chain inet jaco prerouting",
            &["missing:rule:prerouting[0]", "missing:rule:prerouting[1]"],
        ),
        Damage::of_rules(
            "nft insert rule inet jaco forward drop",
            &["extra:rule:forward[0]"],
        ),
        Damage::of_rules(
            drop_first(node),
            &["extra:rule:forward[0]", "missing:rule:forward[0]"],
        ),
        Damage::of_rules(
            format!("nft delete element inet jaco jaco_pool {{ {block} }}"),
            &[&format!("missing:element:jaco_pool/{block}")],
        ),
        Damage::of_rules(
            format!("nft delete element inet jaco jaco_networks {{ {block} }}"),
            &[&format!("missing:element:jaco_networks/{block}:{set}")],
        ),
        Damage::of_rules(
            format!("nft flush chain inet jaco {set}"),
            &[&format!("missing:rule:{set}[0]")],
        ),
        Damage::of_rules(
            format!("nft flush set inet jaco {set}"),
            &[&format!("missing:element:{set}/{block}")],
        ),
        // Before those that take the routes along.
        Damage {
            is_audited_at_once: true,
            ..Damage::of_mesh("ip route flush dev jaco0", "missing:route:")
        },
        Damage::of_mesh("ip link delete jaco0", "missing:device"),
        Damage::of_mesh("ip address flush dev jaco0", "missing:address:"),
        Damage::of_mesh("ip link set jaco0 down", "differs:link"),
        Damage::of_mesh(
            format!("ip route delete {blackhole}"),
            format!("missing:blackhole:{unreachable}"),
        ),
        Damage::of_network(
            near,
            vec![format!("ip link delete {bridge}")],
            format!("missing:bridge:{bridge}"),
        ),
        Damage::of_network(
            near,
            vec![format!("ip link set {bridge} down")],
            format!("down:bridge:{bridge}"),
        ),
        Damage::of_network(
            near,
            vec![format!("ip address flush dev {bridge}")],
            format!("missing:gateway:{bridge}"),
        ),
        Damage::of_network(
            near,
            vec![detach.clone()],
            format!("detached:{}", near.replica),
        ),
        // The engine removes no network with containers.
        Damage::of_network(
            near,
            vec![detach, format!("docker network rm {network}")],
            "missing:network",
        ),
    ]
}

/// Command that moves the last rule to the top, in one transaction.
fn drop_first(node: &Node) -> String {
    let listed = on(node, "nft -a list chain inet jaco forward");
    let drop = "ip saddr @jaco_pool ip daddr @jaco_pool drop";
    let rule = listed.lines().find(|line| line.contains(drop)).unwrap();
    let (_, handle) = rule.rsplit_once(' ').unwrap();
    let chain = "rule inet jaco forward";
    format!("nft delete {chain} handle {handle} ; insert {chain} {drop}")
}

/// Audit events of the cluster.
pub(crate) async fn audited(lab: &Lab) -> Result<Vec<AuditEvent>, tonic::Status> {
    let mut api = lab.node(1).api().audit();
    let query = api.query(AuditQueryRequest::default()).await?;
    let mut events = query.into_inner();
    let mut found = Vec::new();
    while let Some(event) = events.message().await? {
        found.push(event);
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_by_others_are_repaired() {
    let mut running = Running::start(3).await;
    let before = rules(running.lab.node(VICTIM));
    let host = running.lab.node(VICTIM).host().to_owned();
    let [one, other] = running.pair([1, 3]);
    let mut held = Held::open(&one, &other);
    let [near, _] = running.pair([VICTIM, 1]);
    let count = damages(running.lab.node(VICTIM), &near).len();
    let mut later = Vec::new();
    for index in 0..count {
        // A rule that was written again has another handle.
        let damage = damages(running.lab.node(VICTIM), &near).remove(index);
        let what = damage.lines.join("; ");
        let earlier = audited(&running.lab).await.unwrap().len();
        let victim = running.lab.node(VICTIM);
        until("the damage", LIMIT, || async {
            damage
                .lines
                .iter()
                .try_for_each(|line| try_on(victim, line).map(drop))
        })
        .await
        .unwrap();
        let start = Instant::now();
        until("the rules as before", LIMIT, || async {
            let now = victim.command("nft").args(LIST).output().unwrap();
            let now = String::from_utf8_lossy(&now.stdout).into_owned();
            if now == before { Ok(()) } else { Err(now) }
        })
        .await
        .unwrap();
        if damage.event == AuditEventType::IsolationRulesetReconciled {
            time_limits::time(&format!("rules after {what:?}"), start.elapsed(), DRIFT).unwrap();
        }
        running.connect().await;
        let connected = start.elapsed();
        held.assert_alive();
        // A flow that began while the rules were gone counts as established and passes on.
        assert_eq!(running.traffic.leak(&running.found).await, None);
        println!("{what}: all connected after {connected:?}");
        if damage.is_audited_at_once {
            await_audit(&running.lab, &damage, &host, earlier).await;
        } else {
            later.push((damage, earlier));
        }
    }
    for (damage, earlier) in later {
        await_audit(&running.lab, &damage, &host, earlier).await;
    }
}

/// Waits for the event about a damage to node `host` after the first `earlier` ones.
async fn await_audit(lab: &Lab, damage: &Damage, host: &str, earlier: usize) {
    until("the audit event", LIMIT, || async {
        let events = audited(lab).await.map_err(|error| error.to_string())?;
        let events = events.get(earlier..).unwrap_or_default();
        let told = events.iter().any(|event| damage.is_told_by(event, host));
        told.then_some(())
            .ok_or_else(|| format!("{:?}: {events:?}", damage.lines))
    })
    .await
    .unwrap();
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
        running.traffic.assert_isolated().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn displaced_exemptions_return_to_the_top() {
    let running = Running::start(2).await;
    let [from, to] = running.pair([1, 2]);
    let mut held = Held::open(&from, &to);
    // The engine drops new connections from other interfaces unless a rule before its own accepts.
    on(running.lab.node(2), "iptables -I DOCKER-USER 1 -j RETURN");
    let start = Instant::now();
    until("the pair talks", LIMIT, || async { reaches(&from, &to) })
        .await
        .unwrap();
    println!("connected again after {:?}", start.elapsed());
    held.assert_alive();
    running.traffic.assert_isolated().await;
}

/// Name of the engine network of a container.
fn network_of(endpoint: &Endpoint) -> String {
    format!("jaco_{}_{}", endpoint.scope.0, endpoint.scope.1)
}

/// Name of the Linux bridge of a container's network.
fn bridge_of(node: &Node, endpoint: &Endpoint) -> String {
    let format = "{{.Options}}";
    let name = network_of(endpoint);
    let options = on(node, &format!("docker network inspect -f {format} {name}"));
    let (_, bridge) = options
        .split_once("com.docker.network.bridge.name:")
        .unwrap();
    bridge.split([' ', ']']).next().unwrap().to_owned()
}

/// Engine id of a container.
fn container_of(node: &Node, endpoint: &Endpoint) -> String {
    let filter = format!("label=jaco.replica_id={}", endpoint.replica);
    on(node, &format!("docker ps -q --filter {filter}"))
        .trim()
        .to_owned()
}

/// The address block of a container's network on its node, a /24.
fn block_of(endpoint: &Endpoint) -> String {
    let [a, b, c, _] = endpoint.address.octets();
    format!("{a}.{b}.{c}.0/24")
}
