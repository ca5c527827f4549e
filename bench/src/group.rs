//! A raft group in one process: real directories, messages delivered in memory.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use jaco_proto::chain;
use jaco_raftnode::{
    OutgoingSnapshot, RaftArgs, RaftHandle, RaftLimits, Storage, Transport, actor, storage,
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};

/// Nodes 1 to N of one cluster.
pub struct Group {
    /// Handle of each node, by raft id - 1.
    pub handles: Vec<RaftHandle>,
    /// Storage of each node, by raft id - 1.
    pub storages: Vec<Arc<Storage>>,
    actors: Vec<Option<ActorCell>>,
    args: Vec<RaftArgs>,
    parent: ActorRef<()>,
}

/// Delivers messages to the handles of the other nodes.
struct InMemoryTransport {
    own: u64,
    peers: Arc<OnceLock<Vec<RaftHandle>>>,
}

impl InMemoryTransport {
    fn peer(&self, id: u64) -> Option<RaftHandle> {
        let at = usize::try_from(id).ok()?.checked_sub(1)?;
        self.peers.get()?.get(at).cloned()
    }
}

impl Transport for InMemoryTransport {
    fn send(&self, to: u64, message: Vec<u8>) {
        match self.peer(to) {
            Some(peer) if peer.is_running() => {
                // Messages made by raft are always valid.
                let _ = peer.deliver(self.own, &message);
            }
            _ => {
                if let Some(own) = self.peer(self.own) {
                    own.unreachable(to);
                }
            }
        }
    }

    fn send_snapshot(&self, to: u64, snapshot: OutgoingSnapshot) {
        let (Some(peer), from) = (self.peer(to), self.own) else {
            return;
        };
        let OutgoingSnapshot {
            message,
            mut content,
            report,
        } = snapshot;
        thread::spawn(move || {
            let sent = peer.receive_snapshot(from, message).and_then(|incoming| {
                let Some(mut incoming) = incoming else {
                    return Ok(());
                };
                while let Some(chunk) = content.next_chunk() {
                    incoming.write(&chunk)?;
                }
                incoming.finish()
            });
            if sent.is_ok() {
                report.delivered();
            }
        });
    }
}

impl Group {
    /// Bootstraps and starts a cluster of `nodes` voters below `dir`.
    ///
    /// # Errors
    /// The error that prevents a node from starting.
    pub async fn start(dir: &Path, nodes: u64, limits: &RaftLimits) -> anyhow::Result<Self> {
        let ids: Vec<_> = (1..=nodes).collect();
        let peers = Arc::new(OnceLock::new());
        let mut args = Vec::new();
        for &own in &ids {
            let home = dir.join(format!("node-{own}"));
            std::fs::create_dir_all(&home).context("directory of a node")?;
            let path = home.join("raft");
            storage::bootstrap(&path, own, &ids)?;
            let storage = Storage::open(&path)?;
            args.push(RaftArgs {
                handle: RaftHandle::new(storage.load_state()?, limits.clone()),
                storage,
                transport: Arc::new(InMemoryTransport {
                    own,
                    peers: Arc::clone(&peers),
                }),
                on_fatal: Arc::new(|error| panic!("{}", chain(error))),
                observer: Arc::new(()),
                limits: limits.clone(),
            });
        }
        let handles: Vec<_> = args.iter().map(|args| args.handle.clone()).collect();
        // The only call that sets it.
        let _ = peers.set(handles.clone());
        let (parent, _) = Actor::spawn(None, Parent, ()).await?;
        let mut group = Self {
            handles,
            storages: args.iter().map(|args| Arc::clone(&args.storage)).collect(),
            actors: args.iter().map(|_| None).collect(),
            args,
            parent,
        };
        for at in 0..group.args.len() {
            group.resume(at).await?;
        }
        Ok(group)
    }

    /// Starts the actor of the node at index `at`.
    ///
    /// # Errors
    /// The error that prevents the start.
    pub async fn resume(&mut self, at: usize) -> anyhow::Result<()> {
        let actor = actor::spawn(self.args[at].clone(), self.parent.get_cell()).await?;
        self.actors[at] = Some(actor);
        Ok(())
    }

    /// Kills the actor of the node at index `at`; its storage stays open.
    pub async fn suspend(&mut self, at: usize) {
        if let Some(actor) = self.actors[at].take() {
            actor.kill();
            self.handles[at].closed().await;
        }
    }

    /// Waits for a leader and returns its index.
    ///
    /// # Errors
    /// If no node leads within 30 s.
    pub async fn leader(&self) -> anyhow::Result<usize> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(30) {
            let leading = self.handles.iter().position(|h| h.status().leading);
            if let Some(at) = leading {
                return Ok(at);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("no leader was elected")
    }

    /// Stops all nodes.
    pub async fn stop(mut self) {
        for at in 0..self.actors.len() {
            self.suspend(at).await;
        }
        self.parent.stop(None);
    }
}

/// Supervises nothing: the death of an actor ends the benchmark by its unanswered proposals.
pub struct Parent;

impl Actor for Parent {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        _: ractor::SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}
