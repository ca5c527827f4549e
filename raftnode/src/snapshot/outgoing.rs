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

/// A snapshot for one peer: raft's message about it, its content and the report of its outcome.
///
/// Content and report are apart because they end at different times: the receiver may answer before
/// it has all of the content, and after the last chunk the outcome is still open.
#[derive(Debug)]
pub struct OutgoingSnapshot {
    /// Raft's encoded `MsgSnapshot`, without the content.
    pub message: Vec<u8>,
    /// The content, in chunks.
    pub content: SnapshotContent,
    /// Reports the outcome to raft, once.
    pub report: SnapshotReport,
}

impl OutgoingSnapshot {
    /// Creates a snapshot of `state`, empty if it exceeds `limit`; `report` is called once with
    /// whether it was delivered.
    pub(crate) fn new(
        message: Vec<u8>,
        state: Arc<State>,
        limit: SizeLimit,
        report: impl FnOnce(bool) + Send + 'static,
    ) -> Self {
        Self {
            message,
            content: SnapshotContent::new(state, limit),
            report: SnapshotReport(Some(Box::new(report))),
        }
    }
}

/// Duty to report the outcome of a snapshot to raft, which until then sends its receiver nothing
/// else. Dropped, it reports that the snapshot was not delivered.
pub struct SnapshotReport(Option<Box<dyn FnOnce(bool) + Send>>);

impl SnapshotReport {
    /// Reports that the receiver has accepted the snapshot, or had all of it already.
    pub fn delivered(mut self) {
        self.send(true);
    }

    fn send(&mut self, delivered: bool) {
        if let Some(report) = self.0.take() {
            report(delivered);
        }
    }
}

impl Drop for SnapshotReport {
    fn drop(&mut self) {
        self.send(false);
    }
}

impl fmt::Debug for SnapshotReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SnapshotReport")
    }
}

/// Content of a snapshot, encoded while it is read.
pub struct SnapshotContent {
    /// State to measure before the first chunk, because measuring is slow and must not block raft's
    /// thread.
    unmeasured: Option<(Arc<State>, SizeLimit)>,
    fields: Option<Box<dyn Iterator<Item = Vec<u8>> + Send>>,
    /// Encoded field, of which the first `taken` bytes were returned.
    current: Vec<u8>,
    taken: usize,
    length: u64,
    hash: Sha256,
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

impl SnapshotContent {
    fn new(state: Arc<State>, limit: SizeLimit) -> Self {
        Self {
            unmeasured: Some((Arc::clone(&state), limit)),
            fields: Some(Box::new(state.into_snapshot_fields())),
            current: Vec::new(),
            taken: 0,
            length: 0,
            hash: Sha256::new(),
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

impl fmt::Debug for SnapshotContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotContent")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
