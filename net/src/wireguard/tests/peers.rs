//! One device with many peers, each of them a protocol core with a socket of its own.

use std::{collections::BTreeSet, io, net::Ipv4Addr};

use boringtun::{
    noise::{Tunn, TunnResult},
    x25519,
};

use super::{lab::ip, *};
use crate::netns::Namespace;

/// Peers of the device.
const PEERS: u8 = 64;
/// Port of all inner datagrams.
const PORT: u16 = 7000;

/// A peer at a port of the loopback interface, whose address in the tunnel is `10.99.0.<number>`.
struct Remote {
    number: u8,
    public_key: PublicKey,
    socket: UdpSocket,
    core: Tunn,
    /// Handshakes that the device began.
    handshakes: usize,
    /// Payloads of the packets that came, with the address that each was sent to.
    packets: Vec<(Ipv4Addr, Vec<u8>)>,
}

/// The device; its namespace lives as long as the sockets in it.
struct World {
    device: Device,
    remotes: Vec<Remote>,
    /// Numbers of the peers that the device has now.
    present: BTreeSet<u8>,
    /// A socket of this node, at the address `10.99.0.100`.
    local: UdpSocket,
}

impl Remote {
    fn new(namespace: &Namespace, number: u8, device: PublicKey) -> Self {
        let key = PrivateKey::generate().unwrap();
        let socket = namespace.within(|| UdpSocket::bind("127.0.0.1:0")).unwrap();
        let socket = socket.unwrap();
        let timeout = Some(Duration::from_secs(5));
        socket.set_read_timeout(timeout).unwrap();
        let device = x25519::PublicKey::from(device.0);
        Self {
            number,
            public_key: key.public(),
            socket,
            core: Tunn::new(key.secret(), device, None, None, number.into(), None),
            handshakes: 0,
            packets: Vec::new(),
        }
    }

    fn peer(&self) -> Peer {
        let endpoint = self.socket.local_addr().unwrap();
        peer(self.public_key, Some(endpoint), self.number)
    }

    fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, self.number)
    }

    /// Handles one datagram of the device.
    fn handle(&mut self) -> io::Result<()> {
        let (mut datagram, mut buffer) = ([0; 2048], [0; 2048]);
        let (len, from) = self.socket.recv_from(&mut datagram)?;
        self.handshakes += usize::from(datagram[0] == 1);
        let result = self.core.decapsulate(None, &datagram[..len], &mut buffer);
        match result {
            TunnResult::WriteToNetwork(reply) => {
                self.socket.send_to(reply, from)?;
            }
            TunnResult::WriteToTunnelV4(packet, _) => {
                let to = checksum::address(packet, 16);
                self.packets.push((to, packet[28..].to_vec()));
            }
            TunnResult::Done => {}
            other => panic!("peer {}: {other:?}", self.number),
        }
        Ok(())
    }

    /// Handles what has come, without waiting.
    fn handle_all(&mut self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.handle().is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
    }

    /// Sends a datagram through the tunnel, from an address in the tunnel.
    fn send(&mut self, source: Ipv4Addr, payload: &[u8], port: u16) {
        let (len, udp_len) = (28 + payload.len(), 8 + payload.len());
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        packet[8..10].copy_from_slice(&[64, 17]);
        packet[12..16].copy_from_slice(&source.octets());
        packet[16..20].copy_from_slice(&[10, 99, 0, 100]);
        checksum::set_ipv4(&mut packet[..20]);
        packet[20..22].copy_from_slice(&PORT.to_be_bytes());
        packet[22..24].copy_from_slice(&PORT.to_be_bytes());
        packet[24..26].copy_from_slice(&u16::try_from(udp_len).unwrap().to_be_bytes());
        packet[28..].copy_from_slice(payload);
        let mut buffer = [0; 2048];
        let TunnResult::WriteToNetwork(datagram) = self.core.encapsulate(&packet, &mut buffer)
        else {
            panic!("peer {} has no session", self.number);
        };
        self.socket.send_to(datagram, ("127.0.0.1", port)).unwrap();
    }
}

impl World {
    fn new() -> Self {
        let namespace = Namespace::create().unwrap();
        ip(&namespace, "ip link set lo up");
        let key = PrivateKey::generate().unwrap();
        let public = key.public();
        let config = Config {
            name: "jt0".to_owned(),
            mtu: 1420,
            private_key: key,
            port: 0,
            workers: NonZero::new(2),
        };
        let device = namespace.within(|| Device::open(config)).unwrap().unwrap();
        ip(&namespace, "ip addr add 10.99.0.100/24 dev jt0");
        ip(&namespace, "ip link set jt0 up");
        let local = namespace.within(|| UdpSocket::bind(("10.99.0.100", PORT)));
        let local = local.unwrap().unwrap();
        local
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let remotes = (1..=PEERS).map(|number| Remote::new(&namespace, number, public));
        let remotes = remotes.collect();
        Self {
            device,
            remotes,
            present: BTreeSet::new(),
            local,
        }
    }

