//! Tests with simulated nodes: a network that loses and delays messages, and disks that lose
//! unsynced writes.

mod halted;
mod hostile;
mod quorum;
mod sim;

use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, Message, MessageType};

use super::*;
use sim::SimCluster;

#[test]
fn single_voter_commits_a_batch_with_one_sync() {
    let mut cluster = SimCluster::new(1, 1);
    assert_eq!(cluster.status(1).role, Role::Leader);
    assert!(cluster.status(1).leading);
    let before = cluster.syncs(1);
    let ids = cluster.propose(1, 64);
    assert_eq!(cluster.syncs(1) - before, 1);
    assert_eq!(cluster.acknowledged(), ids);
}

#[test]
fn idle_leader_writes_nothing() {
    let mut cluster = SimCluster::new(1, 1);
    let before = cluster.writes(1);
    for _ in 0..200 {
        cluster.tick(1);
    }
    assert_eq!(cluster.writes(1), before);
    assert_eq!(cluster.status(1).role, Role::Leader);
}

#[test]
fn three_nodes_elect_a_leader_that_commits() {
    let mut cluster = SimCluster::new(3, 7);
    let leader = cluster.elect();
    let ids = cluster.propose(leader, 5);
    assert!(cluster.converge(), "never converged");
    assert_eq!(cluster.acknowledged(), ids);
    for node in 1..=3 {
        assert_eq!(cluster.applied_ids(node), ids, "node {node}");
        assert_eq!(cluster.status(node).leader_id, Some(leader));
        assert_eq!(cluster.status(node).voters, [1, 2, 3]);
    }
}

#[test]
fn follower_refuses_proposals_without_appending_them() {
    let mut cluster = SimCluster::new(3, 8);
    let leader = cluster.elect();
    let follower = leader % 3 + 1;
    let ids = cluster.propose(follower, 2);
    assert_eq!(cluster.not_appended(), ids);
    assert!(cluster.converge());
    assert!(cluster.applied_ids(leader).is_empty());
}

#[test]
fn isolated_leader_answers_unknown_after_stepping_down() {
    let mut cluster = SimCluster::new(3, 9);
    let old = cluster.elect();
    cluster.isolate(old);
    let ids = cluster.propose(old, 3);
    assert!(cluster.unknown().is_empty(), "outcome still open");
    for _ in 0..40 {
        cluster.tick(old);
    }
    assert_ne!(cluster.status(old).role, Role::Leader, "check-quorum");
    assert_eq!(cluster.unknown(), ids);
    let new = cluster.elect();
    assert_ne!(new, old);
    let kept = cluster.propose(new, 1);
    cluster.heal();
    assert!(cluster.converge());
    assert_eq!(
        cluster.applied_ids(old),
        kept,
        "the isolated leader's entries are overwritten"
    );
}

#[test]
fn read_waits_for_a_majority() {
    let mut cluster = SimCluster::new(3, 10);
    let leader = cluster.elect();
    cluster.propose(leader, 1);
    assert!(cluster.converge());
    let commit = cluster.status(leader).commit;
    cluster.read(leader);
    assert!(
        cluster.reads().is_empty(),
        "the leader is not confirmed yet"
    );
    assert!(cluster.converge());
    assert_eq!(cluster.reads(), [Ok(commit)]);

    let follower = leader % 3 + 1;
    cluster.read(follower);
    assert!(cluster.converge());
    assert_eq!(cluster.reads(), [Ok(commit), Ok(commit)]);
}

#[test]
fn read_without_a_majority_fails() {
    let mut cluster = SimCluster::new(3, 11);
    let leader = cluster.elect();
    cluster.isolate(leader);
    cluster.read(leader);
    for _ in 0..40 {
        cluster.tick(leader);
    }
    assert!(
        matches!(cluster.reads()[..], [Err(_)]),
        "{:?}",
        cluster.reads()
    );
}

