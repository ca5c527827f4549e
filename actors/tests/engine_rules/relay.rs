//! A relay to an engine, which can interrupt event streams.

use std::sync::Arc;

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
};

/// Forwards connections to an engine; while `events_blocked` is set, it closes event streams.
pub(crate) struct Relay {
    folder: TempDir,
    events_blocked: Arc<watch::Sender<bool>>,
    _served: JoinSet<()>,
}

impl Relay {
    pub(crate) fn new(target: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let events_blocked = Arc::new(watch::Sender::new(false));
        let listener = UnixListener::bind(folder.path().join("engine")).expect("a socket");
        let (target, switch) = (target.to_owned(), Arc::clone(&events_blocked));
        let mut served = JoinSet::new();
        served.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let engine = UnixStream::connect(&target).await.expect("an engine");
                connections.spawn(pass(client, engine, switch.subscribe()));
            }
        });
        Self {
            folder,
            events_blocked,
            _served: served,
        }
    }

    pub(crate) fn path(&self) -> String {
        self.folder.path().join("engine").display().to_string()
    }

    /// Closes event streams and refuses new ones, or permits them again.
    pub(crate) fn block_events(&self, events_blocked: bool) {
        self.events_blocked.send_replace(events_blocked);
    }
}

async fn pass(
    mut client: UnixStream,
    mut engine: UnixStream,
    mut events_blocked: watch::Receiver<bool>,
) {
    let (mut to_engine, mut to_client) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut listens = false;
    loop {
        tokio::select! {
            read = client.read(&mut to_engine) => match read {
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    listens |= to_engine[..n].starts_with(b"GET /events");
                    let blocked = listens && *events_blocked.borrow();
                    if blocked || engine.write_all(&to_engine[..n]).await.is_err() {
                        return;
                    }
                }
            },
            read = engine.read(&mut to_client) => match read {
                Ok(0) | Err(_) => return,
                Ok(n) => if client.write_all(&to_client[..n]).await.is_err() { return },
            },
            changed = events_blocked.changed() => {
                if changed.is_err() || listens && *events_blocked.borrow() {
                    return;
                }
            }
        }
    }
}
