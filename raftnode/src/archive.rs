//! Backup archives: the complete state at one log index, as a file.
//!
//! The format is fixed and shared with other implementations: a gzip stream of a tar archive with
//! exactly two regular entries, `meta.json` ([`Meta`]) and `snapshot.bin` (one encoded
//! `FSMSnapshot`), in this order. The archive contains the keys of the cluster: a stored copy needs
//! the same protection as the data directory.
//!
//! [`write()`] holds one entity in memory at a time. [`read()`] holds the decoded entities, bounded
//! by [`ArchiveLimits`]. Neither holds the whole archive.

mod meta;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use meta::{Meta, SCHEMA_VERSION};
pub use read::{Archive, ArchiveLimits, Error, read};
pub use write::{check_size, write};

/// Name of the first entry.
const META: &str = "meta.json";
/// Name of the second entry.
const SNAPSHOT: &str = "snapshot.bin";
