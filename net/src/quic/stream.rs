//! Both ends of a stream, in bytes and in frames.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use quinn::VarInt;

use tokio::time::{Instant, timeout};

use super::{
    Closed, ReceiveBudget, Reservation, StreamError,
    frame::{Batch, Decoder},
};

/// Error code of every reset; the peer learns no reason.
const ABANDONED: VarInt = VarInt::from_u32(0);
/// Chunks that are read from the transport in one call.
const MAX_CHUNKS: usize = 32;

/// The purpose of a stream; its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Greeting: the first stream of each side, with its protocol version and incarnation.
    Hello,
    /// Raft messages in order.
    Raft,
    /// Heartbeats.
    Heartbeat,
    /// A request and its response.
    Call,
    /// A snapshot, and the receiver's acknowledgement.
    Snapshot,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Hello,
        Self::Raft,
        Self::Heartbeat,
        Self::Call,
        Self::Snapshot,
    ];

    /// The first byte of such a stream.
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Raft => 2,
            Self::Heartbeat => 3,
            Self::Call => 4,
            Self::Snapshot => 5,
        }
    }

    /// The kind that `byte` stands for.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.byte() == byte)
    }

    /// Priority in the send queue; streams with a higher one are sent first.
    fn priority(self) -> i32 {
        match self {
            Self::Hello | Self::Heartbeat => 2,
            Self::Raft => 1,
            Self::Call => 0,
            Self::Snapshot => -1,
        }
    }
}

/// The sending end of a stream. Dropping it before [`Sender::finish`] resets the stream.
#[derive(Debug)]
pub struct Sender {
    stream: quinn::SendStream,
    finished: bool,
}

impl Sender {
    pub(super) fn new(stream: quinn::SendStream) -> Self {
        Self {
            stream,
            finished: false,
        }
    }

    pub(super) async fn open(stream: quinn::SendStream, kind: Kind) -> Result<Self, StreamError> {
        let mut sender = Self::new(stream);
        // Fails only on a stream that has ended; then the write below fails as well.
        let _ = sender.stream.set_priority(kind.priority());
        sender.stream.write_all(&[kind.byte()]).await?;
        Ok(sender)
    }

    /// Writes one frame.
    ///
    /// # Errors
    /// [`StreamError`]; the stream cannot be used any further.
    pub async fn frame(
        &mut self,
        frame: impl AsRef<[u8]> + Into<Bytes>,
    ) -> Result<(), StreamError> {
        let mut batch = Batch::default();
        batch.push(frame)?;
        self.batch(&mut batch).await
    }

    /// Writes the frames of `batch` and empties it. Waits while flow control blocks the stream.
    ///
    /// # Errors
    /// [`StreamError`]; the stream cannot be used any further.
    ///
    /// # Cancel safety
    /// Cancelled, a part of the batch may be written; the stream cannot be used any further.
    pub async fn batch(&mut self, batch: &mut Batch) -> Result<(), StreamError> {
        Ok(self.stream.write_all_chunks(&mut batch.take()).await?)
    }

    /// Ends the stream. Data already written is still delivered.
    pub fn finish(&mut self) {
        self.finished = true;
        let _ = self.stream.finish(); // the stream has ended or was stopped already
    }

    /// Waits until the peer stops the stream or has received all of it, or the connection ends.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let stopped = self.stream.stopped();
        async move {
            let _ = stopped.await; // an ended connection counts as stopped
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.finished {
            let _ = self.stream.reset(ABANDONED);
        }
    }
}

/// The receiving end of a stream that the peer opened. Dropping it stops the stream.
#[derive(Debug)]
pub struct Receiver {
    stream: quinn::RecvStream,
}

impl Receiver {
    pub(super) fn new(stream: quinn::RecvStream) -> Self {
        Self { stream }
    }

    /// Reads the kind of the stream. To be called once, before anything else is read.
    ///
    /// # Errors
    /// [`StreamError::Kind`] if the first byte is missing or unknown.
    pub async fn kind(&mut self) -> Result<Kind, StreamError> {
        let mut byte = [0];
        match self.stream.read(&mut byte).await? {
            Some(1) => Kind::from_byte(byte[0]).ok_or(StreamError::Kind),
            Some(_) | None => Err(StreamError::Kind),
        }
    }

    /// Reads the rest of the stream as frames of at most `limit` bytes.
    #[must_use]
    pub fn frames(self, limit: usize) -> FrameReader {
        FrameReader {
            stream: self.stream,
            decoder: Decoder::new(limit),
            limit,
            chunks: std::array::from_fn(|_| Bytes::new()),
            at: 0,
            budget: None,
            reserved: None,
            held: Reservation::default(),
        }
    }
}

/// The receiving end of a stream of frames. Dropping it stops the stream.
#[derive(Debug)]
pub struct FrameReader {
    stream: quinn::RecvStream,
    decoder: Decoder,
    /// Largest length of a frame.
    limit: usize,
    /// Chunks from the transport; those before `at` are consumed.
    chunks: [Bytes; MAX_CHUNKS],
    at: usize,
    budget: Option<Budgeted>,
    /// Share of the frame in progress; `None` before its header is complete.
    reserved: Option<Reservation>,
    /// Share of the frame that was returned last.
    held: Reservation,
}

