//! Timeouts of a client connection.
//!
//! hyper's own header timeout also runs between requests, so it cannot tell an idle client from one
//! that sends its request byte by byte. Here the first byte after an idle period starts the timeout
//! of the request head, and the arrival of the request stops it.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// State of a client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientActivity {
    /// Idle since then.
    Idle(Instant),
    /// Sending the head of a request since then.
    ReceivingHead(Instant),
    /// Serving this many requests; HTTP/2 has several at once.
    Responding(usize),
}

/// Timeouts of one client connection.
#[derive(Debug)]
pub(super) struct ClientTimeouts {
    activity: Mutex<ClientActivity>,
    /// Since when the client has read nothing of a response that waits for it.
    blocked: Mutex<Option<Instant>>,
    head: Duration,
    idle: Duration,
}

impl ClientTimeouts {
    /// The timeouts of an accepted connection: the head of its first request is due.
    pub(super) fn new(head: Duration, idle: Duration) -> Arc<Self> {
        Arc::new(Self {
            activity: Mutex::new(ClientActivity::ReceivingHead(Instant::now())),
            blocked: Mutex::default(),
            head,
            idle,
        })
    }

    /// The timeouts of an accepted connection with concurrent requests: the head of the first is due,
    /// and only idleness is limited, because arriving bytes need not belong to a request.
    pub(super) fn multiplexed(idle: Duration) -> Arc<Self> {
        Arc::new(Self {
            activity: Mutex::new(ClientActivity::ReceivingHead(Instant::now())),
            blocked: Mutex::default(),
            head: idle,
            idle,
        })
    }

    /// When the connection times out; `None` while a request is being served to a client that
    /// reads.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match *self.activity() {
            ClientActivity::Idle(since) => Some(since + self.idle),
            ClientActivity::ReceivingHead(since) => Some(since + self.head),
            ClientActivity::Responding(_) => self.blocked().map(|since| since + self.idle),
        }
    }

    /// Whether the head of a request is due: the connection was accepted, or its first bytes arrived.
    pub(super) fn awaits_head(&self) -> bool {
        matches!(*self.activity(), ClientActivity::ReceivingHead(_))
    }

    /// Suspends the timeouts until the guard is dropped; called when a request has arrived.
    pub(super) fn serve(self: &Arc<Self>) -> ServingGuard {
        let mut activity = self.activity();
        *activity = match *activity {
            ClientActivity::Responding(count) => ClientActivity::Responding(count + 1),
            ClientActivity::Idle(_) | ClientActivity::ReceivingHead(_) => {
                ClientActivity::Responding(1)
            }
        };
        drop(activity);
        ServingGuard(self.clone())
    }

    fn activity(&self) -> MutexGuard<'_, ClientActivity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes_received(&self) {
        let mut activity = self.activity();
        if matches!(*activity, ClientActivity::Idle(_)) {
            *activity = ClientActivity::ReceivingHead(Instant::now());
        }
    }
}

/// Guard that suspends the timeouts while a request of the connection is being served.
#[derive(Debug)]
pub(super) struct ServingGuard(Arc<ClientTimeouts>);

impl Drop for ServingGuard {
    fn drop(&mut self) {
        let mut activity = self.0.activity();
        *activity = match *activity {
            ClientActivity::Responding(count) if count > 1 => ClientActivity::Responding(count - 1),
            ClientActivity::Responding(_)
            | ClientActivity::Idle(_)
            | ClientActivity::ReceivingHead(_) => ClientActivity::Idle(Instant::now()),
        };
    }
}

/// A client's stream that reports to its `ClientTimeouts` whether bytes arrive and leave.
#[derive(Debug)]
pub(super) struct TimedStream<S> {
    stream: S,
    timeouts: Arc<ClientTimeouts>,
    /// Whether the last write had to wait for the client.
    blocked: bool,
}

impl<S> TimedStream<S> {
    pub(super) fn new(stream: S, timeouts: Arc<ClientTimeouts>) -> Self {
        Self {
            stream,
            timeouts,
            blocked: false,
        }
    }

    fn written(&mut self, polled: &Poll<io::Result<usize>>) {
        if polled.is_pending() != self.blocked {
            self.blocked = polled.is_pending();
            *self.timeouts.blocked() = self.blocked.then(Instant::now);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.timeouts.bytes_received();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(&polled);
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const HEAD: Duration = Duration::from_secs(30);
    const IDLE: Duration = Duration::from_secs(300);

    #[tokio::test(start_paused = true)]
    async fn multiplexed_connection_idles_after_its_last_request() {
        let timeouts = ClientTimeouts::multiplexed(IDLE);
        assert_eq!(timeouts.deadline(), Some(Instant::now() + IDLE));
        let (first, second) = (timeouts.serve(), timeouts.serve());
        drop(first);
        assert_eq!(timeouts.deadline(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(second);
        assert_eq!(timeouts.deadline(), Some(Instant::now() + IDLE));
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_stops_reading_times_out() {
        let timeouts = ClientTimeouts::new(HEAD, IDLE);
        let _serving = timeouts.serve();
        let (client, mut peer) = tokio::io::duplex(4);
        let mut client = TimedStream::new(client, timeouts.clone());
        client.write_all(b"1234").await.unwrap();
        assert_eq!(timeouts.deadline(), None, "the client has room");

        assert!(poll!(pin!(client.write_all(b"5"))).is_pending());
        let blocked = Instant::now();
        tokio::time::advance(Duration::from_secs(100)).await;
        assert!(poll!(pin!(client.write_all(b"5"))).is_pending());
        assert_eq!(timeouts.deadline(), Some(blocked + IDLE));

        peer.read_exact(&mut [0; 4]).await.unwrap();
        client.write_all(b"5").await.unwrap();
        assert_eq!(timeouts.deadline(), None, "the client reads again");
    }

    #[tokio::test(start_paused = true)]
    async fn head_and_idle_timeouts_are_separate() {
        let start = Instant::now();
        let timeouts = ClientTimeouts::new(HEAD, IDLE);
        assert_eq!(
            timeouts.deadline(),
            Some(start + HEAD),
            "the first request is due"
        );

        let serving = timeouts.serve();
        timeouts.bytes_received(); // a part of the request body
        assert_eq!(timeouts.deadline(), None, "no timeout while serving");

        tokio::time::advance(Duration::from_secs(1000)).await;
        drop(serving);
        let rest = Instant::now();
        assert_eq!(timeouts.deadline(), Some(rest + IDLE));

        tokio::time::advance(Duration::from_secs(100)).await;
        timeouts.bytes_received();
        let asked = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        timeouts.bytes_received();
        assert_eq!(
            timeouts.deadline(),
            Some(asked + HEAD),
            "further bytes do not extend the timeout"
        );
    }
}
