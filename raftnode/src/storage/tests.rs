//! Tests of damage, crashes and restarts of a directory.

mod damage;
mod restored;

use std::{
    fs,
    path::{Path, PathBuf},
};

use jaco_proto::v1;
use raft::{GetEntriesContext, Storage as _, eraftpb::Entry};

use super::*;

pub(super) fn entries(range: std::ops::RangeInclusive<u64>, term: u64) -> Vec<Entry> {
    let entry = |index| Entry {
        index,
        term,
        data: vec![7; 100],
        ..Entry::default()
    };
    range.map(entry).collect()
}

/// The update that applies entry `index`: one new certificate, named after the index.
pub(super) fn applied(state: &State, index: u64) -> Update {
    let blob = v1::CertBlob {
        key: format!("k{index}"),
        value: vec![9; 50],
        ..v1::CertBlob::default()
    };
    let upsert = v1::CertBlobUpsert { blob: Some(blob) };
    let command = v1::Command {
        payload: Some(v1::command::Payload::CertBlobUpsert(upsert)),
        ..v1::Command::default()
    };
    let applied = jaco_state::fsm::apply(state, index, &command).unwrap();
    let rows = applied.mutations.into_iter().map(|m| Row {
        key: m.key,
        value: m.value,
    });
    Update {
        rows: rows.collect(),
        state: Some(Arc::new(applied.state)),
        hard_state: Some(hard_state(2, index)),
        ..Update::default()
    }
}

pub(super) fn hard_state(term: u64, commit: u64) -> HardState {
    HardState {
        term,
        vote: 1,
        commit,
    }
}

pub(super) fn append(entries: Vec<Entry>) -> Update {
    Update {
        entries,
        hard_state: Some(hard_state(2, 1)),
        sync: true,
        ..Update::default()
    }
}

pub(super) fn fresh() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    bootstrap(&path, 1, &[1]).unwrap();
    (dir, path)
}

pub(super) fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[test]
fn bootstrapped_directory_opens_as_an_empty_snapshot() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    assert_eq!(storage.raft_id(), 1);
    assert_eq!(storage.conf_state().voters, [1]);
    let start = Position { index: 1, term: 1 };
    assert_eq!(storage.log_range(), (start, start));
    let expected = State {
        applied_index: 1,
        ..State::default()
    };
    assert_eq!(storage.load_state().unwrap(), expected);
}

#[test]
fn joining_directory_opens_empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    create(&path, 4).unwrap();
    let storage = Storage::open(&path).unwrap();
    assert_eq!((storage.raft_id(), storage.applied()), (4, 0));
    assert_eq!(storage.conf_state(), ConfState::default());
}

#[test]
fn voters_must_be_distinct_and_include_the_node() {
    let dir = tempfile::tempdir().unwrap();
    for voters in [&[][..], &[2], &[1, 1], &[0, 1]] {
        let error = bootstrap(&dir.path().join("raft"), 1, voters).unwrap_err();
        assert!(matches!(error, Error::Voters { .. }), "{voters:?}: {error}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn creating_over_content_is_refused_without_changes() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    storage.write(append(entries(2..=3, 2))).unwrap();
    drop(storage);
    assert!(matches!(bootstrap(&path, 1, &[1]), Err(Error::NotEmpty(_))));
    assert!(matches!(create(&path, 1), Err(Error::NotEmpty(_))));
    let storage = Storage::open(&path).unwrap();
    assert_eq!(storage.log_range().1.index, 3);
}

#[test]
fn second_open_in_process_is_locked_out() {
    let (_dir, path) = fresh();
    let _held = Storage::open(&path).unwrap();
    assert!(matches!(Storage::open(&path), Err(Error::Locked(_))));
}

const HOLD: &str = "JACO_TEST_OPEN";

/// Not a test: runs in the other process of the test below.
#[test]
fn helper_process_tries_to_open() {
    let Some(path) = std::env::var_os(HOLD) else {
        return;
    };
    let locked = matches!(Storage::open(Path::new(&path)), Err(Error::Locked(_)));
    std::process::exit(if locked { 42 } else { 43 });
}

#[test]
fn other_process_is_locked_out() {
    let (_dir, path) = fresh();
    let _held = Storage::open(&path).unwrap();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "storage::tests::helper_process_tries_to_open"])
        .env(HOLD, &path)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(42));
}

