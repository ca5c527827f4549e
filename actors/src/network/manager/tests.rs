use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use futures::future::BoxFuture;
use jaco_engine::{
    EngineError, EngineNetwork,
    cidr::Cidr,
    fake::networks::{Event, FakeNetworks},
};
use jaco_proto::{
    config::advertise::Interface,
    v1::{self, command::Payload},
};
use jaco_raftnode::{StateReader, command, testing::MemoryRaft};
use jaco_supervision::{ActorState, KillMode, Strategy, SupervisorSpec, Tree};
use prost_types::Timestamp;
use tokio::{sync::watch, time::Instant};

use super::*;
use crate::{
    clock::Clock,
    network::{
        SharedEngine,
        bridge::BridgeReady,
        gate::{IsolationGate, NotEnforced},
        interfaces::Interfaces,
        ipam::{self, Pool},
        responders::Responders,
    },
};

pub(super) struct Lab {
    pub(super) raft: MemoryRaft,
    pub(super) engine: FakeNetworks,
    pub(super) tree: Tree,
    pub(super) directory: BridgeDirectory,
    pub(super) gate: FakeGate,
    pub(super) responders: FakeResponders,
    pub(super) interfaces: FakeInterfaces,
}

/// Bridges of the engine as interfaces of the host.
#[derive(Clone)]
pub(super) struct FakeInterfaces {
    engine: FakeNetworks,
    pub(super) changes: watch::Sender<u64>,
    /// Bridges that are down, or without their gateway.
    pub(super) faulty: Arc<Mutex<BTreeMap<String, Fault>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Down,
    NoGateway,
}

impl Interfaces for FakeInterfaces {
    fn list(&self) -> BoxFuture<'static, std::io::Result<Vec<Interface>>> {
        let networks = self.engine.networks();
        let faulty = self.faulty.lock().unwrap().clone();
        let gateway = |name: &String| {
            let of = |found: &&EngineNetwork| found.bridge.as_ref() == Some(name);
            let network = networks.iter().find(of)?;
            let block: Cidr = network.subnets.first()?.parse().ok()?;
            Some(block.gateway().into())
        };
        let interface = |name: String| Interface {
            up: faulty.get(&name) != Some(&Fault::Down),
            loopback: false,
            addresses: { gateway(&name) }
                .filter(|_| faulty.get(&name) != Some(&Fault::NoGateway))
                .into_iter()
                .collect(),
            name,
        };
        let listed = self.engine.bridges().into_iter().map(interface).collect();
        Box::pin(std::future::ready(Ok(listed)))
    }

    fn restore(
        &self,
        bridge: String,
        (gateway, prefix): (Ipv4Addr, u8),
    ) -> BoxFuture<'static, std::io::Result<()>> {
        assert_eq!((gateway.octets()[3], prefix), (1, 24));
        self.faulty.lock().unwrap().remove(&bridge);
        Box::pin(std::future::ready(Ok(())))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// Gate that a test closes.
#[derive(Clone, Default)]
pub(super) struct FakeGate(Arc<AtomicBool>);

impl FakeGate {
    pub(super) fn set_closed(&self, closed: bool) {
        self.0.store(closed, Ordering::Relaxed);
    }
}

impl IsolationGate for FakeGate {
    fn wait_enforced<'a>(
        &'a self,
        _: &'a NetworkId,
        block: Cidr,
    ) -> BoxFuture<'a, Result<(), NotEnforced>> {
        let closed = self.0.load(Ordering::Relaxed);
        let result = if closed {
            Err(NotEnforced::Pending(block))
        } else {
            Ok(())
        };
        Box::pin(std::future::ready(result))
    }
}

/// Address of each network's responder.
#[derive(Clone, Default)]
pub(super) struct FakeResponders(Arc<Mutex<BTreeMap<String, Ipv4Addr>>>);

impl FakeResponders {
    pub(super) fn all(&self) -> BTreeMap<String, Ipv4Addr> {
        self.0.lock().unwrap().clone()
    }
}

impl Responders for FakeResponders {
    fn ensure(&self, network: &NetworkId, block: Cidr) {
        let mut responders = self.0.lock().unwrap();
        responders.insert(network.to_string(), block.gateway());
    }

    fn remove(&self, network: &NetworkId) {
        self.0.lock().unwrap().remove(&network.to_string());
    }
}

