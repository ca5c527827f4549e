//! The thread of an endpoint.

use std::{fmt, future::Future, io, net, pin::Pin, sync::Arc, thread, time::Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::{
    runtime::{self, Handle},
    sync::oneshot,
};

/// Thread that carries the packets of one endpoint. It ends when the last clone is dropped, which
/// quinn keeps until all connections are closed.
///
/// A runtime with several threads wakes a second one for most packets, to look for further work;
/// this one wakes no other. Nor does work elsewhere in the process delay a packet.
#[derive(Clone)]
pub(super) struct IoThread(Arc<Inner>);

struct Inner {
    handle: Handle,
    _until_dropped: oneshot::Sender<()>,
}

impl IoThread {
    /// Starts a thread.
    ///
    /// # Errors
    /// When the system refuses a thread or an event loop.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (until_dropped, dropped) = oneshot::channel();
        thread::Builder::new()
            .name("peer-io".to_owned())
            .spawn(move || {
                let _ = runtime.block_on(dropped); // always an error: nothing is sent
            })?;
        Ok(Self(Arc::new(Inner {
            handle,
            _until_dropped: until_dropped,
        })))
    }

    /// Runs tasks on the thread.
    pub(super) fn handle(&self) -> &Handle {
        &self.0.handle
    }
}

impl Runtime for IoThread {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _entered = self.handle().enter();
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.handle().spawn(task);
    }

    fn wrap_udp_socket(&self, socket: net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _entered = self.handle().enter();
        TokioRuntime.wrap_udp_socket(socket)
    }
}

impl fmt::Debug for IoThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoThread").finish_non_exhaustive()
    }
}
