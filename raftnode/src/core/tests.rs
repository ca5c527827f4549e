//! Tests with simulated nodes: a network that loses and delays messages, and disks that lose
//! unsynced writes.

mod contact;
mod halted;
mod hostile;
mod sim;

use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, Message, MessageType};

use super::*;
use sim::World;

#[test]
fn single_voter_commits_a_batch_with_one_sync() {
    let mut world = World::new(1, 1);
    assert_eq!(world.status(1).role, Role::Leader);
    assert!(world.status(1).leading);
    let before = world.syncs(1);
    let ids = world.propose(1, 64);
    assert_eq!(world.syncs(1) - before, 1);
    assert_eq!(world.acknowledged(), ids);
}

#[test]
fn idle_leader_writes_nothing() {
    let mut world = World::new(1, 1);
    let before = world.writes(1);
    for _ in 0..200 {
        world.tick(1);
    }
    assert_eq!(world.writes(1), before);
    assert_eq!(world.status(1).role, Role::Leader);
}

#[test]
fn three_nodes_elect_a_leader_that_commits() {
    let mut world = World::new(3, 7);
    let leader = world.elect();
    let ids = world.propose(leader, 5);
    assert!(world.settle(), "never converged");
    assert_eq!(world.acknowledged(), ids);
    for node in 1..=3 {
        assert_eq!(world.applied_ids(node), ids, "node {node}");
        assert_eq!(world.status(node).leader_id, Some(leader));
        assert_eq!(world.status(node).voters, [1, 2, 3]);
    }
}

#[test]
fn follower_refuses_proposals_without_appending_them() {
    let mut world = World::new(3, 8);
    let leader = world.elect();
    let follower = leader % 3 + 1;
    let ids = world.propose(follower, 2);
    assert_eq!(world.not_appended(), ids);
    assert!(world.settle());
    assert!(world.applied_ids(leader).is_empty());
}

#[test]
fn isolated_leader_answers_unknown_after_stepping_down() {
    let mut world = World::new(3, 9);
    let old = world.elect();
    world.isolate(old);
    let ids = world.propose(old, 3);
    assert!(world.unknown().is_empty(), "outcome still open");
    for _ in 0..40 {
        world.tick(old);
    }
    assert_ne!(world.status(old).role, Role::Leader, "check-quorum");
    assert_eq!(world.unknown(), ids);
    let new = world.elect();
    assert_ne!(new, old);
    let kept = world.propose(new, 1);
    world.heal();
    assert!(world.settle());
    assert_eq!(
        world.applied_ids(old),
        kept,
        "the isolated leader's entries are overwritten"
    );
}

#[test]
fn read_waits_for_a_majority() {
    let mut world = World::new(3, 10);
    let leader = world.elect();
    world.propose(leader, 1);
    assert!(world.settle());
    let commit = world.status(leader).commit;
    world.read(leader);
    assert!(world.reads().is_empty(), "the leader is not confirmed yet");
    assert!(world.settle());
    assert_eq!(world.reads(), [Ok(commit)]);

    let follower = leader % 3 + 1;
    world.read(follower);
    assert!(world.settle());
    assert_eq!(world.reads(), [Ok(commit), Ok(commit)]);
}

#[test]
fn read_without_a_majority_fails() {
    let mut world = World::new(3, 11);
    let leader = world.elect();
    world.isolate(leader);
    world.read(leader);
    for _ in 0..40 {
        world.tick(leader);
    }
    assert!(matches!(world.reads()[..], [Err(_)]), "{:?}", world.reads());
}

#[test]
fn learner_receives_a_snapshot_and_becomes_voter() {
    let mut world = World::new(1, 12);
    let ids = world.propose(1, 10);
    for node in [2, 3] {
        world.join(node);
        assert!(world.change(1, &[(node, ConfChangeType::AddLearnerNode)]));
        assert!(world.settle(), "learner {node}");
    }
    assert_eq!(world.applied_ids(3), ids);
    assert_eq!(world.status(1).learners, [2, 3]);
    let both = [2, 3].map(|node| (node, ConfChangeType::AddNode));
    assert!(world.change(1, &both));
    assert!(world.settle(), "joint change");
    for node in 1..=3 {
        assert_eq!(world.status(node).voters, [1, 2, 3], "node {node}");
        world.restart(node, true);
    }
    world.elect();
    assert!(world.settle(), "after restarting all nodes");
}

