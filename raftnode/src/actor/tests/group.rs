//! Test cluster: several nodes on real directories with an in-memory network.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use ractor::{Actor, ActorCell};
use tokio::{runtime::Handle, sync::mpsc};

use super::{super::*, Parent};
use crate::{
    LeaderProposer as _, OutgoingSnapshot, ProposeError, RaftStatus,
    core::MemberChange,
    storage::{self, Storage},
};

/// Injected network faults.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// Nodes without any connectivity.
    pub(super) cut: BTreeSet<u64>,
    /// Percentage of messages that are lost.
    pub(super) loss: u64,
    /// Longest delay of a message.
    pub(super) delay: Duration,
    /// Changes a byte of the next snapshot.
    pub(super) damage: bool,
    /// Mutes the receiver of the next snapshot at its first chunk.
    pub(super) mute_receiver: bool,
    /// Drops all messages of this node, and the acknowledgements of its snapshots.
    pub(super) muted: Option<u64>,
    /// Adds a field of a newer version to snapshots.
    pub(super) newer: bool,
}

type Between = Arc<dyn Fn(u64) + Send + Sync>;

#[derive(Default)]
struct Network {
    handles: Mutex<BTreeMap<u64, RaftHandle>>,
    faults: Mutex<Faults>,
    random: AtomicU64,
    /// Called with the sender after each chunk of a snapshot.
    between: Mutex<Option<Between>>,
    snapshots: AtomicU64,
}

impl Network {
    fn random(&self, below: u64) -> u64 {
        let number = self
            .random
            .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (number ^ (number >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 33) % below
    }

    fn handle(&self, id: u64) -> Option<RaftHandle> {
        self.handles.lock().unwrap().get(&id).cloned()
    }

    fn is_cut(&self, from: u64, to: u64) -> bool {
        let faults = self.faults.lock().unwrap();
        faults.cut.contains(&from) || faults.cut.contains(&to)
    }
}

struct Wire {
    own: u64,
    network: Arc<Network>,
    runtime: Handle,
}

impl Transport for Wire {
    fn send(&self, to: u64, message: Vec<u8>) {
        let network = Arc::clone(&self.network);
        let (own, faults) = (self.own, network.faults.lock().unwrap().clone());
        let Some(peer) = network.handle(to) else {
            return;
        };
        if faults.muted == Some(own) {
            return;
        }
        if network.is_cut(own, to) || network.random(100) < faults.loss {
            if let Some(handle) = network.handle(own) {
                handle.unreachable(to);
            }
            return;
        }
        if faults.delay.is_zero() {
            return peer.deliver(own, &message).unwrap();
        }
        let delay = faults.delay.mul_f64(network.random(100) as f64 / 100.0);
        self.runtime.spawn(async move {
            tokio::time::sleep(delay).await;
            peer.deliver(own, &message).unwrap();
        });
    }

    fn send_snapshot(&self, to: u64, snapshot: OutgoingSnapshot) {
        let (network, own) = (Arc::clone(&self.network), self.own);
        let Some(peer) = network.handle(to).filter(|_| !network.is_cut(own, to)) else {
            return;
        };
        network.snapshots.fetch_add(1, Ordering::Relaxed);
        let OutgoingSnapshot {
            message,
            mut content,
            report,
        } = snapshot;
        thread::spawn(move || {
            if network.faults.lock().unwrap().newer {
                content.add_field(b"\xc0\xb2\x04\x01".to_vec());
            }
            let sent = peer.receive_snapshot(own, message).and_then(|incoming| {
                let Some(mut incoming) = incoming else {
                    return Ok(());
                };
                while let Some(mut chunk) = content.next_chunk() {
                    {
                        let mut faults = network.faults.lock().unwrap();
                        if std::mem::take(&mut faults.damage) {
                            chunk[0] ^= 1;
                        }
                        if std::mem::take(&mut faults.mute_receiver) {
                            faults.muted = Some(to);
                        }
                    }
                    incoming.write(&chunk)?;
                    let between = network.between.lock().unwrap().clone();
                    if let Some(between) = between {
                        between(own);
                    }
                }
                incoming.finish()
            });
            let muted = network.faults.lock().unwrap().muted == Some(to);
            if sent.is_ok() && !muted {
                report.delivered();
            }
        });
    }
}

struct Node {
    path: PathBuf,
    args: RaftArgs,
    actor: ActorCell,
}

pub(super) struct Group {
    nodes: BTreeMap<u64, Node>,
    network: Arc<Network>,
    limits: RaftLimits,
    parent: ActorCell,
    ended: mpsc::UnboundedReceiver<()>,
    dir: tempfile::TempDir,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.network.handles.lock().unwrap().clear();
        for node in self.nodes.values() {
            super::end(&node.actor, &node.args.handle);
        }
    }
}

impl Group {
    /// Starts the first `voters` nodes of a cluster.
    pub(super) async fn start(voters: u64, limits: RaftLimits) -> Self {
        let (tx, ended) = mpsc::unbounded_channel();
        let (parent, _) = Actor::spawn(None, Parent, tx).await.unwrap();
        let mut group = Self {
            nodes: BTreeMap::new(),
            network: Arc::default(),
            limits: RaftLimits {
                // An election timeout is 10 ticks: shorter ones end a leadership on a busy machine.
                tick: Duration::from_millis(50),
                ..limits
            },
            parent: parent.get_cell(),
            ended,
            dir: tempfile::tempdir().unwrap(),
        };
        let ids: Vec<_> = (1..=voters).collect();
        for &id in &ids {
            let path = group.path(id);
            storage::bootstrap(&path, id, &ids).unwrap();
            group.boot(id).await;
        }
        group
    }

