//! Backups: the whole state at one log index, as a file.
//!
//! The format is fixed and shared with other implementations: a gzip stream of a tar archive
//! with exactly two regular entries, `meta.json` ([`Meta`]) and `snapshot.bin` (one encoded
//! `FSMSnapshot`), in this order. It holds the cluster's keys: whoever writes it somewhere
//! guards it like the data directory.
//!
//! [`write()`] holds one entity at a time and [`read()`] holds what it has found so far, bounded
//! by [`Limits`], so neither holds the archive.

mod meta;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use meta::{Meta, SCHEMA_VERSION};
pub use read::{Archive, Error, Limits, read};
pub use write::{check_size, write};

/// Name of the first entry.
const META: &str = "meta.json";
/// Name of the second entry.
const SNAPSHOT: &str = "snapshot.bin";
