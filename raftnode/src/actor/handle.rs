//! Address of the raft actor, held by all other components.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use jaco_proto::{Error, ErrorCode, v1};
use jaco_state::{State, fsm};
use prost::Message as _;
use ractor::ActorRef;
use tokio::{
    sync::{Semaphore, oneshot, watch},
    time::{Instant, timeout, timeout_at},
};

use super::{
    RaftLimits,
    msg::Msg,
    proposal::{ClaimShare, PendingProposal, Proposal},
};
use crate::{
    Committed, LeaderProposer, ProposeError, StateReader, Storage, WatchHub,
    core::{RaftStatus, Role, SnapshotId},
    propose::{ProposalGuard, ProposeFuture},
    snapshot::ReceiveSlot,
};

/// Reason why a linearizable read cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No leader is known.
    #[error("no leader")]
    NoLeader,
    /// No majority confirmed the leader in time.
    #[error("no majority of voters is reachable")]
    QuorumLost,
    /// Raft does not run, or stopped applying entries.
    #[error("raft is not available")]
    Unavailable,
}

/// Address of this node's raft actor; valid across its restarts. Clones share the address.
#[derive(Clone)]
pub struct RaftHandle {
    pub(super) shared: Arc<HandleInner>,
}

pub(super) struct HandleInner {
    pub(super) actor: watch::Sender<Option<ActorRef<Msg>>>,
    pub(super) state: watch::Sender<Arc<State>>,
    /// See [`StateReader::follow`].
    followed: watch::Sender<Arc<State>>,
    pub(super) status: watch::Sender<RaftStatus>,
    pub(super) hub: WatchHub,
    pub(super) limits: RaftLimits,
    inflight_bytes: AtomicUsize,
    pub(super) mailbox: AtomicUsize,
    /// Proposals for the actor's next batch. Only the first is announced by a message, so a burst
    /// of proposals costs the actor one message.
    proposals: Mutex<Vec<Proposal>>,
    pub(super) threads: watch::Sender<usize>,
    /// Permit held by the raft thread: at most one thread writes to the storage, even if the future
    /// that started the previous one was dropped.
    pub(super) thread_permit: Arc<Semaphore>,
    pub(super) incoming: Arc<ReceiveSlot>,
    pub(super) rejected_snapshots: AtomicU64,
    /// Counts the steps of raft's thread, as proof that it does not hang.
    progress: AtomicU64,
    /// Additional milliseconds that the step in progress may take.
    allowance: AtomicU64,
    /// Storage of the running actor, held weakly so that the handle does not keep it open, and its
    /// path.
    storage: Mutex<(Weak<Storage>, PathBuf)>,
}

impl HandleInner {
    /// Publishes a state to readers and followers.
    pub(super) fn publish(&self, state: Arc<State>) {
        self.state.send_replace(Arc::clone(&state));
        // Commits that change records only (audit trail, tokens, pull credentials) must not wake the
        // tasks that follow the state.
        self.followed.send_if_modified(|current| {
            let changed = !current.equal_except_records(&state);
            if changed {
                *current = state;
            }
            changed
        });
    }

    /// Returns the storage of the actor, unless it has been closed.
    pub(super) fn storage(&self) -> Option<Arc<Storage>> {
        // The value is assigned in one step, so it is valid after a poisoning too.
        self.storage
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .upgrade()
    }

    pub(super) fn set_storage(&self, storage: &Arc<Storage>) {
        let mut current = self.storage.lock().unwrap_or_else(PoisonError::into_inner);
        *current = (Arc::downgrade(storage), storage.path().to_owned());
    }

    /// Makes [`Self::storage`] return `None` from here on; see [`RaftHandle::closed`].
    pub(super) fn clear_storage(&self) {
        let mut current = self.storage.lock().unwrap_or_else(PoisonError::into_inner);
        current.0 = Weak::new();
    }

    fn proposals(&self) -> MutexGuard<'_, Vec<Proposal>> {
        // A push that panicked added no element.
        self.proposals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all pending proposals, in order.
    pub(super) fn take_proposals(&self) -> Vec<Proposal> {
        std::mem::take(&mut *self.proposals())
    }

    /// Records that raft's thread has finished a step; the next one has no allowance.
    pub(super) fn note_progress(&self) {
        self.allowance.store(0, Ordering::Relaxed);
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Announces that the step in progress may take `allowance` longer than others.
    pub(super) fn allow(&self, allowance: Duration) {
        let millis = u64::try_from(allowance.as_millis()).unwrap_or(u64::MAX);
        self.allowance.store(millis, Ordering::Relaxed);
    }

    /// Number of finished steps, and the allowance of the one in progress.
    pub(super) fn progress(&self) -> (u64, Duration) {
        let allowance = self.allowance.load(Ordering::Relaxed);
        let progress = self.progress.load(Ordering::Relaxed);
        (progress, Duration::from_millis(allowance))
    }

    /// Directory of snapshots that are being received.
    pub(super) fn snapshots(&self) -> PathBuf {
        let storage = self.storage.lock().unwrap_or_else(PoisonError::into_inner);
        storage.1.with_file_name("snapshots")
    }
}

/// Counts a raft thread as running. It is dropped last on the thread, after the storage.
pub(super) struct ThreadGuard(Arc<HandleInner>);

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        self.0.threads.send_modify(|threads| *threads -= 1);
    }
}

