//! Proposals: their outcomes, limits, batches and observers.

use prost::Message as _;

use super::*;
use crate::ProposeError;

#[tokio::test]
async fn published_leader_accepts_writes() {
    let mut fixture = Fixture::start().await;
    for round in 0..20 {
        fixture.kill().await;
        let handle = fixture.handle();
        let writer = std::thread::spawn(move || {
            while !handle.status().leading {
                std::hint::spin_loop();
            }
            handle.propose(store("a"))
        });
        fixture.restart().await;
        let outcome = writer.join().unwrap().await;
        assert!(outcome.is_ok(), "round {round}: {outcome:?}");
    }
}

#[tokio::test]
async fn answered_proposal_is_in_state_and_stream() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let mut states = handle.subscribe();
    let committed = handle.propose(store("a")).await.unwrap();
    assert!(states.borrow_and_update().cert_blobs.contains_key("a"));
    assert_eq!(handle.state().applied_index, committed.index);
    assert_eq!(handle.status().applied, committed.index);
}

#[tokio::test]
async fn rejection_reaches_proposer_and_keeps_state() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let before = handle.state();
    let error = handle.propose(rejected()).await.unwrap_err();
    assert!(matches!(error, ProposeError::Rejected(_)), "{error}");
    let after = State {
        applied_index: before.applied_index,
        ..State::clone(&handle.state())
    };
    assert_eq!(after, *before);
}

#[tokio::test]
async fn concurrent_proposals_share_synced_writes() {
    const CLIENTS: u64 = 200;
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let before = fixture.args.storage.write_counts();
    // All proposals are queued before the first is awaited, and before raft can publish a status.
    let proposals: Vec<_> = handle.with_status(|_| {
        (0..CLIENTS)
            .map(|i| handle.propose(store(&format!("k{i}"))))
            .collect()
    });
    for proposal in proposals {
        proposal.await.unwrap();
    }
    let after = fixture.args.storage.write_counts();
    let synced = after.synced - before.synced;
    assert!(
        (1..CLIENTS / 2).contains(&synced),
        "{synced} syncs for {CLIENTS} proposals"
    );
    assert!(
        after.writes - before.writes <= 2 * synced,
        "an append and an apply per batch"
    );
    assert_eq!(handle.state().cert_blobs.len() as u64, CLIENTS);
}

#[tokio::test]
async fn sequential_proposals_cost_one_synced_write_each() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let before = fixture.args.storage.write_counts();
    for i in 0..10 {
        handle.propose(store(&format!("k{i}"))).await.unwrap();
    }
    let after = fixture.args.storage.write_counts();
    assert_eq!(after.synced - before.synced, 10);
}

#[tokio::test]
async fn proposals_over_the_inflight_limit_are_busy() {
    let limits = RaftLimits {
        inflight_bytes: store("k0").encoded_len(),
        ..RaftLimits::default()
    };
    let fixture = Fixture::with(limits).await;
    let handle = fixture.handle();
    let busy = handle.propose(store("longer")).await;
    assert_eq!(busy, Err(ProposeError::Busy));
    for i in 0..9 {
        let proposal = handle.propose(store(&format!("k{i}"))).await;
        proposal.expect("an answered proposal releases its budget");
    }
}

#[tokio::test]
async fn oversized_command_is_rejected() {
    let limits = RaftLimits {
        command_bytes: store("k0").encoded_len(),
        ..RaftLimits::default()
    };
    let fixture = Fixture::with(limits).await;
    let handle = fixture.handle();
    handle.propose(store("k0")).await.unwrap();
    let error = handle.propose(store("longer")).await.unwrap_err();
    assert!(matches!(error, ProposeError::Rejected(_)), "{error}");
}

#[tokio::test]
async fn proposal_without_payload_is_not_appended() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let last = handle.status().last_index;
    let error = handle.propose(v1::Command::default()).await.unwrap_err();
    assert!(matches!(error, ProposeError::Rejected(_)), "{error}");
    assert_eq!(handle.status().last_index, last);
}

#[tokio::test]
async fn burst_of_proposals_is_answered_in_order() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let burst: Vec<_> = (0..200)
        .map(|i| handle.propose(store(&i.to_string())))
        .collect();
    let mut last = 0;
    for proposal in burst {
        let index = proposal.await.unwrap().index;
        assert!(index > last);
        last = index;
    }
    emptied(&handle).await;
    assert_eq!(handle.state().cert_blobs.len(), 200);
}

#[tokio::test]
async fn record_only_change_does_not_wake_follow() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let (mut all, mut followed) = (handle.subscribe(), handle.follow());
    all.mark_unchanged();
    followed.mark_unchanged();
    let revoke = Payload::TokenRevoke(v1::TokenRevoke {
        identity: "nobody".into(),
    });
    let revoke = command("tester", Timestamp::default(), revoke);
    handle.propose(revoke).await.unwrap();
    assert!(all.has_changed().unwrap());
    assert!(!all.borrow().audit.is_empty());
    assert!(!followed.has_changed().unwrap());
    handle.propose(store("a")).await.unwrap();
    assert!(followed.has_changed().unwrap());
    assert!(Arc::ptr_eq(&followed.borrow(), &all.borrow()));
}

#[derive(Default)]
struct Recorder {
    committed: Mutex<usize>,
    applied: Mutex<Vec<(u64, &'static str, bool)>>,
}

impl Observe for Recorder {
    fn committed(&self, _latency: std::time::Duration) {
        *self.committed.lock().unwrap() += 1;
    }

    fn applied(&self, applied: &Applied) {
        assert!(applied.ts.is_some());
        let record = (applied.index, applied.op, applied.accepted);
        self.applied.lock().unwrap().push(record);
    }
}

#[tokio::test]
async fn observer_is_called_once_per_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    storage::bootstrap(&path, 1, &[1]).unwrap();
    let recorder = Arc::new(Recorder::default());
    let args = RaftArgs {
        observer: recorder.clone(),
        ..args(&path, RaftLimits::default(), &Arc::default())
    };
    let handle = args.handle.clone();
    let (tx, _ended) = mpsc::unbounded_channel();
    let (parent, _) = Actor::spawn(None, Parent, tx).await.unwrap();
    let actor = spawn(args, parent.get_cell()).await.unwrap();

    let stored = handle.propose(store("a")).await.unwrap();
    let unknown = v1::DeploymentRollback {
        deployment: "nothing".into(),
        ..v1::DeploymentRollback::default()
    };
    let refused = Payload::DeploymentRollback(unknown);
    let refused = command("test", Timestamp::default(), refused);
    assert!(matches!(
        handle.propose(refused).await,
        Err(ProposeError::Rejected(_))
    ));

    assert_eq!(*recorder.committed.lock().unwrap(), 2);
    let index = stored.index;
    assert_eq!(
        *recorder.applied.lock().unwrap(),
        [
            (index, "cert_blob_upsert", true),
            (index + 1, "deployment_rollback", false)
        ]
    );
    actor.kill();
    handle.closed().await;
}
