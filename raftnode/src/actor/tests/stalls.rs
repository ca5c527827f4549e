//! A raft thread that hangs, as on a disk that does not answer.

use std::{
    sync::{Weak, mpsc as sync_mpsc},
    time::Duration,
};

use super::*;
use crate::{ProposeError, RaftStatus, ReadError, storage::Operation};

/// Holds up raft's thread while it applies a command, until the test lets it go on.
struct Hold {
    entered: mpsc::UnboundedSender<()>,
    release: Mutex<sync_mpsc::Receiver<()>>,
}

impl Observe for Hold {
    fn applied(&self, _: &Applied) {
        let _ = self.entered.send(());
        // Ends at once when the test is over.
        let _ = self.release.lock().unwrap().recv();
    }
}

struct Held {
    handle: RaftHandle,
    actor: ActorCell,
    entered: mpsc::UnboundedReceiver<()>,
    release: sync_mpsc::Sender<()>,
    fatal: Arc<Mutex<Vec<String>>>,
    _ended: mpsc::UnboundedReceiver<()>,
    _dir: tempfile::TempDir,
}

impl Held {
    async fn start(limits: RaftLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raft");
        storage::bootstrap(&path, 1, &[1]).unwrap();
        let (enter, entered) = mpsc::unbounded_channel();
        let (release, held) = sync_mpsc::channel();
        let fatal = Arc::default();
        let args = RaftArgs {
            observer: Arc::new(Hold {
                entered: enter,
                release: Mutex::new(held),
            }),
            ..args(&path, limits, &fatal)
        };
        let handle = args.handle.clone();
        let (tx, ended) = mpsc::unbounded_channel();
        let (parent, _) = Actor::spawn(None, Parent, tx).await.unwrap();
        let actor = spawn(args, parent.get_cell()).await.unwrap();
        Self {
            handle,
            actor,
            entered,
            release,
            fatal,
            _ended: ended,
            _dir: dir,
        }
    }

    fn propose(&self, key: &str) -> (crate::propose::ProposeFuture, Weak<()>) {
        let guard = Arc::new(());
        let kept = Arc::downgrade(&guard);
        let term = self.handle.leading_term().unwrap();
        let proposal = self
            .handle
            .propose_in_term(term, store(key), Box::new(guard));
        (proposal, kept)
    }

    async fn status(&self, wanted: impl Fn(&RaftStatus) -> bool) {
        let mut status = self.handle.subscribe_status();
        let seen = status.wait_for(|status| wanted(status));
        let seen = tokio::time::timeout(Duration::from_secs(60), seen).await;
        seen.expect("the status is not reached").unwrap();
    }

    async fn end(self) {
        drop(self.release);
        self.actor.kill();
        self.handle.closed().await;
    }
}

/// Callers give up at once.
fn impatient() -> RaftLimits {
    RaftLimits {
        commit_budget: Duration::ZERO,
        ..RaftLimits::default()
    }
}

