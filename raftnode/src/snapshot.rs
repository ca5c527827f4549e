//! Transfer of snapshots between nodes.
//!
//! The leader's raft refers to a snapshot by its metadata alone. The content, an `Arc` of the
//! state, is encoded one entity at a time by the sender ([`OutgoingSnapshot`]). The receiver writes
//! the bytes to a file (`Spool`), verifies them and decodes them; raft's thread gets only the
//! decoded state.
//!
//! The bytes are the `FSMSnapshot` message and a trailer: eight letters, the length of the message
//! (big-endian) and its SHA-256.

mod outgoing;
mod slot;
mod spool;

#[cfg(test)]
mod tests;

pub use outgoing::{CHUNK_BYTES, OutgoingSnapshot, SnapshotContent, SnapshotReport};
pub use spool::SnapshotRefused;

pub(crate) use outgoing::SizeLimit;
pub(crate) use slot::{ReceiveSlot, SlotGuard};
pub(crate) use spool::{Spool, clear};

/// First bytes of the trailer.
const MAGIC: [u8; 8] = *b"jacosnap";
/// Bytes of the trailer: letters, length, digest.
const TRAILER: usize = 8 + 8 + 32;

/// Returns the trailer of a message of `length` bytes with this digest.
fn trailer(length: u64, digest: [u8; 32]) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&length.to_be_bytes());
    bytes[16..].copy_from_slice(&digest);
    bytes
}
