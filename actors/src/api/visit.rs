//! A connection of the API listener, from accept to close.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::gate::{Due, Gate, Guest, PATIENCE};
use crate::lock::lock;

/// An accepted connection, counted until its last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Visit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    gate: Arc<Mutex<Gate>>,
    address: SocketAddr,
    guest: Mutex<Guest>,
}

impl Visit {
    /// Counts a connection from `address`, if the limits allow it.
    pub(super) fn enter(gate: &Arc<Mutex<Gate>>, address: SocketAddr) -> Option<Self> {
        lock(gate).enter(address.ip()).then(|| {
            Self(Arc::new(Inner {
                gate: gate.clone(),
                address,
                guest: Mutex::new(Guest::new(Instant::now())),
            }))
        })
    }

    /// Returns the remote address.
    pub(super) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Begins a call; it ends when the returned guard is dropped.
    pub(super) fn call(&self) -> UnderWay {
        if lock(&self.0.guest).begin() {
            lock(&self.0.gate).greeted(self.0.address.ip());
        }
        UnderWay(self.clone())
    }

    fn due(&self, now: Instant) -> Due {
        lock(&self.0.guest).due(now)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let greeted = lock(&self.guest).greeted();
        lock(&self.gate).left(self.address.ip(), greeted);
    }
}

/// Guard of a call in progress.
pub(super) struct UnderWay(Visit);

impl UnderWay {
    /// Records that the caller has authenticated.
    pub(super) fn know(&self) {
        lock(&self.0.0.guest).know();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.0.0.guest).end(Instant::now());
    }
}

/// I/O of a connection, which fails once the connection is due to be closed.
#[derive(Debug)]
pub(super) struct Watched<I> {
    io: I,
    visit: Visit,
    /// When to check again; `None` once the connection may stay idle.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<I> Watched<I> {
    /// Wraps a connection after its handshake and starts the time limit for its first request.
    pub(super) fn new(io: I, visit: Visit) -> Self {
        lock(&visit.0.guest).restart(Instant::now());
        Self {
            io,
            visit,
            timer: Some(Box::pin(sleep_until(Instant::now() + PATIENCE))),
        }
    }

    /// Fails once the connection is due, and wakes the task at that time.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(timer) = &mut self.timer {
            if timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            let now = Instant::now();
            match self.visit.due(now) {
                Due::Never => self.timer = None,
                Due::At(at) if at <= now => return Err(io::ErrorKind::TimedOut.into()),
                Due::At(at) => timer.as_mut().reset(at),
            }
        }
        Ok(())
    }
}

impl Connected for Watched<TlsStream<TcpStream>> {
    type ConnectInfo = Visit;

    fn connect_info(&self) -> Visit {
        self.visit.clone()
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::api::gate::Limits;

    fn visit() -> Visit {
        let gate = Arc::new(Mutex::new(Gate::new(Limits::of_process())));
        Visit::enter(&gate, ([10, 0, 0, 1], 1).into()).unwrap()
    }

    /// Returns the time after which an idle connection fails; `None` if it does not.
    async fn silence(visit: &Visit) -> Option<Duration> {
        let (near, _far) = duplex(64);
        let mut watched = Watched::new(near, visit.clone());
        let begun = Instant::now();
        let read = tokio::time::timeout(100 * PATIENCE, watched.read_u8()).await;
        let error = read.ok()?.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        Some(begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connection_fails_unless_authenticated() {
        assert_eq!(silence(&visit()).await, Some(PATIENCE));

        let stranger = visit();
        drop(stranger.call());
        assert_eq!(silence(&stranger).await, Some(PATIENCE));

        let asking = visit();
        let call = asking.call();
        let over = async {
            tokio::time::sleep(Duration::from_secs(25)).await;
            drop(call);
        };
        let (silence_of_asking, ()) = tokio::join!(silence(&asking), over);
        assert_eq!(silence_of_asking, Some(Duration::from_secs(25) + PATIENCE));

        let operator = visit();
        operator.call().know();
        assert_eq!(silence(&operator).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_without_a_request_do_not_postpone_failure() {
        let (near, mut far) = duplex(64);
        let mut watched = Watched::new(near, visit());
        let begun = Instant::now();
        let chatter = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                far.write_u8(0).await.unwrap();
            }
        };
        let listen = async {
            loop {
                if let Err(error) = watched.read_u8().await {
                    break error.kind();
                }
            }
        };
        tokio::select! {
            () = chatter => unreachable!("it never ends"),
            kind = listen => assert_eq!(kind, io::ErrorKind::TimedOut),
        }
        assert_eq!(begun.elapsed(), PATIENCE);
    }

    #[tokio::test]
    async fn connection_is_counted_until_its_last_clone_drops() {
        let gate = Arc::new(Mutex::new(Gate::new(Limits::of_process())));
        let enter = || Visit::enter(&gate, ([10, 0, 0, 1], 1).into());
        let inside: Vec<Visit> = std::iter::from_fn(enter).collect();
        assert!(!inside.is_empty() && enter().is_none());
        let info = inside[0].clone();
        drop(inside);
        let again: Vec<Visit> = std::iter::from_fn(enter).collect();
        drop(info);
        assert!(enter().is_some(), "last clone of the first connections");
        drop(again);
    }
}
