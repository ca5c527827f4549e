//! A follower that fell far behind catches up by a snapshot while the leader keeps accepting
//! writes.
//!
//! In full, after `cargo build --release -p jaco-cli -p jaco-chaos --bins`, on a machine that runs
//! nothing else: `JACO_BEHIND=200000 JACO_WRITERS=64 JACO_CATCH_UP_SHARE=80 cargo test --release -p
//! jaco-chaos --test cluster catch_up`. `JACO_BEHIND` is the number of entries the follower misses,
//! `JACO_WRITERS` the number of concurrent clients, `JACO_CATCH_UP_SHARE` the share of its rate, in
//! per cent, that the leader must keep meanwhile; unless given, the share is only printed. If it is
//! given, the follower gets a core of its own and all others share another one, so that the test
//! measures the cost of the catch-up for the leader and not contention for a processor.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jaco_chaos::{Api, Lab, size, test_permits, until};
use rustix::{
    io::Errno,
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use tokio::task::JoinSet;

/// Far more than any step here takes.
const LIMIT: Duration = Duration::from_secs(1800);
/// Duration of the measurement of the rate, in full and where it is only printed.
const BEFORE: Duration = Duration::from_secs(10);
const BEFORE_SHORT: Duration = Duration::from_secs(2);
/// Number of missing entries with which a follower counts as caught up: those in flight.
const NEAR: u64 = 500;
/// Number of different rows that are written; the audit trail grows with every write.
const ROWS: u64 = 10_000;

/// Clients that write in a closed loop.
struct Load {
    accepted: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl Load {
    fn start(api: &Api, clients: u64) -> Self {
        let (accepted, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut set = JoinSet::new();
        for client in 0..clients {
            let (api, accepted, stop) = (api.clone(), Arc::clone(&accepted), Arc::clone(&stop));
            set.spawn(async move {
                let mut n = client;
                while !stop.load(Ordering::Acquire) {
                    let name = format!("r{}.example", n % ROWS);
                    api.login(&name, &format!("u{n}"), "-").await.unwrap();
                    accepted.fetch_add(1, Ordering::AcqRel);
                    n += clients;
                }
            });
        }
        Self {
            accepted,
            stop,
            clients: set,
        }
    }

    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Acquire)
    }

    async fn stop(mut self) {
        self.stop.store(true, Ordering::Release);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
    }
}

/// Confines a process with all its threads to some cores; new threads inherit this.
fn confine(pid: u32, cores: &CpuSet) {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let thread = thread.unwrap().file_name();
        let id = thread.to_str().unwrap().parse().unwrap();
        match sched_setaffinity(Pid::from_raw(id), cores) {
            Ok(()) | Err(Errno::SRCH) => {} // the thread has ended since
            Err(error) => panic!("thread {id} of {pid}: {error}"),
        }
    }
}

fn core(index: usize) -> CpuSet {
    let mut cores = CpuSet::new();
    cores.set(index);
    cores
}

/// Confines this process to one core until dropped, so that later tests have all cores again.
struct Confined(CpuSet);

impl Confined {
    fn to(index: usize) -> Self {
        let before = sched_getaffinity(None).unwrap();
        confine(std::process::id(), &core(index));
        Self(before)
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        confine(std::process::id(), &self.0);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a printed measurement")]
fn rate(writes: u64, time: Duration) -> f64 {
    writes as f64 / time.as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lagging_follower_catches_up_by_snapshot_under_load() {
    let _permits = test_permits::exclusive().await;
    let behind: u64 = size("JACO_BEHIND", 9000);
    let mut lab = Lab::builder().nodes(3).start().await.unwrap();
    lab.join_all().await.unwrap();
    lab.wait_voters(3).await.unwrap();
    let leader = lab.leader().await.unwrap();
    let follower = lab.others(&[leader])[0];
    let share_wanted: Option<f64> = std::env::var("JACO_CATCH_UP_SHARE")
        .ok()
        .map(|text| text.parse().unwrap());
    let _confined = share_wanted.map(|_| {
        for node in lab.nodes() {
            let own = usize::from(node.index() == follower);
            confine(node.pid().unwrap(), &core(own));
        }
        Confined::to(0)
    });
    let api = lab.node(leader).api().clone();
    let load = Load::start(&api, size("JACO_WRITERS", 64));
    let glance = if share_wanted.is_some() {
        BEFORE
    } else {
        BEFORE_SHORT
    };
    let begun = Instant::now();
    tokio::time::sleep(glance).await;
    println!(
        "three nodes: {:.0} writes/s",
        rate(load.accepted(), begun.elapsed())
    );

    // A joining node may have begun with a snapshot.
    let begun_with = lab.node(leader).log().matches("snapshot delivered").count();
    lab.node_mut(follower).kill().unwrap();
    let (from, stopped) = (load.accepted(), Instant::now());
    until("it is far behind", LIMIT, || async {
        let written = load.accepted() - from;
        if written >= behind {
            Ok(())
        } else {
            Err(written)
        }
    })
    .await
    .unwrap();
    let whole = rate(load.accepted() - from, stopped.elapsed());
    let (from, start) = (load.accepted(), Instant::now());
    tokio::time::sleep(glance).await;
    let before = rate(load.accepted() - from, start.elapsed());
    println!("without it: {whole:.0} writes/s, {before:.0} of late");

    let (from, start) = (load.accepted(), Instant::now());
    lab.node_mut(follower).spawn().unwrap();
    if share_wanted.is_some() {
        confine(lab.node(follower).pid().unwrap(), &core(1));
    }
    let own = lab.node(follower).api().clone();
    until("it has caught up", LIMIT, || async {
        let newest = api.status().await.map_err(|error| error.to_string())?;
        let seen = own.status().await.map_err(|error| error.to_string())?;
        let lag = newest.raft_index.saturating_sub(seen.applied_index);
        if lag <= NEAR {
            Ok(())
        } else {
            Err(format!("{lag} entries behind"))
        }
    })
    .await
    .unwrap();
    let (took, during) = (start.elapsed(), load.accepted() - from);
    let during = rate(during, took);
    let share = 100.0 * during / before;
    println!(
        "caught up {behind} entries in {took:?}; {during:.0} writes/s meanwhile, {share:.0} % of before"
    );
    // The follower shows what it installed before the leader logs that it was delivered.
    let delivered = until("a snapshot", Duration::from_secs(60), || async {
        let log = lab.node(leader).log();
        match log.matches("snapshot delivered").count() - begun_with {
            0 => Err("it was no snapshot"),
            delivered => Ok(delivered),
        }
    })
    .await
    .unwrap();
    println!("{delivered} snapshots");
    load.stop().await;
    lab.wait_same_state().await.unwrap();
    let led = lab.leader().await.unwrap();
    assert_eq!(led, leader, "the leader changed");
    let wanted = share_wanted.unwrap_or(0.0);
    assert!(share >= wanted, "{share:.0} % of {before:.0} writes/s");
}
