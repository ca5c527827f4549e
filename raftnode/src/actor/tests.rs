//! Tests of the actor on a real directory.

mod cluster;
mod group;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use jaco_proto::v1::{self, command::Payload};
use jaco_state::{State, command};
use prost::Message as _;
use prost_types::Timestamp;
use protobuf::Message as _;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use raft::eraftpb::{ConfState, Message, MessageType, Snapshot, SnapshotMetadata};
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::{
    LeaderProposer, OutgoingSnapshot, ProposeError, StateReader,
    core::Role,
    snapshot::SizeLimit,
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
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raft");
        storage::bootstrap(&path, 1, &[1]).unwrap();
        let fatal = Arc::new(Mutex::new(Vec::new()));
        let args = args(&path, limits, &fatal);
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
        let storage = Arc::downgrade(&args.storage);
        drop(args);
        // The thread of the stopped actor releases the storage last.
        while storage.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
        (Storage::open(&path).unwrap(), _dir)
    }
}

fn args(path: &std::path::Path, limits: RaftLimits, fatal: &Arc<Mutex<Vec<String>>>) -> RaftArgs {
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

#[tokio::test]
async fn only_voter_leads_when_spawn_returns() {
    let fixture = Fixture::start().await;
    let status = fixture.handle().status();
    assert_eq!((status.role, status.leading), (Role::Leader, true));
    assert_eq!(status.leader_id, Some(1));
    assert_eq!(status.voters, [1]);
    assert_eq!(status.applied, status.last_index);
}

#[tokio::test]
async fn published_leader_accepts_writes() {
    let mut fixture = Fixture::start().await;
    for round in 0..20 {
        fixture.kill().await;
        let handle = fixture.handle();
        let writer = std::thread::spawn(move || {
            while !handle.status().leading {
                std::hint::spin_loop();
            }
            handle.propose(store("a"))
        });
        fixture.restart().await;
        let outcome = writer.join().unwrap().await;
        assert!(outcome.is_ok(), "round {round}: {outcome:?}");
    }
}

#[tokio::test]
async fn answered_proposal_is_in_state_and_stream() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let mut states = handle.subscribe();
    let committed = handle.propose(store("a")).await.unwrap();
    assert!(states.borrow_and_update().cert_blobs.contains_key("a"));
    assert_eq!(handle.state().applied_index, committed.index);
    assert_eq!(handle.status().applied, committed.index);
}

#[tokio::test]
async fn rejection_reaches_proposer_and_keeps_state() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let before = handle.state();
    let error = handle.propose(rejected()).await.unwrap_err();
    assert!(matches!(error, ProposeError::Rejected(_)), "{error}");
    let after = State {
        applied_index: before.applied_index,
        ..State::clone(&handle.state())
    };
    assert_eq!(after, *before);
}

#[tokio::test]
async fn concurrent_proposals_share_synced_writes() {
    const CLIENTS: u64 = 200;
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let before = fixture.args.storage.write_counts();
    // All proposals are queued before the first is awaited, and before raft can publish a status.
    let proposals: Vec<_> = handle.with_status(|_| {
        (0..CLIENTS)
            .map(|i| handle.propose(store(&format!("k{i}"))))
            .collect()
    });
    for proposal in proposals {
        proposal.await.unwrap();
    }
    let after = fixture.args.storage.write_counts();
    let synced = after.synced - before.synced;
    assert!(
        (1..CLIENTS / 2).contains(&synced),
        "{synced} syncs for {CLIENTS} proposals"
    );
    assert!(
        after.writes - before.writes <= 2 * synced,
        "an append and an apply per batch"
    );
    assert_eq!(handle.state().cert_blobs.len() as u64, CLIENTS);
}

#[tokio::test]
async fn sequential_proposals_cost_one_synced_write_each() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let before = fixture.args.storage.write_counts();
    for i in 0..10 {
        handle.propose(store(&format!("k{i}"))).await.unwrap();
    }
    let after = fixture.args.storage.write_counts();
    assert_eq!(after.synced - before.synced, 10);
}

