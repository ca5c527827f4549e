//! Both ends of a stream, in bytes and in frames.

use bytes::{Buf as _, Bytes};
use quinn::VarInt;

use super::{
    Closed, StreamError,
    frame::{Batch, Decoder},
};

/// Error number of a stream that is abandoned; why is nobody's business.
const ABANDONED: VarInt = VarInt::from_u32(0);
/// Pieces that are taken from the transport at once.
const PIECES: usize = 32;

/// What a stream is for; its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first stream of each side, and the only thing on it is who it is.
    Hello,
    /// Raft messages in order.
    Raft,
    /// Signs of life.
    Heartbeat,
    /// A call and its answer.
    Call,
    /// A snapshot, and whether it was taken.
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

    /// The byte that opens such a stream.
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

    /// The kind that `byte` opens.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.byte() == byte)
    }

    /// Streams with a higher priority go first when there is too much to send.
    fn priority(self) -> i32 {
        match self {
            Self::Hello | Self::Heartbeat => 2,
            Self::Raft => 1,
            Self::Call => 0,
            Self::Snapshot => -1,
        }
    }
}

/// The sending end of a stream. Dropped before [`Sender::finish`], the stream is abandoned.
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
        // It fails on a stream that has ended, and so will the next line.
        let _ = sender.stream.set_priority(kind.priority());
        sender.stream.write_all(&[kind.byte()]).await?;
        Ok(sender)
    }

    /// Writes one frame.
    ///
    /// # Errors
    /// [`StreamError`]; the stream is of no use then.
    pub async fn frame(
        &mut self,
        frame: impl AsRef<[u8]> + Into<Bytes>,
    ) -> Result<(), StreamError> {
        let mut batch = Batch::default();
        batch.push(frame)?;
        self.batch(&mut batch).await
    }

    /// Writes what is in `batch`, and leaves it empty. Waits while the other side does not read.
    ///
    /// # Errors
    /// [`StreamError`]; the stream is of no use then, and neither is it if this is dropped.
    pub async fn batch(&mut self, batch: &mut Batch) -> Result<(), StreamError> {
        Ok(self.stream.write_all_chunks(&mut batch.take()).await?)
    }

    /// Says that this was all. What was written still arrives.
    pub fn finish(&mut self) {
        self.finished = true;
        let _ = self.stream.finish(); // ended or stopped already, which is as good
    }

    /// Waits until the other side wants no more of the stream: it stopped it, or has all of it,
    /// or the connection ended.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let stopped = self.stream.stopped();
        async move {
            let _ = stopped.await; // a connection that ended wants no more either
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

/// The receiving end of a stream that was opened by the other side. Dropped, it is stopped.
#[derive(Debug)]
pub struct Receiver {
    stream: quinn::RecvStream,
}

impl Receiver {
    pub(super) fn new(stream: quinn::RecvStream) -> Self {
        Self { stream }
    }

    /// What the stream is for; to be asked first, and once.
    ///
    /// # Errors
    /// [`StreamError::Kind`] for a byte that opens nothing known.
    pub async fn kind(&mut self) -> Result<Kind, StreamError> {
        let mut byte = [0];
        match self.stream.read(&mut byte).await? {
            Some(1) => Kind::from_byte(byte[0]).ok_or(StreamError::Kind),
            Some(_) | None => Err(StreamError::Kind),
        }
    }

    /// Reads frames of at most `limit` bytes from here on.
    #[must_use]
    pub fn frames(self, limit: usize) -> FrameReader {
        FrameReader {
            stream: self.stream,
            decoder: Decoder::new(limit),
            pieces: std::array::from_fn(|_| Bytes::new()),
            at: 0,
        }
    }
}

/// The receiving end of a stream of frames. Dropped, the stream is stopped.
#[derive(Debug)]
pub struct FrameReader {
    stream: quinn::RecvStream,
    decoder: Decoder,
    /// What the transport gave; everything before `at` is used up.
    pieces: [Bytes; PIECES],
    at: usize,
}

impl FrameReader {
    /// The next frame, or `None` at the end of the stream. Loses nothing when dropped.
    ///
    /// # Errors
    /// [`StreamError`]; the stream is of no use then.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, StreamError> {
        loop {
            while let Some(piece) = self.pieces.get_mut(self.at) {
                if piece.is_empty() {
                    self.at += 1;
                    continue;
                }
                let mut rest = &piece[..];
                let frame = self.decoder.decode(&mut rest)?;
                let used = piece.len() - rest.len();
                piece.advance(used);
                if frame.is_some() {
                    return Ok(frame);
                }
            }
            self.pieces.fill(Bytes::new());
            self.at = PIECES;
            match self.stream.read_chunks(&mut self.pieces).await? {
                Some(_) => self.at = 0,
                None => {
                    self.decoder.finish().map_err(StreamError::Frame)?;
                    return Ok(None);
                }
            }
        }
    }

    /// Waits until the sender abandons the stream or the connection ends; what it sends until
    /// then is lost.
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
