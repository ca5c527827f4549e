//! A path between two machines that drops large packets without notice.

use std::time::Instant;

use jaco_chaos::{Rng, lab::Impairment, size};

use crate::{
    fixture::Running,
    transfer::{random_bytes, transfer},
};

/// Largest packet in bytes that passes; a full packet of a container takes up to 1480.
const LARGEST: usize = 1300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_cross_a_path_that_drops_large_packets() {
    let mut rng = Rng::announced();
    let mut running = Running::start(2).await;
    let narrow = Impairment {
        largest: Some(LARGEST),
        ..Impairment::default()
    };
    running.lab.impair(&[1], &[2], narrow).unwrap();
    let bytes = random_bytes(&mut rng, size("JACO_MEBIBYTES", 64));
    for hosts in [[1, 2], [2, 1]] {
        let [from, to] = running.pair(hosts);
        let start = Instant::now();
        assert!(transfer(&from, &to, &bytes));
        let took = start.elapsed();
        println!("{} MiB from n{} in {took:?}", bytes.len() >> 20, hosts[0]);
    }
    running.connect().await;
    running.assert_isolated().await;
}