#[tokio::test]
async fn restart_keeps_digest_and_applies_nothing_twice() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    for i in 0..20 {
        handle.propose(store(&format!("k{}", i % 7))).await.unwrap();
        let _ = handle.propose(rejected()).await;
    }
    let shown = handle.state();
    let (storage, _dir) = fixture.reopen().await;
    let loaded = storage.load_state().unwrap();
    assert_eq!(loaded, *shown);
    assert_eq!(loaded.digest(), shown.digest());
}

#[tokio::test]
async fn answered_proposals_survive_an_actor_kill() {
    let mut fixture = Fixture::start().await;
    let handle = fixture.handle();
    handle.propose(store("before")).await.unwrap();
    fixture.kill().await;
    assert_eq!(handle.status().role, Role::Stopped);
    let error = handle.propose(store("between")).await.unwrap_err();
    assert_eq!(error, ProposeError::Unavailable);
    assert_eq!(
        handle.read_index().await.unwrap_err(),
        ReadError::Unavailable
    );
    fixture.restart().await;
    handle.propose(store("after")).await.unwrap();
    let state = handle.read_index().await.unwrap();
    let keys: Vec<_> = state.cert_blobs.keys().cloned().collect();
    assert_eq!(keys, ["after", "before"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_start_releases_the_directory() {
    let mut fixture = Fixture::start().await;
    for n in 0..20 {
        fixture.kill().await;
        let starting = spawn(fixture.args.clone(), fixture.parent.clone());
        tokio::select! {
            biased;
            _ = starting => {}
            () = tokio::task::yield_now() => {}
        }
        fixture.restart().await;
        fixture
            .handle()
            .propose(store(&n.to_string()))
            .await
            .unwrap();
        // A running actor counts as two: its thread, and its state.
        let mut threads = fixture.handle().shared.threads.subscribe();
        tokio::time::timeout(
            std::time::Duration::from_secs(60),
            threads.wait_for(|n| *n == 2),
        )
        .await
        .unwrap()
        .unwrap();
    }
    assert_eq!(fixture.handle().state().cert_blobs.len(), 20);
}

#[tokio::test]
async fn kill_leaves_inflight_proposals_unknown_or_committed() {
    let mut fixture = Fixture::start().await;
    let handle = fixture.handle();
    for round in 0..20 {
        let keys: Vec<_> = (0..30).map(|i| format!("r{round}-{i}")).collect();
        let waiting: Vec<_> = keys.iter().map(|key| handle.propose(store(key))).collect();
        fixture.kill().await;
        let mut outcomes = BTreeMap::new();
        for (key, proposal) in keys.iter().zip(waiting) {
            outcomes.insert(key.clone(), proposal.await);
        }
        fixture.restart().await;
        let state = handle.read_index().await.unwrap();
        for (key, outcome) in outcomes {
            let held = state.cert_blobs.contains_key(&key);
            match outcome {
                Ok(_) => assert!(held, "{key} was acknowledged"),
                Err(ProposeError::Unknown(_)) => {}
                Err(error) => panic!("{key}: {error}"),
            }
        }
    }
}

#[tokio::test]
async fn proposals_over_the_inflight_limit_are_busy() {
    let limits = RaftLimits {
        inflight_bytes: store("k0").encoded_len(),
        ..RaftLimits::default()
    };
    let fixture = Fixture::with(limits).await;
    let handle = fixture.handle();
    let busy = handle.propose(store("longer")).await;
    assert_eq!(busy, Err(ProposeError::Busy));
    for i in 0..9 {
        let proposal = handle.propose(store(&format!("k{i}"))).await;
        proposal.expect("an answered proposal releases its budget");
    }
}

#[tokio::test]
async fn oversized_command_is_rejected() {
    let limits = RaftLimits {
        command_bytes: store("k0").encoded_len(),
        ..RaftLimits::default()
    };
    let fixture = Fixture::with(limits).await;
    let handle = fixture.handle();
    handle.propose(store("k0")).await.unwrap();
    let error = handle.propose(store("longer")).await.unwrap_err();
    assert!(matches!(error, ProposeError::Rejected(_)), "{error}");
}

#[tokio::test]
async fn proposal_without_payload_is_not_appended() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let last = handle.status().last_index;
    let error = handle.propose(v1::Command::default()).await.unwrap_err();
    assert!(matches!(error, ProposeError::Rejected(_)), "{error}");
    assert_eq!(handle.status().last_index, last);
}

#[tokio::test]
async fn failed_write_acknowledges_nothing_and_stops_node() {
    let mut fixture = Fixture::start().await;
    let handle = fixture.handle();
    handle.propose(store("kept")).await.unwrap();
    fixture.args.storage.fail_writes();
    let error = handle.propose(store("lost")).await.unwrap_err();
    assert!(matches!(error, ProposeError::Unknown(_)), "{error}");
    fixture.stopped().await;
    assert_eq!(fixture.fatal.lock().unwrap().len(), 1);
    assert_eq!(handle.status().role, Role::Stopped);
    let again = spawn(fixture.args.clone(), fixture.parent.clone()).await;
    assert!(
        matches!(again, Err(SpawnError::Start(_))),
        "a restart must fail too"
    );
    let keys: Vec<_> = handle.state().cert_blobs.keys().cloned().collect();
    assert_eq!(keys, ["kept"]);
}

#[tokio::test]
async fn compacted_node_restarts_from_its_rows() {
    let limits = RaftLimits {
        compact_entries: 16,
        ..RaftLimits::default()
    };
    let mut fixture = Fixture::with(limits).await;
    let handle = fixture.handle();
    for i in 0..50 {
        handle.propose(store(&format!("k{i}"))).await.unwrap();
    }
    let (truncated, last) = fixture.args.storage.log_range();
    assert!(
        last.index - truncated.index <= 16,
        "{truncated:?}..{last:?}"
    );
    fixture.kill().await;
    fixture.restart().await;
    handle.propose(store("more")).await.unwrap();
    assert_eq!(handle.state().cert_blobs.len(), 51);
}

#[tokio::test]
async fn large_log_is_compacted_despite_few_entries() {
    let limits = RaftLimits {
        log_bytes: 1000,
        ..RaftLimits::default()
    };
    let mut fixture = Fixture::with(limits).await;
    let handle = fixture.handle();
    let kept = |fixture: &Fixture| {
        let (truncated, last) = fixture.args.storage.log_range();
        last.index - truncated.index
    };
    for i in 0..100 {
        handle.propose(store(&format!("k{i}"))).await.unwrap();
        assert!(kept(&fixture) < 30, "{}", kept(&fixture));
    }
    fixture.kill().await;
    fixture.restart().await;
    assert!((5..30).contains(&kept(&fixture)), "{}", kept(&fixture));
    let storage = &fixture.args.storage;
    assert!(
        storage.log_excess(100).is_some(),
        "sizes are recomputed on open"
    );
    assert_eq!(storage.log_excess(2000), None);
    handle.propose(store("more")).await.unwrap();
    assert_eq!(handle.state().cert_blobs.len(), 101);
}

#[tokio::test]
async fn invalid_peer_messages_are_dropped() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    for (bytes, expected) in [
        (&b""[..], Err(InvalidMessage::Sender { claimed: 0 })),
        (b"\xff\xff\xff", Err(InvalidMessage::Undecodable)),
        // Rejected by the raft core.
        (&[8, 1, 16, 1, 24, 2], Ok(())),
        (&[8, 99, 16, 1, 24, 2], Ok(())),
    ] {
        assert_eq!(handle.deliver(2, bytes), expected);
        assert!(handle.receive_snapshot(2, bytes.to_vec()).is_err());
    }
    handle.unreachable(9);
    handle.snapshot_sent(9, false);
    handle.transfer_leadership(9);
    handle.propose(store("a")).await.unwrap();
    emptied(&handle).await;
}

#[tokio::test]
async fn connection_over_its_budget_waits() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let mut beat = Message {
        from: 2,
        to: 1,
        ..Message::default()
    };
    beat.set_msg_type(MessageType::MsgHeartbeatResponse);
    beat.context = vec![0; 16 << 20];
    let beat = beat.write_to_bytes().unwrap();
    let mut peer_receiver = handle.peer_receiver(2);
    // Blocks raft, which cannot publish its status while it is borrowed.
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (looking, looks) = oneshot::channel();
    let looked_at = fixture.handle();
    let look = std::thread::spawn(move || {
        looked_at.with_status(|_| {
            looking.send(()).unwrap();
            let _ = released.recv();
        });
    });
    looks.await.unwrap();
    let mut sent = 0;
    loop {
        tokio::select! {
            biased;
            () = peer_receiver.deliver(&beat) => sent += 1,
            () = std::future::ready(()) => break,
        }
        assert!(sent < 20, "the sender is not throttled");
    }
    drop(release);
    look.join().unwrap();
    for _ in 0..20 {
        peer_receiver.deliver(&beat).await;
    }
    handle.propose(store("a")).await.unwrap();
}

