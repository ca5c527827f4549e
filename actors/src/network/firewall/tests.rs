use std::{
    collections::BTreeMap,
    process::Command,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use jaco_engine::cidr::Cidr;
use jaco_net::netns::Namespace;
use jaco_policy::network::{
    firewall::local::LocalNetworks, names::NetworkId, probe::drops::Drops, readiness::MeshStatus,
};
use jaco_proto::v1::{self, AuditEventType, NodeStatus, command::Payload};
use jaco_raftnode::{StateReader as _, command, testing::MemoryRaft};
use jaco_supervision::{KillMode, Strategy, SupervisorSpec, Tree};
use prost_types::Timestamp;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use super::*;
use crate::{
    clock::Clock,
    network::gate::{IsolationGate as _, NotEnforced},
};

/// Longer than any wait that ends; reached in a failure only.
const PATIENCE: Duration = Duration::from_secs(20);

/// A packet filter in memory.
#[derive(Default)]
struct FakeKernel {
    table: Mutex<Option<Ruleset>>,
    error: Mutex<Option<String>>,
    listener: Mutex<Option<mpsc::UnboundedSender<()>>>,
    /// Rulesets by which connections were ended.
    cuts: Mutex<Vec<Ruleset>>,
}

impl FakeKernel {
    fn table(&self) -> Option<Ruleset> {
        lock(&self.table).clone()
    }

    /// Changes the table behind the back of the actor.
    fn tamper(&self, change: impl FnOnce(&mut Option<Ruleset>)) {
        change(&mut lock(&self.table));
        if let Some(listener) = &*lock(&self.listener) {
            let _ = listener.send(());
        }
    }

    fn fail(&self, error: Option<&str>) {
        *lock(&self.error) = error.map(str::to_owned);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FirewallPort for FakeKernel {
    fn read(&self) -> Result<Option<Ruleset>, String> {
        Ok(self.table())
    }

    fn apply(&self, ruleset: &Ruleset) -> Result<Applied, String> {
        if let Some(error) = lock(&self.error).clone() {
            return Err(error);
        }
        self.tamper(|table| *table = Some(ruleset.clone()));
        Ok(Applied::Undisturbed)
    }

    fn exempt(&self, _pool: Cidr, _accepts: bool) -> Vec<(Exemption, Outcome)> {
        vec![(Exemption::Masquerade, Outcome::NoChain)]
    }

    fn cut_flows(&self, ruleset: &Ruleset) -> Result<Option<usize>, String> {
        lock(&self.cuts).push(ruleset.clone());
        Ok(Some(1))
    }

    fn drops(&self) -> Result<Drops, String> {
        Ok(Drops::new())
    }

    fn changes(&self) -> Result<BoxStream<'static, ()>, String> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *lock(&self.listener) = Some(sender);
        let next = |mut receiver: mpsc::UnboundedReceiver<()>| async {
            receiver.recv().await?;
            Some(((), receiver))
        };
        Ok(Box::pin(futures::stream::unfold(receiver, next)))
    }
}

struct Lab {
    raft: MemoryRaft,
    status: watch::Receiver<Status>,
    leader: watch::Sender<bool>,
    gate: FirewallGate,
    tree: Tree,
}

impl Lab {
    async fn start(port: SharedPort) -> Self {
        let lab = Self::start_without_leader(port).await;
        lab.leader.send_replace(true);
        lab
    }

    async fn start_without_leader(port: SharedPort) -> Self {
        Self::start_on(port, None).await
    }

    async fn start_on(port: SharedPort, mesh: Option<watch::Receiver<MeshStatus>>) -> Self {
        let raft = MemoryRaft::with_ready_nodes(&["n1"]);
        let (leader, leader_known) = watch::channel(false);
        let status = watch::Sender::default();
        // The engine has no networks.
        let local = LocalNetworks {
            begun: std::time::Instant::now(),
            blocks: Vec::new(),
            bridges: BTreeMap::new(),
        };
        let args = Args {
            host: "n1".to_owned(),
            raft: Arc::new(raft.clone()),
            leader_known,
            local: watch::channel(Some(Arc::new(local))).1,
            reports: watch::channel(Default::default()).1,
            pool: crate::network::ipam::Pool::default(),
            mesh,
            clock: Clock::from_fn(|| SystemTime::UNIX_EPOCH),
            port,
            status: status.clone(),
        };
        let (firewall, gate) = child(args);
        let root = SupervisorSpec::new(Strategy::OneForOne).child(firewall);
        let lab = Self {
            tree: Tree::start("node", root).await.unwrap(),
            status: status.subscribe(),
            raft,
            leader,
            gate,
        };
        lab.apply(Payload::DeploymentApply(v1::DeploymentApply {
            deployment: "web".into(),
            revision: 1,
            ..Default::default()
        }));
        lab
    }

    fn apply(&self, payload: Payload) {
        let command = command("test", Timestamp::default(), payload);
        self.raft.apply(command).unwrap();
    }

    fn block(&self, network: &str, cidr: &str) -> (NetworkId, Cidr) {
        self.apply(Payload::SubnetAllocate(v1::SubnetAllocate {
            deployment: "web".into(),
            network: network.into(),
            cidr: cidr.into(),
            host: "n1".into(),
        }));
        (NetworkId::new("web", network), cidr.parse().unwrap())
    }

    async fn until(&self, holds: impl FnMut(&Status) -> bool) -> Status {
        let mut status = self.status.clone();
        let found = timeout(PATIENCE, status.wait_for(holds)).await;
        found.expect("the status stays as it is").unwrap().clone()
    }

    async fn enforced(&self) -> Status {
        let enforced = |status: &Status| status.isolation == IsolationStatus::Enforced;
        self.until(enforced).await
    }

    async fn node_is(&self, expected: NodeStatus) {
        let mut states = self.raft.subscribe();
        let is = |state: &Arc<jaco_raftnode::State>| state.nodes["n1"].status() == expected;
        let found = timeout(PATIENCE, states.wait_for(is)).await;
        found.expect("the node's status stays as it is").unwrap();
    }

    /// Payloads of the committed audit events of the firewall.
    fn events(&self) -> Vec<String> {
        let commands = self.raft.committed().into_iter();
        let events = commands.filter_map(|command| match command.payload {
            Some(Payload::AuditAppend(append)) => {
                assert_eq!(command.identity, "firewall");
                append.event
            }
            _ => None,
        });
        let lines = events.map(|event| {
            assert_eq!(event.r#type(), AuditEventType::IsolationRulesetReconciled);
            let values: Vec<_> = event.payload.into_values().collect();
            values.join(" ")
        });
        lines.collect()
    }
}

#[tokio::test]
async fn gate_opens_once_the_block_is_isolated() {
    let kernel = Arc::new(FakeKernel::default());
    let lab = Lab::start(kernel.clone()).await;
    lab.enforced().await;
    let (network, block) = lab.block("front", "10.244.1.0/24");
    let opened = timeout(PATIENCE, lab.gate.wait_enforced(&network, block)).await;
    assert_eq!(opened, Ok(Ok(())));
    let expected = Ruleset::of_state(&lab.raft.state());
    assert_eq!(kernel.table(), Some(expected));
    assert_eq!(lab.events(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn gate_stays_closed_without_a_row() {
    let lab = Lab::start(Arc::new(FakeKernel::default())).await;
    let (network, block) = (NetworkId::new("web", "x"), "10.244.9.0/24".parse().unwrap());
    let outcome = lab.gate.wait_enforced(&network, block).await;
    assert_eq!(outcome, Err(NotEnforced::Pending(block)));
}

#[tokio::test(start_paused = true)]
async fn gate_waits_for_the_routes_of_the_mesh() {
    let missing = MeshStatus::Unprotected("not set up".to_owned());
    let (mesh, status) = watch::channel(missing);
    let lab = Lab::start_on(Arc::new(FakeKernel::default()), Some(status)).await;
    lab.leader.send_replace(true);
    lab.enforced().await;
    let (network, block) = lab.block("front", "10.244.1.0/24");
    assert_eq!(
        lab.gate.wait_enforced(&network, block).await,
        Err(NotEnforced::Unprotected("not set up".to_owned()))
    );
    for protected in [MeshStatus::Unavailable(String::new()), MeshStatus::Up] {
        mesh.send_replace(protected);
        assert_eq!(lab.gate.wait_enforced(&network, block).await, Ok(()));
    }
}

#[tokio::test]
async fn lost_isolation_is_reported_until_it_returns() {
    let kernel = Arc::new(FakeKernel::default());
    kernel.fail(Some("out of memory"));
    let lab = Lab::start(kernel.clone()).await;
    lab.node_is(NodeStatus::IsolationUnavailable).await;
    let (network, block) = lab.block("front", "10.244.1.0/24");
    assert_eq!(
        lab.gate.wait_enforced(&network, block).await,
        Err(NotEnforced::Unavailable("out of memory".to_owned()))
    );
    kernel.fail(None);
    lab.enforced().await;
    lab.node_is(NodeStatus::Ready).await;
    let state = lab.raft.state();
    let reason = &state.nodes["n1"].status_details["reason"];
    assert_eq!(reason, "isolation_reload_recovered");
}

#[tokio::test]
async fn drift_is_repaired_and_audited_once() {
    let kernel = Arc::new(FakeKernel::default());
    let lab = Lab::start(kernel.clone()).await;
    let (network, block) = lab.block("front", "10.244.1.0/24");
    lab.gate.wait_enforced(&network, block).await.unwrap();
    kernel.tamper(|table| drop(table.as_mut().unwrap().chains[0].rules.pop()));
    lab.until(|status| status.repairs == 1 && !status.has_stale_flows)
        .await;
    assert_eq!(kernel.table(), Some(Ruleset::of_state(&lab.raft.state())));
    lock(&kernel.cuts).clear();
    // A restarted actor finds its ruleset and repeats nothing.
    lab.tree.kill("node/firewall", KillMode::Panic).unwrap();
    kernel.tamper(|table| *table = None);
    lab.until(|status| status.repairs == 2 && !status.has_stale_flows)
        .await;
    assert_eq!(lock(&kernel.cuts).len(), 1);
    let mut states = lab.raft.subscribe();
    let reported = async {
        while lab.events().len() < 2 {
            states.changed().await.unwrap();
        }
    };
    timeout(PATIENCE, reported).await.expect("no second event");
    let events = lab.events();
    assert_eq!(events[0], "applied n1 missing:rule:forward[3]");
    assert!(events[1].contains("missing:chain:forward"), "{events:?}");
    assert_eq!(events.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_applied_before_a_leader_is_known() {
    let kernel = Arc::new(FakeKernel::default());
    let lab = Lab::start_without_leader(kernel.clone()).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(kernel.table(), None);
    lab.leader.send_replace(true);
    lab.enforced().await;
    assert!(kernel.table().is_some());
}

/// Runs `program` in the namespace of this thread and returns its output.
fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split(' ')).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{program} {arguments}");
    String::from_utf8(output.stdout).unwrap()
}

/// Without its default bridge, an engine makes the chain for the rules of others only when it
/// creates a network, and not when it starts with those that it has.
#[test]
fn exemption_moves_to_the_chain_of_users() {
    let namespace = Namespace::create().unwrap();
    let inside = || {
        let pool = "10.244.0.0/16".parse().unwrap();
        let port = KernelPort::default();
        let outcomes = || -> BTreeMap<_, _> { port.exempt(pool, true).into_iter().collect() };
        let rules = |chain| {
            format!(
                "-A {chain} -s 10.244.0.0/16 -d 10.244.0.0/16 -j ACCEPT\n\
                 -A {chain} -s 10.99.0.0/24 -d 10.244.0.0/16 -j ACCEPT\n"
            )
        };
        run("iptables", "-P FORWARD DROP");
        assert_eq!(outcomes()[&Exemption::Forwarding], Outcome::InPlace);
        assert_eq!(run("iptables", "-S FORWARD"), "-P FORWARD DROP\n");

        run("iptables", "-N DOCKER");
        run("iptables", "-A FORWARD -j DOCKER");
        for outcome in [Outcome::Written, Outcome::InPlace] {
            assert_eq!(outcomes()[&Exemption::Forwarding], outcome);
            let forward = format!(
                "-P FORWARD DROP\n{}-A FORWARD -j DOCKER\n",
                rules("FORWARD")
            );
            assert_eq!(run("iptables", "-S FORWARD"), forward);
        }

        run("iptables", "-N DOCKER-USER");
        for (written, removed) in [
            (Outcome::Written, Outcome::Removed),
            (Outcome::InPlace, Outcome::InPlace),
        ] {
            let outcomes = outcomes();
            assert_eq!(outcomes[&Exemption::InterNetwork], written);
            assert_eq!(outcomes[&Exemption::Forwarding], removed);
            let forward = "-P FORWARD DROP\n-A FORWARD -j DOCKER\n";
            assert_eq!(run("iptables", "-S FORWARD"), forward);
            let user = format!("-N DOCKER-USER\n{}", rules("DOCKER-USER"));
            assert_eq!(run("iptables", "-S DOCKER-USER"), user);
        }

        // Without the ruleset nothing is accepted; masquerading hides no address all the same.
        run("iptables", "-t raw -P PREROUTING ACCEPT");
        run("iptables", "-t nat -P POSTROUTING ACCEPT");
        port.exempt(pool, true);
        for outcome in [Outcome::Removed, Outcome::InPlace] {
            let outcomes: BTreeMap<_, _> = port.exempt(pool, false).into_iter().collect();
            assert_eq!(outcomes[&Exemption::InterNetwork], outcome);
            assert_eq!(outcomes[&Exemption::DirectRouting], outcome);
            assert_eq!(outcomes[&Exemption::Masquerade], Outcome::InPlace);
            assert_eq!(run("iptables", "-S DOCKER-USER"), "-N DOCKER-USER\n");
        }
    };
    namespace.within(inside).unwrap();
}

#[test]
fn table_in_the_kernel_is_restored() {
    let namespace = Namespace::create().unwrap();
    let inside = || {
        run("iptables", "-N DOCKER-USER");
        run("iptables", "-A DOCKER-USER -j RETURN");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let lab = Lab::start(Arc::new(KernelPort::default())).await;
            let (network, block) = lab.block("front", "10.244.1.0/24");
            lab.gate.wait_enforced(&network, block).await.unwrap();
            let loaded = run("nft", "list table inet jaco");
            assert!(loaded.contains("10.244.1.0/24"), "{loaded}");
            let exempt = "-N DOCKER-USER\n\
                 -A DOCKER-USER -s 10.244.0.0/16 -d 10.244.0.0/16 -j ACCEPT\n\
                 -A DOCKER-USER -s 10.99.0.0/24 -d 10.244.0.0/16 -j ACCEPT\n\
                 -A DOCKER-USER -j RETURN\n";
            // The exemptions follow the ruleset.
            while run("iptables", "-S DOCKER-USER") != exempt {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            for (repairs, line) in (1..).zip([
                "flush ruleset",
                "delete element inet jaco jaco_pool { 10.244.1.0/24 }",
                "flush chain inet jaco forward",
                "insert rule inet jaco forward accept",
                "delete table inet jaco",
            ]) {
                run("nft", line);
                lab.until(|status| status.repairs == repairs).await;
                assert_eq!(run("nft", "list table inet jaco"), loaded, "{line}");
            }
            lab.tree.stop().await;
        });
    };
    namespace.within(inside).unwrap();
}