/// Budget of a reader.
#[derive(Debug)]
struct Budgeted {
    budget: ReceiveBudget,
    /// For a message that is received whole: remaining time that its frames may wait for the budget.
    patience: Option<Duration>,
    /// The right to receive a message of several frames, once it was needed.
    assembly: Option<Reservation>,
}

impl Budgeted {
    /// Reserves the bytes of a frame of `length`; the largest frames have the length `limit`.
    async fn reserve(&mut self, length: usize, limit: usize) -> Result<Reservation, StreamError> {
        let Some(patience) = self.patience else {
            return Ok(self.budget.reserve(length).await);
        };
        let reserve = async {
            // More frames follow a largest one.
            if length >= limit && self.assembly.is_none() {
                self.assembly = Some(self.budget.assemble().await);
            }
            self.budget.reserve(length).await
        };
        let start = Instant::now();
        let reserved = timeout(patience, reserve).await;
        self.patience = Some(patience.saturating_sub(start.elapsed()));
        reserved.map_err(|_| StreamError::Busy)
    }
}

impl FrameReader {
    /// Takes the memory of each frame from `budget`, from before its allocation until the next frame
    /// is asked for; see [`FrameReader::take_reservation`].
    #[must_use]
    pub fn within(mut self, budget: &ReceiveBudget) -> Self {
        self.budget = Some(Budgeted {
            budget: budget.clone(),
            patience: None,
            assembly: None,
        });
        self
    }

    /// As [`FrameReader::within`], for a message that is held until all of its frames are received.
    /// Of the messages with a frame of the largest length, one at a time is received; another one
    /// fails with [`StreamError::Busy`] once its frames have waited for `patience` in total.
    #[must_use]
    pub fn assembled_within(self, budget: &ReceiveBudget, patience: Duration) -> Self {
        let mut this = self.within(budget);
        if let Some(budgeted) = &mut this.budget {
            budgeted.patience = Some(patience);
        }
        this
    }

    /// Takes the share of the frame that was returned last, for a caller that keeps the frame.
    #[must_use]
    pub fn take_reservation(&mut self) -> Reservation {
        std::mem::take(&mut self.held)
    }

    /// Reads the next frame, or `None` at the end of the stream. Waits for the reader's budget.
    ///
    /// # Cancel safety
    /// Cancelled, it loses no data.
    ///
    /// # Errors
    /// [`StreamError`]; the stream cannot be used any further.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, StreamError> {
        self.held = Reservation::default();
        loop {
            while let Some(chunk) = self.chunks.get_mut(self.at) {
                let mut rest = &chunk[..];
                let header = self.decoder.header(&mut rest)?;
                let used = chunk.len() - rest.len();
                chunk.advance(used);
                let Some(length) = header else {
                    self.at += 1;
                    continue;
                };
                if let Some(budget) = &mut self.budget
                    && self.reserved.is_none()
                {
                    self.reserved = Some(budget.reserve(length, self.limit).await?);
                }
                let mut rest = &chunk[..];
                let frame = self.decoder.body(&mut rest);
                let used = chunk.len() - rest.len();
                chunk.advance(used);
                if frame.is_some() {
                    self.held = self.reserved.take().unwrap_or_default();
                    return Ok(frame);
                }
                self.at += 1;
            }
            self.chunks.fill(Bytes::new());
            self.at = MAX_CHUNKS;
            match self.stream.read_chunks(&mut self.chunks).await? {
                Some(_) => self.at = 0,
                None => {
                    self.decoder.finish().map_err(StreamError::Frame)?;
                    return Ok(None);
                }
            }
        }
    }

    /// Waits until the sender ends or resets the stream or the connection ends; discards the frames
    /// that arrive meanwhile.
    pub async fn abandoned(&mut self) -> Option<Closed> {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(StreamError::Lost(why)) => return Some(why),
                Err(_) => return Some(Closed::Reset),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn frames_of_one_message_share_its_patience() {
        let (patience, wait) = (Duration::from_secs(5), Duration::from_secs(2));
        let budget = ReceiveBudget::new(100);
        let mut message = Budgeted {
            budget: budget.clone(),
            patience: Some(patience),
            assembly: None,
        };
        let begun = Instant::now();
        for _ in 0..2 {
            let held = budget.reserve(100).await;
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                drop(held);
            });
            message.reserve(60, 100).await.unwrap();
        }
        let held = budget.reserve(100).await;
        let refused = message.reserve(60, 100).await;
        assert_eq!(refused.unwrap_err(), StreamError::Busy);
        assert_eq!(begun.elapsed(), patience);
        // Without patience, a free budget still serves.
        drop(held);
        assert_eq!(message.reserve(60, 100).await.unwrap().bytes(), 60);
    }
}
