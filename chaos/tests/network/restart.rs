//! Packets between machines while the daemon of one is replaced or restarted.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jaco_chaos::{lab::Node, time_limits};

use crate::{
    fixture::{self, Running},
    held::Held,
    traffic::Endpoint,
};

/// Ports of the datagrams in the two directions.
const PORTS: [u16; 2] = [9200, 9201];
/// Time between two datagrams.
const INTERVAL: Duration = Duration::from_millis(2);
/// Promised longest time without a datagram.
const GAP: Duration = Duration::from_millis(200);
/// Longest wait for a datagram before the stream counts as cut.
const CUT: Duration = Duration::from_secs(30);
/// The machine whose daemon ends.
const VICTIM: u8 = 1;

/// Datagrams from one container to another, all the time.
struct Stream {
    ends: Arc<AtomicBool>,
    sender: JoinHandle<()>,
    receiver: JoinHandle<Duration>,
}

impl Stream {
    fn start(from: &Endpoint, to: &Endpoint, port: u16) -> Self {
        let bind = |address| UdpSocket::bind(SocketAddr::from((address, port)));
        let receiver = to.namespace.within(|| bind(to.address)).unwrap().unwrap();
        let sender = from
            .namespace
            .within(|| bind(from.address))
            .unwrap()
            .unwrap();
        sender.connect((to.address, port)).unwrap();
        receiver.set_read_timeout(Some(CUT)).unwrap();
        receiver.connect((from.address, port)).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&ends);
        let sender = thread::spawn(move || {
            while !ending.load(Ordering::Relaxed) {
                // An error is that of an earlier datagram.
                let _ = sender.send(b"x");
                thread::sleep(INTERVAL);
            }
            for _ in 0..20 {
                let _ = sender.send(b"end");
            }
        });
        let receiver = thread::spawn(move || {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            let mut buffer = [0; 8];
            while receiver.recv(&mut buffer).expect("datagrams go on") != 3 {
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            longest
        });
        Self {
            ends,
            sender,
            receiver,
        }
    }

    /// Longest time between two datagrams.
    fn end(self) -> Duration {
        self.ends.store(true, Ordering::Relaxed);
        self.sender.join().unwrap();
        self.receiver.join().unwrap()
    }
}

/// Number of the mesh device's link.
fn link(node: &Node) -> String {
    let shown = node
        .command("ip")
        .args(["-o", "link", "show", "jaco0"])
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    shown.split(':').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_go_on_while_a_daemon_is_replaced() {
    let mut running = Running::start(2).await;
    let [here, there] = running.pair([VICTIM, 2]);
    let mut held = Held::open(&here, &there);
    let device = link(running.lab.node(VICTIM));
    assert!(!device.is_empty());
    running.lab.node_mut(VICTIM).keep_descriptors().unwrap();
    for what in ["replaced", "replaced again", "restarted"] {
        let streams = [
            Stream::start(&here, &there, PORTS[0]),
            Stream::start(&there, &here, PORTS[1]),
        ];
        let node = running.lab.node_mut(VICTIM);
        match what {
            "restarted" => node.restart().await.unwrap(),
            _ => node.replace().await.unwrap(),
        }
        fixture::all_ready(&running.lab).await;
        held.assert_alive();
        for (direction, stream) in ["sent", "received"].into_iter().zip(streams) {
            let gap = stream.end();
            time_limits::time(&format!("{what}, {direction}"), gap, GAP).unwrap();
        }
        assert_eq!(link(running.lab.node(VICTIM)), device, "{what}");
    }
    running.connect().await;
    running.assert_isolated().await;
}
