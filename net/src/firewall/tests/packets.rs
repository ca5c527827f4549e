//! Packets between containers of two hosts, as far as the ruleset of one of them decides.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

use super::*;

/// Longest wait for a packet that should pass, and wait for one that should not.
const PASSES: Duration = Duration::from_secs(10);
const DROPPED: Duration = Duration::from_millis(200);
const PORT: u16 = 7;

/// A router between containers, each in a namespace of its own with an address 10.244.n.2.
struct Lab {
    router: Namespace,
    containers: Vec<(Ipv4Addr, Namespace)>,
}

impl Lab {
    fn new(blocks: &[u8]) -> Self {
        let router = Namespace::create().unwrap();
        let ip = |line: String| run("ip", &line.split(' ').collect::<Vec<_>>());
        router
            .within(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap())
            .unwrap();
        let containers = blocks.iter().map(|n| {
            let container = Namespace::create().unwrap();
            // The namespace is named by a process in it.
            let mut holder = container
                .within(|| Command::new("sleep").arg("60").spawn().unwrap())
                .unwrap();
            router
                .within(|| {
                    let pid = holder.id();
                    ip(format!(
                        "link add jaco-v{n} type veth peer name eth0 netns {pid}"
                    ));
                    ip(format!("address add 10.244.{n}.1/24 dev jaco-v{n}"));
                    ip(format!("link set jaco-v{n} up"));
                })
                .unwrap();
            container
                .within(|| {
                    ip(format!("address add 10.244.{n}.2/24 dev eth0"));
                    ip("link set eth0 up".to_owned());
                    ip(format!("route add default via 10.244.{n}.1"));
                })
                .unwrap();
            holder.kill().unwrap();
            holder.wait().unwrap();
            (Ipv4Addr::new(10, 244, *n, 2), container)
        });
        Self {
            containers: containers.collect(),
            router,
        }
    }

    fn apply(&self, table: &Table) {
        let done = self.router.within(|| replace_table(table));
        done.unwrap().unwrap();
    }

    fn drops(&self) -> RuleDrops {
        self.router.within(read_drops).unwrap().unwrap()
    }

    /// Whether a connection and a datagram reach container `to` from container `from`.
    fn reaches(&self, from: usize, to: usize, expected: bool) -> (bool, bool) {
        let wait = if expected { PASSES } else { DROPPED };
        let (address, server) = &self.containers[to];
        let target = SocketAddr::from((*address, PORT));
        let open = || {
            let udp = UdpSocket::bind(target)?;
            udp.set_read_timeout(Some(wait))?;
            io::Result::Ok((TcpListener::bind(target)?, udp))
        };
        let (tcp, udp) = server.within(open).unwrap().unwrap();
        let receives = thread::spawn(move || {
            let received = udp.recv(&mut [0; 8]);
            drop(tcp);
            received.is_ok()
        });
        let send = || {
            let connected = TcpStream::connect_timeout(&target, wait).is_ok();
            let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
            // A refusal of an earlier datagram may show here.
            let _ = sender.send_to(b"x", target);
            connected
        };
        let connected = self.containers[from].1.within(send).unwrap();
        (connected, receives.join().unwrap())
    }
}

#[test]
fn packets_pass_within_a_network_only() {
    let lab = Lab::new(&[1, 2, 3]);
    let networks = [set("a", &[block(1), block(2)]), set("b", &[block(3)])];
    lab.apply(&table(networks.to_vec()));
    for (from, to, expected) in [
        (0, 1, true),
        (1, 0, true),
        (0, 2, false),
        (2, 0, false),
        (1, 2, false),
    ] {
        assert_eq!(
            lab.reaches(from, to, expected),
            (expected, expected),
            "{from} to {to}"
        );
    }
    // A block that joins the other network changes sides at once.
    let networks = [set("a", &[block(1)]), set("b", &[block(2), block(3)])];
    lab.apply(&table(networks.to_vec()));
    for (from, to, expected) in [(0, 1, false), (1, 2, true), (2, 1, true), (2, 0, false)] {
        assert_eq!(
            lab.reaches(from, to, expected),
            (expected, expected),
            "{from} to {to}"
        );
    }
}

#[test]
fn established_connection_survives_a_replaced_table() {
    let lab = Lab::new(&[1, 2]);
    let network = table(vec![set("a", &[block(1), block(2)])]);
    lab.apply(&network);
    let target = SocketAddr::from((lab.containers[1].0, PORT));
    let listener = lab.containers[1]
        .1
        .within(|| TcpListener::bind(target).unwrap());
    let client = lab.containers[0]
        .1
        .within(|| TcpStream::connect(target).unwrap());
    let (mut client, mut server) = (client.unwrap(), listener.unwrap().accept().unwrap().0);
    server.set_read_timeout(Some(PASSES)).unwrap();
    for _ in 0..20 {
        lab.apply(&network);
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
    }
    // Nor does the repair of a flushed table.
    lab.router.within(|| nft("flush ruleset")).unwrap();
    lab.apply(&network);
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
}

