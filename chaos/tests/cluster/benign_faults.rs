//! Benign faults, which must not move any replica.

use std::time::{Duration, Instant};

use jaco_chaos::{Lab, Rng, Workload, lab::Impairment, size, test_permits};

use crate::setup::{cluster, containers, running, stateless};

#[derive(Clone, Copy, Debug)]
enum BenignFault {
    ShortPauses,
    Loss,
    Delay,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_pauses_loss_and_delay_move_nothing() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = cluster(3, rng.number()).await;
    lab.wait_voters(3).await.unwrap();
    let workload = stateless(6);
    lab.node(1).api().apply(&workload).await.unwrap();
    running(&lab, 1, &workload, |_| true).await;
    for benign_fault in [
        BenignFault::ShortPauses,
        BenignFault::Loss,
        BenignFault::Delay,
    ] {
        nothing_moves(&mut lab, &workload, benign_fault, &mut rng).await;
    }
}

async fn nothing_moves(
    lab: &mut Lab,
    workload: &Workload,
    benign_fault: BenignFault,
    rng: &mut Rng,
) {
    let before = containers(lab).await;
    let start = Instant::now();
    let how = match benign_fault {
        BenignFault::ShortPauses => Impairment::default(),
        BenignFault::Loss => Impairment {
            loss: 0.05,
            ..Impairment::default()
        },
        BenignFault::Delay => Impairment {
            delay: Duration::from_millis(200),
            ..Impairment::default()
        },
    };
    if how != Impairment::default() {
        lab.impair_all(how).unwrap();
    }
    let end = start + Duration::from_secs(size("JACO_CALM_SECONDS", 10));
    while Instant::now() < end {
        match benign_fault {
            BenignFault::ShortPauses => pause_one(lab, rng).await,
            BenignFault::Loss | BenignFault::Delay => {
                tokio::time::sleep(Duration::from_secs(1)).await
            }
        }
        assert_eq!(containers(lab).await, before, "{benign_fault:?}");
    }
    lab.heal_all().unwrap();
    let replicas = running(lab, 1, workload, |_| true).await;
    for replica in replicas {
        let there = before[&replica.host]
            .iter()
            .any(|container| container.replica == replica.id);
        assert!(
            there,
            "{benign_fault:?} moved {} to {}",
            replica.id, replica.host
        );
    }
    lab.wait_same_state().await.unwrap();
    println!("{benign_fault:?}: nothing moved in {:?}", start.elapsed());
}

/// Pauses a random node for up to five seconds, then waits for as long.
async fn pause_one(lab: &mut Lab, rng: &mut Rng) {
    let limit = Duration::from_millis(4900);
    let index = *rng.choose(&[1, 2, 3]).unwrap();
    lab.node_mut(index).pause().unwrap();
    tokio::time::sleep(rng.below(limit)).await;
    lab.node_mut(index).resume().unwrap();
    tokio::time::sleep(rng.below(limit)).await;
}
