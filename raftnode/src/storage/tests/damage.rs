//! Tests with truncated and modified directories.

use std::{fs, path::Path};

use rocksdb::DB;

use super::{
    super::{schema::*, *},
    append, applied, copy, entries, fresh, hard_state,
};

/// Opens the database below the storage, to damage it.
fn raw(path: &Path, change: impl FnOnce(&DB)) {
    let db = DB::open_cf_descriptors(&options::database(), path, options::tables()).unwrap();
    change(&db);
}

fn put(path: &Path, table: &str, key: &[u8], value: &[u8]) {
    raw(path, |db| {
        db.put_cf(db.cf_handle(table).unwrap(), key, value).unwrap();
    });
}

fn delete(path: &Path, table: &str, key: &[u8]) {
    raw(path, |db| {
        db.delete_cf(db.cf_handle(table).unwrap(), key).unwrap();
    });
}

fn files(path: &Path, matching: impl Fn(&str) -> bool) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|p| matching(p.file_name().unwrap().to_str().unwrap()))
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

/// A closed directory with log, entities and table files.
fn filled() -> (tempfile::TempDir, std::path::PathBuf) {
    let (dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    storage.write(append(entries(2..=50, 2))).unwrap();
    let mut state = storage.load_state().unwrap();
    for index in 2..=40 {
        let update = applied(&state, index);
        state = State::clone(update.state.as_ref().unwrap());
        storage.write(update).unwrap();
    }
    drop(storage);
    // Reopening turns the write-ahead log into table files.
    drop(Storage::open(&path).unwrap());
    (dir, path)
}

fn garbage(path: &Path) {
    let length = fs::metadata(path).unwrap().len() as usize;
    fs::write(path, vec![0xA5; length]).unwrap();
}

fn cut(path: &Path) {
    let length = fs::metadata(path).unwrap().len();
    fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(length / 2)
        .unwrap();
}

#[test]
fn damaged_directory_is_rejected_with_the_reason() {
    let entry =
        |index: u64, term: u64| encode_entry(&entries(index..=index, term).remove(0)).unwrap();
    type Damage = Box<dyn Fn(&Path)>;
    let cases: Vec<(&str, Damage)> = vec![
        (
            "does not exist",
            Box::new(|p| fs::remove_dir_all(p).unwrap()),
        ),
        (
            "cannot be accessed",
            Box::new(|p| {
                fs::remove_dir_all(p).unwrap();
                fs::write(p, "a file").unwrap();
            }),
        ),
        (
            "CURRENT",
            Box::new(|p| {
                for file in files(p, |_| true) {
                    fs::remove_file(file).unwrap();
                }
            }),
        ),
        (
            "CURRENT",
            Box::new(|p| fs::remove_file(p.join("CURRENT")).unwrap()),
        ),
        (
            "CURRENT",
            Box::new(|p| fs::write(p.join("CURRENT"), "nonsense\n").unwrap()),
        ),
        (
            "MANIFEST",
            Box::new(|p| {
                for file in files(p, |f| f.starts_with("MANIFEST")) {
                    fs::remove_file(file).unwrap();
                }
            }),
        ),
        (
            "database is damaged",
            Box::new(|p| {
                files(p, |f| f.starts_with("MANIFEST"))
                    .iter()
                    .for_each(|f| garbage(f));
            }),
        ),
        (
            "is damaged",
            Box::new(|p| {
                files(p, |f| f.ends_with(".sst"))
                    .iter()
                    .for_each(|f| garbage(f));
            }),
        ),
        (
            "is damaged",
            Box::new(|p| {
                files(p, |f| f.ends_with(".sst"))
                    .iter()
                    .for_each(|f| cut(f));
            }),
        ),
        (
            "is damaged",
            Box::new(|p| {
                fs::remove_file(&files(p, |f| f.ends_with(".sst"))[0]).unwrap();
            }),
        ),
        (
            "SYNCED",
            Box::new(|p| fs::remove_file(p.join("SYNCED")).unwrap()),
        ),
        ("SYNCED", Box::new(|p| cut(&p.join("SYNCED")))),
        (
            "format 9",
            Box::new(|p| put(p, META, KEY_FORMAT, &9u32.to_be_bytes())),
        ),
        ("meta row format", Box::new(|p| delete(p, META, KEY_FORMAT))),
        (
            "meta row raft_id",
            Box::new(|p| delete(p, META, KEY_RAFT_ID)),
        ),
        (
            "meta row hard_state",
            Box::new(|p| delete(p, META, KEY_HARD_STATE)),
        ),
        (
            "meta row hard_state",
            Box::new(|p| put(p, META, KEY_HARD_STATE, &[0xff; 3])),
        ),
        (
            "meta row conf_state",
            Box::new(|p| delete(p, META, KEY_CONF_STATE)),
        ),
        (
            "meta row applied",
            Box::new(|p| delete(p, META, KEY_APPLIED)),
        ),
        (
            "meta row applied",
            Box::new(|p| put(p, META, KEY_APPLIED, b"x")),
        ),
        (
            "meta row truncated",
            Box::new(|p| put(p, META, KEY_TRUNCATED, b"x")),
        ),
        (
            "applied at 45, but commit at 40",
            Box::new(|p| {
                put(p, META, KEY_APPLIED, &45u64.to_be_bytes());
            }),
        ),
        (
            "meta row hard_state",
            Box::new(|p| {
                let older = encode_hard_state(&hard_state(1, 40)).unwrap();
                put(p, META, KEY_HARD_STATE, &older);
            }),
        ),
        (
            "log entry 20 is damaged: found 21",
            Box::new(|p| delete(p, LOG, &log_key(20))),
        ),
        (
            "log entry 2 is damaged",
            Box::new(|p| delete(p, LOG, &log_key(2))),
        ),
        (
            "commit at 40, but log ends at 1",
            Box::new(|p| {
                raw(p, |db| {
                    let log = db.cf_handle(LOG).unwrap();
                    (2..=50).for_each(|i| db.delete_cf(log, log_key(i)).unwrap());
                })
            }),
        ),
        (
            "log entry 20",
            Box::new(|p| put(p, LOG, &log_key(20), &[0xff; 9])),
        ),
        (
            "says it is entry 30",
            Box::new(move |p| put(p, LOG, &log_key(20), &entry(30, 2))),
        ),
        (
            "term 1 after term 2",
            Box::new(move |p| put(p, LOG, &log_key(20), &entry(20, 1))),
        ),
        ("key of 1 bytes", Box::new(|p| put(p, LOG, b"x", b""))),
        ("table state", Box::new(|p| put(p, STATE, &[0xee, 1], b""))),
        (
            "database is damaged",
            Box::new(|p| {
                let mut db =
                    DB::open_cf_descriptors(&options::database(), p, options::tables()).unwrap();
                db.drop_cf(LOG).unwrap();
            }),
        ),
    ];
    let (dir, path) = filled();
    for (number, (reason, damage)) in cases.iter().enumerate() {
        let victim = dir.path().join(format!("victim{number}"));
        copy(&path, &victim);
        damage(&victim);
        for attempt in ["first", "second"] {
            let error = Storage::open(&victim)
                .and_then(|storage| storage.load_state())
                .expect_err(&format!("case {number} ({reason}), {attempt} attempt"));
            let text = chain(&error);
            assert!(
                text.contains(reason),
                "case {number} ({reason}), {attempt}: {text}"
            );
        }
    }
}

/// A power cut can truncate the write-ahead log anywhere after the last sync. The remainder must be
/// a prefix of complete writes.
#[test]
fn torn_tail_leaves_a_prefix_of_complete_writes() {
    let (dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    storage.write(append(entries(2..=6, 2))).unwrap();
    let wal = files(&path, |f| f.ends_with(".log")).pop().unwrap();
    let synced = fs::metadata(&wal).unwrap().len();
    let mut state = storage.load_state().unwrap();
    let mut states = vec![state.clone()];
    for index in 2..=4 {
        let update = applied(&state, index);
        state = State::clone(update.state.as_ref().unwrap());
        states.push(state.clone());
        storage.write(update).unwrap();
    }
    let end = fs::metadata(&wal).unwrap().len();
    let victim = dir.path().join("victim");
    let mut reached = std::collections::BTreeSet::new();
    for length in (synced..=end).step_by(7) {
        copy(&path, &victim);
        let torn = victim.join(wal.file_name().unwrap());
        fs::File::options()
            .write(true)
            .open(&torn)
            .unwrap()
            .set_len(length)
            .unwrap();
        let storage = Storage::open(&victim).unwrap_or_else(|e| panic!("{length}: {}", chain(&e)));
        let loaded = storage.load_state().unwrap();
        assert_eq!(storage.log_range().1.index, 6, "cut at {length}");
        assert_eq!(
            loaded,
            states[loaded.applied_index as usize - 1],
            "cut at {length}"
        );
        assert_eq!(
            storage.hard_state().commit,
            loaded.applied_index,
            "cut at {length}"
        );
        reached.insert(loaded.applied_index);
    }
    assert!(
        reached.len() >= 3,
        "cuts fell into several writes: {reached:?}"
    );

    for length in (0..synced).step_by(11) {
        copy(&path, &victim);
        let torn = victim.join(wal.file_name().unwrap());
        fs::File::options()
            .write(true)
            .open(&torn)
            .unwrap()
            .set_len(length)
            .unwrap();
        let error = Storage::open(&victim).expect_err(&format!("cut at {length} of {synced}"));
        assert!(
            matches!(error, Error::LostWrites { .. }),
            "{length}: {}",
            chain(&error)
        );
    }
}

/// The process can be killed between any two writes; the directory must open in each such state.
#[test]
fn directory_copied_after_any_write_opens() {
    let (dir, path) = fresh();
    let storage = Storage::open(&path).unwrap();
    let victim = dir.path().join("victim");
    let mut state = storage.load_state().unwrap();
    for index in 2..=12 {
        let mut appending = append(entries(index..=index, 2));
        appending.hard_state = Some(hard_state(2, index - 1));
        storage.write(appending).unwrap();
        copy(&path, &victim);
        let copied = Storage::open(&victim).unwrap();
        assert_eq!(copied.log_range().1.index, index);
        assert_eq!(copied.load_state().unwrap(), state);
        drop(copied);

        let update = applied(&state, index);
        state = State::clone(update.state.as_ref().unwrap());
        storage.write(update).unwrap();
        copy(&path, &victim);
        assert_eq!(Storage::open(&victim).unwrap().load_state().unwrap(), state);
    }
}

#[test]
fn interrupted_creation_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    fs::create_dir(&path).unwrap();
    watermark::Watermark::create(&path).unwrap();
    let mut creating = options::database();
    creating.create_if_missing(true);
    creating.create_missing_column_families(true);
    drop(DB::open_cf_descriptors(&creating, &path, options::tables()).unwrap());
    let error = Storage::open(&path).unwrap_err();
    assert!(chain(&error).contains("meta row format"), "{error}");
}

#[test]
fn rejected_open_keeps_data_behind_the_damage() {
    let (_dir, path) = filled();
    let storage = Storage::open(&path).unwrap();
    for index in 51..=80 {
        let update = Update {
            hard_state: Some(hard_state(2, 40)),
            ..append(entries(index..=index, 2))
        };
        storage.write(update).unwrap();
    }
    drop(storage);
    let log = files(&path, |name| name.ends_with(".log")).pop().unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&log, &bytes).unwrap();
    let tables = files(&path, |name| name.ends_with(".sst"));
    for _ in 0..2 {
        let error = Storage::open(&path).unwrap_err();
        assert!(matches!(error, Error::LostWrites { .. }), "{error}");
        assert_eq!(fs::read(&log).unwrap(), bytes);
        assert_eq!(files(&path, |name| name.ends_with(".sst")), tables);
    }
    // Once the damage is undone, no data is missing.
    bytes[middle] ^= 0xff;
    fs::write(&log, &bytes).unwrap();
    let storage = Storage::open(&path).unwrap();
    assert_eq!(storage.log_range().1.index, 80);
}
