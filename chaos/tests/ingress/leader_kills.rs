//! The leader is killed at random points of an order.

use std::time::Duration;

use jaco_chaos::{Rng, size, time_limits, until};
use jaco_proto::v1::AuditEventType::CertificateIssued;

use crate::{
    authority::Counts,
    fixture::{LIMIT, NODES, Running, SERVED_WITHIN, Settings},
};

/// Longer than the lease of the domain's lock, in seconds.
const LEASE: i64 = 301;
/// Requests of an order at both directories, about.
const REQUESTS: u64 = 28;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leaders_issue_one_certificate() {
    let mut rng = Rng::announced();
    let mut running = Running::start(Settings {
        clocks: true,
        seed: Some(rng.number()),
        ..Settings::default()
    })
    .await;
    let mut counts = running.authority.counts();
    running.deploy().await;
    // Leaderships in which an order may have begun.
    let mut leaderships = 1;
    let mut ahead = 0;
    for kill in 0..size("JACO_STEPS", 2).min(20) {
        let after =
            counts.borrow_and_update().requests + usize::try_from(rng.within(1..REQUESTS)).unwrap();
        let reached = |counts: &Counts| counts.requests >= after;
        // The order may end before that.
        tokio::select! {
            counts = counts.wait_for(reached) => drop(counts.unwrap()),
            () = issued(&running) => break,
        }
        tokio::time::sleep(rng.below(Duration::from_millis(20))).await;
        let leader = running.lab.leader().await.unwrap();
        println!("kill {kill}: n{leader} at {:?}", *counts.borrow());
        running.lab.node_mut(leader).kill().unwrap();
        let next = running.lab.leader().await.unwrap();
        running.lab.node_mut(leader).start().await.unwrap();
        running.lab.wait_members(NODES.into()).await.unwrap();
        // The lease of the killed leader passes, and a leader that does not wait for it any more
        // begins.
        ahead += LEASE;
        for node in 1..=NODES {
            running.lab.node(node).skew_clock(ahead).unwrap();
        }
        running.lab.node_mut(next).kill().unwrap();
        running.lab.node_mut(next).start().await.unwrap();
        running.lab.wait_members(NODES.into()).await.unwrap();
        leaderships += 2;
    }
    // A node that has just started serves nothing yet.
    running.all_listen().await;
    let (leaf, took) = running.landed().await;
    time_limits::time("every node serves what one serves", took, SERVED_WITHIN).unwrap();
    let history = running.history().await;
    let issued = |environment: &str| {
        let event = (CertificateIssued, environment.to_owned());
        history.iter().filter(|found| **found == event).count()
    };
    assert_eq!(issued("prod"), 1, "{history:?}");
    assert!(issued("staging") <= 1, "{history:?}");
    let spent = *counts.borrow();
    println!("{leaderships} leaderships: {spent:?}, {history:?}");
    assert!(spent.staging <= leaderships, "{spent:?}");
    assert!(spent.production <= leaderships, "{spent:?}");
    // The next leader orders nothing: the certificate is stored.
    let leader = running.lab.leader().await.unwrap();
    running.lab.node_mut(leader).kill().unwrap();
    running.lab.node_mut(leader).start().await.unwrap();
    running.lab.wait_members(NODES.into()).await.unwrap();
    assert_eq!(running.promoted().await, leaf);
    let after = *counts.borrow();
    assert_eq!(
        (after.staging, after.production),
        (spent.staging, spent.production)
    );
}

/// Waits until a production certificate is stored.
async fn issued(running: &Running) {
    until("a certificate is issued", LIMIT, || async {
        let events = running.events().await?;
        let is_issued = |event: &jaco_proto::v1::AuditEvent| {
            event.r#type() == CertificateIssued && event.payload["acme_environment"] == "prod"
        };
        let found = events.iter().any(is_issued);
        found.then_some(()).ok_or_else(|| "not yet".to_owned())
    })
    .await
    .unwrap();
}
