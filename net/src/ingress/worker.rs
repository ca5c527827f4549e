//! Worker threads of the data plane.

use std::{
    io, net,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use tokio::{
    runtime,
    sync::{mpsc, watch},
};

use super::{
    Phase,
    active::{ActiveTable, WorkerTable},
    handshake::Tls,
    http3::{Http3, Http3Listener},
    listener::Listener,
    pool::Pool,
    proxy::Shared,
    upstream::SplitMix64,
};

/// State of one worker thread. Its locks are never contended: only tasks of the thread take them.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Pool,
    pub(super) rng: SplitMix64,
    current: Mutex<Arc<WorkerTable>>,
}

impl Worker {
    fn new(shared: Arc<Shared>) -> Self {
        let current = Arc::new(WorkerTable(shared.live.load_full()));
        Self {
            pool: Pool::new(&shared.settings),
            rng: SplitMix64::new(),
            current: Mutex::new(current),
            shared,
        }
    }

    /// The newest table, at the cost of one atomic load unless it has changed.
    pub(super) fn table(&self) -> Arc<WorkerTable> {
        let newest = self.shared.live.load();
        let mut current = self.current();
        if !Arc::ptr_eq(&newest, &current.0) {
            let newest: &Arc<ActiveTable> = &newest;
            *current = Arc::new(WorkerTable(newest.clone()));
            self.pool.retain(|addr| newest.forwards_to(addr));
        }
        current.clone()
    }

    fn current(&self) -> MutexGuard<'_, Arc<WorkerTable>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Protocol of a listener.
#[derive(Clone)]
pub(super) enum Protocol {
    Http,
    Https(Tls),
}

/// Messages to a worker thread.
enum Command {
    /// Accept connections until the phase ends.
    Listen {
        socket: net::TcpListener,
        protocol: Protocol,
        phase: watch::Receiver<Phase>,
    },
    /// Serve clients over QUIC until the phase ends.
    ListenQuic {
        socket: net::UdpSocket,
        http3: Box<Http3>,
        phase: watch::Receiver<Phase>,
    },
    /// Let go of the previous table and of connections to replicas that are no longer in one.
    Refresh,
}

/// Handle of a worker thread, which ends when the handle is dropped; so do all its connections.
pub(super) struct WorkerHandle {
    commands: mpsc::UnboundedSender<Command>,
    /// Phase of the current connections. A drain replaces the channel, so it affects only
    /// connections accepted before.
    phase: watch::Sender<Phase>,
}

impl WorkerHandle {
    /// Starts the thread of worker `number`.
    pub(super) fn start(number: usize, shared: Arc<Shared>) -> io::Result<Self> {
        let (commands, received) = mpsc::unbounded_channel();
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::Builder::new()
            .name(format!("ingress-{number}"))
            .spawn(move || runtime.block_on(run(Arc::new(Worker::new(shared)), received)))?;
        Ok(Self {
            commands,
            phase: watch::Sender::new(Phase::Serving),
        })
    }

    /// Accepts connections on `socket`.
    pub(super) fn listen(&self, socket: net::TcpListener, protocol: Protocol) {
        let phase = self.phase.subscribe();
        let listen = Command::Listen {
            socket,
            protocol,
            phase,
        };
        let _ = self.commands.send(listen); // the thread ends only with its handle
    }

    /// Serves clients of HTTP/3 on `socket`.
    pub(super) fn listen_quic(&self, socket: net::UdpSocket, http3: Http3) {
        let listen = Command::ListenQuic {
            socket,
            http3: Box::new(http3),
            phase: self.phase.subscribe(),
        };
        let _ = self.commands.send(listen); // the thread ends only with its handle
    }

    /// Announces that the route table was replaced.
    pub(super) fn refresh(&self) {
        let _ = self.commands.send(Command::Refresh); // the thread ends only with its handle
    }

    /// Gives up control over the current listeners and connections, to drain them.
    pub(super) fn take_phase(&mut self) -> watch::Sender<Phase> {
        std::mem::replace(&mut self.phase, watch::Sender::new(Phase::Serving))
    }
}

async fn run(worker: Arc<Worker>, mut commands: mpsc::UnboundedReceiver<Command>) {
    while let Some(command) = commands.recv().await {
        match command {
            Command::Listen {
                socket,
                protocol,
                phase,
            } => match Listener::new(socket, protocol, worker.clone(), phase) {
                Ok(listener) => drop(tokio::spawn(listener.serve())),
                Err(why) => {
                    tracing::error!(subsystem = "ingress", %why, "failed to listen");
                }
            },
            Command::ListenQuic {
                socket,
                http3,
                phase,
            } => match Http3Listener::new(socket, *http3, worker.clone(), phase) {
                Ok(listener) => drop(tokio::spawn(listener.serve())),
                Err(why) => {
                    tracing::error!(subsystem = "ingress", %why, "failed to listen for HTTP/3");
                }
            },
            Command::Refresh => drop(worker.table()),
        }
    }
}
