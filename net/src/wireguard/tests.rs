//! Devices in network namespaces, against the kernel's own TCP, UDP and ICMP.

mod lab;
mod peers;

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use lab::{Lab, echo, eventually, peer, ping, send_stream, udp_echo};

use super::*;

#[test]
fn ping_and_datagrams_cross_the_tunnel() {
    let lab = Lab::new();
    assert!(ping(&lab.left, "10.99.0.2"));
    assert!(ping(&lab.right, "10.99.0.1"));
    assert_eq!(udp_echo(&lab, 1), 1);
    assert_eq!(udp_echo(&lab, 1392), 1392);
    // Larger than the MTU: fragments inside the tunnel.
    assert_eq!(udp_echo(&lab, 9000), 9000);
    let stats = lab.left.device().stats();
    assert_eq!(stats.len(), 1);
    assert_eq!(stats[0].endpoint, Some(lab.right.endpoint()));
    assert!(
        stats[0].last_handshake.is_some() && stats[0].rx_bytes > 9000 && stats[0].tx_bytes > 9000
    );
    assert_eq!(lab.left.device().drops().invalid, 0);
}

#[test]
fn stream_arrives_intact_while_keys_change() {
    let lab = Lab::new();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut handshakes = 0;
            while !stop.load(Ordering::Relaxed) {
                lab.left.device().force_handshakes();
                handshakes += 1;
                thread::park_timeout(Duration::from_millis(200));
            }
            handshakes
        });
        // Both directions at once.
        let back = scope.spawn(|| send_stream(&lab.right, &lab.left, 32 << 20));
        let there = send_stream(&lab.left, &lab.right, 64 << 20);
        let back = back.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(changing.join().unwrap() >= 1);
        assert_eq!((there.sent, back.sent), (there.received, back.received));
    });
    assert_eq!(lab.left.device().failure(), None);
}

/// 64 MiB by default; `JACO_MEBIBYTES=1024` sends 1 GiB. The keys of both sides are replaced every 2
/// seconds, and the stream is repeated until they were replaced twice.
#[test]
fn large_transfer_is_intact_while_keys_are_replaced() {
    let mebibytes = std::env::var("JACO_MEBIBYTES").map_or(64, |text| text.parse().unwrap());
    let lab = Lab::with(Settings {
        rekey_after: Some(Duration::from_secs(2)),
    });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut replaced, mut last) = (0, Duration::MAX);
            while !stop.load(Ordering::Relaxed) || replaced < 2 {
                if let Some(age) = lab.left.device().stats()[0].last_handshake {
                    replaced += usize::from(age < last && last != Duration::MAX);
                    last = age;
                }
                thread::park_timeout(Duration::from_millis(50));
            }
            replaced
        });
        loop {
            let transfer = send_stream(&lab.left, &lab.right, mebibytes << 20);
            assert_eq!(transfer.sent, transfer.received);
            stop.store(true, Ordering::Relaxed);
            if watching.is_finished() {
                break;
            }
        }
        println!(
            "{mebibytes} MiB, keys replaced {} times",
            watching.join().unwrap()
        );
    });
    assert_eq!(lab.left.device().failure(), None);
    assert_eq!(lab.right.device().failure(), None);
}

#[test]
fn endpoint_follows_the_peer() {
    let lab = Lab::new();
    assert!(ping(&lab.left, "10.99.0.2"));
    lab.left.run("ip addr del 192.0.2.1/25 dev eth0");
    lab.left.run("ip addr add 192.0.2.77/25 dev eth0");
    lab.left.run("ip route add default via 192.0.2.126");
    assert!(ping(&lab.left, "10.99.0.2"));
    let moved: SocketAddr = format!("192.0.2.77:{}", lab.left.port).parse().unwrap();
    assert_eq!(lab.right.device().stats()[0].endpoint, Some(moved));
    assert!(ping(&lab.right, "10.99.0.1"));
}

