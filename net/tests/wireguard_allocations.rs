//! The data plane allocates nothing for a packet.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    net::{SocketAddr, UdpSocket},
    num::NonZero,
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use jaco_net::{
    netns::Namespace,
    wireguard::{Config, Device, Peer, PrivateKey},
};

/// Allocations of all threads.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

#[expect(
    unsafe_code,
    reason = "the trait of an allocator is unsafe to implement"
)]
// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of this function, which is that of the callee.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this function, which is that of the callee.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn run(namespace: &Namespace, command: &str) {
    let mut words = command.split_whitespace();
    let mut process = Command::new(words.next().unwrap());
    let status = namespace.within(|| process.args(words).status().unwrap());
    assert!(status.unwrap().success(), "{command}");
}

/// A device at `192.0.2.{number}`, whose address in the tunnel is `10.99.0.{number}`.
fn open(namespace: &Namespace, number: u8, key: PrivateKey) -> Device {
    run(
        namespace,
        &format!("ip addr add 192.0.2.{number}/24 dev eth0"),
    );
    run(namespace, "ip link set eth0 up");
    let config = Config {
        name: "jt0".to_owned(),
        mtu: 1420,
        private_key: key,
        port: 0,
        workers: NonZero::new(2),
    };
    let device = namespace.within(|| Device::open(config)).unwrap().unwrap();
    run(
        namespace,
        &format!("ip addr add 10.99.0.{number}/24 dev jt0"),
    );
    run(namespace, "ip link set jt0 up");
    device
}

#[test]
fn packets_need_no_allocation() {
    let (left, right) = (Namespace::create().unwrap(), Namespace::create().unwrap());
    let other = std::os::fd::AsRawFd::as_raw_fd(right.file());
    let other = format!("/proc/{}/fd/{other}", std::process::id());
    run(
        &left,
        &format!("ip link add eth0 type veth peer name eth0 netns {other}"),
    );
    let keys = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let devices = [
        open(&left, 1, keys[0].clone()),
        open(&right, 2, keys[1].clone()),
    ];
    for (device, other, number) in [(0, 1, 2), (1, 0, 1)] {
        let peer = Peer {
            public_key: keys[other].public(),
            endpoint: Some(SocketAddr::from((
                [192, 0, 2, number],
                devices[other].port(),
            ))),
            allowed_ips: vec![([10, 99, 0, number].into(), 32)],
            keepalive: Some(Duration::from_secs(25)),
        };
        devices[device].set_peers(vec![peer]).unwrap();
    }
    let bind = |namespace: &Namespace, number: u8| {
        let socket =
            namespace.within(|| UdpSocket::bind(SocketAddr::from(([10, 99, 0, number], 0))));
        let socket = socket.unwrap().unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        socket
    };
    let (client, server) = (bind(&left, 1), bind(&right, 2));
    client.connect(server.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 2000];
    let mut exchange = |count: usize| {
        for _ in 0..count {
            client.send(&[7; 1300]).unwrap();
            let (len, from) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..len], from).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 1300);
        }
    };
    // The handshake and the first packet of each thread may allocate.
    exchange(200);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    exchange(2000);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert!(
        allocations < 50,
        "{allocations} allocations for 8,000 packets"
    );
}