#[tokio::test]
async fn record_only_change_does_not_wake_follow() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let (mut all, mut followed) = (handle.subscribe(), handle.follow());
    all.mark_unchanged();
    followed.mark_unchanged();
    let revoke = Payload::TokenRevoke(v1::TokenRevoke {
        identity: "nobody".into(),
    });
    let revoke = command("tester", Timestamp::default(), revoke);
    handle.propose(revoke).await.unwrap();
    assert!(all.has_changed().unwrap());
    assert!(!all.borrow().audit.is_empty());
    assert!(!followed.has_changed().unwrap());
    handle.propose(store("a")).await.unwrap();
    assert!(followed.has_changed().unwrap());
    assert!(Arc::ptr_eq(&followed.borrow(), &all.borrow()));
}

#[tokio::test]
async fn burst_of_proposals_is_answered_in_order() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let burst: Vec<_> = (0..200)
        .map(|i| handle.propose(store(&i.to_string())))
        .collect();
    let mut last = 0;
    for proposal in burst {
        let index = proposal.await.unwrap().index;
        assert!(index > last);
        last = index;
    }
    emptied(&handle).await;
    assert_eq!(handle.state().cert_blobs.len(), 200);
}

#[tokio::test]
async fn node_without_voters_answers_no_leader() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    storage::create(&path, 3).unwrap();
    let args = args(&path, RaftLimits::default(), &Arc::default());
    let (tx, _ended) = mpsc::unbounded_channel();
    let (parent, _) = Actor::spawn(None, Parent, tx).await.unwrap();
    let actor = spawn(args.clone(), parent.get_cell()).await.unwrap();
    let error = args.handle.propose(store("a")).await.unwrap_err();
    assert_eq!(error, ProposeError::NoLeader);
    assert_eq!(args.handle.status().role, Role::Follower);
    actor.kill();
}

