//! The lines of one replica that wait for their reader, bounded in number and in bytes.

use std::sync::Arc;

use jaco_proto::v1::LogLine;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Lines of one replica that wait; then the engine waits.
const LINES: usize = 64;
/// Bytes of one replica that wait, apart from a single longer line.
const BYTES: u32 = 1 << 20;

/// The writing end.
pub(super) struct Buffer {
    lines: mpsc::Sender<(LogLine, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

/// The reading end.
pub(super) struct Buffered(mpsc::Receiver<(LogLine, OwnedSemaphorePermit)>);

/// Nobody reads any more.
#[derive(Debug)]
pub(super) struct Closed;

pub(super) fn buffer() -> (Buffer, Buffered) {
    let (lines, buffered) = mpsc::channel(LINES);
    let room = Arc::new(Semaphore::new(BYTES as usize));
    (Buffer { lines, room }, Buffered(buffered))
}

impl Buffer {
    /// Waits for room.
    pub(super) async fn put(&self, line: LogLine) -> Result<(), Closed> {
        let bytes = u32::try_from(line.line.len()).unwrap_or(BYTES).min(BYTES);
        let room = self.room.clone().acquire_many_owned(bytes);
        let room = room.await.map_err(|_| Closed)?;
        self.lines.send((line, room)).await.map_err(|_| Closed)
    }

    /// Returns when nobody reads any more.
    pub(super) async fn closed(&self) {
        self.lines.closed().await;
    }
}

impl Buffered {
    /// Passes everything on, until there is nothing more or nobody takes it.
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

    /// How many lines of a size fit before the writer waits.
    fn fitting(bytes: usize) -> usize {
        let (buffer, _buffered) = buffer();
        (0..1_000)
            .take_while(|_| buffer.put(line(bytes)).now_or_never().is_some())
            .count()
    }

    #[test]
    fn a_reader_that_takes_nothing_stops_the_writer_by_number_and_by_bytes() {
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
    async fn what_is_taken_makes_room() {
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
    async fn a_writer_that_waits_learns_that_nobody_reads() {
        let (buffer, buffered) = buffer();
        buffer.put(line(1 << 20)).await.unwrap();
        let (put, ()) = tokio::join!(buffer.put(line(1)), async { drop(buffered) });
        assert!(put.is_err());
        buffer.closed().await;
    }
}
