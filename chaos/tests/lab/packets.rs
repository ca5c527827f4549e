//! Delivery of packets on links that are cut or impaired.

use std::{
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use jaco_chaos::{
    Lab,
    lab::{Impairment, netns},
    test_permits,
};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

/// Longer than any step here takes, even on a slow machine.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);
const PORT: u16 = 9000;
/// Number sent last, over a healed link: every earlier packet has arrived by then, or is lost.
const END: u32 = u32::MAX;

/// Sockets of two nodes.
struct Pair {
    lab: Lab,
    sockets: [UdpSocket; 2],
    addresses: [SocketAddr; 2],
}

impl Pair {
    async fn new() -> Self {
        let lab = Lab::builder().nodes(2).seed(1).start().await.unwrap();
        let addresses = [1, 2].map(|index| (lab.node(index).address(), PORT).into());
        let sockets = [1, 2].map(|index| {
            let bind = || UdpSocket::bind((lab.node(index).address(), PORT));
            let socket = netns::within(lab.node(index).namespace(), bind)
                .unwrap()
                .unwrap();
            socket.set_read_timeout(Some(RECEIVE_TIMEOUT)).unwrap();
            // Room for all packets of a test, however late its reader runs.
            set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
            socket
        });
        Self {
            lab,
            sockets,
            addresses,
        }
    }

    /// Sends numbers from one node to the other, then heals the link; returns those that arrived,
    /// in order.
    fn send(&mut self, from: usize, count: u32) -> Vec<u32> {
        let arrived = self.listen(1 - from, |number| number != END);
        for number in 0..count {
            self.send_one(from, number);
            std::thread::sleep(Duration::from_micros(100));
        }
        let was_impaired = !self.lab.network().impairments().is_empty();
        self.lab.heal_all().unwrap();
        if was_impaired {
            // An impairment without effect makes the last packet queue behind the others.
            let not = Impairment::default();
            self.lab.impair(&[1], &[2], not).unwrap();
        }
        self.send_one(from, END);
        let arrived = arrived.join().unwrap();
        self.lab.heal_all().unwrap();
        arrived
    }

    /// Receives while `wanted` holds, on a thread: an unread socket would drop packets.
    fn listen(
        &self,
        at: usize,
        mut wanted: impl FnMut(u32) -> bool + Send + 'static,
    ) -> std::thread::JoinHandle<Vec<u32>> {
        let (socket, sender) = (
            self.sockets[at].try_clone().unwrap(),
            self.addresses[1 - at],
        );
        std::thread::spawn(move || {
            let numbers = std::iter::repeat_with(|| receive(&socket, sender));
            numbers.take_while(|number| wanted(*number)).collect()
        })
    }

    fn send_one(&self, from: usize, number: u32) {
        let to = self.addresses[1 - from];
        self.sockets[from]
            .send_to(&number.to_be_bytes(), to)
            .unwrap();
    }

    fn receive(&self, at: usize) -> u32 {
        receive(&self.sockets[at], self.addresses[1 - at])
    }

    /// Time from node 1 to node 2 and back.
    fn round_trip(&self) -> Duration {
        let start = Instant::now();
        self.send_one(0, 1);
        self.receive(1);
        self.send_one(1, 2);
        self.receive(0);
        start.elapsed()
    }
}

fn receive(socket: &UdpSocket, sender: SocketAddr) -> u32 {
    let mut number = [0; 4];
    let (length, from) = socket.recv_from(&mut number).unwrap();
    assert_eq!((length, from), (4, sender));
    u32::from_be_bytes(number)
}

#[tokio::test]
async fn cut_drops_all_packets_until_healed() {
    let _permits = test_permits::heavy().await;
    let mut pair = Pair::new().await;
    let all: Vec<u32> = (0..100).collect();
    assert_eq!(pair.send(0, 100), all);

    pair.lab.cut(&[1], &[2]).unwrap();
    assert!(pair.send(0, 100).is_empty());
    pair.lab.cut(&[1], &[2]).unwrap();
    assert!(pair.send(1, 100).is_empty());

    pair.lab.cut_one_way(&[1], &[2]).unwrap();
    assert_eq!(pair.send(1, 100), all);
    pair.lab.cut_one_way(&[1], &[2]).unwrap();
    assert!(pair.send(0, 100).is_empty());

    pair.lab.isolate(&[2]).unwrap();
    assert!(pair.send(0, 100).is_empty());
    assert_eq!(pair.send(0, 100), all);
}

#[tokio::test]
async fn cut_takes_precedence_over_impairment() {
    let _permits = test_permits::heavy().await;
    let mut pair = Pair::new().await;
    let slow = Impairment {
        delay: Duration::from_millis(1),
        ..Impairment::default()
    };
    pair.lab.impair(&[1], &[2], slow).unwrap();
    pair.lab.cut(&[1], &[2]).unwrap();
    assert!(pair.send(0, 50).is_empty());
    assert!(pair.lab.network().cuts().is_empty() && pair.lab.network().impairments().is_empty());
}

#[tokio::test]
async fn loss_applies_to_each_direction() {
    let _permits = test_permits::heavy().await;
    let mut pair = Pair::new().await;
    for from in [0, 1] {
        let lossy = Impairment {
            loss: 0.2,
            ..Impairment::default()
        };
        pair.lab.impair(&[1], &[2], lossy).unwrap();
        let arrived = pair.send(from, 2000);
        // Five standard deviations.
        assert!((1510..=1690).contains(&arrived.len()), "{}", arrived.len());
        assert!(arrived.is_sorted());
    }
}

#[tokio::test]
async fn delay_applies_to_each_direction() {
    let _permits = test_permits::heavy().await;
    let mut pair = Pair::new().await;
    let before = (0..20).map(|_| pair.round_trip()).min().unwrap();
    let delay = Duration::from_millis(60);
    pair.lab
        .impair(
            &[1],
            &[2],
            Impairment {
                delay,
                ..Impairment::default()
            },
        )
        .unwrap();
    let during: Vec<Duration> = (0..10).map(|_| pair.round_trip()).collect();
    pair.lab.heal(&[1], &[2]).unwrap();
    let after = (0..20).map(|_| pair.round_trip()).min().unwrap();
    println!("round trips: {before:?} before, {during:?} during, {after:?} after");
    assert!(during.iter().all(|took| *took >= 2 * delay));
    // The minimum of several is independent of the load of the machine.
    assert!(before < delay && after < delay);
}

#[tokio::test]
async fn packets_are_reordered_and_duplicated() {
    let _permits = test_permits::heavy().await;
    let mut pair = Pair::new().await;
    let shuffled = Impairment {
        reorder: 0.3,
        ..Impairment::default()
    };
    pair.lab.impair(&[1], &[2], shuffled).unwrap();
    let mut left = 300;
    let arrived = pair.listen(1, move |_| {
        left -= 1;
        left >= 0
    });
    for number in 0..=300 {
        pair.send_one(0, number);
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut arrived = arrived.join().unwrap();
    assert!(!arrived.is_sorted());
    arrived.sort_unstable();
    assert_eq!(arrived, (0..300).collect::<Vec<_>>());

    let doubled = Impairment {
        duplicate: 1.0,
        ..Impairment::default()
    };
    pair.lab.impair(&[1], &[2], doubled).unwrap();
    let arrived = pair.listen(1, |number| number != END);
    (0..10)
        .chain([END])
        .for_each(|number| pair.send_one(0, number));
    let twice: Vec<u32> = (0..20).map(|n| n / 2).collect();
    assert_eq!(arrived.join().unwrap(), twice);
}
