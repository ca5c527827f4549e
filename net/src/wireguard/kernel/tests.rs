mod fake;

use std::net::{Ipv4Addr, SocketAddr};

use self::fake::FakeKernel;
use super::*;

const NAME: &str = "wg0";
const KEEPALIVE: Duration = Duration::from_secs(25);

fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

fn network(text: &str) -> (Ipv4Addr, u8) {
    let (ip, prefix) = text.split_once('/').unwrap();
    (ip.parse().unwrap(), prefix.parse().unwrap())
}

/// Peer `number` at `192.0.2.<number>:51820`.
fn peer(number: u8, allowed_ips: &[&str]) -> Peer {
    Peer {
        public_key: key(number),
        endpoint: Some(endpoint(number)),
        allowed_ips: allowed_ips.iter().map(|text| network(text)).collect(),
        keepalive: Some(KEEPALIVE),
    }
}

fn endpoint(number: u8) -> SocketAddr {
    ([192, 0, 2, number], 51820).into()
}

/// A device of a fake kernel.
fn device(kernel: &FakeKernel) -> Device {
    let socket = Socket::over(kernel.connect(), "wireguard").unwrap();
    Device::over(socket, NAME, kernel.key(), 51820).unwrap()
}

#[test]
fn device_gets_its_key_and_port() {
    let kernel = FakeKernel::start(NAME);
    let device = device(&kernel);
    let state = kernel.state();
    assert_eq!(state.private_key, Some(kernel.key().secret().to_bytes()));
    assert_eq!(state.port, 51820);
    drop(state);
    assert!(!device.is_altered().unwrap());
    assert_eq!(device.stats().unwrap(), []);
    assert!(!format!("{device:?}").contains("PrivateKey(["));
}

#[test]
fn peers_that_stay_keep_their_sessions() {
    let kernel = FakeKernel::start(NAME);
    let device = device(&kernel);
    let first = peer(1, &["10.99.0.1/32", "10.244.1.0/24"]);
    let second = peer(2, &["10.99.0.2/32"]);
    device.set_peers(vec![first.clone(), second]).unwrap();
    let sessions = kernel.sessions();
    assert_eq!(sessions.len(), 2);
    kernel.roam(key(1), endpoint(77));
    // The second peer leaves, a third one comes and takes over a network of the first one.
    let kept = peer(1, &["10.99.0.1/32"]);
    let third = peer(3, &["10.99.0.3/32", "10.244.1.7/24"]);
    device.set_peers(vec![third, kept]).unwrap();
    let after = kernel.sessions();
    assert_eq!(after.keys().copied().collect::<Vec<_>>(), [key(1), key(3)]);
    assert_eq!(after[&key(1)], sessions[&key(1)]);
    let state = kernel.state();
    assert_eq!(state.peers[&key(1)].endpoint, Some(endpoint(77)));
    assert_eq!(state.networks(key(1)), ["10.99.0.1/32"]);
    assert_eq!(state.networks(key(3)), ["10.244.1.0/24", "10.99.0.3/32"]);
    assert_eq!(state.peers[&key(3)].keepalive, 25);
    drop(state);
    // Another configured endpoint replaces the one that the peer moved to.
    let moved = Peer {
        endpoint: Some(endpoint(9)),
        ..peer(1, &["10.99.0.1/32"])
    };
    device.set_peers(vec![moved]).unwrap();
    assert_eq!(kernel.state().peers[&key(1)].endpoint, Some(endpoint(9)));
    assert_eq!(kernel.sessions()[&key(1)], sessions[&key(1)]);
    assert!(!kernel.state().replaced_peers);
}

#[test]
fn equal_peers_are_not_written() {
    let kernel = FakeKernel::start(NAME);
    let device = device(&kernel);
    let peers = vec![peer(1, &["10.99.0.1/32"]), peer(2, &[])];
    device.set_peers(peers.clone()).unwrap();
    let writes = kernel.state().writes;
    device.set_peers(peers.clone()).unwrap();
    assert_eq!(kernel.state().writes, writes);
}