    /// Starts a node with an empty storage.
    pub(super) async fn join(&mut self, id: u64) {
        storage::create(&self.path(id), id).unwrap();
        self.boot(id).await;
    }

    fn path(&self, id: u64) -> PathBuf {
        let home = self.dir.path().join(format!("n{id}"));
        std::fs::create_dir_all(&home).unwrap();
        home.join("raft")
    }

    async fn boot(&mut self, id: u64) {
        let path = self.path(id);
        let storage = Storage::open(&path).unwrap();
        let handle = RaftHandle::new(storage.load_state().unwrap(), self.limits.clone());
        let args = RaftArgs {
            observer: Arc::new(()),
            handle: handle.clone(),
            storage,
            transport: Arc::new(Wire {
                own: id,
                network: Arc::clone(&self.network),
                runtime: Handle::current(),
            }),
            on_fatal: Arc::new(|error| panic!("{error}")),
            limits: self.limits.clone(),
        };
        self.network.handles.lock().unwrap().insert(id, handle);
        let actor = spawn(args.clone(), self.parent.clone()).await.unwrap();
        self.nodes.insert(id, Node { path, args, actor });
    }

    /// Stops a node as a crash would.
    pub(super) async fn kill(&mut self, id: u64) {
        self.network.handles.lock().unwrap().remove(&id);
        let node = self.nodes.remove(&id).unwrap();
        node.actor.kill();
        self.ended.recv().await.unwrap();
        node.args.handle.closed().await;
        let Node { path, args, .. } = node;
        let storage = Arc::downgrade(&args.storage);
        drop(args);
        while storage.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(path.exists());
    }

    /// Restarts a killed node.
    pub(super) async fn revive(&mut self, id: u64) {
        self.boot(id).await;
    }

    pub(super) fn handle(&self, id: u64) -> RaftHandle {
        self.nodes[&id].args.handle.clone()
    }

    pub(super) fn storage(&self, id: u64) -> &Storage {
        &self.nodes[&id].args.storage
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub(super) fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.network.faults.lock().unwrap());
    }

    pub(super) fn between_chunks(&self, call: impl Fn(u64) + Send + Sync + 'static) {
        *self.network.between.lock().unwrap() = Some(Arc::new(call));
    }

    /// Number of snapshots sent so far.
    pub(super) fn snapshots(&self) -> u64 {
        self.network.snapshots.load(Ordering::Relaxed)
    }

    /// Waits until one of the connected nodes leads, and returns its id.
    pub(super) async fn leader(&self) -> u64 {
        loop {
            let cut = self.network.faults.lock().unwrap().cut.clone();
            let leading = |id: &u64| !cut.contains(id) && self.handle(*id).status().leading;
            if let Some(id) = self.ids().into_iter().find(leading) {
                return id;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the status of node `id` satisfies `wanted`.
    pub(super) async fn until(&self, id: u64, wanted: impl Fn(&RaftStatus) -> bool) -> RaftStatus {
        let mut status = self.handle(id).subscribe_status();
        status.wait_for(|s| wanted(s)).await.unwrap().clone()
    }

    /// Waits until `leader` has had no contact with `member` for an election timeout.
    pub(super) async fn forgotten(&self, leader: u64, member: u64) {
        let silent = |s: &RaftStatus| {
            let member = s.progress.iter().find(|p| p.raft_id == member);
            member.is_some_and(|p| !p.recent_active)
        };
        self.until(leader, silent).await;
    }

    /// Proposes to the current leader until the write is acknowledged; returns its index.
    pub(super) async fn write(&self, key: &str) -> u64 {
        loop {
            let leader = self.leader().await;
            match self.handle(leader).propose(super::store(key)).await {
                Ok(committed) => return committed.index,
                Err(error) => assert!(
                    matches!(error, ProposeError::NoLeader | ProposeError::Unknown(_)),
                    "{error}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Changes a member through node `id`, which leads, and waits until that is in effect there.
    pub(super) async fn change(&self, id: u64, change: MemberChange) {
        match self.handle(id).change_members(change).await {
            // The change was appended, and is not in effect within the time of a call.
            Err(ChangeError::Unknown) => {}
            result => result.unwrap(),
        }
        self.until(id, |s| {
            change.is_done(&s.voters, &s.learners) && !s.changing_members
        })
        .await;
    }

    /// Reads the index of the leader, of the next one if it loses its leadership meanwhile.
    async fn committed(&self) -> u64 {
        loop {
            let leader = self.leader().await;
            if let Ok(state) = self.handle(leader).read_index().await {
                return state.applied_index;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until all nodes have applied the leader's log, and compares their states.
    pub(super) async fn agree(&self) {
        // An election adds an entry: nodes that are past the index are asked for a later one.
        let (index, digests) = loop {
            let index = self.committed().await;
            let mut digests = BTreeMap::new();
            for id in self.ids() {
                let digest = self
                    .handle(id)
                    .digest_at(Some(index), Duration::from_secs(30))
                    .await;
                digests.insert(id, digest);
            }
            if digests.values().all(|d| d.0 <= index) {
                break (index, digests);
            }
        };
        let first = digests.values().next().unwrap();
        assert_eq!(first.0, index);
        assert!(digests.values().all(|d| d == first), "{digests:?}");
    }
}
