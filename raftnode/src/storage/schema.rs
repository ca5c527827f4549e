//! Schema of the rows: tables, keys and encodings.

use raft::eraftpb::{ConfState, Entry, HardState};

use super::Error;

/// Layout version of the directory; raised when old code cannot read new rows.
pub(crate) const FORMAT: u32 = 1;

/// Log entries: index, big-endian → raft entry.
pub(crate) const LOG: &str = "log";
/// Metadata rows, with the keys below.
pub(crate) const META: &str = "meta";
/// Entities, with keys and values of the state machine.
pub(crate) const STATE: &str = "state";

pub(crate) const KEY_FORMAT: &[u8] = b"format";
pub(crate) const KEY_RAFT_ID: &[u8] = b"raft_id";
pub(crate) const KEY_HARD_STATE: &[u8] = b"hard_state";
pub(crate) const KEY_CONF_STATE: &[u8] = b"conf_state";
/// Index of the last applied entry; written in one batch with its entities.
pub(crate) const KEY_APPLIED: &[u8] = b"applied";
/// Position of the entry before the first stored one.
pub(crate) const KEY_TRUNCATED: &[u8] = b"truncated";

/// Position in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Log index; 0 is before the first entry.
    pub index: u64,
    /// Term of the entry at `index`.
    pub term: u64,
}

impl Position {
    pub(crate) fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.index.to_be_bytes());
        bytes[8..].copy_from_slice(&self.term.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (index, term) = bytes.split_at_checked(8)?;
        Some(Self {
            index: u64::from_be_bytes(index.try_into().ok()?),
            term: u64::from_be_bytes(term.try_into().ok()?),
        })
    }
}

pub(crate) fn log_key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

pub(crate) fn parse_log_key(key: &[u8]) -> Result<u64, Error> {
    let bytes = key
        .try_into()
        .map_err(|_| Error::corrupt("log", format!("key of {} bytes", key.len())))?;
    Ok(u64::from_be_bytes(bytes))
}

pub(crate) fn encode_entry(entry: &Entry) -> Result<Vec<u8>, Error> {
    encode(entry, || format!("log entry {}", entry.index))
}

pub(crate) fn decode_entry(index: u64, bytes: &[u8]) -> Result<Entry, Error> {
    let entry: Entry = decode(bytes, || format!("log entry {index}"))?;
    if entry.index == index {
        Ok(entry)
    } else {
        let reason = format!("says it is entry {}", entry.index);
        Err(Error::corrupt(format!("log entry {index}"), reason))
    }
}

pub(crate) fn encode_hard_state(state: &HardState) -> Result<Vec<u8>, Error> {
    encode(state, || "meta row hard_state".into())
}

pub(crate) fn decode_hard_state(bytes: &[u8]) -> Result<HardState, Error> {
    decode(bytes, || "meta row hard_state".into())
}

pub(crate) fn encode_conf_state(state: &ConfState) -> Result<Vec<u8>, Error> {
    encode(state, || "meta row conf_state".into())
}

pub(crate) fn decode_conf_state(bytes: &[u8]) -> Result<ConfState, Error> {
    decode(bytes, || "meta row conf_state".into())
}

pub(crate) fn decode_position(bytes: &[u8]) -> Result<Position, Error> {
    Position::decode(bytes)
        .ok_or_else(|| Error::corrupt("meta row truncated", format!("{} bytes", bytes.len())))
}

pub(crate) fn decode_u64(name: &str, bytes: &[u8]) -> Result<u64, Error> {
    let bytes = bytes.try_into().map_err(|_| {
        Error::corrupt(format!("meta row {name}"), format!("{} bytes", bytes.len()))
    })?;
    Ok(u64::from_be_bytes(bytes))
}

pub(crate) fn decode_u32(name: &str, bytes: &[u8]) -> Result<u32, Error> {
    let bytes = bytes.try_into().map_err(|_| {
        Error::corrupt(format!("meta row {name}"), format!("{} bytes", bytes.len()))
    })?;
    Ok(u32::from_be_bytes(bytes))
}

fn encode(message: &impl protobuf::Message, what: impl Fn() -> String) -> Result<Vec<u8>, Error> {
    message
        .write_to_bytes()
        .map_err(|e| Error::corrupt(what(), e))
}

fn decode<M: protobuf::Message + Default>(
    bytes: &[u8],
    what: impl Fn() -> String,
) -> Result<M, Error> {
    let mut message = M::default();
    message
        .merge_from_bytes(bytes)
        .map_err(|e| Error::corrupt(what(), e))?;
    Ok(message)
}