/// A connection between two containers over which bytes can be sent.
struct Connection(TcpStream, TcpStream);

impl Connection {
    fn open(lab: &Lab, from: usize, to: usize, port: u16) -> Self {
        let target = SocketAddr::from((lab.containers[to].0, port));
        let listen = || TcpListener::bind(target).unwrap();
        let listener = lab.containers[to].1.within(listen).unwrap();
        let connect = || TcpStream::connect(target).unwrap();
        let client = lab.containers[from].1.within(connect).unwrap();
        Self(client, listener.accept().unwrap().0)
    }

    /// Whether a byte arrives in each direction.
    fn passes(&mut self, expected: bool) -> (bool, bool) {
        let wait = Some(if expected { PASSES } else { DROPPED });
        let Self(client, server) = self;
        client.set_read_timeout(wait).unwrap();
        server.set_read_timeout(wait).unwrap();
        client.write_all(b"x").unwrap();
        let there = server.read_exact(&mut [0]).is_ok();
        server.write_all(b"x").unwrap();
        (there, client.read_exact(&mut [0]).is_ok())
    }
}

#[test]
fn connection_begun_without_the_table_is_cut() {
    let lab = Lab::new(&[1, 2, 3]);
    let networks = table(vec![set("a", &[block(1), block(2)]), set("b", &[block(3)])]);
    lab.apply(&networks);
    let mut before = Connection::open(&lab, 0, 1, 7);
    // The engine's rules track connections, too, with or without the table.
    let engine = "add table ip engine; add chain ip engine f { type filter hook forward priority 0; }; add rule ip engine f ct state established accept; delete table inet jaco";
    lab.router.within(|| nft(engine)).unwrap();
    let mut allowed = Connection::open(&lab, 1, 0, 8);
    let mut forbidden = Connection::open(&lab, 0, 2, 9);
    assert_eq!(forbidden.passes(true), (true, true));
    lab.apply(&networks);
    assert_eq!(forbidden.passes(true), (true, true), "it is established");
    let third = |address: Ipv4Addr| address.octets()[2];
    let apart = |from, to| (third(from) == 3) != (third(to) == 3);
    let cut = || lab.router.within(|| cut_flows(apart)).unwrap().unwrap();
    assert_eq!(cut(), 1);
    assert_eq!(forbidden.passes(false), (false, false));
    assert_eq!(before.passes(true), (true, true));
    assert_eq!(allowed.passes(true), (true, true));
    assert_eq!(cut(), 0);
}