#[test]
fn written_data_survives_reopening() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    storage.write(append(entries(2..=4, 2))).unwrap();
    let mut state = storage.load_state().unwrap();
    for index in 2..=3 {
        let update = applied(&state, index);
        state = State::clone(update.state.as_ref().unwrap());
        storage.write(update).unwrap();
    }
    let counts = WriteCounts {
        writes: 3,
        synced: 1,
    };
    assert_eq!(storage.write_counts(), counts);
    drop(storage);
    let storage = Storage::open(&path).unwrap();
    assert_eq!(storage.applied(), 3);
    assert_eq!(storage.hard_state(), hard_state(2, 3));
    assert_eq!(storage.load_state().unwrap(), state);
    assert_eq!(storage.log_range().1, Position { index: 4, term: 2 });
}

#[test]
fn every_row_of_a_write_is_stored() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    storage.write(append(entries(2..=5, 2))).unwrap();
    let mut state = storage.load_state().unwrap();
    let mut rows = Vec::new();
    for index in 2..=4 {
        let one = applied(&state, index);
        rows.extend(one.rows);
        state = State::clone(one.state.as_ref().unwrap());
    }
    let delete = |state: &mut State, key: &str, row: &Row| {
        state.cert_blobs.remove(key);
        Row {
            key: row.key.clone(),
            value: None,
        }
    };
    // The last row is an insertion in the first write, and a deletion in the second one.
    let first = delete(&mut state, "k2", &rows[0]);
    let second = rows[1].clone();
    rows.insert(2, first);
    let write = |rows: Vec<Row>, state: &State| {
        let update = Update {
            rows,
            state: Some(Arc::new(state.clone())),
            hard_state: Some(hard_state(2, state.applied_index)),
            ..Update::default()
        };
        storage.write(update).unwrap();
    };
    write(rows, &state);
    assert_eq!(storage.load_state().unwrap(), state);
    let mut update = applied(&state, 5);
    state = State::clone(update.state.as_ref().unwrap());
    update.rows.push(delete(&mut state, "k3", &second));
    write(update.rows, &state);
    drop(storage);
    let loaded = Storage::open(&path).unwrap().load_state().unwrap();
    assert_eq!(loaded, state);
    assert_eq!(loaded.cert_blobs.keys().collect::<Vec<_>>(), ["k4", "k5"]);
}

#[test]
fn configuration_is_stored_with_its_write() {
    let (_dir, path) = fresh();
    let conf_state = ConfState {
        voters: vec![1, 2],
        learners: vec![3],
        ..ConfState::default()
    };
    let storage = Storage::open(&path).unwrap();
    let update = Update {
        conf_state: Some(conf_state.clone()),
        ..append(entries(2..=2, 2))
    };
    storage.write(update).unwrap();
    assert_eq!(storage.conf_state(), conf_state);
    drop(storage);
    assert_eq!(Storage::open(&path).unwrap().conf_state(), conf_state);
}

#[test]
fn later_leader_replaces_a_conflicting_suffix() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    storage.write(append(entries(2..=9, 2))).unwrap();
    let mut update = append(entries(5..=6, 3));
    update.hard_state = Some(hard_state(3, 1));
    storage.write(update).unwrap();
    drop(storage);
    let storage = Storage::open(&path).unwrap();
    assert_eq!(storage.log_range().1, Position { index: 6, term: 3 });
    assert_eq!(storage.term_at(4).unwrap(), 2);
    assert_eq!(storage.term_at(5).unwrap(), 3);
}

#[test]
fn gap_in_append_ends_the_storage_unwritten() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    let error = storage.write(append(entries(3..=4, 2))).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let after = storage.write(append(entries(2..=2, 2)));
    assert!(matches!(after, Err(Error::Failed(_))));
    drop(storage);
    assert_eq!(Storage::open(&path).unwrap().log_range().1.index, 1);
}