#[test]
fn changes_by_others_are_seen_and_undone() {
    let kernel = FakeKernel::start(NAME);
    let device = device(&kernel);
    let peers = vec![peer(1, &["10.99.0.1/32"]), peer(2, &["10.99.0.2/32"])];
    device.set_peers(peers.clone()).unwrap();
    kernel.roam(key(1), endpoint(77));
    assert!(!device.is_altered().unwrap(), "a peer may move");
    let damages: [fn(&mut fake::State); 5] = [
        |state| drop(state.peers.remove(&key(1))),
        |state| state.peers.get_mut(&key(2)).unwrap().allowed_ips.clear(),
        |state| drop(state.peers.insert(key(5), fake::PeerState::default())),
        |state| state.private_key = Some([8; 32]),
        |state| state.port = 7,
    ];
    for (at, damage) in damages.into_iter().enumerate() {
        damage(&mut kernel.state());
        assert!(device.is_altered().unwrap(), "damage {at}");
        device.set_peers(peers.clone()).unwrap();
        assert!(!device.is_altered().unwrap(), "damage {at}");
        assert_eq!(kernel.sessions().len(), 2);
    }
}

#[test]
fn device_of_an_earlier_process_is_adopted() {
    let kernel = FakeKernel::start(NAME);
    let peers = vec![peer(1, &["10.99.0.1/32"]), peer(2, &["10.99.0.2/32"])];
    device(&kernel).set_peers(peers.clone()).unwrap();
    let sessions = kernel.sessions();
    kernel.roam(key(1), endpoint(77));
    let device = device(&kernel);
    assert_eq!(kernel.sessions(), sessions);
    assert!(device.is_altered().unwrap(), "the peers are yet to be set");
    device.set_peers(peers[..1].to_vec()).unwrap();
    assert_eq!(kernel.sessions()[&key(1)], sessions[&key(1)]);
    assert_eq!(kernel.sessions().len(), 1);
    // Its endpoint may be one of long ago.
    assert_eq!(kernel.state().peers[&key(1)].endpoint, Some(endpoint(1)));
}

#[test]
fn many_allowed_ips_are_written_in_parts() {
    let kernel = FakeKernel::start(NAME);
    let device = device(&kernel);
    let blocks: Vec<_> = (0..5000_u16)
        .map(|at| {
            let [high, low] = at.to_be_bytes();
            (Ipv4Addr::new(10, high, low, 0), 24)
        })
        .collect();
    let mut peers: Vec<Peer> = (0..200).map(|number| peer(number, &[])).collect();
    for (at, block) in blocks.iter().enumerate() {
        let owner = if at < 3000 { 7 } else { at % 200 };
        peers[owner].allowed_ips.push(*block);
    }
    device.set_peers(peers.clone()).unwrap();
    assert!(!device.is_altered().unwrap());
    let state = kernel.state();
    assert_eq!(state.peers.len(), 200);
    let count: usize = state
        .peers
        .values()
        .map(|peer| peer.allowed_ips.len())
        .sum();
    assert_eq!(count, blocks.len());
    drop(state);
    let sessions = kernel.sessions();
    peers[7].allowed_ips.truncate(2000);
    device.set_peers(peers).unwrap();
    assert!(!device.is_altered().unwrap());
    assert_eq!(kernel.sessions(), sessions);
}

#[test]
fn statistics_are_those_of_the_kernel() {
    let kernel = FakeKernel::start(NAME);
    let device = device(&kernel);
    let peers = vec![peer(2, &["10.99.0.2/32"]), peer(1, &[]), peer(3, &[])];
    device.set_peers(peers).unwrap();
    let now = SystemTime::now();
    for (number, age) in [(1, Some(9)), (2, Some(181)), (3, None)] {
        let mut state = kernel.state();
        let peer = state.peers.get_mut(&key(number)).unwrap();
        peer.last_handshake = age.map(|age| now - Duration::from_secs(age));
        (peer.rx_bytes, peer.tx_bytes) = (u64::from(number), 1 << 40);
    }
    let stats = device.stats().unwrap();
    let keys: Vec<_> = stats.iter().map(|stats| stats.public_key).collect();
    assert_eq!(keys, [key(1), key(2), key(3)]);
    let age = stats[0].last_handshake.unwrap();
    assert!(age >= Duration::from_secs(9) && age < SESSION, "{age:?}");
    assert_eq!(stats[1].last_handshake, None, "its session has ended");
    assert_eq!(stats[2].last_handshake, None);
    assert_eq!((stats[1].rx_bytes, stats[1].tx_bytes), (2, 1 << 40));
    assert_eq!((stats[0].rtt, stats[0].loss), (None, None));
    assert_eq!(stats[0].endpoint, Some(endpoint(1)));
}

