//! Content of the disk after a step, and when its messages are sent.

use protobuf::Message as _;
use raft::eraftpb::{Entry, HardState, Message, MessageType};

use super::*;
use crate::{OutgoingSnapshot, core::MemberChange, storage::Position};

/// A message, and the content of the disk when it was sent.
struct Sent {
    message: Message,
    hard_state: HardState,
    last: Position,
    synced: u64,
}

/// Transport that looks at the disk for every message.
struct Witness {
    storage: Arc<Storage>,
    sent: mpsc::UnboundedSender<Sent>,
}

impl Transport for Witness {
    fn send(&self, _to: u64, bytes: Vec<u8>) {
        let mut message = Message::default();
        message.merge_from_bytes(&bytes).unwrap();
        let _ = self.sent.send(Sent {
            message,
            hard_state: self.storage.hard_state(),
            last: self.storage.log_range().1,
            synced: self.storage.write_counts().synced,
        });
    }

    fn send_snapshot(&self, to: u64, _: OutgoingSnapshot) {
        panic!("unexpected snapshot for {to}");
    }
}

/// Returns a message of node 1 in term 2 about its log, which ends at entry 1 of term 1.
fn from_candidate(kind: MessageType) -> Message {
    let mut message = Message {
        from: 1,
        to: 2,
        term: 2,
        index: 1,
        log_term: 1,
        ..Message::default()
    };
    message.set_msg_type(kind);
    message
}

#[tokio::test]
async fn acknowledgements_follow_the_synced_write() {
    let (sent, mut seen) = mpsc::unbounded_channel();
    let follower = |path: &Path| storage::bootstrap(path, 2, &[1, 2, 3]).unwrap();
    let witness = |storage: &Arc<Storage>| {
        let storage = Arc::clone(storage);
        Arc::new(Witness { storage, sent }) as Arc<dyn Transport>
    };
    // No election of its own: the tick is longer than the test.
    let limits = RaftLimits {
        tick: std::time::Duration::from_secs(3600),
        ..RaftLimits::default()
    };
    let fixture = Fixture::prepared(limits, follower, witness).await;
    let deliver = |message: Message| {
        let bytes = message.write_to_bytes().unwrap();
        fixture.handle().deliver(1, &bytes).unwrap();
    };

    deliver(from_candidate(MessageType::MsgRequestVote));
    let vote = seen.recv().await.unwrap();
    let kind = vote.message.get_msg_type();
    assert_eq!(kind, MessageType::MsgRequestVoteResponse);
    assert!(!vote.message.reject);
    assert_eq!((vote.hard_state.term, vote.hard_state.vote), (2, 1));
    assert_eq!(vote.synced, 1, "the vote is on disk");

    let entries = (2..=4).map(|index| Entry {
        index,
        term: 2,
        ..Entry::default()
    });
    deliver(Message {
        entries: entries.collect(),
        ..from_candidate(MessageType::MsgAppend)
    });
    let appended = seen.recv().await.unwrap();
    let kind = appended.message.get_msg_type();
    assert_eq!(kind, MessageType::MsgAppendResponse);
    assert_eq!(
        (appended.message.index, appended.message.reject),
        (4, false)
    );
    assert_eq!(appended.last, Position { index: 4, term: 2 });
    assert_eq!(appended.synced, 2, "the entries are on disk");
}

#[tokio::test]
async fn configuration_survives_a_restart() {
    let mut fixture = Fixture::start().await;
    let handle = fixture.handle();
    for change in [
        MemberChange::AddLearner(2),
        MemberChange::AddLearner(3),
        MemberChange::Remove(2),
    ] {
        handle.change_members(change).await.unwrap();
    }
    assert_eq!(fixture.args.storage.conf_state().learners, [3]);
    fixture.kill().await;
    fixture.restart().await;
    let status = handle.status();
    assert_eq!((status.voters, status.learners), (vec![1], vec![3]));
    let (storage, _dir) = fixture.reopen().await;
    let stored = storage.conf_state();
    assert_eq!((stored.voters, stored.learners), (vec![1], vec![3]));
}
