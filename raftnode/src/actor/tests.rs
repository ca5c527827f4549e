//! Tests of the actor on a real directory.

mod cluster;
mod group;
mod halted;
mod peers;
mod proposals;
mod restarts;
mod stalls;
mod writes;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use jaco_proto::v1::{self, command::Payload};
use jaco_state::{State, command};
use prost_types::Timestamp;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::mpsc;

use super::*;
use crate::{
    LeaderProposer, StateReader,
    core::Role,
    storage::{self, Storage},
};

/// Test supervisor: survives its child, and reports how the child ended.
struct Parent;

impl Actor for Parent {
    type Msg = ();
    type State = mpsc::UnboundedSender<()>;
    type Arguments = mpsc::UnboundedSender<()>;

    async fn pre_start(
        &self,
        _myself: ActorRef<()>,
        ended: mpsc::UnboundedSender<()>,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(ended)
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<()>,
        event: SupervisionEvent,
        ended: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if matches!(
            event,
            SupervisionEvent::ActorFailed(..) | SupervisionEvent::ActorTerminated(..)
        ) {
            let _ = ended.send(());
        }
        Ok(())
    }
}

/// Stops an actor and waits for its thread: exiting earlier would tear RocksDB down while in use.
fn end(actor: &ActorCell, handle: &RaftHandle) {
    actor.kill();
    while *handle.shared.threads.borrow() > 0 {
        std::thread::yield_now();
    }
}

struct Fixture {
    path: PathBuf,
    args: RaftArgs,
    parent: ActorCell,
    ended: mpsc::UnboundedReceiver<()>,
    fatal: Arc<Mutex<Vec<String>>>,
    actor: ActorCell,
    _dir: tempfile::TempDir,
}

impl Fixture {
    async fn start() -> Self {
        Self::with(RaftLimits::default()).await
    }

    async fn with(limits: RaftLimits) -> Self {
        let sole_voter = |path: &Path| storage::bootstrap(path, 1, &[1]).unwrap();
        Self::prepared(limits, sole_voter, |_| Arc::new(NoTransport)).await
    }

    /// Starts a node on the directory that `prepare` creates.
    async fn prepared(
        limits: RaftLimits,
        prepare: impl FnOnce(&Path),
        transport: impl FnOnce(&Arc<Storage>) -> Arc<dyn Transport>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raft");
        prepare(&path);
        let fatal = Arc::new(Mutex::new(Vec::new()));
        let mut args = args(&path, limits, &fatal);
        args.transport = transport(&args.storage);
        let (tx, ended) = mpsc::unbounded_channel();
        let (parent, _) = Actor::spawn(None, Parent, tx).await.unwrap();
        let parent = parent.get_cell();
        let actor = spawn(args.clone(), parent.clone()).await.unwrap();
        Self {
            path,
            args,
            parent,
            ended,
            fatal,
            actor,
            _dir: dir,
        }
    }

    fn handle(&self) -> RaftHandle {
        self.args.handle.clone()
    }

    async fn restart(&mut self) {
        self.actor = spawn(self.args.clone(), self.parent.clone()).await.unwrap();
    }

    async fn kill(&mut self) {
        self.actor.kill();
        self.stopped().await;
    }

    async fn stopped(&mut self) {
        self.ended.recv().await.unwrap();
        let mut status = self.handle().subscribe_status();
        status.wait_for(|s| s.role == Role::Stopped).await.unwrap();
    }

    /// Stops the actor and opens the directory again, as the next process would.
    async fn reopen(mut self) -> (Arc<Storage>, tempfile::TempDir) {
        self.kill().await;
        let Self {
            path, args, _dir, ..
        } = self;
        drop(args);
        // The thread of the stopped actor releases the storage last.
        loop {
            match Storage::open(&path) {
                Err(storage::Error::Locked(_)) => tokio::task::yield_now().await,
                opened => return (opened.unwrap(), _dir),
            }
        }
    }
}

fn args(path: &Path, limits: RaftLimits, fatal: &Arc<Mutex<Vec<String>>>) -> RaftArgs {
    let storage = Storage::open(path).unwrap();
    let fatal = Arc::clone(fatal);
    RaftArgs {
        observer: Arc::new(()),
        handle: RaftHandle::new(storage.load_state().unwrap(), limits.clone()),
        storage,
        transport: Arc::new(NoTransport),
        on_fatal: Arc::new(move |error| fatal.lock().unwrap().push(error.to_string())),
        limits,
    }
}

fn store(key: &str) -> v1::Command {
    let blob = v1::CertBlob {
        key: key.into(),
        value: vec![1; 100],
        ..v1::CertBlob::default()
    };
    let upsert = v1::CertBlobUpsert { blob: Some(blob) };
    command(
        "test",
        Timestamp::default(),
        Payload::CertBlobUpsert(upsert),
    )
}

fn rejected() -> v1::Command {
    // Freeing the whole address pool is rejected.
    let free = v1::SubnetFree::default();
    command("test", Timestamp::default(), Payload::SubnetFree(free))
}

/// Waits until raft has handled every message sent before, and has published its status.
async fn settled(handle: &RaftHandle) {
    // The first answer precedes the flush of the messages before it, the second one follows it.
    for _ in 0..2 {
        let (reply, answer) = tokio::sync::oneshot::channel();
        handle.cast(msg::Msg::StateAt(0, reply)).unwrap();
        answer.await.unwrap();
    }
}

/// Waits until no message waits for raft: a proposal may overtake others, and ticks come at any
/// time.
async fn emptied(handle: &RaftHandle) {
    let wait = async {
        while handle.mailbox_depth() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), wait)
        .await
        .expect("messages wait for raft");
}