#[test]
fn learner_receives_a_snapshot_and_becomes_voter() {
    let mut cluster = SimCluster::new(1, 12);
    let ids = cluster.propose(1, 10);
    for node in [2, 3] {
        cluster.join(node);
        assert!(cluster.change(1, &[(node, ConfChangeType::AddLearnerNode)]));
        assert!(cluster.converge(), "learner {node}");
    }
    assert_eq!(cluster.applied_ids(3), ids);
    assert_eq!(cluster.status(1).learners, [2, 3]);
    let both = [2, 3].map(|node| (node, ConfChangeType::AddNode));
    assert!(cluster.change(1, &both));
    assert!(cluster.converge(), "joint change");
    for node in 1..=3 {
        assert_eq!(cluster.status(node).voters, [1, 2, 3], "node {node}");
        cluster.restart(node, true);
    }
    cluster.elect();
    assert!(cluster.converge(), "after restarting all nodes");
}

#[test]
fn late_report_leaves_a_newer_snapshot_alone() {
    for delivered in [true, false] {
        let mut cluster = SimCluster::new(3, 16);
        let leader = cluster.elect();
        let behind = leader % 3 + 1;
        assert!(cluster.converge());
        let miss_entries = |cluster: &mut SimCluster| {
            cluster.propose(leader, 4);
            cluster.deliver_all();
            cluster.compact(leader);
        };
        let pending = |cluster: &SimCluster| {
            let progress = cluster.status(leader).progress;
            progress
                .iter()
                .any(|p| p.raft_id == behind && p.pending_snapshot)
        };
        cluster.isolate(behind);
        miss_entries(&mut cluster);
        cluster.hold_snapshots();
        cluster.heal();
        cluster.pass(8);
        let first = cluster.held().pop().expect("a first snapshot");
        let first = SnapshotId::of(&first);

        // The first transfer fails, and a newer snapshot follows.
        miss_entries(&mut cluster);
        cluster.report_snapshot(leader, behind, first, false);
        assert!(!pending(&cluster));
        cluster.pass(8);
        let second = cluster.held().pop().expect("a second snapshot");
        assert!(SnapshotId::of(&second).index > first.index);
        assert!(pending(&cluster));
        for wrong in [
            first,
            SnapshotId {
                term: first.term - 1,
                ..SnapshotId::of(&second)
            },
        ] {
            cluster.report_snapshot(leader, behind, wrong, delivered);
            assert!(pending(&cluster), "{wrong:?} delivered: {delivered}");
        }
        cluster.pass(8);
        assert!(cluster.held().is_empty(), "the transfer goes on");
        cluster.release(second);
        assert!(!pending(&cluster));
        assert!(cluster.converge());
    }
}

#[test]
fn snapshot_is_needed_from_the_leader_only() {
    let mut cluster = SimCluster::new(3, 17);
    let leader = cluster.elect();
    assert!(cluster.converge());
    let (here, other) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let status = cluster.status(here);
    let (term, next) = (status.term, status.commit + 1);
    for (from, term, index, needed) in [
        (leader, term, next, true),
        (leader, term, next - 1, false),
        (leader, term - 1, next, false),
        (leader, term + 1, next, false),
        (other, term, next, false),
        (other, term + 1, next, false),
        (here, term, next, false),
    ] {
        let found = cluster.needs_snapshot(here, from, SnapshotId { term, index });
        assert_eq!(found, needed, "{from} of {term} at {index}");
    }
    let own = SnapshotId { term, index: next };
    assert!(!cluster.needs_snapshot(leader, leader, own));
}

