//! Tests of nodes with a stopped state machine: they vote, but do not lead.

use super::*;

#[test]
fn halted_leader_transfers_leadership_and_stays_follower() {
    for seed in 0..10 {
        let mut cluster = SimCluster::new(3, seed);
        let old = cluster.elect();
        assert!(cluster.converge(), "seed {seed}");
        cluster.halt(old, true);
        assert!(!cluster.status(old).leading, "seed {seed}");
        cluster.pass(40);
        let leads = |cluster: &SimCluster| (1..=3).find(|&id| cluster.status(id).leading);
        let new = leads(&cluster).expect("no other node leads");
        assert_ne!(new, old, "seed {seed}");
        // A halted node ignores a transfer to it.
        cluster.transfer(new, old);
        cluster.pass(60);
        assert_eq!(leads(&cluster), Some(new), "seed {seed}");
        cluster.halt(old, false);
        cluster.transfer(new, old);
        cluster.pass(60);
        assert_eq!(leads(&cluster), Some(old), "seed {seed}");
        assert_eq!(cluster.check(), Ok(()), "seed {seed}");
    }
}

#[test]
fn halted_follower_votes_without_standing() {
    for seed in 0..10 {
        let mut cluster = SimCluster::new(3, seed);
        let leader = cluster.elect();
        assert!(cluster.converge(), "seed {seed}");
        let others: Vec<u64> = (1..=3).filter(|&id| id != leader).collect();
        let (halted, able) = (others[0], others[1]);
        cluster.halt(halted, true);
        cluster.isolate(leader);
        cluster.pass(200);
        assert!(
            cluster.status(able).leading,
            "seed {seed}: the halted node voted"
        );

        cluster.heal();
        assert!(cluster.converge(), "seed {seed}");
        let term = cluster.status(halted).term;
        let all: Vec<u64> = (1..=3).collect();
        for &id in all.iter().filter(|id| **id != halted) {
            cluster.halt(id, true);
        }
        // No other node can lead, so the raft leader stays, but reports `leading` as false.
        cluster.pass(200);
        assert!(
            all.iter().all(|&id| !cluster.status(id).leading),
            "seed {seed}"
        );
        assert_eq!(
            cluster.status(halted).term,
            term,
            "seed {seed}: an election took place"
        );
        for &id in &all {
            cluster.halt(id, false);
        }
        cluster.elect();
        assert!(cluster.converge(), "seed {seed}");
    }
}

#[test]
fn halted_single_voter_does_not_lead() {
    let mut cluster = SimCluster::new(1, 1);
    cluster.halt(1, true);
    cluster.pass(50);
    let status = cluster.status(1);
    assert_eq!((status.leading, status.writes()), (false, Writes::NoLeader));
    cluster.halt(1, false);
    cluster.pass(50);
    assert!(cluster.status(1).leading);
}
