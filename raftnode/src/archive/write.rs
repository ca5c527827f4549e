//! From the state to the file.

use std::io::{self, Read, Write};

use flate2::{Compression, write::GzEncoder};
use tar::{Builder, EntryType, Header};

use super::{META, Meta, SNAPSHOT};
use crate::State;

/// Mode of the entries: they hold secrets.
const MODE: u32 = 0o600;

/// Writes the archive of `state`, which `meta` describes, and flushes `out`.
///
/// # Errors
/// What `out` fails with; what it has got by then is no archive.
pub fn write(meta: &Meta, state: &State, out: impl Write) -> io::Result<()> {
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
