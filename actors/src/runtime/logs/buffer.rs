//! Buffer of one replica's unread lines, bounded in number and in bytes.

use std::sync::Arc;

use jaco_proto::v1::LogLine;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Capacity in lines; when it is full, the source stops reading from the engine.
const LINES: usize = 64;
/// Capacity in bytes; one longer line fits into an empty buffer.
const BYTES: u32 = 1 << 20;

/// Writing end.
pub(super) struct Buffer {
    lines: mpsc::Sender<(LogLine, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

/// Reading end.
pub(super) struct Buffered(mpsc::Receiver<(LogLine, OwnedSemaphorePermit)>);

/// The reading end was dropped.
#[derive(Debug)]
pub(super) struct Closed;

pub(super) fn buffer() -> (Buffer, Buffered) {
    let (lines, buffered) = mpsc::channel(LINES);
    let room = Arc::new(Semaphore::new(BYTES as usize));
    (Buffer { lines, room }, Buffered(buffered))
}

impl Buffer {
    /// Adds a line; waits while the buffer is full.
    pub(super) async fn put(&self, line: LogLine) -> Result<(), Closed> {
        let bytes = u32::try_from(line.line.len()).unwrap_or(BYTES).min(BYTES);
        let room = self.room.clone().acquire_many_owned(bytes);
        let room = room.await.map_err(|_| Closed)?;
        self.lines.send((line, room)).await.map_err(|_| Closed)
    }

    /// Resolves once the reading end is dropped.
    pub(super) async fn closed(&self) {
        self.lines.closed().await;
    }
}

impl Buffered {
    /// Forwards all lines; returns when the writing end or `lines` is closed.
    pub(super) async fn drain(mut self, lines: mpsc::Sender<LogLine>) {
        while let Some((line, _room)) = self.0.recv().await {
            if lines.send(line).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn line(bytes: usize) -> LogLine {
        LogLine {
            line: "x".repeat(bytes),
            ..Default::default()
        }
    }

    /// Number of lines of the given size that fit before the writer blocks.
    fn fitting(bytes: usize) -> usize {
        let (buffer, _buffered) = buffer();
        (0..1_000)
            .take_while(|_| buffer.put(line(bytes)).now_or_never().is_some())
            .count()
    }

    #[test]
    fn full_buffer_blocks_writer_by_lines_or_bytes() {
        for (bytes, lines) in [
            (0, 64),
            (100, 64),
            (1 << 14, 64),
            (1 << 16, 16),
            (1 << 20, 1),
            (3 << 20, 1),
        ] {
            assert_eq!(fitting(bytes), lines, "lines of {bytes} bytes");
        }
    }

    #[tokio::test]
    async fn reading_frees_capacity() {
        let (buffer, buffered) = buffer();
        let (sender, mut lines) = mpsc::channel(1);
        tokio::spawn(buffered.drain(sender));
        let writer = async {
            for _ in 0..200 {
                buffer.put(line(1 << 19)).await.unwrap();
            }
        };
        let reader = async {
            for _ in 0..200 {
                lines.recv().await.unwrap();
            }
        };
        tokio::join!(writer, reader);
    }

    #[tokio::test]
    async fn dropped_reader_fails_blocked_writer() {
        let (buffer, buffered) = buffer();
        buffer.put(line(1 << 20)).await.unwrap();
        let (put, ()) = tokio::join!(buffer.put(line(1)), async { drop(buffered) });
        assert!(put.is_err());
        buffer.closed().await;
    }
}