impl Lab {
    pub(super) async fn start() -> Self {
        let raft = MemoryRaft::with_ready_nodes(&["n1", "n2"]);
        let lab = Self::with(raft, FakeNetworks::default()).await;
        lab.deploy("app", 1);
        run_until_idle().await;
        lab
    }

    async fn with(raft: MemoryRaft, engine: FakeNetworks) -> Self {
        Self::on(raft, engine, true).await
    }

    /// Creates a node that leads, or one without contact to a leader.
    async fn on(raft: MemoryRaft, engine: FakeNetworks, leads: bool) -> Self {
        let cluster_id = raft.state().cluster.as_ref().unwrap().cluster_id.clone();
        let shared: SharedEngine = Arc::new(engine.clone());
        let interfaces = FakeInterfaces {
            engine: engine.clone(),
            changes: watch::Sender::new(0),
            faulty: Arc::default(),
        };
        let (gate, responders) = (FakeGate::default(), FakeResponders::default());
        let args = crate::network::Args {
            cluster_id,
            host: "n1".into(),
            raft: Arc::new(raft.clone()),
            is_leader: watch::channel(leads).1,
            clock: Clock::from_fn(|| SystemTime::UNIX_EPOCH),
            pool: Pool::default(),
            engine: shared,
            cluster: Arc::new(raft.clone()),
            remote: ipam::no_allocator(),
            interfaces: Arc::new(interfaces.clone()),
            gate: Arc::new(gate.clone()),
            responders: Arc::new(responders.clone()),
            mesh: None,
            dns: None,
            firewall: None,
            local: tokio::sync::watch::Sender::default(),
        };
        let (network, _, directory, _) = crate::network::supervisor(args);
        let tree = Tree::start(
            "node",
            SupervisorSpec::new(Strategy::OneForOne).child(network),
        );
        Self {
            raft,
            engine,
            tree: tree.await.unwrap(),
            directory,
            gate,
            responders,
            interfaces,
        }
    }

    pub(super) fn apply(&self, payload: Payload) {
        self.raft
            .apply(command("test", Timestamp::default(), payload))
            .unwrap();
    }

    pub(super) fn deploy(&self, name: &str, revision: u64) {
        self.apply(Payload::DeploymentApply(v1::DeploymentApply {
            deployment: name.into(),
            revision,
            ..Default::default()
        }));
    }

    pub(super) fn delete(&self, name: &str) {
        let deployment = name.into();
        self.apply(Payload::DeploymentDelete(v1::DeploymentDelete {
            deployment,
        }));
    }

    /// Paths of the bridge actors.
    pub(super) fn bridges(&self) -> Vec<String> {
        let actors = self.tree.describe().into_iter();
        let bridges = actors.filter(|info| info.kind == BridgeActor::KIND);
        bridges.map(|info| info.path).collect()
    }
}

