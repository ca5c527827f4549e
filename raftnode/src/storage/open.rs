//! Creates and opens a directory. Its content is verified before use.

use std::{
    fs::{self, DirBuilder, File},
    io::ErrorKind,
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::{Mutex, OnceLock, atomic::AtomicU64},
};

use jaco_proto::chain;
use jaco_state::State;
use raft::eraftpb::{ConfState, HardState};
use rocksdb::{DB, IteratorMode, WriteBatch};

use super::{
    Cursor, Error, Row, Storage,
    log_cache::LogCache,
    log_size::LogSize,
    options,
    schema::{
        self, FORMAT, KEY_APPLIED, KEY_CONF_STATE, KEY_FORMAT, KEY_HARD_STATE, KEY_RAFT_ID,
        KEY_TRUNCATED, LOG, META, Position, STATE,
    },
    watermark::Watermark,
};

/// Encoded bytes per write batch while a directory is created.
const FILL_BYTES: usize = 4 << 20;

/// Creates the storage of one of a new cluster's first voters.
///
/// All first voters start as if from a snapshot of the empty state at index 1, which holds the
/// voters: a node that joins later finds that the log does not start at 0, and receives a snapshot.
///
/// # Errors
/// [`Error::NotEmpty`] if the directory has content, which stays unchanged.
pub fn bootstrap(path: &Path, raft_id: u64, voters: &[u64]) -> Result<(), Error> {
    bootstrap_with_rows(path, raft_id, voters, &[])
}

/// Like [`bootstrap`], but the snapshot at index 1 already holds the rows of `initial_rows`, so
/// that the cluster either exists with its first command applied or does not exist.
///
/// # Errors
/// Same as [`bootstrap`].
pub fn bootstrap_with_rows(
    path: &Path,
    raft_id: u64,
    voters: &[u64],
    initial_rows: &[Row],
) -> Result<(), Error> {
    let distinct: std::collections::BTreeSet<_> = voters.iter().collect();
    if !distinct.contains(&raft_id) || distinct.contains(&0) || distinct.len() != voters.len() {
        return Err(Error::Voters {
            raft_id,
            voters: voters.to_vec(),
        });
    }
    let conf_state = ConfState {
        voters: voters.to_vec(),
        ..ConfState::default()
    };
    let origin = Position { index: 1, term: 1 };
    create_database(
        path,
        raft_id,
        conf_state,
        origin,
        initial_rows.iter().cloned(),
    )
}

/// Creates the storage of the only voter of an existing cluster, as if from a snapshot of `state`
/// at `origin`: its applied index and the term of the entry there.
///
/// # Errors
/// Same as [`bootstrap`]; [`Error::Voters`] also for an origin before the first entry.
pub fn restore(path: &Path, raft_id: u64, origin: Position, state: &State) -> Result<(), Error> {
    if raft_id == 0 || origin.index == 0 || origin.term == 0 {
        let voters = vec![raft_id];
        return Err(Error::Voters { raft_id, voters });
    }
    let conf_state = ConfState {
        voters: vec![raft_id],
        ..ConfState::default()
    };
    let rows = state.rows().map(|(key, value)| Row {
        key,
        value: Some(value),
    });
    create_database(path, raft_id, conf_state, origin, rows)
}

/// Creates the empty storage of a node that joins a cluster; the leader sends it a snapshot.
///
/// # Errors
/// Same as [`bootstrap`].
pub fn create(path: &Path, raft_id: u64) -> Result<(), Error> {
    if raft_id == 0 {
        let voters = Vec::new();
        return Err(Error::Voters { raft_id, voters });
    }
    let origin = Position::default();
    create_database(path, raft_id, ConfState::default(), origin, [].into_iter())
}

