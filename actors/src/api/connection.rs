//! A connection of the API listener, from accept to close.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use jaco_policy::api::connection_limits::{
    ConnectionLimiter, ConnectionState, IDLE_TIMEOUT, IdleDeadline,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::lock::lock;

/// An accepted connection, counted until its last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct ConnectionGuard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limiter: Arc<Mutex<ConnectionLimiter>>,
    address: SocketAddr,
    state: Mutex<ConnectionState>,
}

impl ConnectionGuard {
    /// Counts a connection from `address`, if the limits allow it.
    pub(super) fn try_open(
        limiter: &Arc<Mutex<ConnectionLimiter>>,
        address: SocketAddr,
    ) -> Option<Self> {
        lock(limiter).try_open(address.ip()).then(|| {
            Self(Arc::new(Inner {
                limiter: limiter.clone(),
                address,
                state: Mutex::new(ConnectionState::new(now())),
            }))
        })
    }

    /// Returns the remote address.
    pub(super) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Begins a call; it ends when the returned guard is dropped.
    pub(super) fn call(&self) -> CallGuard {
        if lock(&self.0.state).begin() {
            lock(&self.0.limiter).activated(self.0.address.ip());
        }
        CallGuard(self.clone())
    }

    fn due(&self, now: std::time::Instant) -> IdleDeadline {
        lock(&self.0.state).due(now)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let activated = lock(&self.state).activated();
        lock(&self.limiter).closed(self.address.ip(), activated);
    }
}

/// Guard of a call in progress.
pub(super) struct CallGuard(ConnectionGuard);

impl CallGuard {
    /// Records that the caller has authenticated.
    pub(super) fn authenticate(&self) {
        lock(&self.0.0.state).authenticate();
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        lock(&self.0.0.state).end(now());
    }
}

/// I/O of a connection, which fails once the connection is due to be closed.
#[derive(Debug)]
pub(super) struct IdleTimeoutIo<I> {
    io: I,
    connection: ConnectionGuard,
    /// When to check again; `None` once the connection may stay idle.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<I> IdleTimeoutIo<I> {
    /// Wraps a connection after its handshake and starts the time limit for its first request.
    pub(super) fn new(io: I, connection: ConnectionGuard) -> Self {
        lock(&connection.0.state).restart(now());
        Self {
            io,
            connection,
            timer: Some(Box::pin(sleep_until(Instant::now() + IDLE_TIMEOUT))),
        }
    }

    /// Fails once the connection is due, and wakes the task at that time.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(timer) = &mut self.timer {
            if timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            let now = now();
            match self.connection.due(now) {
                IdleDeadline::Never => self.timer = None,
                IdleDeadline::At(at) if at <= now => return Err(io::ErrorKind::TimedOut.into()),
                IdleDeadline::At(at) => timer.as_mut().reset(Instant::from_std(at)),
            }
        }
        Ok(())
    }
}

impl Connected for IdleTimeoutIo<TlsStream<TcpStream>> {
    type ConnectInfo = ConnectionGuard;

    fn connect_info(&self) -> ConnectionGuard {
        self.connection.clone()
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for IdleTimeoutIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for IdleTimeoutIo<I> {
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

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jaco_policy::api::connection_limits::ConnectionLimits;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    fn connection() -> ConnectionGuard {
        let limiter = Arc::new(Mutex::new(ConnectionLimiter::new(ConnectionLimits::of(
            None,
        ))));
        ConnectionGuard::try_open(&limiter, ([10, 0, 0, 1], 1).into()).unwrap()
    }

    /// Returns the time after which an idle connection fails; `None` if it does not.
    async fn idle_time_until_closed(connection: &ConnectionGuard) -> Option<Duration> {
        let (near, _far) = duplex(64);
        let mut io = IdleTimeoutIo::new(near, connection.clone());
        let begun = Instant::now();
        let read = tokio::time::timeout(100 * IDLE_TIMEOUT, io.read_u8()).await;
        let error = read.ok()?.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        Some(begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connection_fails_unless_authenticated() {
        assert_eq!(
            idle_time_until_closed(&connection()).await,
            Some(IDLE_TIMEOUT)
        );

        let anonymous = connection();
        drop(anonymous.call());
        assert_eq!(idle_time_until_closed(&anonymous).await, Some(IDLE_TIMEOUT));

        let asking = connection();
        let call = asking.call();
        let over = async {
            tokio::time::sleep(Duration::from_secs(25)).await;
            drop(call);
        };
        let (busy_time, ()) = tokio::join!(idle_time_until_closed(&asking), over);
        assert_eq!(busy_time, Some(Duration::from_secs(25) + IDLE_TIMEOUT));

        let operator = connection();
        operator.call().authenticate();
        assert_eq!(idle_time_until_closed(&operator).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_without_a_request_do_not_postpone_failure() {
        let (near, mut far) = duplex(64);
        let mut io = IdleTimeoutIo::new(near, connection());
        let begun = Instant::now();
        let chatter = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                far.write_u8(0).await.unwrap();
            }
        };
        let listen = async {
            loop {
                if let Err(error) = io.read_u8().await {
                    break error.kind();
                }
            }
        };
        tokio::select! {
            () = chatter => unreachable!("it never ends"),
            kind = listen => assert_eq!(kind, io::ErrorKind::TimedOut),
        }
        assert_eq!(begun.elapsed(), IDLE_TIMEOUT);
    }

    #[tokio::test]
    async fn connection_is_counted_until_its_last_clone_drops() {
        let limiter = Arc::new(Mutex::new(ConnectionLimiter::new(ConnectionLimits::of(
            None,
        ))));
        let try_open = || ConnectionGuard::try_open(&limiter, ([10, 0, 0, 1], 1).into());
        let inside: Vec<ConnectionGuard> = std::iter::from_fn(try_open).collect();
        assert!(!inside.is_empty() && try_open().is_none());
        let info = inside[0].clone();
        drop(inside);
        let again: Vec<ConnectionGuard> = std::iter::from_fn(try_open).collect();
        drop(info);
        assert!(try_open().is_some(), "last clone of the first connections");
        drop(again);
    }
}
