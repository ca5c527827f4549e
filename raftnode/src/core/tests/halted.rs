//! A node whose state machine has stopped votes, and leads nobody.

use super::*;

#[test]
fn a_leader_that_stops_applying_hands_over_and_does_not_come_back() {
    for seed in 0..10 {
        let mut world = World::new(3, seed);
        let old = world.elect();
        assert!(world.settle(), "seed {seed}");
        world.halt(old, true);
        assert!(!world.status(old).leading, "seed {seed}");
        world.pass(40);
        let leads = |world: &World| (1..=3).find(|&id| world.status(id).leading);
        let new = leads(&world).expect("nobody took over");
        assert_ne!(new, old, "seed {seed}");
        // Asked to lead, it does not.
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
fn a_follower_that_stopped_applying_votes_and_does_not_stand() {
    for seed in 0..10 {
        let mut world = World::new(3, seed);
        let leader = world.elect();
        assert!(world.settle(), "seed {seed}");
        let others: Vec<u64> = (1..=3).filter(|&id| id != leader).collect();
        let (halted, able) = (others[0], others[1]);
        world.halt(halted, true);
        world.isolate(leader);
        world.pass(200);
        assert!(world.status(able).leading, "seed {seed}: it had a vote");

        world.heal();
        assert!(world.settle(), "seed {seed}");
        let term = world.status(halted).term;
        let all: Vec<u64> = (1..=3).collect();
        for &id in all.iter().filter(|id| **id != halted) {
            world.halt(id, true);
        }
        // Nobody else can lead, so the one that does goes on, and says that it does not.
        world.pass(200);
        assert!(
            all.iter().all(|&id| !world.status(id).leading),
            "seed {seed}"
        );
        assert_eq!(
            world.status(halted).term,
            term,
            "seed {seed}: somebody stood"
        );
        for &id in &all {
            world.halt(id, false);
        }
        world.elect();
        assert!(world.settle(), "seed {seed}");
    }
}

#[test]
fn the_only_voter_leads_nobody_while_it_is_stopped() {
    let mut world = World::new(1, 1);
    world.halt(1, true);
    world.pass(50);
    let status = world.status(1);
    assert_eq!((status.leading, status.writes()), (false, Writes::NoLeader));
    world.halt(1, false);
    world.pass(50);
    assert!(world.status(1).leading);
}
