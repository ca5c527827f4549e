//! Kills and restarts on the same directory, and compaction of its log.

use std::collections::BTreeMap;

use super::*;
use crate::ProposeError;

#[tokio::test]
async fn only_voter_leads_when_spawn_returns() {
    let fixture = Fixture::start().await;
    let status = fixture.handle().status();
    assert_eq!((status.role, status.leading), (Role::Leader, true));
    assert_eq!(status.leader_id, Some(1));
    assert_eq!(status.voters, [1]);
    assert_eq!(status.applied, status.last_index);
}

#[tokio::test]
async fn restart_keeps_digest_and_applies_nothing_twice() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    for i in 0..20 {
        handle.propose(store(&format!("k{}", i % 7))).await.unwrap();
        let _ = handle.propose(rejected()).await;
    }
    let shown = handle.state();
    let (storage, _dir) = fixture.reopen().await;
    let loaded = storage.load_state().unwrap();
    assert_eq!(loaded, *shown);
    assert_eq!(loaded.digest(), shown.digest());
}

#[tokio::test]
async fn answered_proposals_survive_an_actor_kill() {
    let mut fixture = Fixture::start().await;
    let handle = fixture.handle();
    handle.propose(store("before")).await.unwrap();
    fixture.kill().await;
    assert_eq!(handle.status().role, Role::Stopped);
    let error = handle.propose(store("between")).await.unwrap_err();
    assert_eq!(error, ProposeError::Unavailable);
    assert_eq!(
        handle.read_index().await.unwrap_err(),
        ReadError::Unavailable
    );
    fixture.restart().await;
    handle.propose(store("after")).await.unwrap();
    let state = handle.read_index().await.unwrap();
    let keys: Vec<_> = state.cert_blobs.keys().cloned().collect();
    assert_eq!(keys, ["after", "before"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_start_releases_the_directory() {
    let mut fixture = Fixture::start().await;
    for n in 0..20 {
        fixture.kill().await;
        let starting = spawn(fixture.args.clone(), fixture.parent.clone());
        tokio::select! {
            biased;
            _ = starting => {}
            () = tokio::task::yield_now() => {}
        }
        fixture.restart().await;
        fixture
            .handle()
            .propose(store(&n.to_string()))
            .await
            .unwrap();
        // A running actor counts as three: its thread, its state, and its watchdog.
        let mut threads = fixture.handle().shared.threads.subscribe();
        tokio::time::timeout(
            std::time::Duration::from_secs(60),
            threads.wait_for(|n| *n == 3),
        )
        .await
        .unwrap()
        .unwrap();
    }
    assert_eq!(fixture.handle().state().cert_blobs.len(), 20);
}

#[tokio::test]
async fn kill_leaves_inflight_proposals_unknown_or_committed() {
    let mut fixture = Fixture::start().await;
    let handle = fixture.handle();
    for round in 0..20 {
        let keys: Vec<_> = (0..30).map(|i| format!("r{round}-{i}")).collect();
        let waiting: Vec<_> = keys.iter().map(|key| handle.propose(store(key))).collect();
        fixture.kill().await;
        let mut outcomes = BTreeMap::new();
        for (key, proposal) in keys.iter().zip(waiting) {
            outcomes.insert(key.clone(), proposal.await);
        }
        fixture.restart().await;
        let state = handle.read_index().await.unwrap();
        for (key, outcome) in outcomes {
            let held = state.cert_blobs.contains_key(&key);
            match outcome {
                Ok(_) => assert!(held, "{key} was acknowledged"),
                Err(ProposeError::Unknown(_)) => {}
                Err(error) => panic!("{key}: {error}"),
            }
        }
    }
}

#[tokio::test]
async fn failed_write_acknowledges_nothing_and_stops_node() {
    let mut fixture = Fixture::start().await;
    let handle = fixture.handle();
    handle.propose(store("kept")).await.unwrap();
    fixture.args.storage.fail_writes();
    let error = handle.propose(store("lost")).await.unwrap_err();
    assert!(matches!(error, ProposeError::Unknown(_)), "{error}");
    fixture.stopped().await;
    assert_eq!(fixture.fatal.lock().unwrap().len(), 1);
    assert_eq!(handle.status().role, Role::Stopped);
    let again = spawn(fixture.args.clone(), fixture.parent.clone()).await;
    assert!(
        matches!(again, Err(SpawnError::Start(_))),
        "a restart must fail too"
    );
    let keys: Vec<_> = handle.state().cert_blobs.keys().cloned().collect();
    assert_eq!(keys, ["kept"]);
}

#[tokio::test]
async fn compacted_node_restarts_from_its_rows() {
    let limits = RaftLimits {
        compact_entries: 16,
        ..RaftLimits::default()
    };
    let mut fixture = Fixture::with(limits).await;
    let handle = fixture.handle();
    for i in 0..50 {
        handle.propose(store(&format!("k{i}"))).await.unwrap();
    }
    let (truncated, last) = fixture.args.storage.log_range();
    assert!(
        last.index - truncated.index <= 16,
        "{truncated:?}..{last:?}"
    );
    fixture.kill().await;
    fixture.restart().await;
    handle.propose(store("more")).await.unwrap();
    assert_eq!(handle.state().cert_blobs.len(), 51);
}

#[tokio::test]
async fn large_log_is_compacted_despite_few_entries() {
    let limits = RaftLimits {
        log_bytes: 1000,
        ..RaftLimits::default()
    };
    let mut fixture = Fixture::with(limits).await;
    let handle = fixture.handle();
    let kept = |fixture: &Fixture| {
        let (truncated, last) = fixture.args.storage.log_range();
        last.index - truncated.index
    };
    for i in 0..100 {
        handle.propose(store(&format!("k{i}"))).await.unwrap();
        assert!(kept(&fixture) < 30, "{}", kept(&fixture));
    }
    fixture.kill().await;
    fixture.restart().await;
    assert!((5..30).contains(&kept(&fixture)), "{}", kept(&fixture));
    let storage = &fixture.args.storage;
    assert!(
        storage.log_excess(100).is_some(),
        "sizes are recomputed on open"
    );
    assert_eq!(storage.log_excess(2000), None);
    handle.propose(store("more")).await.unwrap();
    assert_eq!(handle.state().cert_blobs.len(), 101);
}