#[test]
fn peer_with_another_source_is_not_believed() {
    let lab = Lab::new();
    assert!(ping(&lab.left, "10.99.0.2"));
    lab.left.run("ip addr add 10.244.9.9/32 dev jt0");
    let before = lab.right.device().drops().wrong_source;
    assert!(!echo(&lab.left, "10.244.9.9", "10.99.0.2"));
    assert!(lab.right.device().drops().wrong_source > before);
    // The session is not harmed.
    assert!(ping(&lab.left, "10.99.0.2"));
}

#[test]
fn unroutable_packets_are_dropped_and_counted() {
    let lab = Lab::new();
    lab.left.run("ip route add 10.200.0.0/16 dev jt0");
    assert!(!echo(&lab.left, "10.99.0.1", "10.200.0.1"));
    assert!(lab.left.device().drops().unroutable >= 1);
    assert!(ping(&lab.left, "10.99.0.2"));
}

#[test]
fn random_and_truncated_datagrams_change_nothing() {
    let lab = Lab::new();
    assert!(ping(&lab.left, "10.99.0.2"));
    let to = lab.right.endpoint();
    let sent = lab.left.within(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for round in 0..10_000_u64 {
            let lengths = [
                0,
                1,
                3,
                4,
                31,
                32,
                33,
                64,
                92,
                147,
                148,
                149,
                random() as usize % 2000,
            ];
            let mut datagram: Vec<u8> = (0..lengths[round as usize % lengths.len()])
                .map(|_| random() as u8)
                .collect();
            if round % 2 == 0 {
                let head = [1 + (random() % 4) as u8, 0, 0, 0, 0, 0, 0, 0];
                let known = datagram.len().min(head.len());
                datagram[..known].copy_from_slice(&head[..known]);
            }
            socket.send_to(&datagram, to).unwrap();
        }
        10_000
    });
    assert_eq!(sent, 10_000);
    assert!(ping(&lab.left, "10.99.0.2"));
    let drops = lab.right.device().drops();
    assert!(drops.invalid > 0 && drops.unknown_peer > 0);
    assert_eq!(lab.right.device().failure(), None);
    // Nothing of it was believed: the endpoint is that of the peer.
    assert_eq!(
        lab.right.device().stats()[0].endpoint,
        Some(lab.left.endpoint())
    );
}

#[test]
fn stream_crosses_a_path_of_smaller_mtu() {
    let lab = Lab::new();
    lab.router.run("ip link set right mtu 1300");
    lab.right.run("ip link set eth0 mtu 1300");
    let there = send_stream(&lab.left, &lab.right, 4 << 20);
    let back = send_stream(&lab.right, &lab.left, 4 << 20);
    assert_eq!((there.sent, back.sent), (there.received, back.received));
}

#[test]
fn wire_carries_no_plaintext() {
    let lab = Lab::new();
    let seen = lab.router.capture(|| {
        assert_eq!(udp_echo(&lab, 1200), 1200);
        assert!(ping(&lab.left, "10.99.0.2"));
    });
    assert!(
        seen.iter().any(|frame| frame.len() > 1200),
        "the capture has the tunnel's datagrams"
    );
    for frame in &seen {
        let has = |needle: &[u8]| frame.windows(needle.len()).any(|window| window == needle);
        assert!(!has(lab::MARK), "payload in the clear");
        assert!(
            !has(&[10, 99, 0, 1, 10, 99, 0, 2]),
            "inner addresses in the clear"
        );
    }
}

