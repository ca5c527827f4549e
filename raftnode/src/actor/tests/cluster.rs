//! Tests with several nodes: leadership, catching up, membership.

use std::time::Duration;

use super::{group::Group, *};
use crate::core::{ChangeRefused, MemberChange, Writes};

fn small_log() -> RaftLimits {
    RaftLimits {
        compact_entries: 64,
        ..RaftLimits::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_survive_the_death_of_each() {
    let mut group = Group::start(3, RaftLimits::default()).await;
    for round in 0..3 {
        let leader = group.leader().await;
        group.write(&format!("before-{round}")).await;
        group.kill(leader).await;
        group.write(&format!("without-{round}")).await;
        group.revive(leader).await;
    }
    group.agree().await;
    let handle = group.handle(1);
    assert_eq!(handle.state().cert_blobs.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn proposals_survive_loss_and_delay() {
    let group = Group::start(3, RaftLimits::default()).await;
    group.leader().await;
    group.faults(|f| {
        f.loss = 5;
        f.delay = Duration::from_millis(15);
    });
    for n in 0..30 {
        group.write(&format!("k{n}")).await;
    }
    group.faults(|f| *f = Default::default());
    group.agree().await;
    assert_eq!(group.handle(2).state().cert_blobs.len(), 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn held_proposals_are_sent_after_majority_answers() {
    let batch_delay = Duration::from_secs(3600);
    let limits = RaftLimits {
        batch_delay,
        ..RaftLimits::default()
    };
    let group = Group::start(3, limits).await;
    group.leader().await;
    group.faults(|f| f.delay = Duration::from_millis(15));
    // Each task waits for its own answer, so proposals arrive while others await a majority.
    let group = Arc::new(group);
    let mut writers = tokio::task::JoinSet::new();
    for name in 0..8 {
        let group = Arc::clone(&group);
        writers.spawn(async move {
            for n in 0..20 {
                group.write(&format!("w{name}-{n}")).await;
            }
        });
    }
    tokio::time::timeout(Duration::from_secs(120), writers.join_all())
        .await
        .unwrap();
    group.agree().await;
    assert_eq!(group.handle(2).state().cert_blobs.len(), 160);
}

#[tokio::test(flavor = "multi_thread")]
async fn lagging_follower_gets_snapshot_while_leader_writes() {
    let mut group = Group::start(3, small_log()).await;
    let leader = group.leader().await;
    let behind = leader % 3 + 1;
    group.kill(behind).await;
    group.forgotten(leader, behind).await;
    for n in 0..200 {
        group.write(&format!("k{n}")).await;
    }
    // After each chunk the leader must commit a write before the next one is sent.
    let handle = group.handle(leader);
    let runtime = tokio::runtime::Handle::current();
    let during = Arc::new(Mutex::new(0));
    let count = Arc::clone(&during);
    group.between_chunks(move |_| {
        let key = format!("during-{}", count.lock().unwrap());
        runtime.block_on(handle.propose(store(&key))).unwrap();
        *count.lock().unwrap() += 1;
    });
    group.revive(behind).await;
    group.until(behind, |s| s.applied >= 200).await;
    assert!(group.snapshots() >= 1);
    assert!(*during.lock().unwrap() >= 1);
    group.agree().await;
    // The leader keeps what it does not know its followers to have yet.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let (truncated, last) = loop {
        let (truncated, last) = group.storage(leader).log_range();
        if last.index - truncated.index <= 64 || tokio::time::Instant::now() > deadline {
            break (truncated, last);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(
        last.index - truncated.index <= 64,
        "{truncated:?}..{last:?}"
    );
    // A restart finds the installed state.
    group.kill(behind).await;
    group.revive(behind).await;
    group.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_snapshot_is_refused_and_sent_again() {
    let mut group = Group::start(3, small_log()).await;
    let leader = group.leader().await;
    let behind = leader % 3 + 1;
    group.kill(behind).await;
    group.forgotten(leader, behind).await;
    for n in 0..150 {
        group.write(&format!("k{n}")).await;
    }
    group.faults(|f| f.damage = true);
    group.revive(behind).await;
    group.until(behind, |s| s.applied >= 150).await;
    assert_eq!(group.handle(behind).rejected_snapshots(), 1);
    assert!(group.snapshots() >= 2);
    group.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_with_lost_answer_is_acknowledged_on_retry() {
    let mut group = Group::start(3, small_log()).await;
    let leader = group.leader().await;
    let behind = leader % 3 + 1;
    let other = behind % 3 + 1;
    group.kill(behind).await;
    group.forgotten(leader, behind).await;
    for n in 0..150 {
        group.write(&format!("k{n}")).await;
    }
    group.faults(|f| f.mute_receiver = true);
    group.revive(behind).await;
    group.until(behind, |s| s.applied >= 150).await;
    // These two are the majority now, so the leader must learn the other's progress.
    group.faults(|f| {
        f.muted = None;
        f.cut.insert(other);
    });
    tokio::time::timeout(Duration::from_secs(60), group.write("more"))
        .await
        .unwrap();
    assert_eq!(group.handle(behind).rejected_snapshots(), 0);
    group.faults(|f| f.cut.clear());
    group.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_of_newer_version_halts_the_node() {
    let mut group = Group::start(1, RaftLimits::default()).await;
    let index = group.write("a").await;
    group.faults(|f| f.newer = true);
    group.join(2).await;
    group.change(1, MemberChange::AddLearner(2)).await;
    let status = group.until(2, |s| s.halted.is_some()).await;
    assert!(status.halted.unwrap().contains("does not know"));
    assert_eq!(status.applied, 0, "no part of the snapshot is applied");
    assert!(group.handle(2).state().cert_blobs.is_empty());
    assert!(group.handle(2).rejected_snapshots() >= 1);
    group.faults(|f| f.newer = false);
    group
        .until(2, |s| s.halted.is_none() && s.applied >= index)
        .await;
    group.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_joins_by_snapshot_is_promoted_and_leaves() {
    let mut group = Group::start(1, RaftLimits::default()).await;
    group.write("a").await;
    let leader = group.handle(1);
    for id in [2, 3] {
        group.join(id).await;
        let error = group
            .handle(id)
            .change_members(MemberChange::AddLearner(id))
            .await;
        assert_eq!(error, Err(ChangeError::Refused(ChangeRefused::NotLeader)));
        group.change(1, MemberChange::AddLearner(id)).await;
        leader
            .change_members(MemberChange::AddLearner(id))
            .await
            .unwrap();
        group.until(id, |s| s.learners.contains(&id)).await;
        group.change(1, MemberChange::Promote(id)).await;
        group.until(id, |s| s.voters.contains(&id)).await;
    }
    assert_eq!(leader.status().voters, [1, 2, 3]);
    assert!(group.snapshots() >= 2);
    group.agree().await;
    let error = leader.change_members(MemberChange::Demote(1)).await;
    assert_eq!(
        error,
        Err(ChangeError::Refused(ChangeRefused::NotApplicable))
    );
    assert!(leader.step_down(Duration::from_secs(20)).await);
    let new = group.leader().await;
    assert_ne!(new, 1);
    group.change(new, MemberChange::Demote(1)).await;
    group.change(new, MemberChange::Remove(1)).await;
    group.kill(1).await;
    group.write("b").await;
    group.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn minority_loses_quorum_and_keeps_state() {
    let group = Group::start(3, RaftLimits::default()).await;
    let old = group.leader().await;
    group.write("a").await;
    group.agree().await;
    group.faults(|f| {
        f.cut.insert(old);
    });
    let status = group.until(old, |s| s.quorum_lost).await;
    let lost = Writes::QuorumLost {
        reachable: 1,
        needed: 2,
    };
    assert_eq!(status.writes(), lost);
    let error = group.handle(old).read_index().await.unwrap_err();
    assert_eq!(error, ReadError::QuorumLost);
    assert!(group.handle(old).state().cert_blobs.contains_key("a"));
    group.write("b").await;
    group.faults(|f| f.cut.clear());
    group.until(old, |s| s.writes() == Writes::Ok).await;
    group.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_reads_acknowledged_writes() {
    let group = Group::start(3, RaftLimits::default()).await;
    for n in 0..10 {
        let index = group.write(&format!("k{n}")).await;
        for id in group.ids() {
            let state = group.handle(id).read_index().await.unwrap();
            assert!(state.applied_index >= index);
            assert!(state.cert_blobs.contains_key(&format!("k{n}")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn digest_is_of_the_requested_index() {
    let group = Group::start(3, RaftLimits::default()).await;
    let leader = group.leader().await;
    let index = group.write("a").await;
    group.agree().await;
    let handle = group.handle(leader);
    let state = handle.state();
    let newest = handle.digest_at(None, Duration::ZERO).await;
    assert_eq!(newest, (index, state.digest()));
    assert_eq!(
        handle.digest_at(Some(1), Duration::ZERO).await,
        newest,
        "already past the index"
    );
    let far = handle
        .digest_at(Some(index + 1000), Duration::from_millis(10))
        .await;
    assert_eq!(far, newest, "index not reached in time");

    let asked: Vec<_> = group
        .ids()
        .into_iter()
        .map(|id| {
            let handle = group.handle(id);
            tokio::spawn(async move {
                handle
                    .digest_at(Some(index + 5), Duration::from_secs(30))
                    .await
            })
        })
        .collect();
    // Another node may be asked too late; its answer has another index then.
    for n in 0..20 {
        group.write(&format!("k{n}")).await;
    }
    let mut found = std::collections::BTreeMap::new();
    for answer in asked {
        let (at, digest) = answer.await.unwrap();
        assert!(at >= index + 5);
        assert_eq!(*found.entry(at).or_insert(digest), digest);
    }
}
