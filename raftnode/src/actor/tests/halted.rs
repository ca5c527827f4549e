//! Nodes that met an entry of a newer version.

use raft::eraftpb::{ConfChangeType, ConfState, Entry, HardState};

use super::*;
use crate::{storage::Update, test_entries::change};

/// The log of learner 3, in which the sole voter 1 is replaced by 2 behind an unknown command.
fn replaced_voter(path: &Path) {
    storage::bootstrap(path, 3, &[1, 3]).unwrap();
    let unknown = Entry {
        index: 2,
        term: 2,
        data: vec![0x82, 0x7d, 0x00],
        ..Entry::default()
    };
    let update = Update {
        conf_state: Some(ConfState {
            voters: vec![1],
            learners: vec![3],
            ..ConfState::default()
        }),
        entries: vec![
            unknown,
            change(3, 2, ConfChangeType::AddLearnerNode),
            change(4, 2, ConfChangeType::AddNode),
            change(5, 1, ConfChangeType::RemoveNode),
        ],
        hard_state: Some(HardState {
            term: 2,
            vote: 0,
            commit: 5,
        }),
        sync: true,
        ..Update::default()
    };
    Storage::open(path).unwrap().write(update).unwrap();
}

#[tokio::test]
async fn halted_node_restarts_after_configuration_changes() {
    let limits = RaftLimits::default();
    let mut fixture = Fixture::prepared(limits, replaced_voter, |_| Arc::new(NoTransport)).await;
    for run in 0..3 {
        let status = fixture.handle().status();
        assert!(status.halted.is_some(), "run {run}");
        assert_eq!(status.applied, 1, "run {run}");
        assert_eq!((status.voters, status.learners), (vec![2], vec![3]));
        // A restart replays the changes behind the applied index.
        fixture.kill().await;
        fixture.restart().await;
    }
    let stored = fixture.args.storage.conf_state();
    assert_eq!((stored.voters, stored.learners), (vec![1], vec![3]));
    assert!(fixture.fatal.lock().unwrap().is_empty());
}
