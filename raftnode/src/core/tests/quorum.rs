//! Tests of contact tracking and of the reported write availability.

use super::*;

#[test]
fn leader_tracks_the_progress_of_members() {
    let mut cluster = SimCluster::new(3, 31);
    let leader = cluster.elect();
    cluster.propose(leader, 3);
    assert!(cluster.converge());
    let status = cluster.status(leader);
    let matched: Vec<_> = status.progress.iter().map(|p| p.matched).collect();
    assert_eq!(matched, [status.last_index; 3]);
    assert!(
        status
            .progress
            .iter()
            .all(|p| p.recent_active && !p.pending_snapshot)
    );
    assert_eq!(status.reachable, [1, 2, 3]);
    assert_eq!(
        status.transfer_target(),
        Some(if leader == 1 { 2 } else { 1 })
    );

    let silent = leader % 3 + 1;
    cluster.isolate(silent);
    for _ in 0..20 {
        cluster.tick(leader);
        cluster.deliver_all();
    }
    let status = cluster.status(leader);
    let quiet: Vec<_> = status
        .progress
        .iter()
        .filter(|p| !p.recent_active)
        .collect();
    assert_eq!(quiet.len(), 1);
    assert_eq!(quiet[0].raft_id, silent);
    assert_ne!(status.transfer_target(), Some(silent));
    assert_eq!(status.writes(), Writes::Ok);
    assert_eq!(cluster.status(silent).progress, []);
}

/// An isolated leader reports the loss of its quorum within two election timeouts of the cut, and a
/// follower on its side within two more. The majority side never reports it.
#[test]
fn only_the_minority_reports_quorum_lost() {
    for seed in 0..30 {
        let mut cluster = SimCluster::new(5, seed);
        let leader = cluster.elect();
        assert!(cluster.converge());
        let follower = leader % 5 + 1;
        cluster.split(&[leader, follower]);
        let mut no_leader_since = None;
        for tick in 1..=60 {
            cluster.tick_all();
            cluster.deliver_all();
            for node in 1..=5 {
                let writes = cluster.status(node).writes();
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
            let elected = (1..=5).any(|n| n != leader && cluster.status(n).leading);
            if !elected {
                no_leader_since = Some(tick);
            }
        }
        assert!(
            no_leader_since.is_none_or(|tick| tick < 60),
            "no leader was elected"
        );
        let status = cluster.status(follower);
        assert_eq!((status.leader_id, status.leaderless_ticks), (None, 20));
        cluster.heal();
        cluster.elect();
        assert!(cluster.converge());
        for node in 1..=5 {
            assert_eq!(
                cluster.status(node).writes(),
                Writes::Ok,
                "seed {seed}: {node}"
            );
        }
    }
}

#[test]
fn transfer_ends_leading_before_the_target_leads() {
    let mut cluster = SimCluster::new(3, 34);
    let leader = cluster.elect();
    assert!(cluster.converge());
    let to = cluster.status(leader).transfer_target().unwrap();
    cluster.transfer(leader, to);
    let status = cluster.status(leader);
    assert_eq!((status.role, status.leading), (Role::Leader, false));
    let ids = cluster.propose(leader, 1);
    assert_eq!(cluster.not_appended(), ids);
    assert!(cluster.converge());
    assert!(cluster.status(to).leading);
    assert_eq!(cluster.status(leader).leader_id, Some(to));

    // The target does not respond: the leader resumes after an election timeout.
    let (leader, lost) = (to, leader);
    cluster.isolate(lost);
    cluster.transfer(leader, lost);
    assert!(!cluster.status(leader).leading);
    for _ in 0..11 {
        cluster.tick(leader);
        cluster.deliver_all();
    }
    assert!(cluster.status(leader).leading);
}

#[test]
fn members_change_one_at_a_time() {
    use MemberChange::{AddLearner, Demote, Promote, Remove};
    let mut cluster = SimCluster::new(3, 35);
    let leader = cluster.elect();
    assert!(cluster.converge());
    let other = leader % 3 + 1;
    let refuse = |cluster: &mut SimCluster, change, refused| {
        assert_eq!(cluster.member(leader, change), Err(refused), "{change:?}");
    };
    for change in [
        AddLearner(0),
        Promote(7),
        Demote(7),
        Demote(leader),
        Remove(leader),
    ] {
        refuse(&mut cluster, change, ChangeRefused::NotApplicable);
    }
    assert_eq!(
        cluster.member(other, Remove(leader)),
        Err(ChangeRefused::NotLeader)
    );
    for change in [AddLearner(other), Promote(other), Remove(7)] {
        let last = cluster.status(leader).last_index;
        cluster.member(leader, change).unwrap();
        assert_eq!(
            cluster.status(leader).last_index,
            last,
            "{change:?} is in effect already"
        );
    }
    cluster.join(7);
    let steps = [
        (AddLearner(7), vec![1, 2, 3], vec![7]),
        (Demote(other), vec![1, 2, 3], vec![other, 7]),
        (Promote(7), vec![1, 2, 3, 7], vec![other]),
        (Remove(other), vec![1, 2, 3, 7], vec![]),
    ];
    let mut gone = vec![];
    for (change, voters, learners) in steps {
        cluster.member(leader, change).unwrap();
        assert!(cluster.status(leader).changing_members);
        refuse(&mut cluster, AddLearner(9), ChangeRefused::Pending);
        if matches!(change, Demote(_)) {
            gone.push(other);
        }
        cluster.pass(8);
        let status = cluster.status(leader);
        let expected: Vec<_> = voters.into_iter().filter(|v| !gone.contains(v)).collect();
        assert_eq!(
            (status.voters.clone(), status.learners.clone()),
            (expected, learners)
        );
        assert!(!status.changing_members);
        assert!(change.is_done(&status.voters, &status.learners));
    }
}
