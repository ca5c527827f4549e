//! Directories created from an existing state, and states read from directories.

use std::{collections::BTreeMap, time::SystemTime};

use super::*;

const ORIGIN: Position = Position { index: 70, term: 5 };

/// A state large enough that its creation takes several write batches.
fn large() -> State {
    let mut state = State {
        applied_index: ORIGIN.index,
        ..State::default()
    };
    for n in 0..20 {
        let blob = v1::CertBlob {
            key: format!("k{n:02}"),
            value: vec![n; 1 << 19],
            ..Default::default()
        };
        state.cert_blobs.insert(blob.key.clone(), Arc::new(blob));
    }
    state
}

fn restored() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    restore(&path, 9, ORIGIN, &large()).unwrap();
    (dir, path)
}

/// Name, content and modification time of every file.
fn look(path: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let modified = fs::metadata(&path).unwrap().modified().unwrap();
            let content = fs::read(&path).unwrap();
            (path, (content, modified))
        })
        .collect()
}

#[test]
fn restored_directory_opens_as_a_snapshot() {
    let (_dir, path) = restored();
    let storage = Storage::open(&path).unwrap();
    assert_eq!(storage.load_state().unwrap(), large());
    assert_eq!(storage.raft_id(), 9);
    assert_eq!(storage.log_range(), (ORIGIN, ORIGIN));
    assert_eq!(storage.conf_state().voters, [9]);
    let hard_state = storage.hard_state();
    assert_eq!(
        (hard_state.term, hard_state.commit, hard_state.vote),
        (5, 70, 0)
    );
    storage.write(append(entries(71..=72, 6))).unwrap();
    assert!(restore(&path, 9, ORIGIN, &large()).is_err(), "not empty");
}

#[test]
fn restore_needs_an_origin_and_a_voter() {
    let dir = tempfile::tempdir().unwrap();
    for (raft_id, index, term) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
        let path = dir.path().join("raft");
        let error = restore(&path, raft_id, Position { index, term }, &large()).unwrap_err();
        assert!(matches!(error, Error::Voters { .. }), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn examine_reads_the_state_without_writing() {
    let (_dir, path) = restored();
    assert_eq!(read_offline(&path).unwrap(), (large(), ORIGIN));

    let storage = Storage::open(&path).unwrap();
    assert!(matches!(read_offline(&path), Err(Error::Locked(_))));
    // Entry 72 is in the log, but not applied.
    storage.write(append(entries(71..=72, 6))).unwrap();
    let mut update = super::applied(&storage.load_state().unwrap(), 71);
    update.hard_state = Some(hard_state(6, 71));
    update.sync = true;
    storage.write(update).unwrap();
    let state = storage.load_state().unwrap();
    drop(storage);

    let before = look(&path);
    let position = Position { index: 71, term: 6 };
    assert_eq!(read_offline(&path).unwrap(), (state, position));
    assert_eq!(look(&path), before);
    let storage = Storage::open(&path).unwrap();
    assert_eq!(storage.log_range().1, Position { index: 72, term: 6 });
}

#[test]
fn examine_rejects_invalid_directories() {
    let (_dir, path) = restored();
    let error = read_offline(&path.join("gone")).unwrap_err();
    assert!(matches!(error, Error::Missing(_)), "{error}");
    fs::remove_file(path.join("CURRENT")).unwrap();
    let error = read_offline(&path).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}
