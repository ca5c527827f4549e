//! Tests of nodes with a stopped state machine: they vote, but do not lead.

use super::*;

#[test]
fn halted_leader_transfers_leadership_and_stays_follower() {
    for seed in 0..10 {
        let mut world = World::new(3, seed);
        let old = world.elect();
        assert!(world.settle(), "seed {seed}");
        world.halt(old, true);
        assert!(!world.status(old).leading, "seed {seed}");
        world.pass(40);
        let leads = |world: &World| (1..=3).find(|&id| world.status(id).leading);
        let new = leads(&world).expect("no other node leads");
        assert_ne!(new, old, "seed {seed}");
        // A halted node ignores a transfer to it.
        world.transfer(new, old);
        world.pass(60);
        assert_eq!(leads(&world), Some(new), "seed {seed}");
        world.halt(old, false);
        world.transfer(new, old);
        world.pass(60);
        assert_eq!(leads(&world), Some(old), "seed {seed}");
        assert_eq!(world.check(), Ok(()), "seed {seed}");
    }
}

#[test]
fn halted_follower_votes_without_standing() {
    for seed in 0..10 {
        let mut world = World::new(3, seed);
        let leader = world.elect();
        assert!(world.settle(), "seed {seed}");
        let others: Vec<u64> = (1..=3).filter(|&id| id != leader).collect();
        let (halted, able) = (others[0], others[1]);
        world.halt(halted, true);
        world.isolate(leader);
        world.pass(200);
        assert!(
            world.status(able).leading,
            "seed {seed}: the halted node voted"
        );

        world.heal();
        assert!(world.settle(), "seed {seed}");
        let term = world.status(halted).term;
        let all: Vec<u64> = (1..=3).collect();
        for &id in all.iter().filter(|id| **id != halted) {
            world.halt(id, true);
        }
        // No other node can lead, so the raft leader stays, but reports `leading` as false.
        world.pass(200);
        assert!(
            all.iter().all(|&id| !world.status(id).leading),
            "seed {seed}"
        );
        assert_eq!(
            world.status(halted).term,
            term,
            "seed {seed}: an election took place"
        );
        for &id in &all {
            world.halt(id, false);
        }
        world.elect();
        assert!(world.settle(), "seed {seed}");
    }
}

#[test]
fn halted_single_voter_does_not_lead() {
    let mut world = World::new(1, 1);
    world.halt(1, true);
    world.pass(50);
    let status = world.status(1);
    assert_eq!((status.leading, status.writes()), (false, Writes::NoLeader));
    world.halt(1, false);
    world.pass(50);
    assert!(world.status(1).leading);
}