#[test]
fn changing_device_is_read_again() {
    let kernel = FakeKernel::start(NAME);
    let device = device(&kernel);
    device.set_peers(vec![peer(1, &["10.99.0.1/32"])]).unwrap();
    kernel.state().interruptions = 3;
    assert!(!device.is_altered().unwrap());
    kernel.state().interruptions = 99;
    assert!(matches!(device.stats(), Err(Error::Kernel { .. })));
}

#[test]
fn refused_requests_name_the_error_of_the_kernel() {
    let kernel = FakeKernel::start("another");
    let socket = Socket::over(kernel.connect(), "wireguard").unwrap();
    let error = Device::over(socket, NAME, kernel.key(), 0).unwrap_err();
    let Error::Kernel { source, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(source.raw_os_error(), Some(fake::NO_DEVICE));
}

#[test]
fn invalid_peers_change_nothing() {
    let kernel = FakeKernel::start(NAME);
    let device = device(&kernel);
    let own = Peer {
        public_key: kernel.key().public(),
        ..peer(1, &[])
    };
    let (v6, no_port) = ("[2001:db8::1]:9", "192.0.2.1:0");
    let at = |text: &str| Peer {
        endpoint: Some(text.parse().unwrap()),
        ..peer(1, &[])
    };
    for peers in [
        vec![own],
        vec![peer(1, &[]), peer(1, &[])],
        vec![at(v6)],
        vec![at(no_port)],
        vec![peer(1, &["10.0.0.0/33"])],
        vec![peer(1, &["10.244.1.0/24"]), peer(2, &["10.244.1.7/24"])],
    ] {
        device.set_peers(peers).unwrap_err();
        assert!(kernel.state().peers.is_empty());
    }
}

/// The layout is that of `include/uapi/linux/wireguard.h` on a little-endian machine.
#[cfg(target_endian = "little")]
#[test]
fn request_has_the_bytes_that_the_kernel_expects() {
    let kernel = FakeKernel::start(NAME);
    let device = device(&kernel);
    device.set_peers(vec![peer(7, &["10.244.1.0/24"])]).unwrap();
    let family = fake::FAMILY.to_le_bytes();
    let mut expected = vec![
        140, 0, 0, 0, family[0], family[1], 5, 0, // length, type, REQUEST | ACK
        0, 0, 0, 0, 0, 0, 0, 0, // sequence number, set below, and port
        1, 1, 0, 0, // SET_DEVICE, version 1
        8, 0, 2, 0, b'w', b'g', b'0', 0, // WGDEVICE_A_IFNAME
        112, 0, 8, 0x80, // WGDEVICE_A_PEERS, nested
        108, 0, 0, 0x80, // the first one, nested
        36, 0, 1, 0, // WGPEER_A_PUBLIC_KEY
    ];
    expected.extend([7; 32]);
    expected.extend([
        8, 0, 3, 0, 2, 0, 0, 0, // WGPEER_A_FLAGS: REPLACE_ALLOWEDIPS
        20, 0, 4, 0, 2, 0, 0xca, 0x6c, 192, 0, 2, 7, // WGPEER_A_ENDPOINT, a sockaddr_in
        0, 0, 0, 0, 0, 0, 0, 0, //
        6, 0, 5, 0, 25, 0, 0, 0, // WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL
        32, 0, 9, 0x80, // WGPEER_A_ALLOWEDIPS, nested
        28, 0, 0, 0x80, // the first one, nested
        6, 0, 1, 0, 2, 0, 0, 0, // WGALLOWEDIP_A_FAMILY: AF_INET
        8, 0, 2, 0, 10, 244, 1, 0, // WGALLOWEDIP_A_IPADDR
        5, 0, 3, 0, 24, 0, 0, 0, // WGALLOWEDIP_A_CIDR_MASK
    ]);
    let mut written = kernel.state().last_write.clone();
    written[8..12].fill(0);
    assert_eq!(written, expected);
}

#[test]
fn families_of_this_kernel_are_found() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
    let open = || {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        socket_with(family, SocketType::RAW, flags, Some(netlink::GENERIC)).unwrap()
    };
    Socket::over(open(), "nlctrl").unwrap();
    let error = Socket::over(open(), "no-such-family").unwrap_err();
    let Error::Kernel { source, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), io::ErrorKind::NotFound);
}
