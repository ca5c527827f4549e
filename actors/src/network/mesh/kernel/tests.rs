use std::{os::fd::AsRawFd as _, process::Command};

use jaco_net::{handover::Inherited, netns::Namespace};
use jaco_policy::network::mesh::{address::assign, plan::Peer};
use jaco_proto::v1;
use jaco_raftnode::{State, StateReader as _, testing::MemoryRaft};
use jaco_supervision::{ChildSpec, Strategy, SupervisorSpec, Tree};
use tokio::{net::UdpSocket, time::timeout};

use super::*;
use crate::network::mesh::{Args, MeshActor, MeshStatus};

/// Runs `work` inside a new namespace.
fn in_namespace<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send) {
    let namespace = Namespace::create().unwrap();
    namespace.within(|| block_on(work())).unwrap();
}

fn ip(arguments: &str) -> String {
    let done = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(done.status.success(), "ip {arguments}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// A port whose device has any UDP port.
fn port(backend: WgBackend) -> KernelPort {
    KernelPort::new(PrivateKey::generate().unwrap(), 0, backend)
}

/// Kind of the device's link, empty without one.
async fn kind() -> String {
    let link = Links::open().unwrap().link(DEVICE).await.unwrap();
    link.map(|link| link.kind).unwrap_or_default()
}

/// Waits until the device's link is gone.
async fn gone() {
    let wait = async {
        while !kind().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(FOREVER, wait).await.expect("the link is removed");
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

#[test]
fn blackholes_are_kept_apart_from_foreign_routes() {
    in_namespace(async || {
        let port = port(WgBackend::Auto);
        ip("link set lo up");
        ip("route add blackhole 10.244.9.0/24");
        let block = cidr("10.244.1.0/24");
        for _ in 0..2 {
            port.apply(Step::AddBlackhole(block)).await.unwrap();
        }
        let seen = port.look(BTreeSet::new()).await.unwrap();
        assert_eq!(seen.blackholes, [block].into());
        assert_eq!(seen.device, None);
        leave().await.unwrap();
        assert_eq!(
            port.look(BTreeSet::new()).await.unwrap(),
            Observed::default()
        );
        assert!(ip("-j route show").contains("10.244.9.0/24"));
    });
}

#[test]
fn foreign_routes_are_found_and_announced() {
    in_namespace(async || {
        let port = port(WgBackend::Auto);
        let networks: BTreeSet<Cidr> = ["10.99.0.0/24", "10.244.0.0/16"].map(cidr).into();
        ip("link set lo up");
        for link in ["eth1", "jaco-ca84-9ecc"] {
            ip(&format!("link add {link} type bridge"));
            ip(&format!("link set {link} up"));
        }
        for harmless in [
            "route add default dev eth1",
            "route add 10.0.0.0/8 dev eth1",
            "route add 10.244.1.0/24 dev jaco-ca84-9ecc",
            "route add blackhole 10.244.2.0/24",
            "route add 10.244.3.0/24 dev eth1 table 7",
            "route add 192.0.2.0/24 dev eth1 table 100",
        ] {
            ip(harmless);
        }
        let foreign = async || {
            let seen = port.look(networks.clone()).await.unwrap();
            let shown = seen.foreign.iter().map(ToString::to_string);
            shown.collect::<Vec<_>>().join(", ")
        };
        for (begin, end, shown) in [
            (
                "route add 10.244.4.0/25 dev eth1",
                "route del 10.244.4.0/25",
                "10.244.4.0/25 dev eth1",
            ),
            (
                "route add 10.99.0.0/24 dev eth1 metric 9",
                "route del 10.99.0.0/24",
                "10.99.0.0/24 dev eth1",
            ),
            (
                "route add 10.244.4.0/24 nexthop dev eth1 nexthop dev jaco-ca84-9ecc",
                "route del 10.244.4.0/24",
                "10.244.4.0/24 dev eth1 dev jaco-ca84-9ecc",
            ),
            (
                "rule add priority 5 lookup 7",
                "rule del priority 5",
                "10.244.3.0/24 dev eth1 table 7",
            ),
            (
                "route add default dev eth1 table 100",
                "route del default table 100",
                "",
            ),
            (
                "rule add priority 6 from 10.244.1.0/24 lookup 100",
                "rule del priority 6",
                "",
            ),
            (
                "route add 10.244.5.1/32 dev eth1",
                "link set eth1 down",
                "10.244.5.1/32 dev eth1",
            ),
        ] {
            for (change, expected) in [(begin, shown), (end, "")] {
                assert_eq!(foreign().await, if change == begin { "" } else { shown });
                let mut changes = port.changes();
                changes.borrow_and_update();
                ip(change);
                timeout(FOREVER, changes.changed())
                    .await
                    .expect(change)
                    .unwrap();
                assert_eq!(foreign().await, expected, "{change}");
            }
        }
        ip("link set eth1 up");
        ip("route add default dev eth1 table 100");
        ip("rule add priority 6 from 10.244.1.0/24 lookup 100");
        assert_eq!(foreign().await, "0.0.0.0/0 dev eth1 table 100");
    });
}

#[test]
fn steps_without_a_device_fail_with_a_reason() {
    in_namespace(async || {
        let port = port(WgBackend::Auto);
        let error = port.apply(Step::SetUp).await.unwrap_err();
        assert_eq!(error.to_string(), "the link jaco0 is gone");
        let error = port.apply(Step::SetPeers(Vec::new())).await.unwrap_err();
        assert_eq!(error.to_string(), "the mesh device is not open");
    });
}

#[test]
fn device_is_the_kernels_where_it_has_one() {
    in_namespace(async || {
        let has = Links::open().unwrap().add_wireguard("probe").await.is_ok();
        let auto = port(WgBackend::Auto);
        // A process that another test starts may hold a TUN interface for a moment.
        for _ in 0..if has { 2 } else { 1 } {
            auto.apply(Step::OpenDevice).await.unwrap();
            auto.apply(Step::SetUp).await.unwrap();
            auto.apply(Step::SetPeers(Vec::new())).await.unwrap();
            let seen = auto.look(BTreeSet::new()).await.unwrap().device.unwrap();
            assert!(seen.up && !seen.altered);
            assert_eq!(kind().await, if has { "wireguard" } else { "tun" });
        }
        auto.close().await;
        gone().await;

        let kernel = port(WgBackend::Kernel);
        let opened = kernel.apply(Step::OpenDevice).await;
        if has {
            opened.unwrap();
            // The configuration changes while the daemon does not run.
            drop(kernel);
            let other = port(WgBackend::Userspace);
            other.apply(Step::OpenDevice).await.unwrap();
            assert_eq!(kind().await, "tun");
            other.close().await;
        } else {
            let reason = "this kernel has no WireGuard, which wg_backend kernel requires";
            assert_eq!(opened, Err(PortError(reason.to_owned())));
        }
        gone().await;
    });
}

#[test]
fn link_of_another_program_is_left_alone() {
    in_namespace(async || {
        ip("link add jaco0 type bridge");
        for backend in [WgBackend::Auto, WgBackend::Kernel, WgBackend::Userspace] {
            let port = port(backend);
            port.apply(Step::OpenDevice).await.unwrap_err();
            port.close().await;
            assert_eq!(kind().await, "bridge");
        }
    });
}

/// A member of the cluster.
struct Machine {
    host: &'static str,
    underlay: &'static str,
    key: PrivateKey,
}

/// State of a cluster of these machines; the block of `m<n>` is `10.244.<n>.0/24`.
fn cluster(machines: &[Machine]) -> MemoryRaft {
    let mut state = State::default();
    for (number, machine) in (1..).zip(machines) {
        let node = v1::Node {
            hostname: machine.host.to_owned(),
            address: format!("{}:7001", machine.underlay),
            wireguard_pubkey: machine.key.public().0.to_vec(),
            wg_port: PORT.into(),
            joined_at: Some(prost_types::Timestamp {
                seconds: number,
                nanos: 0,
            }),
            ..Default::default()
        };
        state.nodes.insert(machine.host.to_owned(), Arc::new(node));
        let block = v1::Subnet {
            cidr: format!("10.244.{number}.0/24"),
            ..Default::default()
        };
        let key = (
            "app".to_owned(),
            "_default".to_owned(),
            machine.host.to_owned(),
        );
        state.subnets.insert(key, Arc::new(block));
    }
    MemoryRaft::new(state)
}

const PORT: u16 = 51820;
/// Longest wait for a repair; reached only if there is none.
const FOREVER: Duration = Duration::from_secs(60);

/// Runs the mesh of a machine until `done` is closed.
async fn run(
    machine: &Machine,
    raft: &MemoryRaft,
    done: watch::Receiver<()>,
    work: impl AsyncFnOnce(),
) {
    let status = watch::Sender::new(MeshStatus::Off);
    let args = Args {
        host: machine.host.to_owned(),
        port: PORT,
        pool: crate::network::ipam::Pool::default(),
        firewall: None,
        raft: Arc::new(raft.clone()),
        clock: crate::clock::Clock::system(),
        mesh: Arc::new(KernelPort::new(machine.key.clone(), PORT, WgBackend::Auto)),
        status: status.clone(),
    };
    let (mesh, _) = ChildSpec::worker::<MeshActor>("mesh", args);
    let spec = SupervisorSpec::new(Strategy::OneForOne).child(mesh);
    let tree = Tree::start("node", spec).await.unwrap();
    let mut status = status.subscribe();
    let up = status.wait_for(|status| *status == MeshStatus::Up);
    tokio::time::timeout(FOREVER, up)
        .await
        .expect("the mesh is up")
        .unwrap();
    work().await;
    let mut done = done;
    let _ = done.changed().await; // an error: the work of the other machine has ended
    tree.stop().await;
}

/// Sends datagrams to `to` until one returns.
async fn echoes(to: Ipv4Addr) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let mut answer = [0; 16];
    let exchange = async {
        loop {
            // Without a route the kernel refuses it.
            let _ = socket.send_to(b"plain", (to, 7)).await;
            let received = timeout(Duration::from_millis(100), socket.recv_from(&mut answer));
            if let Ok(Ok((5, _))) = received.await {
                return;
            }
        }
    };
    timeout(FOREVER, exchange).await.expect("an echo");
}

async fn echo_server(address: Ipv4Addr) {
    let socket = UdpSocket::bind((address, 7)).await.unwrap();
    let mut datagram = [0; 16];
    loop {
        if let Ok((size, from)) = socket.recv_from(&mut datagram).await {
            let _ = socket.send_to(&datagram[..size], from).await;
        }
    }
}

/// Two machines with a cable between them.
fn cable(one: &Namespace, other: &Namespace) {
    let far = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        other.file().as_raw_fd()
    );
    one.within(|| {
        ip(&format!("link add e0 type veth peer name e0 netns {far}"));
        ip("address add 192.0.2.1/24 dev e0");
        ip("link set e0 up");
    })
    .unwrap();
    other
        .within(|| {
            ip("address add 192.0.2.2/24 dev e0");
            ip("link set e0 up");
        })
        .unwrap();
}

#[test]
fn device_passes_to_the_port_of_another_process() {
    in_namespace(async || {
        let key = PrivateKey::generate().unwrap();
        let peer = Peer {
            hostname: "m2".to_owned(),
            public_key: PrivateKey::generate().unwrap().public().0,
            endpoint: "192.0.2.2:51820".parse().unwrap(),
            allowed_ips: [cidr("10.99.0.2/32"), cidr("10.244.2.0/24")].into(),
        };
        let index = async || {
            let link = Links::open().unwrap().link(DEVICE).await.unwrap();
            link.map(|link| link.index)
        };
        let first = KernelPort::new(key.clone(), PORT, WgBackend::Userspace);
        for step in [
            Step::OpenDevice,
            Step::SetUp,
            Step::SetPeers(vec![peer.clone()]),
        ] {
            first.apply(step).await.unwrap();
        }
        let before = index().await;
        let passed = first.descriptors(true).await.unwrap();
        let copy = |(name, fd): &NamedSocket| (name.clone(), fd.try_clone().unwrap());
        let again: Vec<_> = passed.iter().map(copy).collect();
        // Changes here, where the device only seems to be open, do not concern the other process.
        first.apply(Step::SetPeers(Vec::new())).await.unwrap();
        drop(first);

        let resumed = Resumed::default();
        let resume = |passed: Vec<NamedSocket>| {
            resumed.resume(&Inherited::new(passed), &key, PORT, WgBackend::Userspace);
        };
        resume(passed);
        let next = KernelPort::resuming(key.clone(), PORT, WgBackend::Userspace, &resumed);
        let device = next.look(BTreeSet::new()).await.unwrap().device.unwrap();
        assert_eq!(device.peers, std::slice::from_ref(&peer));
        assert!(device.up);
        assert_eq!(next.admitted().await, peer.allowed_ips);
        assert_eq!(index().await, before);
        // The process that is replaced passes the same again to each process that asks.
        resume(again);
        assert!(resumed.take().is_none());
        // One that does not fit is left, and ends.
        drop(next);
        gone().await;
        let list = tempfile::tempfile().unwrap();
        resume(vec![("mesh.peers".to_owned(), list.into())]);
        assert!(resumed.take().is_none());
    });
}

#[test]
fn damaged_mesh_is_repaired_and_carries_datagrams() {
    let machine = |host, underlay| Machine {
        host,
        underlay,
        key: PrivateKey::generate().unwrap(),
    };
    let machines = [machine("m1", "192.0.2.1"), machine("m2", "192.0.2.2")];
    let raft = cluster(&machines);
    let addresses = assign(raft.state().nodes.values().map(|node| &**node))
        .into_values()
        .collect::<Vec<_>>();
    let [here, there] = addresses[..] else {
        panic!()
    };
    let namespaces = [(); 2].map(|()| Namespace::create().unwrap());
    cable(&namespaces[0], &namespaces[1]);
    let (end, done) = watch::channel(());
    std::thread::scope(|scope| {
        let (raft, machines, namespaces) = (&raft, &machines, &namespaces);
        scope.spawn(move || {
            let serve = || block_on(serve(&machines[1], raft, done));
            namespaces[1].within(serve).unwrap();
        });
        let ended = scope.spawn(move || {
            let _end = end; // ends the other machine, also after a failure
            let work = async || survive_damage(here, there).await;
            let at_once = watch::channel(()).1;
            let talk = || block_on(run(&machines[0], raft, at_once, work));
            namespaces[0].within(talk).unwrap();
        });
        ended.join().unwrap();
    });
    // The device ends with its port, in the background.
    namespaces[0].within(|| block_on(gone())).unwrap();
    let left = namespaces[0].within(|| ip("-j route show")).unwrap();
    assert!(left.contains("blackhole"), "{left}");
}

fn block_on(work: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(work);
}

/// Runs a machine whose host and container answer datagrams.
async fn serve(machine: &Machine, raft: &MemoryRaft, done: watch::Receiver<()>) {
    let work = async || {
        ip("address add 10.244.2.9/32 dev lo");
        ip("link set lo up");
        tokio::spawn(echo_server(Ipv4Addr::UNSPECIFIED));
    };
    run(machine, raft, done, work).await;
}

/// Damages the mesh of this machine and checks that it reaches the other one again.
async fn survive_damage(here: Ipv4Addr, there: Ipv4Addr) {
    let container = Ipv4Addr::new(10, 244, 2, 9);
    echoes(there).await;
    echoes(container).await;
    let shown = ip("-j route get 10.244.2.9");
    assert!(
        shown.contains(&format!("\"prefsrc\":\"{here}\"")),
        "{shown}"
    );
    for damage in [
        "route del 10.244.2.0/24 dev jaco0",
        &format!("address del {here}/32 dev jaco0"),
        "link set jaco0 down",
        "link set jaco0 mtu 9000",
        "link del jaco0",
        "route add 10.1.0.0/16 dev jaco0",
        "route del blackhole 10.244.0.0/16",
        "route del blackhole 10.99.0.0/24",
    ] {
        ip(damage);
        repaired(damage, here).await;
        echoes(container).await;
    }
}

/// Waits until the link, its address and its routes are as they should be.
async fn repaired(damage: &str, address: Ipv4Addr) {
    let whole = || {
        let (link, routes) = (ip("-j address show"), ip("-j route show"));
        link.contains("\"ifname\":\"jaco0\"")
            && link.contains("\"mtu\":1420")
            && link.contains(&format!("\"local\":\"{address}\""))
            && routes.contains("\"dst\":\"10.99.0.0/24\"")
            && routes.matches("\"type\":\"blackhole\"").count() == 2
            && !routes.contains("10.1.0.0/16")
    };
    let wait = async {
        while !whole() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(FOREVER, wait)
        .await
        .unwrap_or_else(|_| panic!("not repaired: {damage}"));
}
