//! Directories whose logs hold more than their rows.

use std::path::PathBuf;

use jaco_proto::v1::{self, command::Payload as Command};
use jaco_state::command;
use prost::Message as _;
use prost_types::Timestamp;
use raft::eraftpb::{ConfChangeType, Entry, HardState};

use super::*;
use crate::{
    storage::{Storage, Update, bootstrap},
    test_entries::change,
};

/// The command that stores a certificate named after the index.
fn write(index: u64) -> Entry {
    let blob = v1::CertBlob {
        key: format!("k{index}"),
        ..v1::CertBlob::default()
    };
    let upsert = Command::CertBlobUpsert(v1::CertBlobUpsert { blob: Some(blob) });
    Entry {
        index,
        term: 2,
        data: command("test", Timestamp::default(), upsert).encode_to_vec(),
        ..Entry::default()
    }
}

/// Node 1 among `voters`, with `log` from entry 2 on, none of it applied.
fn node(voters: &[u64], log: Vec<Entry>, commit: u64) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    bootstrap(&path, 1, voters).unwrap();
    let update = Update {
        entries: log,
        hard_state: Some(HardState {
            term: 3,
            vote: 1,
            commit,
        }),
        sync: true,
        ..Update::default()
    };
    Storage::open(&path).unwrap().write(update).unwrap();
    (dir, path)
}

fn keys(found: &OfflineState) -> Vec<&str> {
    found.state.cert_blobs.keys().map(String::as_str).collect()
}

/// Reads the node and checks everything but its keys.
fn replayed(path: &Path, replay: Replay, upto: (u64, u64), last: (u64, u64)) -> OfflineState {
    let position = |(index, term)| Position { index, term };
    let found = read(path, replay).unwrap();
    assert_eq!(found.position, position(upto));
    assert_eq!(found.state.applied_index, upto.0);
    assert_eq!(found.last, position(last));
    found
}

#[test]
fn one_of_several_voters_replays_to_its_commit() {
    let noop = Entry {
        index: 5,
        term: 3,
        ..Entry::default()
    };
    let log = vec![write(2), write(3), write(4), noop];
    let (_dir, path) = node(&[1, 2, 3], log.clone(), 3);
    let found = replayed(&path, Replay::Committed, (3, 2), (5, 3));
    assert_eq!(keys(&found), ["k2", "k3"]);
    let found = replayed(&path, Replay::WholeLog, (5, 3), (5, 3));
    assert_eq!(keys(&found), ["k2", "k3", "k4"]);
    let (_dir, path) = node(&[1, 2, 3], log, 1);
    let found = replayed(&path, Replay::Committed, (1, 1), (5, 3));
    assert!(keys(&found).is_empty());
}

#[test]
fn sole_voter_replays_to_the_end() {
    let (_dir, path) = node(&[1], vec![write(2), write(3)], 1);
    let found = replayed(&path, Replay::Committed, (3, 2), (3, 2));
    assert_eq!(keys(&found), ["k2", "k3"]);
}

#[test]
fn sole_voter_follows_configuration_changes() {
    use ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
    // A learner does not vote; entry 5 gives it a vote, so entry 6 may lack a majority.
    let joins = vec![
        write(2),
        change(3, 2, AddLearnerNode),
        write(4),
        change(5, 2, AddNode),
        write(6),
        change(7, 2, RemoveNode),
        write(8),
    ];
    let (_dir, path) = node(&[1], joins.clone(), 1);
    let found = replayed(&path, Replay::Committed, (5, 2), (8, 2));
    assert_eq!(keys(&found), ["k2", "k4"]);
    // Once the removal is committed, the node commits alone again.
    let (_dir, path) = node(&[1], joins.clone(), 7);
    replayed(&path, Replay::Committed, (8, 2), (8, 2));
    let (_dir, path) = node(&[1], joins, 6);
    replayed(&path, Replay::Committed, (6, 2), (8, 2));

    let leaves = vec![change(2, 2, RemoveNode), write(3)];
    let (_dir, path) = node(&[1, 2], leaves.clone(), 2);
    assert_eq!(
        keys(&replayed(&path, Replay::Committed, (3, 2), (3, 2))),
        ["k3"]
    );
    let (_dir, path) = node(&[1, 2], leaves, 1);
    replayed(&path, Replay::Committed, (1, 1), (3, 2));
}

#[test]
fn replay_equals_what_the_node_would_apply() {
    let log: Vec<_> = (2..=40).map(write).collect();
    let (_dir, path) = node(&[1, 2, 3], log, 30);
    let before = read(&path, Replay::Committed).unwrap();
    // The same, with some of it applied and the rows on disk.
    let storage = Storage::open(&path).unwrap();
    let mut state = storage.load_state().unwrap();
    let mut rows = Vec::new();
    for index in 2..=20 {
        let command = jaco_state::fsm::decode(&write(index).data).unwrap();
        let applied = jaco_state::fsm::apply(&state, index, &command).unwrap();
        rows.extend(applied.mutations.into_iter().map(storage::Row::from));
        state = applied.state;
    }
    let update = Update {
        rows,
        state: Some(std::sync::Arc::new(state)),
        compact: Some(15),
        ..Update::default()
    };
    storage.write(update).unwrap();
    assert!(matches!(
        read(&path, Replay::Committed),
        Err(Error::Storage(storage::Error::Locked(_)))
    ));
    drop(storage);
    assert_eq!(read(&path, Replay::Committed).unwrap(), before);
}

#[test]
fn entry_of_newer_version_is_refused_unless_uncommitted() {
    let unknown = Entry {
        index: 3,
        term: 2,
        data: vec![0x82, 0x7d, 0x00],
        ..Entry::default()
    };
    let log = vec![write(2), unknown];
    let (_dir, path) = node(&[1, 2, 3], log.clone(), 3);
    let error = read(&path, Replay::Committed).unwrap_err();
    assert!(matches!(error, Error::Newer(_)), "{error}");
    assert!(error.to_string().contains("entry 3"), "{error}");
    let (_dir, path) = node(&[1, 2, 3], log, 2);
    replayed(&path, Replay::Committed, (2, 2), (3, 2));
    assert!(matches!(
        read(&path, Replay::WholeLog),
        Err(Error::Newer(_))
    ));
}

#[test]
fn damaged_configuration_change_is_refused() {
    let mut damaged = change(2, 2, ConfChangeType::AddNode);
    damaged.data = vec![0xff; 3];
    let (_dir, path) = node(&[1], vec![damaged], 1);
    let error = read(&path, Replay::Committed).unwrap_err();
    assert!(
        error.to_string().contains("log entry 2 is damaged"),
        "{error}"
    );
    // It would leave no voter.
    let last = change(2, 1, ConfChangeType::RemoveNode);
    let (_dir, path) = node(&[1], vec![last], 1);
    let error = read(&path, Replay::Committed).unwrap_err();
    assert!(
        error.to_string().contains("log entry 2 is damaged"),
        "{error}"
    );
}