/// A datagram of UDP over IPv4 (RFC 791, RFC 768) with any source; the kernel adds the checksum of
/// the header, and that of UDP may be absent.
fn datagram(from: Ipv4Addr, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let udp = u16::try_from(8 + payload.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.ip().octets());
    packet.extend(PORT.to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(udp.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

impl Lab {
    /// Sends datagrams with these sources from container `from` to container `to`; returns those that
    /// arrive. The last one is the sign that no other will come.
    fn arriving(&self, from: usize, to: usize, sources: &[[u8; 4]]) -> Vec<[u8; 4]> {
        let (address, receiver) = &self.containers[to];
        let target = SocketAddrV4::new(*address, PORT);
        let open = || {
            let udp = UdpSocket::bind(target)?;
            udp.set_read_timeout(Some(PASSES))?;
            io::Result::Ok(udp)
        };
        let udp = receiver.within(open).unwrap().unwrap();
        let send = || {
            let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).unwrap();
            for source in sources {
                let packet = datagram(Ipv4Addr::from(*source), target, source);
                sendto(&raw, &packet, SendFlags::empty(), &target).unwrap();
            }
        };
        self.containers[from].1.within(send).unwrap();
        let mut arrived = Vec::new();
        while arrived.last() != sources.last() {
            let mut payload = [0; 4];
            match udp.recv_from(&mut payload) {
                Ok((4, sender)) => {
                    assert_eq!(sender.ip(), Ipv4Addr::from(payload));
                    arrived.push(payload);
                }
                other => panic!("{arrived:?}, then {other:?}"),
            }
        }
        arrived
    }

    /// Sets the kernel's own check of sources for all interfaces: 0 off, 1 strict, 2 loose.
    fn set_rp_filter(&self, mode: u8) {
        let set = || {
            for interface in std::fs::read_dir("/proc/sys/net/ipv4/conf").unwrap() {
                let file = interface.unwrap().path().join("rp_filter");
                std::fs::write(file, mode.to_string()).unwrap();
            }
        };
        self.router.within(set).unwrap();
    }
}

#[test]
fn forged_sources_reach_no_network() {
    // Network a has two blocks here and a remote one, which is routed to the third container's
    // interface in place of the mesh; the mesh addresses are, too.
    let lab = Lab::new(&[1, 2, 3, 4]);
    let networks = [
        set("a", &[block(1), block(2), block(5)]),
        set("b", &[block(3)]),
        set("c", &[block(4)]),
    ];
    lab.router
        .within(|| {
            for (to, via) in [
                ("10.244.5.0/24", "10.244.4.2"),
                ("10.99.0.0/24", "10.244.4.2"),
                ("198.51.100.0/24", "10.244.3.2"),
            ] {
                run("ip", &["route", "add", to, "via", via]);
            }
            run("ip", &["route", "add", "blackhole", "10.244.0.0/16"]);
        })
        .unwrap();
    let forged = [
        [10, 244, 1, 9],
        [10, 244, 1, 1],
        [10, 244, 2, 2],
        [10, 244, 5, 2],
        [10, 244, 200, 2],
        [10, 99, 0, 7],
    ];
    let outside = [198, 51, 100, 7];
    let all: Vec<[u8; 4]> = { forged.into_iter() }.chain([outside]).collect();
    // Without the rules most of them arrive, so the test can fail.
    let mut open = table(networks.to_vec());
    open.chains.retain(|chain| chain.name != "prerouting");
    lab.set_rp_filter(0);
    lab.apply(&open);
    assert!(lab.arriving(2, 0, &all).len() > 4);
    lab.apply(&table(networks.to_vec()));
    for (mode, tries) in [(0, 1), (2, 2), (1, 3)] {
        lab.set_rp_filter(mode);
        assert_eq!(lab.arriving(2, 0, &all), [outside], "rp_filter {mode}");
        let drops = lab.drops();
        assert!(drops.unrouted >= tries * forged.len() as u64, "{drops:?}");
        assert_eq!(drops.outside, 0);
    }
    // Packets that come by their own interface pass.
    lab.set_rp_filter(0);
    let honest = [[10, 244, 1, 7], [10, 244, 1, 2]];
    assert_eq!(lab.arriving(0, 1, &honest), honest);
    let from_mesh = [[10, 244, 5, 2], [10, 99, 0, 7]];
    assert_eq!(lab.arriving(3, 1, &from_mesh), from_mesh);
    // A container on several networks may answer by its default route; no other may.
    let attached = [[10, 244, 2, 8], [10, 244, 2, 9]];
    assert_eq!(lab.arriving(2, 1, &attached), attached[1..]);
}

#[test]
fn packets_between_containers_leave_by_own_interfaces() {
    // Block 3 is that of another host. A route of another program leads to it, or to a part of it.
    let lab = Lab::new(&[1, 3]);
    let networks = table(vec![set("a", &[block(1), block(3)])]);
    let ip = |line: &str| {
        let run = || run("ip", &line.split(' ').collect::<Vec<_>>());
        lab.router.within(run).unwrap()
    };
    // A socket that was closed may be held by a process that another test just forked.
    let host_reaches = |port: u16, expected: bool| {
        let (address, receiver) = &lab.containers[1];
        let target = SocketAddr::from((*address, port));
        let udp = receiver
            .within(|| UdpSocket::bind(target).unwrap())
            .unwrap();
        let wait = if expected { PASSES } else { DROPPED };
        udp.set_read_timeout(Some(wait)).unwrap();
        // A datagram that the rules drop is an error of its sender.
        let send = || UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", target);
        let sent = lab.router.within(send).unwrap().is_ok();
        assert_eq!(sent, expected);
        udp.recv(&mut [0; 8]).is_ok()
    };
    lab.apply(&networks);
    assert_eq!(lab.reaches(0, 1, true), (true, true));
    assert!(host_reaches(10, true));
    let mut begun = Connection::open(&lab, 0, 1, 9);
    assert_eq!(begun.passes(true), (true, true));
    ip("link set jaco-v3 down");
    ip("link set jaco-v3 name eth3");
    ip("link set eth3 up");
    assert!(ip("route get 10.244.3.2").contains("dev eth3"));
    // The way back leads by an interface of JACO.
    assert_eq!(begun.passes(false), (false, true));
    assert_eq!(lab.reaches(0, 1, false), (false, false));
    assert_eq!(lab.drops().unrouted, 0);
    let forwarded = lab.drops().outside;
    assert!(forwarded > 0);
    assert!(!host_reaches(11, false));
    let all = lab.drops().outside;
    assert!(all > forwarded);
    // The counters begin again; the open connection may have sent something since.
    lab.apply(&networks);
    assert!(lab.drops().outside < all);
}
