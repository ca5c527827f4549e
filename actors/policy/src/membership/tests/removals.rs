//! Members that leave, dead ones and leaders among them.

use super::*;

#[test]
fn dead_voter_is_replaced_only_after_removal() {
    let mut cluster = Cluster::of(4);
    assert_eq!(cluster.voters(), "abc");
    cluster.set_active(2, false);
    assert_eq!(cluster.run_until_idle(), []);
    cluster.leave("b");
    cluster.run_until_idle();
    assert_eq!(cluster.voters(), "acd");
}

#[test]
fn dead_voter_is_demoted_before_live_one() {
    let mut cluster = Cluster::of(3);
    cluster.set_active(2, false);
    cluster.leave("b");
    let done = cluster.run_until_idle();
    let expected = [
        Action::Demote(2),
        Action::Demote(3),
        Action::Remove(2),
        Action::DeleteRow(2),
    ];
    assert_eq!(done, expected);
    assert_eq!(
        (cluster.voters(), cluster.learners()),
        ("a".into(), "c".into())
    );
}

#[test]
fn removal_of_live_voter_demotes_dead_one_first() {
    let mut cluster = Cluster::of(3);
    cluster.set_active(2, false);
    cluster.leave("c");
    // Without `c`, `a` and `b` have no active majority, so `b` is demoted first.
    assert_eq!(cluster.run_until_idle()[0], Action::Demote(2));
    assert_eq!(
        (cluster.voters(), cluster.learners()),
        ("a".into(), "b".into())
    );
}

#[test]
fn change_that_loses_majority_is_not_made() {
    let mut cluster = Cluster::of(5);
    for dead in [4, 5] {
        cluster.set_active(dead, false);
    }
    cluster.leave("b");
    assert_eq!(cluster.run_until_idle()[0], Action::Demote(5));
    assert!(cluster.has_quorum());

    let mut cluster = Cluster::of(2);
    cluster.leave("a");
    cluster.set_active(2, false);
    let blocked = Decision::Blocked(Blocked {
        raft_id: 1,
        reason: "no other member can lead",
    });
    assert_eq!(cluster.plan(), blocked);
}

#[test]
fn last_member_stays_and_its_mark_is_cleared() {
    let mut cluster = Cluster::new();
    cluster.leave("a");
    assert!(matches!(
        cluster.plan(),
        Decision::Blocked(Blocked { raft_id: 1, .. })
    ));
    cluster.now += TRANSFER_TARGET_TIMEOUT;
    assert_eq!(cluster.plan(), Decision::Act(Action::ClearMark(1)));
    cluster.act(Action::ClearMark(1));
    assert_eq!(cluster.run_until_idle(), []);
}

#[test]
fn leader_unable_to_leave_blocks_no_removal() {
    // `b` is dead, but `a` was removed by mistake.
    let mut cluster = Cluster::of(2);
    cluster.set_active(2, false);
    cluster.leave("a");
    assert!(matches!(
        cluster.plan(),
        Decision::Blocked(Blocked { raft_id: 1, .. })
    ));
    cluster.leave("b");
    let gone = [
        Action::Remove(2),
        Action::DeleteRow(2),
        Action::ClearMark(1),
    ];
    let mut done = Vec::new();
    for _ in 0..10 {
        cluster.now += TICK;
        if let Decision::Act(action) = cluster.plan() {
            cluster.act(action);
            done.push(action);
        }
    }
    assert_eq!(done, gone);
    assert_eq!(cluster.run_until_idle(), []);
    assert_eq!(
        (cluster.voters(), cluster.learners()),
        ("a".into(), "".into())
    );
}

#[test]
fn leaving_leader_waits_for_lagging_member() {
    // `b` is active, but far behind.
    let mut cluster = Cluster::of(2);
    cluster.view.commit = 1000;
    cluster.view.progress.get_mut(&2).unwrap().matched = 0;
    cluster.leave("a");
    for _ in 0..10 {
        cluster.now += TICK;
        assert!(matches!(
            cluster.plan(),
            Decision::Blocked(Blocked { raft_id: 1, .. })
        ));
    }
    // `b` is inactive for less than `TRANSFER_TARGET_TIMEOUT`, then active again.
    cluster.set_active(2, false);
    for _ in 0..3 {
        cluster.now += TICK;
        assert!(matches!(
            cluster.plan(),
            Decision::Blocked(Blocked { raft_id: 1, .. })
        ));
    }
    cluster.set_active(2, true);
    cluster.now += TICK;
    assert_eq!(cluster.plan(), Decision::Act(Action::Promote(2)));
    // The wait starts over.
    cluster.set_active(2, false);
    cluster.now += TICK;
    assert!(matches!(
        cluster.plan(),
        Decision::Blocked(Blocked { raft_id: 1, .. })
    ));
    cluster.now += TRANSFER_TARGET_TIMEOUT;
    assert_eq!(cluster.plan(), Decision::Act(Action::ClearMark(1)));
}

#[test]
fn leader_of_two_promotes_other_before_leaving() {
    let mut cluster = Cluster::of(2);
    cluster.leave("a");
    let expected = [
        Action::Promote(2),
        Action::Transfer(2),
        Action::Demote(1),
        Action::Remove(1),
        Action::DeleteRow(1),
    ];
    assert_eq!(cluster.run_until_idle(), expected);
    assert_eq!(cluster.voters(), "b");
}