fn create_database(
    path: &Path,
    raft_id: u64,
    conf_state: ConfState,
    origin: Position,
    rows: impl Iterator<Item = Row>,
) -> Result<(), Error> {
    let io = |e| Error::io(path.display(), e);
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            if fs::read_dir(path).map_err(io)?.next().is_some() {
                return Err(Error::NotEmpty(path.to_owned()));
            }
        }
        Err(e) => return Err(io(e)),
    }
    Watermark::create(path)?;
    let mut options = options::database();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_error_if_exists(true);
    let db =
        DB::open_cf_descriptors(&options, path, options::tables()).map_err(|e| opening(path, e))?;
    let meta = db
        .cf_handle(META)
        .ok_or_else(|| Error::corrupt("table meta", "it is missing"))?;
    let hard_state = HardState {
        term: origin.term,
        vote: 0,
        commit: origin.index,
    };
    let mut batch = WriteBatch::default();
    let state = db
        .cf_handle(STATE)
        .ok_or_else(|| Error::corrupt("table state", "it is missing"))?;
    for row in rows {
        match &row.value {
            Some(value) => batch.put_cf(state, &row.key, value),
            None => batch.delete_cf(state, &row.key),
        }
        if batch.size_in_bytes() > FILL_BYTES {
            db.write_opt(std::mem::take(&mut batch), &options::write(false))
                .map_err(Error::Write)?;
        }
    }
    // Written last: a crash before it leaves a directory without a format row, which `open`
    // rejects; a stored format row implies that all earlier batches are stored.
    batch.put_cf(meta, KEY_FORMAT, FORMAT.to_be_bytes());
    batch.put_cf(meta, KEY_RAFT_ID, raft_id.to_be_bytes());
    batch.put_cf(
        meta,
        KEY_HARD_STATE,
        schema::encode_hard_state(&hard_state)?,
    );
    batch.put_cf(
        meta,
        KEY_CONF_STATE,
        schema::encode_conf_state(&conf_state)?,
    );
    batch.put_cf(meta, KEY_APPLIED, origin.index.to_be_bytes());
    batch.put_cf(meta, KEY_TRUNCATED, origin.encode());
    db.write_opt(batch, &options::write(true))
        .map_err(Error::Write)?;
    drop(db);
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    for directory in [Some(path), parent].into_iter().flatten() {
        File::open(directory)
            .and_then(|d| d.sync_all())
            .map_err(|e| Error::io(directory.display(), e))?;
    }
    Ok(())
}

pub(super) fn open(path: &Path) -> Result<Storage, Error> {
    check_files(path)?;
    let (watermark, synced) = Watermark::open(path)?;
    verify_read_only(path, synced)?;
    let db = DB::open_cf_descriptors(&options::database(), path, options::tables())
        .map_err(|e| opening(path, e))?;
    let (raft_id, cursor) = verify(&db, synced)?;
    Ok(Storage {
        db,
        path: path.to_owned(),
        raft_id,
        watermark,
        cursor: Mutex::new(cursor),
        outgoing: Mutex::default(),
        failure: OnceLock::new(),
        writes: AtomicU64::new(0),
        synced_writes: AtomicU64::new(0),
        #[cfg(test)]
        fault: false.into(),
        #[cfg(test)]
        hang: Mutex::default(),
    })
}

/// Reads all data once without writing.
///
/// Opening for writing ends recovery by moving the recovered writes into tables and deleting the
/// log. After damage in the middle of the log this would destroy the writes behind it, and with
/// them the chance of a manual recovery.
fn verify_read_only(path: &Path, synced: u64) -> Result<(), Error> {
    let db =
        DB::open_cf_descriptors_read_only(&options::database(), path, options::tables(), false)
            .map_err(|e| opening(path, e))?;
    verify(&db, synced)?;
    let table = db
        .cf_handle(STATE)
        .ok_or_else(|| Error::corrupt("table state", "it is missing"))?;
    // Reading a row verifies the checksum of its block.
    db.iterator_cf(table, IteratorMode::Start)
        .try_for_each(|row| row.map(drop))
        .map_err(|e| Error::corrupt("table state", e))
}

/// Checks the invariants of a recovered database, and returns its raft id and cursor.
pub(super) fn verify(db: &DB, synced: u64) -> Result<(u64, Cursor), Error> {
    let recovered = db.latest_sequence_number();
    if recovered < synced {
        return Err(Error::LostWrites { recovered, synced });
    }
    let format = schema::decode_u32("format", &meta(db, KEY_FORMAT)?)?;
    if format != FORMAT {
        return Err(Error::Format {
            found: format,
            supported: FORMAT,
        });
    }
    let raft_id = schema::decode_u64("raft_id", &meta(db, KEY_RAFT_ID)?)?;
    Ok((raft_id, read_cursor(db)?))
}

/// Reports which file is missing; RocksDB would only report that it cannot open.
pub(super) fn check_files(path: &Path) -> Result<(), Error> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(Error::io(path.display(), ErrorKind::NotADirectory.into())),
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(Error::Missing(path.to_owned())),
        Err(e) => return Err(Error::io(path.display(), e)),
    }
    let current = fs::read_to_string(path.join("CURRENT")).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::corrupt("CURRENT", "the file is missing"),
        ErrorKind::InvalidData => Error::corrupt("CURRENT", "it does not name a manifest"),
        _ => Error::io("CURRENT", e),
    })?;
    let manifest = current.trim_end();
    if !manifest.starts_with("MANIFEST-") || manifest.contains('/') {
        return Err(Error::corrupt("CURRENT", "it does not name a manifest"));
    }
    match path.join(manifest).try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::corrupt(manifest, "the file is missing")),
        Err(e) => Err(Error::io(manifest, e)),
    }
}