async fn run_until_idle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test(start_paused = true)]
async fn ensured_network_uses_block_of_this_host() {
    let lab = Lab::start().await;
    let ready = lab.directory.ensure("app", "default").await.unwrap();
    assert_eq!(
        ready,
        BridgeReady {
            engine_network: "jaco_app__default".into(),
            gateway: [10, 244, 0, 1].into(),
            cidr: "10.244.0.0/24".parse().unwrap(),
        }
    );
    assert_eq!(lab.bridges(), ["node/network/bridge:app:_default"]);
    assert_eq!(lab.directory.ensure("app", "_default").await, Ok(ready));
    assert_eq!(
        lab.engine.events(),
        [Event::Created("jaco_app__default".into())]
    );
    let other = lab.directory.ensure("app", "back").await.unwrap();
    assert_eq!(other.cidr.to_string(), "10.244.1.0/24");
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_create_one_network() {
    let lab = Lab::start().await;
    let requests = (0..20).map(|_| lab.directory.ensure("app", "front"));
    futures::future::try_join_all(requests).await.unwrap();
    assert_eq!(
        lab.engine.events(),
        [Event::Created("jaco_app_front".into())]
    );
}

#[tokio::test(start_paused = true)]
async fn failed_request_does_not_end_the_actor() {
    let lab = Lab::start().await;
    lab.engine.fail_after(0);
    let error = lab.directory.ensure("app", "front").await.unwrap_err();
    assert!(matches!(error, Error::Engine(EngineError::Unreachable(_))));
    let error = lab.directory.ensure("gone", "front").await.unwrap_err();
    assert_eq!(
        error,
        Error::Subnet(ipam::Error::UnknownDeployment("gone".into()))
    );
    lab.directory.ensure("app", "front").await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(
        lab.bridges(),
        ["node/network/bridge:app:front"],
        "no bridge remains for `gone`"
    );
    let failures = lab
        .tree
        .describe()
        .into_iter()
        .filter_map(|info| info.last_failure);
    assert_eq!(failures.count(), 0);
}

/// Network created outside JACO.
fn vpn(subnet: &str) -> EngineNetwork {
    EngineNetwork {
        id: "vpn".into(),
        name: "vpn".into(),
        subnets: vec![subnet.into()],
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn taken_block_is_exchanged_for_another() {
    let lab = Lab::start().await;
    lab.engine.put(vpn("10.244.0.0/23"));
    let ready = lab.directory.ensure("app", "front").await.unwrap();
    assert_eq!(ready.cidr.to_string(), "10.244.2.0/24");
    // Once refused, the block is not tried for other networks either.
    let other = lab.directory.ensure("app", "back").await.unwrap();
    assert_eq!(other.cidr.to_string(), "10.244.3.0/24");
    assert_eq!(
        lab.engine.events(),
        [
            Event::Created("jaco_app_front".into()),
            Event::Created("jaco_app_back".into())
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn host_without_leader_reuses_its_blocks() {
    let led = Lab::start().await;
    let ready = led.directory.ensure("app", "front").await.unwrap();
    led.tree.stop().await;
    let nobody_leads = Err(Error::Subnet(ipam::Error::NotLeader));

    for engine in [led.engine.clone(), FakeNetworks::default()] {
        let cut_off = Lab::on(led.raft.clone(), engine, false).await;
        let again = cut_off.directory.ensure("app", "front").await;
        assert_eq!(again.as_ref(), Ok(&ready));
        assert_eq!(cut_off.engine.names(), ["jaco_app_front"]);
        let new = cut_off.directory.ensure("app", "back").await;
        assert_eq!(new, nobody_leads, "there is no block for it");
        cut_off.tree.stop().await;
    }

    let engine = FakeNetworks::default();
    engine.put(vpn("10.244.0.0/24"));
    let cut_off = Lab::on(led.raft.clone(), engine, false).await;
    let taken = cut_off.directory.ensure("app", "front").await;
    assert_eq!(taken, nobody_leads, "only the leader has another block");
}

#[tokio::test(start_paused = true)]
async fn host_without_usable_block_returns_error() {
    let lab = Lab::start().await;
    lab.engine.put(vpn("10.0.0.0/8"));
    let error = lab.directory.ensure("app", "front").await.unwrap_err();
    assert!(matches!(error, Error::BlockInUse(..)), "{error}");
    assert_eq!(lab.engine.names(), ["vpn"]);
}

#[tokio::test(start_paused = true)]
async fn network_of_deleted_deployment_is_removed_once_unused() {
    let lab = Lab::start().await;
    lab.directory.ensure("app", "front").await.unwrap();
    lab.engine.attach("jaco_app_front", "app-web-0");
    lab.delete("app");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(lab.engine.names(), ["jaco_app_front"]);
    lab.engine.detach_all();
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert!(lab.engine.names().is_empty());
    assert!(lab.bridges().is_empty());

    // Its block is quarantined, so a recreated network gets another one.
    lab.deploy("app", 1);
    let ready = lab.directory.ensure("app", "front").await.unwrap();
    assert_eq!(ready.cidr.to_string(), "10.244.1.0/24");
}

#[tokio::test(start_paused = true)]
async fn only_own_leftovers_are_removed_at_start() {
    let old = Lab::start().await;
    old.deploy("gone", 1);
    old.directory.ensure("gone", "front").await.unwrap();
    old.directory.ensure("app", "kept").await.unwrap();
    old.tree.stop().await;
    old.delete("gone");
    old.engine.put(EngineNetwork {
        name: "bridge".into(),
        ..Default::default()
    });
    let mut foreign = old.engine.networks()[0].clone();
    foreign.id = "foreign".into();
    foreign.name = "jaco_app_other".into();
    foreign
        .labels
        .insert("jaco.cluster_id".into(), "another".into());
    old.engine.put(foreign);

    // The engine starts later than the node.
    old.engine.fail_after(0);
    let lab = Lab::with(old.raft.clone(), old.engine.clone()).await;
    tokio::time::sleep(RETRY * 2).await;
    assert_eq!(
        lab.engine.names(),
        ["jaco_app_kept", "bridge", "jaco_app_other"]
    );
    assert_eq!(lab.bridges(), ["node/network/bridge:app:kept"]);
}

#[tokio::test(start_paused = true)]
async fn blocks_of_other_hosts_create_no_bridge() {
    let lab = Lab::start().await;
    lab.apply(Payload::SubnetAllocate(v1::SubnetAllocate {
        deployment: "app".into(),
        network: "front".into(),
        cidr: "10.244.9.0/24".into(),
        host: "n2".into(),
    }));
    run_until_idle().await;
    assert!(lab.bridges().is_empty());
}

#[tokio::test(start_paused = true)]
async fn killing_any_actor_leaves_networks_unchanged() {
    let lab = Lab::start().await;
    let ready = lab.directory.ensure("app", "front").await.unwrap();
    for path in [
        "node/network/bridge:app:front",
        "node/network/bridges",
        "node/network/ipam",
        "node/network",
    ] {
        for mode in [KillMode::Kill, KillMode::Panic] {
            if path == "node/network" && matches!(mode, KillMode::Panic) {
                continue; // supervisors have no message to panic in
            }
            lab.tree.kill(path, mode).unwrap();
            tokio::time::sleep(Duration::from_secs(70)).await;
            let again = lab.directory.ensure("app", "front").await;
            assert_eq!(again.as_ref(), Ok(&ready), "after {path}");
            assert_eq!(
                lab.bridges(),
                ["node/network/bridge:app:front"],
                "after {path}"
            );
        }
    }
    assert_eq!(
        lab.engine.events(),
        [Event::Created("jaco_app_front".into())]
    );
}

#[tokio::test(start_paused = true)]
async fn exhausted_bridge_is_restarted_after_delay() {
    let lab = Lab::start().await;
    lab.directory.ensure("app", "front").await.unwrap();
    let path = "node/network/bridge:app:front";
    let exhausted = || {
        let actors = lab.tree.describe();
        actors
            .iter()
            .any(|info| info.path == path && info.state == ActorState::Exhausted)
    };
    let began = Instant::now();
    while !exhausted() && began.elapsed() < Duration::from_secs(20) {
        // Killing fails while the actor is restarting.
        let _ = lab.tree.kill(path, KillMode::Kill);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert!(exhausted());
    let gave_up = lab.directory.ensure("app", "front").await;
    assert_eq!(gave_up, Err(Error::Exhausted(RETRY)), "fails without delay");
    lab.directory
        .ensure("app", "back")
        .await
        .expect("other bridges still respond");
    tokio::time::sleep(RETRY).await;
    lab.directory.ensure("app", "front").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn request_survives_restarts_of_its_actors() {
    for path in ["node/network/bridge:app:front", "node/network/bridges"] {
        let lab = Lab::start().await;
        lab.engine.slow_down(Duration::from_millis(400));
        let request = lab.directory.ensure("app", "front");
        let death = async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            lab.tree.kill(path, KillMode::Kill).unwrap();
        };
        let (answer, ()) = tokio::join!(request, death);
        assert!(answer.is_ok(), "{path}: {answer:?}");
        assert_eq!(lab.engine.names(), ["jaco_app_front"]);
    }
}

#[tokio::test(start_paused = true)]
async fn request_during_bridge_shutdown_is_answered() {
    for early in 0..=10 {
        let lab = Lab::start().await;
        lab.directory.ensure("app", "front").await.unwrap();
        lab.engine.slow_down(Duration::from_millis(1));
        let begun = Instant::now();
        lab.delete("app");
        while !lab.engine.names().is_empty() {
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        let gone = begun.elapsed();

        lab.deploy("app", 2);
        lab.directory.ensure("app", "front").await.unwrap();
        lab.delete("app");
        tokio::time::sleep(gone.saturating_sub(Duration::from_micros(early * 500))).await;
        lab.deploy("app", 3);
        let answer = lab.directory.ensure("app", "front").await;
        assert!(answer.is_ok(), "{early}: {answer:?}");
    }
}
