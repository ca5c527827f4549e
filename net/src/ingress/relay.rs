//! Copies bytes between client and replica after a protocol switch.

mod frames;

use std::{io, time::Duration};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    sync::watch,
    time::timeout,
};

use self::frames::Frames;
use super::{CLOSING_TIMEOUT, Phase, timeouts::ServingGuard};
use crate::limit::Permit;

/// Time for which one direction may still finish after the other has closed.
const LINGER: Duration = Duration::from_secs(5);
/// Bytes of each direction that are held.
const BUFFER: usize = 8 * 1024;

/// Waits until both sides have switched, then relays until either side or the proxy closes. When
/// the proxy does, a WebSocket ends with a close frame to both sides.
///
/// `serving` suspends the timeouts of a client connection that carries other requests as well;
/// `permit` counts the request among those in flight.
pub(super) async fn relay(
    client: OnUpgrade,
    replica: OnUpgrade,
    mut phase: watch::Receiver<Phase>,
    is_websocket: bool,
    serving: Option<ServingGuard>,
    permit: Option<Permit>,
) {
    let mut closed = phase.clone();
    let run = async {
        match tokio::try_join!(client, replica) {
            Ok((client, replica)) => {
                // An error means that the proxy was dropped without a drain.
                let closing =
                    async { drop(phase.wait_for(|phase| *phase >= Phase::Closing).await) };
                let (client, replica) = (TokioIo::new(client), TokioIo::new(replica));
                exchange(client, replica, is_websocket, closing).await;
            }
            Err(why) => tracing::debug!(subsystem = "ingress", %why, "upgrade failed"),
        }
    };
    tokio::select! {
        () = run => {}
        _ = closed.wait_for(|phase| *phase == Phase::Closed) => {}
    }
    drop((serving, permit));
}

async fn exchange(
    client: impl AsyncRead + AsyncWrite,
    replica: impl AsyncRead + AsyncWrite,
    is_websocket: bool,
    closing: impl Future<Output = ()>,
) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_replica, mut to_replica) = split(replica);
    let (mut up, mut down) = (Direction::new(), Direction::new());
    {
        let up = up.copy(&mut from_client, &mut to_replica);
        let down = down.copy(&mut from_replica, &mut to_client);
        tokio::pin!(up, down);
        // After an orderly close the other direction may finish; after an error it is cut off.
        let ended = async {
            tokio::select! {
                copied = &mut up => if copied.is_ok() { let _ = timeout(LINGER, down).await; },
                copied = &mut down => if copied.is_ok() { let _ = timeout(LINGER, up).await; },
            }
        };
        tokio::select! {
            () = ended => return,
            () = closing => {}
        }
    }
    if is_websocket {
        let goodbye = async {
            tokio::join!(
                down.close(&mut from_replica, &mut to_client, frames::going_away()),
                up.close(
                    &mut from_client,
                    &mut to_replica,
                    frames::masked_going_away()
                ),
            )
        };
        let _ = timeout(CLOSING_TIMEOUT, goodbye).await; // either may not read
    }
}

/// Bytes on their way in one direction, and where among the frames of a WebSocket they are.
struct Direction {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    frames: Frames,
}

impl Direction {
    fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER].into(),
            start: 0,
            end: 0,
            frames: Frames::default(),
        }
    }

    /// Copies until the source ends, which ends the sink.
    ///
    /// # Cancel safety
    /// Cancelled, it may be continued.
    async fn copy(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        while self.fill(from).await? {
            let written = to.write(self.waiting()).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            let passed = self.buffer.get(self.start..self.start + written);
            self.frames.pass(passed.unwrap_or_default());
            self.start += written;
            if self.start == self.end {
                to.flush().await?;
            }
        }
        let _ = to.shutdown().await; // it may be closed already
        Ok(())
    }

    /// Copies the rest of the frame that has begun, then ends the sink with the frame `last`, unless
    /// the source has closed the conversation itself.
    async fn close(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        last: Vec<u8>,
    ) -> io::Result<()> {
        while !self.frames.is_between() && self.fill(from).await? {
            let waiting = self.buffer.get(self.start..self.end);
            let passed = self.frames.pass_frame(waiting.unwrap_or_default());
            let passed = self.start + passed;
            let frame = self.buffer.get(self.start..passed);
            to.write_all(frame.unwrap_or_default()).await?;
            self.start = passed;
        }
        if self.frames.is_between() && !self.frames.is_closed() {
            to.write_all(&last).await?;
        }
        to.flush().await?;
        to.shutdown().await
    }

    /// Reads unless bytes wait; returns whether there are any.
    async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.end = from.read(&mut self.buffer).await?;
        }
        Ok(self.start < self.end)
    }

    fn waiting(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn other_direction_finishes_after_a_close() {
        let ((mut client, near), (far, mut replica)) = (duplex(64), duplex(64));
        let relayed = tokio::spawn(exchange(near, far, false, pending()));
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = String::new();
        replica.read_to_string(&mut received).await.unwrap();
        replica.write_all(b"pong").await.unwrap();
        drop(replica);
        let mut answered = String::new();
        client.read_to_string(&mut answered).await.unwrap();
        relayed.await.unwrap();
        assert_eq!((received.as_str(), answered.as_str()), ("ping", "pong"));
    }

    #[tokio::test(start_paused = true)]
    async fn relay_ends_after_lingering_for_open_side() {
        let ((client, near), (far, _replica)) = (duplex(64), duplex(64));
        let start = tokio::time::Instant::now();
        drop(client);
        exchange(near, far, false, pending()).await;
        assert_eq!(start.elapsed(), LINGER);
    }

    #[tokio::test(start_paused = true)]
    async fn websocket_is_closed_between_two_frames() {
        let ((mut client, near), (far, mut replica)) = (duplex(64), duplex(64));
        let (close, closing) = tokio::sync::oneshot::channel::<()>();
        let closing = async { drop(closing.await) };
        let relayed = tokio::spawn(exchange(near, far, true, closing));
        // A frame of five bytes, three of which have arrived.
        replica.write_all(b"\x81\x05hel").await.unwrap();
        let mut begun = [0; 5];
        client.read_exact(&mut begun).await.unwrap();
        close.send(()).unwrap();
        let mut frame = [0; 8];
        replica.read_exact(&mut frame).await.unwrap();
        let code = [frame[6] ^ frame[2], frame[7] ^ frame[3]];
        assert_eq!(
            (&frame[..2], u16::from_be_bytes(code)),
            (&b"\x88\x82"[..], 1001)
        );
        replica.write_all(b"lo\x81\x05never").await.unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"lo\x88\x02\x03\xe9");
        relayed.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn other_protocols_get_no_frame() {
        let ((mut client, near), (far, _replica)) = (duplex(64), duplex(64));
        exchange(near, far, false, async {}).await;
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_side_delays_the_close_shortly() {
        let ((_client, near), (far, mut replica)) = (duplex(4), duplex(64));
        let start = tokio::time::Instant::now();
        replica.write_all(b"\x81\x05hello").await.unwrap();
        exchange(near, far, true, tokio::time::sleep(LINGER)).await;
        assert_eq!(start.elapsed(), LINGER + CLOSING_TIMEOUT);
    }
}