pub(super) fn opening(path: &Path, error: rocksdb::Error) -> Error {
    let text = error.to_string();
    if text.contains("/LOCK: ") {
        return Error::Locked(path.to_owned());
    }
    match error.kind() {
        rocksdb::ErrorKind::IOError if !text.contains("No such file") => Error::Read(error),
        _ => Error::corrupt("database", text),
    }
}

/// Returns the value of a mandatory row.
fn meta(db: &DB, key: &[u8]) -> Result<Vec<u8>, Error> {
    let name = || format!("meta row {}", String::from_utf8_lossy(key));
    let table = db
        .cf_handle(META)
        .ok_or_else(|| Error::corrupt("table meta", "it is missing"))?;
    db.get_cf(table, key)
        .map_err(|e| Error::corrupt(name(), e))?
        .ok_or_else(|| Error::corrupt(name(), "it is missing"))
}

fn read_cursor(db: &DB) -> Result<Cursor, Error> {
    let hard_state = schema::decode_hard_state(&meta(db, KEY_HARD_STATE)?)?;
    let conf_state = schema::decode_conf_state(&meta(db, KEY_CONF_STATE)?)?;
    let truncated = schema::decode_position(&meta(db, KEY_TRUNCATED)?)?;
    let applied = schema::decode_u64("applied", &meta(db, KEY_APPLIED)?)?;
    let (last, log_cache, log_size) = read_log(db, truncated)?;
    let order = [
        ("log begins", truncated.index),
        ("applied", applied),
        ("commit", hard_state.commit),
        ("log ends", last.index),
    ];
    for pair in order.windows(2) {
        let ((before, low), (after, high)) = (pair[0], pair[1]);
        if low > high {
            let reason = format!("{before} at {low}, but {after} at {high}");
            return Err(Error::corrupt("meta", reason));
        }
    }
    if last.term > hard_state.term {
        let reason = format!("term {} behind the log's {}", hard_state.term, last.term);
        return Err(Error::corrupt("meta row hard_state", reason));
    }
    Ok(Cursor {
        hard_state,
        conf_state,
        truncated,
        last,
        applied,
        log_cache,
        log_size,
        state: None,
    })
}

/// Reads the whole log: its length is bounded, and reading verifies every checksum.
fn read_log(db: &DB, truncated: Position) -> Result<(Position, LogCache, LogSize), Error> {
    let table = db
        .cf_handle(LOG)
        .ok_or_else(|| Error::corrupt("table log", "it is missing"))?;
    let mut last = truncated;
    let mut log_cache = LogCache::default();
    let mut log_size = LogSize::default();
    for row in db.iterator_cf(table, IteratorMode::Start) {
        let (key, value) = row.map_err(|e| Error::corrupt("table log", e))?;
        let index = schema::parse_log_key(&key)?;
        if index != last.index + 1 {
            let missing = format!("log entry {}", last.index + 1);
            return Err(Error::corrupt(
                missing,
                format!("found {index} in its place"),
            ));
        }
        let entry = schema::decode_entry(index, &value)?;
        if entry.term < last.term {
            let reason = format!("term {} after term {}", entry.term, last.term);
            return Err(Error::corrupt(format!("log entry {index}"), reason));
        }
        last = Position {
            index,
            term: entry.term,
        };
        let entry = vec![entry];
        log_size.append(&entry);
        log_cache.append(entry);
    }
    Ok((last, log_cache, log_size))
}

impl Storage {
    /// Rebuilds the state machine from its rows.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names the first row that does not decode.
    pub fn load_state(&self) -> Result<State, Error> {
        self.load_state_with(|| ())
    }

    /// Like [`Self::load_state`]; calls `on_row` for each row read.
    pub(crate) fn load_state_with(&self, on_row: impl FnMut()) -> Result<State, Error> {
        #[cfg(test)]
        self.enter(super::Operation::Load);
        let mut state = read_state(&self.db, on_row)?;
        state.applied_index = self.applied();
        Ok(state)
    }
}

/// Reads the state from the rows, which do not include its applied index; calls `on_row` for each.
pub(super) fn read_state(db: &DB, mut on_row: impl FnMut()) -> Result<State, Error> {
    let table = db
        .cf_handle(STATE)
        .ok_or_else(|| Error::corrupt("table state", "it is missing"))?;
    let mut broken = None;
    let rows = db
        .iterator_cf(table, IteratorMode::Start)
        .map_while(|row| match row {
            Ok((key, value)) => {
                on_row();
                Some((key.into_vec(), value.into_vec()))
            }
            Err(e) => {
                broken = Some(e);
                None
            }
        });
    let loaded = jaco_state::load(rows);
    if let Some(error) = broken {
        return Err(Error::corrupt("table state", error));
    }
    loaded.map_err(|e| Error::corrupt("table state", chain(&e)))
}
