//! A container engine that restarts, and writes its rules before ours again.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use jaco_chaos::time_limits;

use crate::{
    fixture::{Running, builder},
    held::Held,
    traffic::{Endpoint, PORT},
};

/// Wait for the answer to one datagram.
const ANSWER: Duration = Duration::from_millis(50);
/// Pause between two flows, which the kernel remembers for some time.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest time without an answer on a machine that runs nothing else.
const GOAL: Duration = Duration::from_secs(1);
/// Longest time without an answer that passes the test on a busy machine.
const LONGEST: Duration = Duration::from_secs(10);
/// The node whose engine restarts.
const VICTIM: u8 = 2;

/// New flows between two containers, one after the other.
struct Flows {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Duration, u32)>,
}

impl Flows {
    fn start([from, to]: [Arc<Endpoint>; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let target = SocketAddr::from((to.address, PORT));
        let thread = std::thread::spawn(move || {
            let run = || {
                let (mut last, mut gap, mut answers) = (Instant::now(), Duration::ZERO, 0);
                while !stopped.load(Ordering::Relaxed) {
                    if is_answered(&from, target) {
                        gap = gap.max(last.elapsed());
                        last = Instant::now();
                        answers += 1;
                        std::thread::sleep(PAUSE);
                    }
                }
                (gap.max(last.elapsed()), answers)
            };
            from.namespace.within(run).unwrap()
        });
        Self { stop, thread }
    }

    /// Ends the flows; returns the longest time without an answer, and the number of answers.
    fn stop(self) -> (Duration, u32) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Whether a datagram from a new port gets an answer.
fn is_answered(from: &Endpoint, target: SocketAddr) -> bool {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(ANSWER)).unwrap();
    let own = format!("{} {}", from.scope.0, from.scope.1);
    socket.send_to(own.as_bytes(), target).is_ok() && socket.recv_from(&mut [0; 128]).is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_engine_cuts_no_connection() {
    let mut running = Running::of(builder(3).live_restore(true), 3).await;
    let containers = running.found.len();
    let pairs = [[1, 3], [1, VICTIM], [VICTIM, 1]];
    let [one, other] = running.pair([1, 3]);
    let mut beside = Held::open(&one, &other);
    let [near, far] = running.pair([VICTIM, 3]);
    let mut through = Held::open(&near, &far);
    let flows: Vec<_> = pairs
        .into_iter()
        .map(|hosts| (hosts, Flows::start(running.pair(hosts))))
        .collect();
    for round in 1..=2 {
        let start = Instant::now();
        running.lab.node_mut(VICTIM).stop_engine().await.unwrap();
        let stopped = start.elapsed();
        running.lab.node_mut(VICTIM).start_engine().unwrap();
        running.lab.node(VICTIM).engine().await.unwrap();
        println!(
            "round {round}: stopped {stopped:?}, answers after {:?}",
            start.elapsed()
        );
        running.connect().await;
        assert_eq!(running.found.len(), containers);
        beside.assert_alive();
        through.assert_alive();
        running.assert_isolated().await;
    }
    for (hosts, flows) in flows {
        let (gap, answers) = flows.stop();
        let what = format!("{hosts:?}: {answers} new flows, longest time without an answer");
        time_limits::time(&what, gap, GOAL).unwrap();
        assert!(gap < LONGEST, "{hosts:?}: no answer for {gap:?}");
    }
}
