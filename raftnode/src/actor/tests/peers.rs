//! Messages and snapshots of other members.

use protobuf::Message as _;
use raft::eraftpb::{ConfState, Message, MessageType, Snapshot, SnapshotMetadata};
use tokio::sync::oneshot;

use super::*;
use crate::{
    OutgoingSnapshot, ProposeError, SnapshotContent, core::SnapshotId, snapshot::SizeLimit,
};

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
    let snapshot = SnapshotId { term: 1, index: 1 };
    handle.snapshot_sent(9, snapshot, false);
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

fn content(state: &Arc<State>) -> SnapshotContent {
    OutgoingSnapshot::new(Vec::new(), Arc::clone(state), SizeLimit::none(), |_| {}).content
}

/// Encoded content of a snapshot, as sent.
fn chunks(state: &Arc<State>) -> Vec<Vec<u8>> {
    let mut content = content(state);
    std::iter::from_fn(|| content.next_chunk()).collect()
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

#[tokio::test]
async fn only_the_leaders_snapshot_halts_a_node() {
    let source = Fixture::start().await;
    source.handle().propose(store("a")).await.unwrap();
    let state = source.handle().state();

    let empty = |path: &Path| storage::create(path, 3).unwrap();
    let (outbox, mut sent) = mpsc::unbounded_channel();
    let transport = |_: &Arc<Storage>| Arc::new(Outbox(outbox)) as Arc<dyn Transport>;
    let fixture = Fixture::prepared(RaftLimits::default(), empty, transport).await;
    let handle = fixture.handle();
    let mut heartbeat = Message {
        from: 1,
        to: 3,
        term: 6,
        ..Message::default()
    };
    heartbeat.set_msg_type(MessageType::MsgHeartbeat);
    handle
        .deliver(1, &heartbeat.write_to_bytes().unwrap())
        .unwrap();
    sent.recv().await.unwrap();
    let offer = async |from: u64, term: u64| {
        let message = Message {
            from,
            term,
            ..snapshot_for(3)
        };
        let message = message.write_to_bytes().unwrap();
        let mut incoming = handle.receive_snapshot(from, message).unwrap().unwrap();
        let mut newer = content(&state);
        newer.add_field(b"\xc0\xb2\x04\x01".to_vec());
        while let Some(chunk) = newer.next_chunk() {
            incoming.write(&chunk).unwrap();
        }
        assert_eq!(incoming.finish().unwrap_err().reason(), "newer");
        settled(&handle).await;
        handle.status().halted
    };
    // Another member, and the leader in a term that has ended.
    for (from, term) in [(2, 6), (2, 5), (2, 7), (1, 5)] {
        assert_eq!(offer(from, term).await, None, "{from} of term {term}");
    }
    let reason = offer(1, 6).await.expect("the leader's state is unknown");
    assert!(reason.contains("snapshot of index 40"), "{reason}");
}