#[tokio::test]
async fn guard_is_kept_until_outcome_is_certain() {
    let mut held = Held::start(impatient()).await;
    let (taken, taken_guard) = held.propose("taken");
    held.entered.recv().await.unwrap();
    let (queued, queued_guard) = held.propose("queued");
    let (left, left_guard) = held.propose("left");

    let error = taken.await.unwrap_err();
    assert!(matches!(error, ProposeError::Unknown(_)), "{error}");
    assert_eq!(taken_guard.strong_count(), 1, "its entry may be applied");
    assert_eq!(queued_guard.strong_count(), 1);
    assert_eq!(queued.await, Err(ProposeError::Unavailable));
    assert_eq!(queued_guard.strong_count(), 0, "withdrawn at the deadline");
    drop(left);
    assert_eq!(left_guard.strong_count(), 0, "withdrawn with its caller");

    held.release.send(()).unwrap();
    held.release.send(()).unwrap();
    let (after, after_guard) = held.propose("after");
    held.entered.recv().await.unwrap();
    assert_eq!(taken_guard.strong_count(), 0, "applied");
    drop(after);
    let released = async {
        while after_guard.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let released = tokio::time::timeout(Duration::from_secs(60), released).await;
    released.expect("the guard of an applied command is kept");
    let state = held.handle.state();
    assert!(state.cert_blobs.keys().eq(["after", "taken"]));
    held.end().await;
}

#[tokio::test]
async fn proposal_bound_to_another_term_is_refused() {
    let fixture = Fixture::start().await;
    let handle = fixture.handle();
    let term = handle.leading_term().unwrap();
    let last = handle.status().last_index;
    for other in [term - 1, term + 1] {
        let refused = handle.propose_in_term(other, store("a"), Box::new(()));
        assert_eq!(refused.await, Err(ProposeError::NoLeader));
    }
    assert_eq!(handle.status().last_index, last);
    let accepted = handle.propose_in_term(term, store("a"), Box::new(()));
    assert_eq!(accepted.await.unwrap().index, last + 1);
}

#[tokio::test]
async fn hung_thread_neither_leads_nor_reads() {
    let limits = RaftLimits {
        stall: Duration::from_millis(1),
        ..RaftLimits::default()
    };
    let mut held = Held::start(limits).await;
    let proposal = held.handle.propose(store("a"));
    held.entered.recv().await.unwrap();
    held.status(RaftStatus::is_stalled).await;
    assert_eq!(held.handle.leading_term(), None);
    assert!(!held.handle.status().leading);
    let read = held.handle.read_index().await;
    assert_eq!(read.unwrap_err(), ReadError::Unavailable);
    assert!(!held.handle.step_down(Duration::from_secs(60)).await);
    assert!(held.fatal.lock().unwrap().is_empty());

    held.release.send(()).unwrap();
    proposal.await.unwrap();
    held.status(|status| status.leading && !status.is_stalled())
        .await;
    held.end().await;
}

/// A hang is fatal within two ticks of the watchdog.
fn strict() -> RaftLimits {
    RaftLimits {
        stall: Duration::from_millis(1),
        give_up: Duration::from_millis(2),
        ..RaftLimits::default()
    }
}

/// Waits until a hang of raft's thread is reported.
async fn hang_reported(fatal: &Mutex<Vec<String>>) {
    let reported = async {
        while fatal.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let reported = tokio::time::timeout(Duration::from_secs(60), reported).await;
    reported.expect("the hang is not reported");
    let reason = fatal.lock().unwrap()[0].clone();
    assert!(reason.starts_with("raft has made no progress"), "{reason}");
}

#[tokio::test]
async fn thread_that_hangs_long_is_fatal() {
    let mut held = Held::start(strict()).await;
    let _proposal = held.handle.propose(store("a"));
    held.entered.recv().await.unwrap();
    hang_reported(&held.fatal).await;
    held.end().await;
}

/// Starts the only voter of a group on a disk that hangs in `operation` until the hang is reported.
async fn start_on_hung_disk(operation: Operation) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft");
    storage::bootstrap(&path, 1, &[1]).unwrap();
    let fatal = Arc::default();
    let args = args(&path, strict(), &fatal);
    let handle = args.handle.clone();
    let release = args.storage.hang_in(operation);
    let (tx, _ended) = mpsc::unbounded_channel();
    let (parent, _) = Actor::spawn(None, Parent, tx).await.unwrap();
    let starting = tokio::spawn(spawn(args, parent.get_cell()));
    hang_reported(&fatal).await;
    assert!(handle.status().is_stalled(), "{operation:?}");
    drop(release);
    let actor = starting.await.unwrap().unwrap();
    let mut status = handle.subscribe_status();
    let recovered = status.wait_for(|status| status.leading && !status.is_stalled());
    let recovered = tokio::time::timeout(Duration::from_secs(60), recovered).await;
    recovered.expect("raft does not go on").unwrap();
    actor.kill();
    handle.closed().await;
}

#[tokio::test]
async fn thread_that_hangs_while_starting_is_fatal() {
    for operation in [Operation::Load, Operation::SyncedWrite] {
        start_on_hung_disk(operation).await;
    }
}

#[tokio::test]
async fn stopped_thread_does_not_hang() {
    let mut held = Held::start(strict()).await;
    let _proposal = held.handle.propose(store("a"));
    held.entered.recv().await.unwrap();
    hang_reported(&held.fatal).await;
    drop(held.release);
    held.actor.kill();
    held.handle.closed().await;
    // The watchdog has ended with the thread.
    let status = held.handle.status();
    assert_eq!((status.role, status.stalled_since), (Role::Stopped, None));
}
