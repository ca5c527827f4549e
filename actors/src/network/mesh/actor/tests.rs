use std::{net::Ipv4Addr, time::Duration};

use jaco_policy::network::{
    firewall::{core::Rendered, ruleset::HostInputs},
    mesh::{
        core::{INHERITANCE, TICK},
        plan::{DeviceState, Peer},
    },
    readiness::IsolationStatus,
};
use jaco_proto::v1::{self, AuditEventType, command::Payload};
use jaco_raftnode::{StateReader as _, command, testing::MemoryRaft};
use jaco_supervision::{ChildSpec, KillMode, Strategy, SupervisorSpec, Tree};

use self::port::{FakePort, World};
use super::*;

mod port;

/// Steps that keep packets of containers from leaving unencrypted.
const BLACKHOLES: [&str; 2] = ["add blackhole 10.99.0.0/24", "add blackhole 10.244.0.0/16"];

struct Lab {
    raft: MemoryRaft,
    port: FakePort,
    status: watch::Receiver<MeshStatus>,
    tree: Tree,
}

impl Lab {
    /// Node `n1` of a cluster with `n2`, whose block is `10.244.1.0/24`.
    async fn start(prepare: impl FnOnce(&mut World)) -> Self {
        Self::start_with(prepare, None).await
    }

    /// The same, on a node that isolates deployments.
    async fn start_with(
        prepare: impl FnOnce(&mut World),
        firewall: Option<watch::Receiver<Status>>,
    ) -> Self {
        let raft = MemoryRaft::with_ready_nodes(&["n1", "n2"]);
        let port = FakePort {
            world: Arc::default(),
            changes: watch::Sender::new(0),
        };
        prepare(&mut port.world());
        let status = watch::Sender::new(MeshStatus::Off);
        let receiver = status.subscribe();
        let args = Args {
            host: "n1".to_owned(),
            port: 51820,
            pool: crate::network::ipam::Pool::default(),
            firewall,
            raft: Arc::new(raft.clone()),
            clock: crate::clock::Clock::system(),
            mesh: Arc::new(port.clone()),
            status,
        };
        let lab = Self {
            tree: {
                let (mesh, _) = ChildSpec::worker::<MeshActor>("mesh", args);
                let spec = SupervisorSpec::new(Strategy::OneForOne).child(mesh);
                Tree::start("node", spec).await.unwrap()
            },
            raft,
            port,
            status: receiver,
        };
        for (host, address) in [("n1", "192.0.2.1:7001"), ("n2", "192.0.2.2:7001")] {
            lab.publish(host, address);
        }
        lab.allocate("n2", "10.244.1.0/24");
        lab.pass().await;
        lab
    }

    fn apply(&self, payload: Payload) {
        let command = command("test", prost_types::Timestamp::default(), payload);
        self.raft.apply(command).unwrap();
    }