#[test]
fn changes_of_other_peers_lose_no_packet() {
    let lab = Lab::new();
    assert!(ping(&lab.left, "10.99.0.2"));
    let others = |count: u8| {
        (3..3 + count).map(|number| {
            let key = PrivateKey::generate().unwrap().public();
            let endpoint = Some(SocketAddr::from(([198, 51, 100, number], 9)));
            peer(key, endpoint, number)
        })
    };
    let right = || peer(lab.right.key.public(), Some(lab.right.endpoint()), 2);
    let all: Vec<_> = std::iter::once(right()).chain(others(63)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                for count in [64, 1, 40, 2] {
                    let began = std::time::Instant::now();
                    lab.left.device().set_peers(all[..count].to_vec()).unwrap();
                    slowest = slowest.max(began.elapsed());
                }
            }
            slowest
        });
        assert_eq!(lab::udp_echoes(&lab, 3000), 3000);
        stop.store(true, Ordering::Relaxed);
        println!("slowest change: {:?}", changing.join().unwrap());
    });
    // The session is the first one.
    assert!(
        lab.left
            .device()
            .stats()
            .iter()
            .any(|peer| peer.rx_bytes > 3000 * 100)
    );
}

#[test]
fn changed_allowed_ips_take_effect_at_once() {
    let lab = Lab::new();
    assert!(ping(&lab.left, "10.99.0.2"));
    lab.left.run("ip addr add 10.244.1.1/32 dev jt0");
    lab.right.run("ip route add 10.244.1.0/24 dev jt0");
    let ping_from = || echo(&lab.left, "10.244.1.1", "10.99.0.2");
    assert!(!ping_from());
    let handshake = lab.right.device().stats()[0].last_handshake;
    let mut left = peer(lab.left.key.public(), Some(lab.left.endpoint()), 1);
    left.allowed_ips.push(([10, 244, 1, 0].into(), 24));
    lab.right.device().set_peers(vec![left]).unwrap();
    assert!(ping_from());
    assert!(
        lab.right.device().stats()[0].last_handshake >= handshake,
        "the session is the same"
    );
    lab.right.device().set_peers(Vec::new()).unwrap();
    assert!(!echo(&lab.left, "10.99.0.1", "10.99.0.2"));
}

#[test]
fn silent_peer_is_greeted_by_the_other() {
    // Only one side knows an address, and the other one has something to say.
    let lab = Lab::without_peers();
    let left = peer(lab.left.key.public(), None, 1);
    lab.right.device().set_peers(vec![left]).unwrap();
    let mut right = peer(lab.right.key.public(), Some(lab.right.endpoint()), 2);
    right.keepalive = Some(Duration::from_secs(25));
    lab.left.device().set_peers(vec![right]).unwrap();
    eventually("a session", || {
        lab.right.device().stats()[0].last_handshake.is_some()
    });
    assert!(ping(&lab.right, "10.99.0.1"));
}

#[test]
fn interface_that_was_down_works_again() {
    let lab = Lab::new();
    assert!(ping(&lab.left, "10.99.0.2"));
    lab.left.run("ip link set jt0 down");
    assert!(!echo(&lab.right, "10.99.0.2", "10.99.0.1"));
    lab.left.run("ip link set jt0 up");
    lab.left.run("ip route replace 10.99.0.0/24 dev jt0");
    assert!(ping(&lab.left, "10.99.0.2"));
    assert_eq!(lab.left.device().failure(), None);
    assert!(lab.left.device().drops().refused >= 1);
}

#[test]
fn peer_that_starts_again_is_met_at_once() {
    let mut lab = Lab::new();
    assert!(ping(&lab.left, "10.99.0.2"));
    lab.right.reopen();
    let left = peer(lab.left.key.public(), Some(lab.left.endpoint()), 1);
    lab.right.device().set_peers(vec![left]).unwrap();
    // The port is another one, which the left side learns from the new handshake.
    assert!(ping(&lab.right, "10.99.0.1"));
    assert_eq!(
        lab.left.device().stats()[0].endpoint,
        Some(lab.right.endpoint())
    );
}