/// Transport that keeps raft's messages.
struct Outbox(mpsc::UnboundedSender<Message>);

impl Transport for Outbox {
    fn send(&self, to: u64, bytes: Vec<u8>) {
        let mut message = Message::default();
        message.merge_from_bytes(&bytes).unwrap();
        assert_eq!(message.to, to);
        let _ = self.0.send(message);
    }

    fn send_snapshot(&self, to: u64, _: OutgoingSnapshot) {
        panic!("unexpected snapshot for {to}");
    }
}

/// Encoded content of a snapshot, as sent.
fn chunks(state: &Arc<State>) -> Vec<Vec<u8>> {
    let mut outgoing =
        OutgoingSnapshot::new(Vec::new(), Arc::clone(state), SizeLimit::none(), || {});
    std::iter::from_fn(|| outgoing.next_chunk()).collect()
}

fn snapshot_for(node: u64) -> Message {
    let metadata = SnapshotMetadata {
        conf_state: Some(ConfState {
            voters: vec![1],
            learners: vec![node],
            ..ConfState::default()
        }),
        index: 40,
        term: 6,
    };
    let mut message = Message {
        from: 1,
        to: node,
        term: 6,
        snapshot: Some(Snapshot {
            metadata: Some(metadata),
            ..Snapshot::default()
        }),
        ..Message::default()
    };
    message.set_msg_type(MessageType::MsgSnapshot);
    message
}

