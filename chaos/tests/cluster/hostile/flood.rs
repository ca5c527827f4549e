//! Floods of connections whose handshake is never finished, from many addresses.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use jaco_chaos::{
    Lab, Rng,
    lab::{netns, network},
    size, test_permits,
};
use jaco_net::{pki::ClusterCa, quic::Settings};

use super::{
    HUB,
    attacker::{BackgroundClients, endpoint, forged, memory, peer_address},
    cluster, wait_for_log,
};

/// Allowed growth of a daemon's memory, in MiB.
const MEMORY_MORE: u64 = 256;

/// Lets a machine send from addresses that are not its own. It never gets an answer: answers go to
/// unused addresses, or to the real owners of the addresses.
fn spoof_addresses(lab: &Lab, index: u8, addresses: &[Ipv4Addr]) {
    let node = lab.node(index);
    netns::within(node.namespace(), || {
        std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1")
    })
    .unwrap()
    .unwrap();
    for address in addresses {
        let mut command = node.command("ip");
        command.args(["address", "add", &format!("{address}/32"), "dev", "lo"]);
        assert!(command.status().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_do_not_disturb_members() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = cluster(1, false, rng.number()).await;
    lab.node_mut(4).kill().unwrap();
    let leader = lab.leader().await.unwrap();
    let restarted = lab.others(&[leader, 4])[0];
    let writers = lab.others(&[restarted, 4]);
    let clients = BackgroundClients::start(&lab, &writers, rng.number()).await;
    let before = memory(&lab, leader);

    let namespace = lab.node(4).namespace().to_owned();
    let outsider_addresses = (100..200).map(|last| Ipv4Addr::new(172, 31, 99, last));
    let members = lab.others(&[leader, 4]).into_iter().map(network::address);
    let sources: Vec<Ipv4Addr> = outsider_addresses.chain(members).collect();
    spoof_addresses(&lab, 4, &sources);
    let ca = ClusterCa::generate(std::time::SystemTime::now()).unwrap();
    let files = forged(&ca, "n9", HUB);
    let settings = Settings {
        handshake: Duration::from_secs(600),
        idle: Duration::from_secs(600),
        ..Settings::default()
    };
    let count: usize = size("JACO_HALF_OPEN", 500);
    let mut attempts = tokio::task::JoinSet::new();
    let target = peer_address(&lab, leader);
    let host = lab.node(leader).host().to_owned();
    let start = Instant::now();
    for source in &sources {
        let from = (namespace.as_str(), IpAddr::V4(*source));
        let endpoint = endpoint(&lab, from, &files, leader, settings.clone());
        for _ in 0..count.div_ceil(sources.len()) {
            let (endpoint, host) = (endpoint.clone(), host.clone());
            attempts.spawn(async move { endpoint.dial(&host, target).await.map(drop) });
        }
        tokio::task::yield_now().await;
    }
    println!("{} begun in {:?}", attempts.len(), start.elapsed());
    // They arrived, and timed out.
    wait_for_log(&lab, leader, &["the handshake did not end in time"]).await;
    clients
        .check_unaffected(&lab, "half-open connections")
        .await;

    // A member that restarts meanwhile can connect, although its address is being spoofed.
    let start = Instant::now();
    lab.node_mut(restarted).kill().unwrap();
    lab.node_mut(restarted).start().await.unwrap();
    lab.wait_members(3).await.unwrap();
    println!("a member is back after {:?}", start.elapsed());
    clients
        .check_unaffected(&lab, "a restart among half-open connections")
        .await;
    let during = memory(&lab, leader);
    let ended = std::iter::from_fn(|| attempts.try_join_next()).count();
    println!("{ended} of them ended; memory {before} MiB before, {during} MiB during");
    assert!(
        during < before + MEMORY_MORE,
        "{before} MiB, then {during} MiB"
    );

    // Connections whose handshake finishes, and is refused.
    let address = IpAddr::V4(lab.node(4).address());
    let endpoint = endpoint(
        &lab,
        (&namespace, address),
        &files,
        leader,
        Settings::default(),
    );
    let mut finished = tokio::task::JoinSet::new();
    for _ in 0..count.div_ceil(10) {
        let (endpoint, host) = (endpoint.clone(), host.clone());
        finished.spawn(async move { endpoint.dial(&host, target).await.map(drop) });
    }
    while let Some(ended) = finished.join_next().await {
        assert!(ended.unwrap().is_err());
    }
    clients.check_unaffected(&lab, "refused connections").await;
    drop(attempts);
    let lines = lab.node(leader).log();
    let lines = lines
        .lines()
        .filter(|line| line.contains("refused"))
        .count();
    println!("{lines} lines about it");
    assert!(lines < 500, "{lines} lines");
    clients.stop(&lab, &[1, 2, 3]).await;
}