    /// Gives the device these peers, and lets the new ones answer its greeting.
    fn set(&mut self, present: BTreeSet<u8>) {
        let peers = self
            .remotes
            .iter()
            .filter(|one| present.contains(&one.number));
        self.device
            .set_peers(peers.map(Remote::peer).collect())
            .unwrap();
        for remote in &mut self.remotes {
            if !present.contains(&remote.number) || self.present.contains(&remote.number) {
                continue;
            }
            let before = remote.handshakes;
            while remote.handshakes == before {
                remote.handle().unwrap();
            }
            // The keepalive that confirms the session.
            remote.handle().unwrap();
        }
        self.present = present;
    }

    /// Sends a packet to each address, and asserts that just the peer it belongs to gets it.
    fn check(&mut self, round: u8) {
        let unroutable = self.device.drops().unroutable;
        for number in 1..=PEERS {
            let to = Ipv4Addr::new(10, 99, 0, number);
            self.local.send_to(&[round, number], (to, PORT)).unwrap();
        }
        let (present, absent): (Vec<_>, Vec<_>) = self
            .remotes
            .iter_mut()
            .partition(|one| self.present.contains(&one.number));
        for remote in present {
            while remote.packets.is_empty() {
                remote.handle().unwrap();
            }
            remote.handle_all();
            let expected = (remote.address(), vec![round, remote.number]);
            assert_eq!(remote.packets, [expected], "peer {}", remote.number);
            remote.packets.clear();
        }
        let dropped = unroutable + absent.len() as u64;
        eventually("drops", || self.device.drops().unroutable == dropped);
        for remote in absent {
            remote.handle_all();
            assert!(remote.packets.is_empty(), "peer {} is gone", remote.number);
        }
    }

    /// Receives a packet of each peer, and none that pretends to be another's.
    fn check_sources(&mut self) {
        let wrong = self.device.drops().wrong_source;
        let port = self.device.port();
        for remote in &mut self.remotes {
            let other = Ipv4Addr::new(10, 99, 0, remote.number % PEERS + 1);
            remote.send(other, b"forged", port);
            remote.send(remote.address(), &[remote.number], port);
            let mut buffer = [0; 16];
            let (len, from) = self.local.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..len], [remote.number]);
            assert_eq!(from.ip(), remote.address());
        }
        let counted = self.device.drops().wrong_source - wrong;
        assert_eq!(counted, u64::from(PEERS));
    }
}

#[test]
fn packets_reach_their_peer_among_many() {
    let mut world = World::new();
    world.set((1..=PEERS).collect());
    world.check(0);
    world.check_sources();
    assert_eq!(world.device.drops().unknown_peer, 0);
}

#[test]
fn changes_disturb_no_peer_that_stays() {
    let mut world = World::new();
    let all = || 1..=PEERS;
    let steps: [(&str, BTreeSet<u8>); 7] = [
        ("all", all().collect()),
        ("one less", all().filter(|number| *number != 7).collect()),
        ("one back", all().collect()),
        ("odd ones", all().filter(|number| number % 2 == 1).collect()),
        ("other half", all().filter(|number| *number > 32).collect()),
        ("one", [40].into()),
        ("all again", all().collect()),
    ];
    for (round, (name, present)) in (1..).zip(steps) {
        println!("{name}");
        let stay: Vec<_> = world.present.intersection(&present).copied().collect();
        let handshakes = |world: &World| {
            let remotes = world
                .remotes
                .iter()
                .filter(|one| stay.contains(&one.number));
            remotes.map(|one| one.handshakes).collect::<Vec<_>>()
        };
        let before = handshakes(&world);
        world.set(present);
        world.check(round);
        assert_eq!(
            handshakes(&world),
            before,
            "{name}: the sessions are the same"
        );
    }
    assert_eq!(world.device.failure(), None);
}

#[test]
fn queued_packets_leave_after_the_peers_first() {
    let mut world = World::new();
    let port = world.device.port();
    let remote = &mut world.remotes[0];
    world.device.set_peers(vec![remote.peer()]).unwrap();
    // The greeting of the device is lost.
    let mut datagram = [0; 2048];
    remote.socket.recv_from(&mut datagram).unwrap();
    world
        .local
        .send_to(b"waits", (remote.address(), PORT))
        .unwrap();
    // The peer begins a session itself, and its keepalive is lost.
    let mut buffer = [0; 2048];
    let begun = remote.core.format_handshake_initiation(&mut buffer, true);
    let TunnResult::WriteToNetwork(initiation) = begun else {
        panic!("{begun:?}");
    };
    remote
        .socket
        .send_to(initiation, ("127.0.0.1", port))
        .unwrap();
    let (len, _) = remote.socket.recv_from(&mut datagram).unwrap();
    let answered = remote.core.decapsulate(None, &datagram[..len], &mut buffer);
    assert!(matches!(answered, TunnResult::WriteToNetwork(_)));
    remote.send(remote.address(), b"first", port);
    let (len, _) = world.local.recv_from(&mut datagram).unwrap();
    assert_eq!(datagram[..len], *b"first");
    // A device that read the packet only now begins a handshake first.
    while remote.packets.is_empty() {
        remote.handle().unwrap();
    }
    assert_eq!(remote.packets, [(remote.address(), b"waits".to_vec())]);
}
