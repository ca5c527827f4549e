//! Sockets in the namespaces of endpoints.

use std::{
    io,
    net::{SocketAddrV4, UdpSocket},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use tokio::sync::oneshot;

use crate::netns::Namespace;

/// A thread that binds UDP sockets in namespaces; it begins with the first socket and ends with the
/// last clone.
///
/// Every probe has a new socket, and a thread for each one would cost several times the processor
/// time of the probe.
#[derive(Clone, Debug, Default)]
pub struct Binder(Arc<Mutex<Option<mpsc::Sender<Request>>>>);

#[derive(Debug)]
struct Request {
    namespace: Arc<Namespace>,
    address: SocketAddrV4,
    reply: oneshot::Sender<io::Result<UdpSocket>>,
}

impl Binder {
    /// Binds a socket in a namespace.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, when the address is taken, or when no thread can be started.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) async fn bind(
        &self,
        namespace: Arc<Namespace>,
        address: SocketAddrV4,
    ) -> io::Result<tokio::net::UdpSocket> {
        let (reply, bound) = oneshot::channel();
        self.send(Request {
            namespace,
            address,
            reply,
        })?;
        let socket = bound.await.map_err(|_| ended())?;
        tokio::net::UdpSocket::from_std(socket?)
    }

    /// Sends a request to the thread, and starts one if there is none.
    fn send(&self, request: Request) -> io::Result<()> {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let request = match &*thread {
            Some(requests) => match requests.send(request) {
                Ok(()) => return Ok(()),
                Err(mpsc::SendError(request)) => request,
            },
            None => request,
        };
        let (requests, received) = mpsc::channel();
        let home = Namespace::current()?;
        let builder = thread::Builder::new().name("probe-bind".to_owned());
        builder.spawn(move || run(&home, received))?;
        requests.send(request).map_err(|_| ended())?;
        *thread = Some(requests);
        Ok(())
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread that binds sockets has ended")
}

/// Serves requests. Between them the thread is at `home`, since a namespace lives as long as a thread
/// is in it.
fn run(home: &Namespace, requests: mpsc::Receiver<Request>) {
    for request in requests {
        let bound = bind(&request.namespace, request.address);
        let returned = home.enter();
        // The caller may have given up.
        let _ = request.reply.send(bound);
        if returned.is_err() {
            // The next request gets another thread.
            return;
        }
    }
}

fn bind(namespace: &Namespace, address: SocketAddrV4) -> io::Result<UdpSocket> {
    namespace.enter()?;
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
