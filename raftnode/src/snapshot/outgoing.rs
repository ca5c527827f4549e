//! A snapshot that is being sent.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use jaco_state::State;
use sha2::{Digest, Sha256};

use super::trailer;

/// Largest chunk, in bytes.
pub const CHUNK_BYTES: usize = 64 << 10;

/// A snapshot for one peer: raft's message about it, and its content in chunks.
///
/// Dropped before the last chunk was taken, it is reported as not delivered. After the last chunk
/// its owner reports the result with `RaftHandle::snapshot_sent`.
pub struct OutgoingSnapshot {
    /// Raft's encoded `MsgSnapshot`, without the content.
    pub message: Vec<u8>,
    /// State to measure before the first chunk, because measuring is slow and must not block raft's
    /// thread.
    unmeasured: Option<(Arc<State>, SizeLimit)>,
    fields: Option<Box<dyn Iterator<Item = Vec<u8>> + Send>>,
    /// Encoded field, of which the first `taken` bytes were returned.
    current: Vec<u8>,
    taken: usize,
    length: u64,
    hash: Sha256,
    abandoned: Option<Box<dyn FnOnce() + Send>>,
}

/// Upper bound of a snapshot's size, which receivers enforce too.
#[derive(Debug)]
pub(crate) struct SizeLimit {
    /// Encoded bytes of the content.
    pub(crate) bytes: u64,
    /// Whether an oversized snapshot was logged already; raft retries indefinitely.
    pub(crate) logged: Arc<AtomicBool>,
}

impl SizeLimit {
    /// Creates a limit that accepts every size.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self {
            bytes: u64::MAX,
            logged: Arc::default(),
        }
    }

    fn admits(&self, state: &State) -> bool {
        let (bytes, limit) = (state.snapshot_length(), self.bytes);
        let fits = bytes <= limit;
        if !self.logged.swap(!fits, Ordering::Relaxed) && !fits {
            tracing::error!(
                subsystem = "raft",
                bytes,
                limit,
                "the state is too large to be sent: members that lack entries cannot catch up"
            );
        }
        fits
    }
}

impl OutgoingSnapshot {
    /// Creates a snapshot of `state`, empty if it exceeds `limit`; `abandoned` is called if it is
    /// dropped unfinished.
    pub(crate) fn new(
        message: Vec<u8>,
        state: Arc<State>,
        limit: SizeLimit,
        abandoned: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self {
            message,
            unmeasured: Some((Arc::clone(&state), limit)),
            fields: Some(Box::new(state.into_snapshot_fields())),
            current: Vec::new(),
            taken: 0,
            length: 0,
            hash: Sha256::new(),
            abandoned: Some(Box::new(abandoned)),
        }
    }

    /// Returns the next bytes, at most [`CHUNK_BYTES`]; `None` after the last, and at once for a
    /// snapshot that is too large.
    ///
    /// Encoding blocks: do not call it on an async executor thread.
    pub fn next_chunk(&mut self) -> Option<Vec<u8>> {
        if let Some((state, limit)) = self.unmeasured.take()
            && !limit.admits(&state)
        {
            self.fields = None;
            if let Some(abandoned) = self.abandoned.take() {
                abandoned();
            }
            return None;
        }
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK_BYTES {
            if self.taken == self.current.len() {
                let Some(next) = self.next_field() else { break };
                (self.current, self.taken) = (next, 0);
            }
            let rest = &self.current[self.taken..];
            let part = &rest[..rest.len().min(CHUNK_BYTES - chunk.len())];
            chunk.extend_from_slice(part);
            self.taken += part.len();
        }
        if self.fields.is_none() && self.taken == self.current.len() {
            self.abandoned = None;
        }
        Some(chunk).filter(|chunk| !chunk.is_empty())
    }

    /// Appends the encoded `field`, with its key.
    #[cfg(test)]
    pub(crate) fn add_field(&mut self, field: Vec<u8>) {
        let fields = self.fields.take();
        self.fields = fields.map(|fields| Box::new(fields.chain([field])) as _);
    }

    /// Returns the next field of the message, and after the last one the trailer.
    fn next_field(&mut self) -> Option<Vec<u8>> {
        let fields = self.fields.as_mut()?;
        if let Some(field) = fields.next() {
            self.length += field.len() as u64;
            self.hash.update(&field);
            return Some(field);
        }
        self.fields = None;
        let digest = std::mem::take(&mut self.hash).finalize();
        Some(trailer(self.length, digest.into()).to_vec())
    }
}

impl Drop for OutgoingSnapshot {
    fn drop(&mut self) {
        if let Some(abandoned) = self.abandoned.take() {
            abandoned();
        }
    }
}

impl fmt::Debug for OutgoingSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingSnapshot")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
