//! Tests of contact tracking and of the reported write availability.

use super::*;

#[test]
fn leader_tracks_the_progress_of_members() {
    let mut world = World::new(3, 31);
    let leader = world.elect();
    world.propose(leader, 3);
    assert!(world.settle());
    let status = world.status(leader);
    let matched: Vec<_> = status.progress.iter().map(|p| p.matched).collect();
    assert_eq!(matched, [status.last_index; 3]);
    assert!(
        status
            .progress
            .iter()
            .all(|p| p.recent_active && !p.pending_snapshot)
    );
    assert_eq!(status.reachable, [1, 2, 3]);
    assert_eq!(status.successor(), Some(if leader == 1 { 2 } else { 1 }));

    let silent = leader % 3 + 1;
    world.isolate(silent);
    for _ in 0..20 {
        world.tick(leader);
        world.deliver_all();
    }
    let status = world.status(leader);
    let quiet: Vec<_> = status
        .progress
        .iter()
        .filter(|p| !p.recent_active)
        .collect();
    assert_eq!(quiet.len(), 1);
    assert_eq!(quiet[0].raft_id, silent);
    assert_ne!(status.successor(), Some(silent));
    assert_eq!(status.writes(), Writes::Ok);
    assert_eq!(world.status(silent).progress, []);
}

/// An isolated leader reports the loss of its quorum within two election timeouts of the cut, and a
/// follower on its side within two more. The majority side never reports it.
#[test]
fn only_the_minority_reports_quorum_lost() {
    for seed in 0..30 {
        let mut world = World::new(5, seed);
        let leader = world.elect();
        assert!(world.settle());
        let follower = leader % 5 + 1;
        world.split(&[leader, follower]);
        let mut no_leader_since = None;
        for tick in 1..=60 {
            world.tick_all();
            world.deliver_all();
            for node in 1..=5 {
                let writes = world.status(node).writes();
                if ![leader, follower].contains(&node) {
                    let lost = matches!(writes, Writes::QuorumLost { .. });
                    assert!(
                        !lost,
                        "seed {seed} tick {tick}: {node} is on the majority side"
                    );
                } else if tick >= if node == leader { 20 } else { 40 } {
                    let expected = Writes::QuorumLost {
                        reachable: 2,
                        needed: 3,
                    };
                    // The two are in contact from time to time, when one of them requests votes.
                    let alone = Writes::QuorumLost {
                        reachable: 1,
                        needed: 3,
                    };
                    let said = writes == expected || writes == alone;
                    assert!(said, "seed {seed} tick {tick}: {node} reports {writes:?}");
                }
            }
            let elected = (1..=5).any(|n| n != leader && world.status(n).leading);
            if !elected {
                no_leader_since = Some(tick);
            }
        }
        assert!(
            no_leader_since.is_none_or(|tick| tick < 60),
            "no leader was elected"
        );
        let status = world.status(follower);
        assert_eq!((status.leader_id, status.leaderless_ticks), (None, 20));
        world.heal();
        world.elect();
        assert!(world.settle());
        for node in 1..=5 {
            assert_eq!(
                world.status(node).writes(),
                Writes::Ok,
                "seed {seed}: {node}"
            );
        }
    }
}

#[test]
fn transfer_ends_leading_before_the_target_leads() {
    let mut world = World::new(3, 34);
    let leader = world.elect();
    assert!(world.settle());
    let to = world.status(leader).successor().unwrap();
    world.transfer(leader, to);
    let status = world.status(leader);
    assert_eq!((status.role, status.leading), (Role::Leader, false));
    let ids = world.propose(leader, 1);
    assert_eq!(world.not_appended(), ids);
    assert!(world.settle());
    assert!(world.status(to).leading);
    assert_eq!(world.status(leader).leader_id, Some(to));

    // The target does not respond: the leader resumes after an election timeout.
    let (leader, lost) = (to, leader);
    world.isolate(lost);
    world.transfer(leader, lost);
    assert!(!world.status(leader).leading);
    for _ in 0..11 {
        world.tick(leader);
        world.deliver_all();
    }
    assert!(world.status(leader).leading);
}

#[test]
fn members_change_one_at_a_time() {
    use MemberChange::{AddLearner, Demote, Promote, Remove};
    let mut world = World::new(3, 35);
    let leader = world.elect();
    assert!(world.settle());
    let other = leader % 3 + 1;
    let refuse = |world: &mut World, change, refused| {
        assert_eq!(world.member(leader, change), Err(refused), "{change:?}");
    };
    for change in [
        AddLearner(0),
        Promote(7),
        Demote(7),
        Demote(leader),
        Remove(leader),
    ] {
        refuse(&mut world, change, ChangeRefused::NotApplicable);
    }
    assert_eq!(
        world.member(other, Remove(leader)),
        Err(ChangeRefused::NotLeader)
    );
    for change in [AddLearner(other), Promote(other), Remove(7)] {
        let last = world.status(leader).last_index;
        world.member(leader, change).unwrap();
        assert_eq!(
            world.status(leader).last_index,
            last,
            "{change:?} is in effect already"
        );
    }
    world.join(7);
    let steps = [
        (AddLearner(7), vec![1, 2, 3], vec![7]),
        (Demote(other), vec![1, 2, 3], vec![other, 7]),
        (Promote(7), vec![1, 2, 3, 7], vec![other]),
        (Remove(other), vec![1, 2, 3, 7], vec![]),
    ];
    let mut gone = vec![];
    for (change, voters, learners) in steps {
        world.member(leader, change).unwrap();
        assert!(world.status(leader).changing_members);
        refuse(&mut world, AddLearner(9), ChangeRefused::Pending);
        if matches!(change, Demote(_)) {
            gone.push(other);
        }
        world.pass(8);
        let status = world.status(leader);
        let expected: Vec<_> = voters.into_iter().filter(|v| !gone.contains(v)).collect();
        assert_eq!(
            (status.voters.clone(), status.learners.clone()),
            (expected, learners)
        );
        assert!(!status.changing_members);
        assert!(change.is_done(&status.voters, &status.learners));
    }
}
