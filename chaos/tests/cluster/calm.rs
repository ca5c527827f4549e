//! Benign faults, which must not move any replica.

use std::time::{Duration, Instant};

use jaco_chaos::{Lab, Rng, Workload, lab::Impairment, turn};

use crate::{
    size,
    world::{cluster, containers, running, stateless},
};

#[derive(Clone, Copy, Debug)]
enum Nuisance {
    ShortPauses,
    Loss,
    Delay,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_pauses_loss_and_delay_move_nothing() {
    let _turn = turn::alone().await;
    let mut rng = Rng::announced();
    let mut lab = cluster(3, rng.number()).await;
    lab.wait_voters(3).await.unwrap();
    let workload = stateless(6);
    lab.node(1).api().apply(&workload).await.unwrap();
    running(&lab, 1, &workload, |_| true).await;
    for nuisance in [Nuisance::ShortPauses, Nuisance::Loss, Nuisance::Delay] {
        nothing_moves(&mut lab, &workload, nuisance, &mut rng).await;
    }
}

async fn nothing_moves(lab: &mut Lab, workload: &Workload, nuisance: Nuisance, rng: &mut Rng) {
    let before = containers(lab).await;
    let start = Instant::now();
    let how = match nuisance {
        Nuisance::ShortPauses => Impairment::default(),
        Nuisance::Loss => Impairment {
            loss: 0.05,
            ..Impairment::default()
        },
        Nuisance::Delay => Impairment {
            delay: Duration::from_millis(200),
            ..Impairment::default()
        },
    };
    if how != Impairment::default() {
        lab.impair_all(how).unwrap();
    }
    let end = start + Duration::from_secs(size("JACO_CALM_SECONDS", 10));
    while Instant::now() < end {
        match nuisance {
            Nuisance::ShortPauses => pause_one(lab, rng).await,
            Nuisance::Loss | Nuisance::Delay => tokio::time::sleep(Duration::from_secs(1)).await,
        }
        assert_eq!(containers(lab).await, before, "{nuisance:?}");
    }
    lab.heal_all().unwrap();
    let replicas = running(lab, 1, workload, |_| true).await;
    for replica in replicas {
        let there = before[&replica.host]
            .iter()
            .any(|container| container.replica == replica.id);
        assert!(
            there,
            "{nuisance:?} moved {} to {}",
            replica.id, replica.host
        );
    }
    lab.same_state().await.unwrap();
    println!("{nuisance:?}: nothing moved in {:?}", start.elapsed());
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