#[test]
fn cached_and_stored_entries_read_alike() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    let mut large = entries(2..=41, 2);
    for entry in &mut large {
        entry.data = vec![entry.index as u8; 64 * 1024];
    }
    storage.write(append(large.clone())).unwrap();
    let view = LogView(Arc::clone(&storage));
    let read = |low, high, max: Option<u64>| {
        view.entries(low, high, max, GetEntriesContext::empty(false))
            .unwrap()
    };
    assert!(
        storage.cursor().log_cache.first().unwrap() > 20,
        "the log cache must be bounded"
    );
    assert_eq!(read(2, 42, None), large);
    assert_eq!(read(41, 42, None), large[39..]);
    for low in [2, 39] {
        assert_eq!(read(low, low + 3, Some(0)).len(), 1, "at least one");
        assert_eq!(read(low, low + 3, Some(140_000)).len(), 2);
    }
    assert!(
        view.entries(1, 3, None, GetEntriesContext::empty(false))
            .is_err()
    );
    assert!(
        view.entries(2, 43, None, GetEntriesContext::empty(false))
            .is_err()
    );
}

#[test]
fn compacted_log_keeps_term_before_first_entry() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    storage.write(append(entries(2..=9, 2))).unwrap();
    let mut update = applied(&storage.load_state().unwrap(), 7);
    update.compact = Some(7);
    storage.write(update).unwrap();
    for storage in [storage, {
        let other = path.with_extension("copy");
        copy(&path, &other);
        Storage::open(&other).unwrap()
    }] {
        let view = LogView(Arc::clone(&storage));
        assert_eq!(view.first_index().unwrap(), 8);
        assert_eq!(view.term(7).unwrap(), 2);
        assert!(view.term(6).is_err());
    }
}

#[test]
fn installed_snapshot_replaces_everything() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    storage.write(append(entries(2..=9, 2))).unwrap();
    let old = applied(&storage.load_state().unwrap(), 5);
    storage.write(old).unwrap();

    let source = applied(&State::default(), 20).state.unwrap();
    let refill = storage.prepare(&source).unwrap();
    let view = LogView(Arc::clone(&storage));
    let metadata = raft::eraftpb::SnapshotMetadata {
        conf_state: Some(ConfState {
            voters: vec![1, 2],
            ..ConfState::default()
        }),
        index: 20,
        term: 6,
    };
    storage
        .write(Update {
            install: Some((metadata.clone(), refill)),
            hard_state: Some(hard_state(6, 20)),
            state: Some(Arc::clone(&source)),
            sync: true,
            ..Update::default()
        })
        .unwrap();
    let snapshot = view.snapshot(20, 2).unwrap();
    assert_eq!(snapshot.metadata, Some(metadata));
    assert!(
        snapshot.data.is_empty(),
        "the content is encoded on sending"
    );
    assert_eq!(storage.take_outgoing(2, 19), None, "an earlier snapshot");
    assert_eq!(storage.take_outgoing(2, 20).as_ref(), Some(&source));
    assert_eq!(storage.take_outgoing(2, 20), None);
    assert!(view.snapshot(21, 2).is_err(), "not there yet");
    drop((storage, view));

    let storage = Storage::open(&path).unwrap();
    assert_eq!(storage.load_state().unwrap(), *source);
    let position = Position { index: 20, term: 6 };
    assert_eq!(storage.log_range(), (position, position));
    assert_eq!(storage.conf_state().voters, [1, 2]);
}

#[test]
fn failed_write_ends_the_storage() {
    let (_dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    storage.fail_writes();
    let error = storage.write(append(entries(2..=2, 2))).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    storage.fault.store(false, Ordering::Relaxed);
    let after = storage.write(append(entries(2..=2, 2))).unwrap_err();
    assert!(
        matches!(after, Error::Failed(_)),
        "no write after a failure"
    );
    assert!(storage.failure().is_some());
    assert_eq!(storage.log_range().1.index, 1);
}