    fn publish(&self, host: &str, address: &str) {
        self.apply(Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
            hostname: host.to_owned(),
            address: address.to_owned(),
            wireguard_pubkey: vec![host.as_bytes()[1]; 32],
            wg_port: 51820,
            ..Default::default()
        }));
    }

    fn remove(&self, host: &str) {
        self.apply(Payload::NodeRemove(v1::NodeRemove {
            hostname: host.to_owned(),
        }));
    }

    fn allocate(&self, host: &str, cidr: &str) {
        self.apply(Payload::SubnetAllocate(v1::SubnetAllocate {
            deployment: "app".to_owned(),
            network: cidr.to_owned(),
            cidr: cidr.to_owned(),
            host: host.to_owned(),
        }));
    }

    /// Lets the time for a debounced pass go by.
    async fn pass(&self) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    fn device(&self) -> DeviceState {
        self.port.world().observed.device.clone().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn mesh_follows_the_state() {
    let lab = Lab::start(|_| {}).await;
    assert_eq!(*lab.status.borrow(), MeshStatus::Up);
    let device = lab.device();
    assert_eq!(device.peers.len(), 1);
    assert_eq!(device.peers[0].endpoint, "192.0.2.2:51820".parse().unwrap());
    assert_eq!(device.routes.len(), 2);
    lab.port.steps();
    lab.allocate("n2", "10.244.2.0/24");
    lab.pass().await;
    assert_eq!(lab.port.steps(), ["set 1 peers", "add route 10.244.2.0/24"]);
    tokio::time::sleep(TICK * 3).await;
    assert_eq!(lab.port.steps(), [""; 0], "an idle mesh changes nothing");
}

#[tokio::test(start_paused = true)]
async fn damage_is_repaired_when_it_is_announced() {
    let lab = Lab::start(|_| {}).await;
    lab.port.steps();
    lab.port.damage(|observed| {
        let device = observed.device.as_mut().unwrap();
        device.routes.pop_first();
        device.addresses.clear();
    });
    lab.pass().await;
    assert_eq!(lab.port.steps().len(), 2);
    lab.port.damage(|observed| observed.blackholes.clear());
    lab.pass().await;
    assert_eq!(lab.port.steps(), BLACKHOLES);
    lab.port.damage(|observed| observed.device = None);
    lab.pass().await;
    assert_eq!(lab.port.steps()[0], "open device");
    assert_eq!(lab.device().routes.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn repairs_are_audited_but_not_own_changes() {
    let lab = Lab::start(|_| {}).await;
    let summaries = || -> Vec<String> {
        let state = lab.raft.state();
        let events = state.audit.values();
        let events = events.filter(|event| event.r#type() == AuditEventType::NetworkRepaired);
        events
            .map(|event| {
                assert_eq!(event.identity, "mesh");
                assert_eq!(
                    (&*event.payload["node"], &*event.payload["device"]),
                    ("n1", "jaco0")
                );
                event.payload["summary"].clone()
            })
            .collect()
    };
    lab.allocate("n2", "10.244.2.0/24");
    lab.pass().await;
    lab.port.damage(|_| {});
    lab.pass().await;
    assert_eq!(summaries(), [""; 0]);
    lab.port.damage(|observed| {
        let device = observed.device.as_mut().unwrap();
        device.routes.pop_last();
    });
    lab.pass().await;
    assert_eq!(summaries(), ["missing:route:10.244.2.0/24"]);
    // The next event waits, and names everything that was repaired meanwhile.
    for _ in 0..20 {
        lab.port.damage(|observed| observed.device = None);
        lab.pass().await;
        lab.port.damage(|observed| observed.blackholes.clear());
        lab.pass().await;
    }
    assert_eq!(summaries().len(), 1);
    tokio::time::sleep(TICK).await;
    let both = "missing:device,missing:blackhole:10.99.0.0/24,missing:blackhole:10.244.0.0/16";
    assert_eq!(summaries()[1..], [both]);
}

#[tokio::test(start_paused = true)]
async fn unannounced_damage_is_repaired_by_the_timer() {
    let lab = Lab::start(|_| {}).await;
    lab.port.steps();
    lab.port.world().observed.device = None;
    lab.pass().await;
    assert_eq!(lab.port.steps(), [""; 0]);
    tokio::time::sleep(TICK).await;
    assert_eq!(lab.port.steps()[0], "open device");
}

#[tokio::test(start_paused = true)]
async fn missing_device_is_reported_until_it_opens() {
    let lab = Lab::start(|world| world.failing = Some("open device")).await;
    let reason = || "failed to open device".to_owned();
    assert_eq!(*lab.status.borrow(), MeshStatus::Unprotected(reason()));
    let steps = lab.port.steps();
    assert_eq!(steps, BLACKHOLES, "nothing else without a device");
    // The next pass finds the blackholes.
    lab.pass().await;
    assert_eq!(*lab.status.borrow(), MeshStatus::Unavailable(reason()));
    lab.port.world().failing = None;
    tokio::time::sleep(TICK).await;
    assert_eq!(*lab.status.borrow(), MeshStatus::Up);
}

#[tokio::test(start_paused = true)]
async fn route_that_fails_stops_no_other() {
    let lab = Lab::start(|world| world.failing = Some("add route 10.244.1")).await;
    lab.allocate("n2", "10.244.2.0/24");
    lab.pass().await;
    let partial = MeshStatus::Partial {
        reason: "failed to add route 10.244.1.0/24".to_owned(),
        unreached: ["10.244.1.0/24".parse().unwrap()].into(),
    };
    assert_eq!(*lab.status.borrow(), partial);
    assert_eq!(
        lab.device().routes.len(),
        2,
        "the mesh network and the second block"
    );
}

#[tokio::test(start_paused = true)]
async fn killed_actor_finds_the_device_as_it_was() {
    let lab = Lab::start(|_| {}).await;
    lab.port.steps();
    for mode in [KillMode::Kill, KillMode::Panic] {
        lab.tree.kill("node/mesh", mode).unwrap();
        tokio::time::sleep(TICK).await;
        assert_eq!(lab.port.steps(), [""; 0]);
        assert_eq!(*lab.status.borrow(), MeshStatus::Up);
    }
}

#[tokio::test(start_paused = true)]
async fn unresolvable_member_is_left_out() {
    let lab = Lab::start(|_| {}).await;
    lab.publish("n2", "two.example:7001");
    lab.pass().await;
    assert!(lab.device().peers.is_empty());
    assert_eq!(*lab.status.borrow(), MeshStatus::Up);
    lab.port.world().names = vec![("two.example", Ipv4Addr::new(192, 0, 2, 9))];
    tokio::time::sleep(TICK).await;
    assert_eq!(
        lab.device().peers[0].endpoint,
        "192.0.2.9:51820".parse().unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn stopped_mesh_leaves_its_device_and_blackholes() {
    let lab = Lab::start(|_| {}).await;
    let device = lab.device();
    lab.tree.stop().await;
    assert_eq!(lab.device(), device);
    let world = lab.port.world();
    assert!(!world.closed);
    assert_eq!(world.observed.blackholes.len(), BLACKHOLES.len());
}

#[tokio::test(start_paused = true)]
async fn stop_during_an_open_begins_no_further_step() {
    let lab = Lab::start(|world| world.opening = Some(Arc::default())).await;
    assert_eq!(lab.port.steps().last().unwrap(), "open device");
    lab.tree.stop().await;
    assert_eq!(lab.port.steps(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn device_of_an_earlier_process_admits_its_blocks() {
    let (_firewall, status) = watch::channel(Status::default());
    let block: Cidr = "10.244.1.0/24".parse().unwrap();
    let earlier = move |world: &mut World| {
        world.observed.device = Some(DeviceState {
            peers: vec![Peer {
                hostname: "n2".to_owned(),
                public_key: [b'2'; 32],
                endpoint: "192.0.2.2:51820".parse().unwrap(),
                allowed_ips: [block].into(),
            }],
            ..DeviceState::default()
        });
    };
    let lab = Lab::start_with(earlier, Some(status)).await;
    assert!(lab.device().peers[0].allowed_ips.contains(&block));
    // The ruleset is still not tested.
    tokio::time::sleep(INHERITANCE).await;
    assert!(!lab.device().peers[0].allowed_ips.contains(&block));
}

#[tokio::test(start_paused = true)]
async fn block_is_admitted_once_the_ruleset_includes_it() {
    let (firewall, status) = watch::channel(Status::default());
    let lab = Lab::start_with(|_| {}, Some(status)).await;
    assert_eq!(
        lab.device().peers[0].allowed_ips.len(),
        1,
        "its mesh address"
    );
    assert_eq!(lab.device().routes.len(), 1, "the mesh network");
    let state = lab.raft.state();
    let enforced = Rendered::of(&state, HostInputs::default());
    firewall.send_modify(|status| {
        status.enforced = Some(Arc::new(enforced));
        status.isolation = IsolationStatus::Enforced;
    });
    lab.pass().await;
    assert_eq!(lab.device().routes.len(), 2);
    assert_eq!(lab.device().peers[0].allowed_ips.len(), 2);
    // The last ruleset says nothing once it cannot be loaded any more.
    let lost = IsolationStatus::Unavailable("out of memory".to_owned());
    firewall.send_modify(|status| status.isolation = lost);
    lab.pass().await;
    assert_eq!(lab.device().routes.len(), 1);
    assert_eq!(lab.device().peers[0].allowed_ips.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn former_member_removes_its_mesh() {
    let lab = Lab::start(|_| {}).await;
    lab.remove("n1");
    lab.pass().await;
    let world = lab.port.world();
    assert!(world.closed);
    assert_eq!(world.observed.blackholes.len(), 0);
}