/// Share of the in-flight budget, in bytes, that one proposal holds; released on drop.
pub(super) struct BudgetShare {
    shared: Arc<HandleInner>,
    bytes: usize,
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.shared
            .inflight_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl RaftHandle {
    /// Creates a handle for a state loaded from storage, before the actor runs.
    #[must_use]
    pub fn new(state: State, limits: RaftLimits) -> Self {
        let hub = WatchHub::new(state.applied_index);
        let state = Arc::new(state);
        Self {
            shared: Arc::new(HandleInner {
                actor: watch::Sender::new(None),
                followed: watch::Sender::new(Arc::clone(&state)),
                state: watch::Sender::new(state),
                status: watch::Sender::default(),
                hub,
                limits,
                inflight_bytes: AtomicUsize::new(0),
                mailbox: AtomicUsize::new(0),
                proposals: Mutex::default(),
                threads: watch::Sender::new(0),
                thread_permit: Arc::new(Semaphore::new(1)),
                incoming: Arc::default(),
                rejected_snapshots: AtomicU64::new(0),
                progress: AtomicU64::new(0),
                allowance: AtomicU64::new(0),
                storage: Mutex::default(),
            }),
        }
    }

    pub(super) fn thread(&self) -> ThreadGuard {
        self.shared.threads.send_modify(|threads| *threads += 1);
        ThreadGuard(Arc::clone(&self.shared))
    }

    /// Waits until no raft thread runs, whichever way its actor ended.
    ///
    /// A process must wait for this before it exits: exit would tear the database's code down while
    /// a thread closes it.
    pub async fn closed(&self) {
        let mut threads = self.shared.threads.subscribe();
        // The sender is not dropped before the handle.
        let _ = threads.wait_for(|threads| *threads == 0).await;
    }

    /// Returns the current raft status.
    #[must_use]
    pub fn status(&self) -> RaftStatus {
        self.shared.status.borrow().clone()
    }

    /// Calls `look` with the current raft status, without a copy. The status lock is held meanwhile
    /// and blocks raft, so `look` must return at once and must not call this handle.
    pub fn with_status<T>(&self, look: impl FnOnce(&RaftStatus) -> T) -> T {
        look(&self.shared.status.borrow())
    }

    /// Subscribes to the raft status; a receiver may miss intermediate values.
    #[must_use]
    pub fn subscribe_status(&self) -> watch::Receiver<RaftStatus> {
        self.shared.status.subscribe()
    }

    /// The hub that publishes state changes.
    #[must_use]
    pub fn hub(&self) -> &WatchHub {
        &self.shared.hub
    }

    /// Number of messages and proposals that wait for the actor.
    #[must_use]
    pub fn mailbox_depth(&self) -> usize {
        self.shared.mailbox.load(Ordering::Relaxed) + self.shared.proposals().len()
    }

    /// Confirms the leader with a majority, then waits until this node has applied every entry
    /// committed by then. The returned state is linearizable.
    ///
    /// # Errors
    /// [`ReadError`]; a possibly stale state is never returned. [`ReadError::Unavailable`] as soon
    /// as raft is stalled.
    pub async fn read_index(&self) -> Result<Arc<State>, ReadError> {
        let mut status = self.shared.status.subscribe();
        tokio::select! {
            biased;
            _ = status.wait_for(RaftStatus::is_stalled) => Err(ReadError::Unavailable),
            read = self.confirm_read() => read,
        }
    }

    async fn confirm_read(&self) -> Result<Arc<State>, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.cast(Msg::Read(reply))
            .map_err(|_| ReadError::Unavailable)?;
        let attempt = async {
            let index = answer.await.map_err(|_| ReadError::Unavailable)??;
            let mut states = self.shared.state.subscribe();
            let state = states.wait_for(|state| state.applied_index >= index).await;
            state
                .map(|state| Arc::clone(&state))
                .map_err(|_| ReadError::Unavailable)
        };
        let budget = self.shared.limits.commit_budget;
        timeout(budget, attempt)
            .await
            .unwrap_or(Err(ReadError::Unavailable))
    }

    /// Reports to raft that a message to `peer` was lost.
    pub fn unreachable(&self, peer: u64) {
        let _ = self.cast(Msg::Unreachable(peer));
    }

    /// Reports to raft whether `peer` received this snapshot. Until then raft sends it nothing else.
    pub(super) fn snapshot_sent(&self, peer: u64, snapshot: SnapshotId, delivered: bool) {
        let _ = self.cast(Msg::SnapshotSent(peer, snapshot, delivered));
    }

