//! Writes a state as an archive.

use std::io::{self, Read, Write};

use flate2::{Compression, write::GzEncoder};
use jaco_state::{SnapshotError, State};
use tar::{Builder, EntryType, Header};

use super::{ArchiveLimits, Error, META, Meta, SNAPSHOT};

/// Mode of the entries, which contain secrets.
const MODE: u32 = 0o600;

/// Rejects a state whose archive would exceed `limits` when it is read.
///
/// # Errors
/// [`Error::TooLarge`], or [`Error::Snapshot`] for too many entities or one that is too large.
pub fn check_size(state: &State, limits: &ArchiveLimits) -> Result<(), Error> {
    let extent = state.snapshot_extent();
    let too_large = |unit, limit| SnapshotError::TooLarge { unit, limit };
    if extent.entities > limits.entities {
        return Err(too_large("entities", limits.entities).into());
    }
    if extent.largest > limits.entity_bytes {
        return Err(too_large("bytes in one entity", limits.entity_bytes).into());
    }
    if extent.bytes > limits.snapshot_bytes {
        return Err(Error::TooLarge {
            entry: SNAPSHOT,
            limit: limits.snapshot_bytes,
        });
    }
    Ok(())
}

/// Writes the archive of `state`, which `meta` describes, and flushes `out`.
///
/// # Errors
/// The error of `out`, which then holds a partial archive. An error that wraps [`Error`], before
/// anything is written, if a restore would reject the archive for its size.
pub fn write(meta: &Meta, state: &State, out: impl Write) -> io::Result<()> {
    check_size(state, &ArchiveLimits::default()).map_err(io::Error::other)?;
    let taken_at: u64 = meta
        .taken_at
        .parse::<prost_types::Timestamp>()
        .ok()
        .and_then(|time| time.seconds.try_into().ok())
        .unwrap_or_default();
    let mut tar = Builder::new(GzEncoder::new(out, Compression::fast()));
    let json = meta.to_json();
    append(&mut tar, META, json.len() as u64, taken_at, &*json)?;
    let length = state.snapshot_length();
    append(
        &mut tar,
        SNAPSHOT,
        length,
        taken_at,
        state.snapshot_reader(),
    )?;
    tar.into_inner()?.finish()?.flush()
}

fn append(
    tar: &mut Builder<impl Write>,
    name: &str,
    length: u64,
    modified: u64,
    content: impl Read,
) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(MODE);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(modified);
    header.set_size(length);
    tar.append_data(&mut header, name, content)
}
