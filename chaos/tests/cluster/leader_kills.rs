//! Repeated kills of the leader while clients write.

use std::time::{Duration, Instant};

use jaco_chaos::{Registers, Rng, size, test_permits, time_limits};

use crate::setup::three_voters;

/// Far more than any election takes.
const LIMIT: Duration = Duration::from_secs(60);
/// Limit of the time until writes are accepted again, with the daemon's default timers.
const WRITES_WITHIN: Duration = Duration::from_secs(3);
const CLIENTS: u32 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_leader_kills() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = three_voters(rng.number()).await;
    let apis = lab.nodes().iter().map(|node| node.api().clone()).collect();
    let clients = Registers::start(apis, CLIENTS, rng.number());
    let start = Instant::now();
    clients.next_accepted(start, LIMIT).await.unwrap();

    let mut times = Vec::new();
    for _ in 0..size("JACO_KILLS", 3) {
        // At a random point of the leader's work.
        tokio::time::sleep(rng.below(Duration::from_secs(1))).await;
        let leader = lab.leader().await.unwrap();
        let killed = Instant::now();
        lab.node_mut(leader).kill().unwrap();
        times.push(clients.next_accepted(killed, LIMIT).await.unwrap());
        lab.node_mut(leader).start().await.unwrap();
        lab.wait_members(3).await.unwrap();
    }
    let (accepted, took) = (clients.accepted(), start.elapsed());
    let outcome = clients.stop().await.unwrap();
    let (operations, refused) = outcome.counts();
    println!("{accepted} writes accepted in {took:?}; {operations} operations, {refused} refused");
    println!("errors: {:?}", outcome.errors);
    let in_time = time_limits::times("time to the next accepted write", times, WRITES_WITHIN);
    lab.wait_members(3).await.unwrap();
    lab.wait_same_state().await.unwrap();
    for node in lab.nodes() {
        outcome.check(&node.api().linearizable()).await.unwrap();
    }
    in_time.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_leader_transfers_leadership_before_exit() {
    let _permits = test_permits::exclusive().await;
    let mut lab = three_voters(Rng::announced().number()).await;
    for _ in 0..3 {
        let leader = lab.leader().await.unwrap();
        lab.node_mut(leader).stop().await.unwrap();
        // No wait for an election here: the new leader was elected while the old one still ran.
        let mut leads = Vec::new();
        for node in lab.nodes().iter().filter(|node| node.is_up()) {
            let status = node.api().status().await.unwrap();
            leads.push((node.host(), status.leader_hostname));
        }
        let own = |(host, said): &(&str, String)| host == said;
        assert_eq!(leads.iter().filter(|l| own(l)).count(), 1, "{leads:?}");
        lab.node_mut(leader).start().await.unwrap();
        lab.wait_members(3).await.unwrap();
    }
}