    /// Number of received snapshots that were rejected since the process started.
    #[must_use]
    pub fn rejected_snapshots(&self) -> u64 {
        self.shared.rejected_snapshots.load(Ordering::Relaxed)
    }

    /// Whether the actor runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.with_status(|status| status.role != Role::Stopped)
    }

    /// Queues a proposal for the actor. An actor that ends drops its untaken proposals.
    fn enqueue(&self, proposal: Proposal) -> Result<(), ()> {
        // Borrowed until the proposal is queued: `close` removes the address before it drops the
        // queue.
        let actor = self.shared.actor.borrow();
        let Some(actor) = actor.as_ref() else {
            return Err(());
        };
        let mut proposals = self.shared.proposals();
        proposals.push(proposal);
        if proposals.len() == 1 && actor.cast(Msg::Propose).is_err() {
            proposals.pop();
            return Err(());
        }
        Ok(())
    }

    pub(super) fn cast(&self, msg: Msg) -> Result<(), ()> {
        let actor = self.shared.actor.borrow();
        let Some(actor) = actor.as_ref() else {
            return Err(());
        };
        self.shared.mailbox.fetch_add(1, Ordering::Relaxed);
        actor.cast(msg).map_err(|_| self.decrement_mailbox())
    }

    /// Counts a message as received by the actor.
    pub(super) fn count_received(&self, msg: &Msg) {
        // Queued proposals are counted themselves, not the message that announces them.
        if !matches!(msg, Msg::Propose) {
            self.decrement_mailbox();
        }
    }

    /// Decrements the mailbox count. A restart resets the count, so a message sent before it may be
    /// subtracted twice.
    fn decrement_mailbox(&self) {
        let mailbox = &self.shared.mailbox;
        let _ = mailbox.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    fn reserve(&self, bytes: usize) -> Option<BudgetShare> {
        let inflight = &self.shared.inflight_bytes;
        let limit = self.shared.limits.inflight_bytes;
        inflight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|&total| total <= limit)
            })
            .ok()?;
        Some(BudgetShare {
            shared: Arc::clone(&self.shared),
            bytes,
        })
    }

    /// Queues a command; only in `term`, if one is given.
    fn propose_with(
        &self,
        command: &v1::Command,
        term: Option<u64>,
        guard: Option<ProposalGuard>,
    ) -> ProposeFuture {
        let refuse = |error| -> ProposeFuture { Box::pin(std::future::ready(Err(error))) };
        if let Err(error) = fsm::check(command) {
            return refuse(ProposeError::Rejected(error));
        }
        let data = command.encode_to_vec();
        let limit = self.shared.limits.command_bytes;
        if data.len() > limit {
            let error = Error::new(ErrorCode::ValidationFailed, "the command is too large")
                .with("bytes", data.len())
                .with("limit", limit);
            return refuse(ProposeError::Rejected(error));
        }
        let Some(share) = self.reserve(data.len()) else {
            return refuse(ProposeError::Busy);
        };
        let (reply, answer) = oneshot::channel();
        let (pending, claim) = PendingProposal::new(reply, share, term, guard);
        if self.enqueue((data, pending)).is_err() {
            return refuse(ProposeError::Unavailable);
        }
        let deadline = Instant::now() + self.shared.limits.commit_budget;
        Box::pin(answered(answer, deadline, claim))
    }
}

/// Waits for the answer to a proposal; at the deadline, withdraws the proposal unless raft has
/// taken it.
async fn answered(
    answer: oneshot::Receiver<Result<Committed, ProposeError>>,
    deadline: Instant,
    claim: ClaimShare,
) -> Result<Committed, ProposeError> {
    match timeout_at(deadline, answer).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(ProposeError::Unknown("raft restarted".into())),
        Err(_) if claim.withdraw() => Err(ProposeError::Unavailable),
        Err(_) => Err(ProposeError::Unknown("no answer in time".into())),
    }
}

impl StateReader for RaftHandle {
    fn state(&self) -> Arc<State> {
        Arc::clone(&self.shared.state.borrow())
    }

    fn subscribe(&self) -> watch::Receiver<Arc<State>> {
        self.shared.state.subscribe()
    }

    fn follow(&self) -> watch::Receiver<Arc<State>> {
        self.shared.followed.subscribe()
    }
}

impl LeaderProposer for RaftHandle {
    fn leading_term(&self) -> Option<u64> {
        self.with_status(|status| status.leading.then_some(status.term))
    }

    fn propose(&self, command: v1::Command) -> ProposeFuture {
        self.propose_with(&command, None, None)
    }

    fn propose_in_term(
        &self,
        term: u64,
        command: v1::Command,
        guard: ProposalGuard,
    ) -> ProposeFuture {
        self.propose_with(&command, Some(term), Some(guard))
    }
}

impl std::fmt::Debug for RaftHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaftHandle")
            .field("status", &*self.shared.status.borrow())
            .finish_non_exhaustive()
    }
}