#[test]
fn log_kept_for_slow_member_is_bounded() {
    let mut cluster = SimCluster::new(3, 13);
    let leader = cluster.elect();
    let slow = leader % 3 + 1;
    assert!(cluster.converge());
    cluster.isolate(slow);
    let kept = |cluster: &SimCluster| cluster.compaction(leader, 100);
    assert_eq!(kept(&cluster), None, "short");
    let matched = cluster.status(leader).applied;
    for _ in 0..30 {
        cluster.propose(leader, 4);
        cluster.deliver_all();
    }
    assert_eq!(kept(&cluster), None, "the member was active a moment ago");
    cluster.pass(20);
    let applied = cluster.status(leader).applied;
    let progress = cluster.status(leader).progress;
    assert!(progress.iter().any(|p| p.matched == matched));
    assert_eq!(
        kept(&cluster),
        Some(applied - 88),
        "an eighth is dropped, the rest is kept for the slow member"
    );
    for follower in (1..=3).filter(|&node| node != leader && node != slow) {
        let applied = cluster.status(follower).applied;
        assert_eq!(cluster.compaction(follower, 100), Some(applied - 50));
    }
    cluster.heal();
    assert!(cluster.converge());
    assert_eq!(
        kept(&cluster),
        Some(cluster.status(leader).applied),
        "no member needs it"
    );
}

#[test]
fn follower_drops_reads_meant_for_the_leader() {
    let mut cluster = SimCluster::new(3, 15);
    let leader = cluster.elect();
    assert!(cluster.converge(), "never converged");
    let follower = leader % 3 + 1;
    let mut message = Message {
        from: leader,
        to: follower,
        entries: vec![Entry::default()],
        ..Message::default()
    };
    message.set_msg_type(MessageType::MsgReadIndex);
    cluster.inject(follower, message).unwrap();
    cluster.tick(follower);
    cluster.deliver_all();
    assert_eq!(cluster.check(), Ok(()));
}

#[test]
fn late_answers_confirm_no_later_read() {
    let mut cluster = SimCluster::new(3, 16);
    let leader = cluster.elect();
    assert!(cluster.converge(), "never converged");
    cluster.isolate(leader);
    let (asker, other) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let context: Vec<u8> = [asker, 7, 0]
        .into_iter()
        .flat_map(u64::to_be_bytes)
        .collect();
    let term = cluster.status(leader).term;
    let request = || {
        let entry = Entry {
            data: context.clone(),
            ..Entry::default()
        };
        let mut message = Message {
            from: asker,
            to: leader,
            entries: vec![entry],
            ..Message::default()
        };
        message.set_msg_type(MessageType::MsgReadIndex);
        message
    };
    let response = |from| {
        let mut message = Message {
            from,
            to: leader,
            term,
            context: context.clone(),
            ..Message::default()
        };
        message.set_msg_type(MessageType::MsgHeartbeatResponse);
        message
    };
    cluster.inject(leader, request()).unwrap();
    cluster.inject(leader, response(asker)).unwrap();
    cluster.answer(leader);
    // Another node may lead by now. The network delivers the request twice, and a response late.
    cluster.read(leader);
    cluster.inject(leader, request()).unwrap();
    cluster.inject(leader, response(other)).unwrap();
    cluster.answer(leader);
    assert!(cluster.reads().is_empty(), "{:?}", cluster.reads());
}

#[test]
fn invalid_peer_messages_are_rejected() {
    let mut cluster = SimCluster::new(3, 14);
    cluster.elect();
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
        let before = cluster.status(1);
        let text = format!("{case:?}");
        assert!(cluster.inject(1, case).is_err(), "{text}");
        assert_eq!(cluster.status(1), before, "{text}");
    }
}

/// Under any schedule of losses, delays, partitions and restarts every acknowledged proposal
/// survives, none is applied twice, and all nodes apply the same entries.
#[test]
fn acknowledged_proposals_survive_any_schedule() {
    for seed in 0..60 {
        let mut cluster = SimCluster::new(3, seed);
        for step in 0..400 {
            cluster.step();
            cluster
                .check()
                .unwrap_or_else(|why| panic!("seed {seed} step {step}: {why}"));
        }
        cluster.heal();
        assert!(cluster.converge(), "seed {seed} never converged");
        let applied = cluster.applied_ids(1);
        for id in cluster.acknowledged() {
            let times = applied.iter().filter(|&&a| a == id).count();
            assert_eq!(times, 1, "seed {seed}: acknowledged proposal {id}");
        }
        for id in cluster.not_appended() {
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