#[test]
fn log_kept_for_slow_member_is_bounded() {
    let mut world = World::new(3, 13);
    let leader = world.elect();
    let slow = leader % 3 + 1;
    assert!(world.settle());
    world.isolate(slow);
    let kept = |world: &World| world.compaction(leader, 100);
    assert_eq!(kept(&world), None, "short");
    let matched = world.status(leader).applied;
    for _ in 0..30 {
        world.propose(leader, 4);
        world.deliver_all();
    }
    assert_eq!(kept(&world), None, "the member was active a moment ago");
    world.pass(20);
    let applied = world.status(leader).applied;
    let progress = world.status(leader).progress;
    assert!(progress.iter().any(|p| p.matched == matched));
    assert_eq!(
        kept(&world),
        Some(applied - 88),
        "an eighth is dropped, the rest is kept for the slow member"
    );
    for follower in (1..=3).filter(|&node| node != leader && node != slow) {
        let applied = world.status(follower).applied;
        assert_eq!(world.compaction(follower, 100), Some(applied - 50));
    }
    world.heal();
    assert!(world.settle());
    assert_eq!(
        kept(&world),
        Some(world.status(leader).applied),
        "no member needs it"
    );
}

#[test]
fn follower_drops_reads_meant_for_the_leader() {
    let mut world = World::new(3, 15);
    let leader = world.elect();
    assert!(world.settle(), "never converged");
    let follower = leader % 3 + 1;
    let mut message = Message {
        from: leader,
        to: follower,
        entries: vec![Entry::default()],
        ..Message::default()
    };
    message.set_msg_type(MessageType::MsgReadIndex);
    world.inject(follower, message).unwrap();
    world.tick(follower);
    world.deliver_all();
    assert_eq!(world.check(), Ok(()));
}

#[test]
fn invalid_peer_messages_are_rejected() {
    let mut world = World::new(3, 14);
    world.elect();
    let message = |kind: MessageType| {
        let mut message = Message {
            from: 2,
            to: 1,
            term: 1,
            ..Message::default()
        };
        message.set_msg_type(kind);
        message
    };
    let entry = |index| Entry {
        index,
        ..Entry::default()
    };
    let cases = [
        Message {
            to: 2,
            ..message(MessageType::MsgHeartbeat)
        },
        Message {
            from: 1,
            ..message(MessageType::MsgHeartbeat)
        },
        Message {
            from: 0,
            ..message(MessageType::MsgHeartbeat)
        },
        Message {
            msg_type: 99,
            ..message(MessageType::MsgHeartbeat)
        },
        Message {
            term: 9,
            commit: 1 << 40,
            ..message(MessageType::MsgHeartbeat)
        },
        Message {
            term: u64::MAX,
            ..message(MessageType::MsgAppend)
        },
        Message {
            entries: vec![entry(7)],
            ..message(MessageType::MsgAppend)
        },
        message(MessageType::MsgPropose),
        message(MessageType::MsgHup),
        message(MessageType::MsgSnapshot),
        message(MessageType::MsgReadIndex),
    ];
    for case in cases {
        let before = world.status(1);
        let text = format!("{case:?}");
        assert!(world.inject(1, case).is_err(), "{text}");
        assert_eq!(world.status(1), before, "{text}");
    }
}

/// Under any schedule of losses, delays, partitions and restarts every acknowledged proposal
/// survives, none is applied twice, and all nodes apply the same entries.
#[test]
fn acknowledged_proposals_survive_any_schedule() {
    for seed in 0..60 {
        let mut world = World::new(3, seed);
        for step in 0..400 {
            world.step();
            world
                .check()
                .unwrap_or_else(|why| panic!("seed {seed} step {step}: {why}"));
        }
        world.heal();
        assert!(world.settle(), "seed {seed} never converged");
        let applied = world.applied_ids(1);
        for id in world.acknowledged() {
            let times = applied.iter().filter(|&&a| a == id).count();
            assert_eq!(times, 1, "seed {seed}: acknowledged proposal {id}");
        }
        for id in world.not_appended() {
            assert!(
                !applied.contains(&id),
                "seed {seed}: rejected proposal {id}"
            );
        }
    }
}

fn change(changes: &[(u64, ConfChangeType)]) -> ConfChangeV2 {
    let single = |&(node_id, kind): &(u64, ConfChangeType)| {
        let mut single = ConfChangeSingle {
            node_id,
            ..ConfChangeSingle::default()
        };
        single.set_change_type(kind);
        single
    };
    ConfChangeV2 {
        changes: changes.iter().map(single).collect(),
        ..ConfChangeV2::default()
    }
}