#[tokio::test]
async fn joining_node_installs_a_snapshot() {
    let source = Fixture::start().await;
    source.handle().propose(store("a")).await.unwrap();
    let state = source.handle().state();

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    storage::create(&path, 3).unwrap();
    let mut args = args(&path, RaftLimits::default(), &Arc::default());
    let (outbox, mut sent) = mpsc::unbounded_channel();
    args.transport = Arc::new(Outbox(outbox));
    spawn(args.clone(), source.parent.clone()).await.unwrap();
    let handle = args.handle.clone();
    let bytes = |message: Message| message.write_to_bytes().unwrap();
    let refused = |from, message: Vec<u8>| handle.receive_snapshot(from, message).unwrap_err();
    let message = bytes(snapshot_for(3));
    // A snapshot among ordinary messages is dropped.
    assert_eq!(handle.deliver(1, &message), Err(InvalidMessage::Snapshot));
    let mut inline = snapshot_for(3);
    inline.mut_snapshot().data = state.encode_snapshot();
    for (from, message, reason) in [
        (2, message.clone(), "sender"),
        (1, bytes(inline), "message"),
        (1, b"\xff\xff".to_vec(), "message"),
    ] {
        assert_eq!(refused(from, message).reason(), reason);
    }
    let directory = dir.path().join("snapshots");
    let receive = || handle.receive_snapshot(1, message.clone()).unwrap();
    let mut damaged = receive().unwrap();
    damaged
        .write(b"not a snapshot, and long enough for a trailer behind it")
        .unwrap();
    assert_eq!(refused(1, message.clone()).reason(), "busy");
    assert_eq!(damaged.finish().unwrap_err().reason(), "damaged");
    assert_eq!(handle.rejected_snapshots(), 5);
    assert_eq!(handle.state().applied_index, 0);

    let mut incoming = receive().unwrap();
    for chunk in chunks(&state) {
        incoming.write(&chunk).unwrap();
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    incoming.finish().unwrap();
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    let answer = sent.recv().await.unwrap();
    assert_eq!(answer.get_msg_type(), MessageType::MsgAppendResponse);
    assert_eq!((answer.index, answer.reject), (40, false));

    let mut states = handle.subscribe();
    let taken = states.wait_for(|s| s.applied_index == 40).await.unwrap();
    assert_eq!(taken.digest(), state.digest());
    drop(taken);
    let mut status = handle.subscribe_status();
    let status = status
        .wait_for(|s| s.learners == [3])
        .await
        .unwrap()
        .clone();
    assert_eq!((status.role, status.leader_id), (Role::Follower, Some(1)));
    assert_eq!(args.storage.load_state().unwrap().digest(), state.digest());
    assert_eq!(args.storage.applied(), 40);
    // A snapshot that is committed already is neither received nor rejected.
    assert!(receive().is_none());
    assert_eq!(handle.rejected_snapshots(), 5);
}

#[derive(Default)]
struct Recorder {
    committed: Mutex<usize>,
    applied: Mutex<Vec<(u64, &'static str, bool)>>,
}

impl Observe for Recorder {
    fn committed(&self, _latency: std::time::Duration) {
        *self.committed.lock().unwrap() += 1;
    }

    fn applied(&self, applied: &Applied) {
        assert!(applied.ts.is_some());
        let record = (applied.index, applied.op, applied.accepted);
        self.applied.lock().unwrap().push(record);
    }
}

#[tokio::test]
async fn observer_is_called_once_per_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    storage::bootstrap(&path, 1, &[1]).unwrap();
    let recorder = Arc::new(Recorder::default());
    let args = RaftArgs {
        observer: recorder.clone(),
        ..args(&path, RaftLimits::default(), &Arc::default())
    };
    let handle = args.handle.clone();
    let (tx, _ended) = mpsc::unbounded_channel();
    let (parent, _) = Actor::spawn(None, Parent, tx).await.unwrap();
    let actor = spawn(args, parent.get_cell()).await.unwrap();

    let stored = handle.propose(store("a")).await.unwrap();
    let unknown = v1::DeploymentRollback {
        deployment: "nothing".into(),
        ..v1::DeploymentRollback::default()
    };
    let refused = Payload::DeploymentRollback(unknown);
    let refused = command("test", Timestamp::default(), refused);
    assert!(matches!(
        handle.propose(refused).await,
        Err(ProposeError::Rejected(_))
    ));

    assert_eq!(*recorder.committed.lock().unwrap(), 2);
    let index = stored.index;
    assert_eq!(
        *recorder.applied.lock().unwrap(),
        [
            (index, "cert_blob_upsert", true),
            (index + 1, "deployment_rollback", false)
        ]
    );
    actor.kill();
    handle.closed().await;
}
