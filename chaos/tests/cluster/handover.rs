//! A daemon that replaces the running one takes over its listening sockets: no request is lost.

use jaco_chaos::{Rng, rng, size, test_permits};

use crate::{
    load::{Load, serves, web},
    setup::cluster,
};

/// Clients, each of which sends one request at a time.
const CLIENTS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_daemon_loses_no_request() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = cluster(1, rng.number()).await;
    let name = format!("handover-{:08x}", rng::unique() >> 32);
    let request = web(&name, "placement: pack", 1);
    lab.node(1).api().deploy().apply(request).await.unwrap();
    serves(&lab, 1).await;
    let loads: Vec<Load> = (0..CLIENTS).map(|_| Load::patient(&lab, 1)).collect();
    for _ in 0..size("JACO_REPLACEMENTS", 3) {
        let pid = lab.node(1).pid().unwrap();
        lab.node_mut(1).replace().await.unwrap();
        assert_ne!(lab.node(1).pid().unwrap(), pid);
    }
    let (mut requests, mut lost) = (0, 0);
    for load in loads {
        let outcomes = load.stop().await;
        requests += outcomes.len();
        lost += outcomes.iter().filter(|(_, good)| !good).count();
    }
    println!("{requests} requests, {lost} lost");
    assert_eq!(lost, 0);
}