#[test]
fn device_taken_over_loses_no_connection() {
    let mut lab = Lab::new();
    let index = |lab: &Lab| {
        let show = || {
            Command::new("ip")
                .args(["-o", "link", "show", "jt0"])
                .output()
        };
        let shown = String::from_utf8(lab.left.within(show).unwrap().stdout).unwrap();
        shown.split(':').next().unwrap().to_owned()
    };
    let before = index(&lab);
    let listener = lab.right.within(|| TcpListener::bind("10.99.0.2:0"));
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    let stream = lab.left.within(|| TcpStream::connect(address));
    let (stream, other) = (&stream.unwrap(), &listener.accept().unwrap().0);
    let message = vec![7; 1 << 20];
    for _ in 0..3 {
        // Packets sent meanwhile wait in the queues of the interface.
        lab.left.hand_over(|| { stream }.write_all(&[1]).unwrap());
        let right = peer(lab.right.key.public(), Some(lab.right.endpoint()), 2);
        lab.left.device().set_peers(vec![right]).unwrap();
        { other }.read_exact(&mut [0]).unwrap();
        for (mut from, mut to) in [(stream, other), (other, stream)] {
            let mut received = vec![0; message.len()];
            thread::scope(|scope| {
                scope.spawn(|| from.write_all(&message).unwrap());
                to.read_exact(&mut received).unwrap();
            });
            assert!(received == message);
        }
    }
    assert_eq!(index(&lab), before, "the interface is the same");
    assert_eq!(lab.left.device().failure(), None);
}

#[test]
fn descriptors_of_another_device_are_refused() {
    let lab = Lab::new();
    let good = lab.left.config(lab.left.port);
    let resume = |config: &Config, change: &dyn Fn(&mut Descriptors)| {
        let mut descriptors = lab.left.device().descriptors().unwrap();
        change(&mut descriptors);
        lab.left
            .within(|| Device::resume(config, descriptors))
            .err()
    };
    let other_name = Config {
        name: "jt1".to_owned(),
        ..good.clone()
    };
    let other_port = lab.left.config(lab.left.port ^ 1);
    let file = || std::fs::File::open("/dev/null").unwrap().into();
    let tun = |error| matches!(error, Some(Error::Tun { .. }));
    let socket = |error| matches!(error, Some(Error::Socket { .. }));
    assert!(tun(resume(&other_name, &|_| ())));
    assert!(tun(resume(&good, &|fds| fds.queues[1] = file())));
    assert!(socket(resume(&other_port, &|_| ())));
    assert!(socket(resume(&good, &|fds| fds.sockets[1] = file())));
    assert!(socket(resume(&good, &|fds| drop(fds.sockets.pop()))));
    let none = &|fds: &mut Descriptors| {
        fds.queues.clear();
        fds.sockets.clear();
    };
    assert!(socket(resume(&good, none)));
    // The device works on, as other descriptors are its own.
    assert!(ping(&lab.left, "10.99.0.2"));
}

#[test]
fn deleted_interface_is_a_failure() {
    let lab = Lab::new();
    lab.left.run("ip link del jt0");
    eventually("a failure", || lab.left.device().failure().is_some());
}

#[test]
fn taken_interface_or_port_is_refused() {
    let lab = Lab::new();
    let open = |name: &str, port| {
        let config = Config {
            name: name.to_owned(),
            mtu: 1420,
            private_key: PrivateKey::generate().unwrap(),
            port,
            workers: None,
        };
        lab.left.within(|| Device::open(config).map(drop))
    };
    assert!(matches!(open("jt0", 0), Err(Error::Tun { .. })));
    assert!(matches!(
        open("jt1", lab.left.port),
        Err(Error::Socket { .. })
    ));
    assert!(matches!(
        open("name-that-is-too-long", 0),
        Err(Error::Tun { .. })
    ));
    open("jt1", 0).unwrap();
}

#[test]
fn standard_peer_talks_to_the_device() {
    lab::with_wireguard_go(|lab| {
        assert!(ping(&lab.left, "10.99.0.2"));
        let sent = send_stream(&lab.left, &lab.right, 16 << 20);
        let back = send_stream(&lab.right, &lab.left, 16 << 20);
        assert_eq!((sent.sent, back.sent), (sent.received, back.received));
        lab.left.device().force_handshakes();
        assert!(ping(&lab.right, "10.99.0.1"));
    });
}
