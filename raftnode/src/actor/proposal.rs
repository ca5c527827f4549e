//! A proposal on its way through raft, and the right of its caller to withdraw it.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::handle::BudgetShare;
use crate::{Committed, ProposeError, propose::ProposalGuard};

/// An encoded command to append, and its reply channel.
pub(crate) type Proposal = (Vec<u8>, PendingProposal);

/// Proposal before raft takes it, shared by its caller and raft: either side ends this stage.
struct Claim(Mutex<Stage>);

enum Stage {
    /// In the queue; the guard is that of the caller.
    Queued(Option<ProposalGuard>),
    /// Given to raft, which decides the outcome.
    Taken,
    /// Never to be appended.
    Withdrawn,
}

impl Claim {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        // The stage is replaced in one step, so it is valid after a poisoning too.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Share of a claim; dropping it withdraws the proposal if raft has not taken it.
pub(super) struct ClaimShare(Arc<Claim>);

impl ClaimShare {
    /// Withdraws the proposal and releases its guard. Returns whether the proposal is certain never
    /// to be appended.
    pub(super) fn withdraw(&self) -> bool {
        let mut stage = self.0.stage();
        let guard = match &mut *stage {
            Stage::Queued(guard) => guard.take(),
            Stage::Taken => return false,
            Stage::Withdrawn => return true,
        };
        *stage = Stage::Withdrawn;
        drop(stage);
        // Outside the lock: the guard's own code runs here.
        drop(guard);
        true
    }

    /// Takes the proposal for raft, with its guard; `None` if it was withdrawn.
    fn take(&self) -> Option<Option<ProposalGuard>> {
        let mut stage = self.0.stage();
        match mem::replace(&mut *stage, Stage::Taken) {
            Stage::Queued(guard) => Some(guard),
            Stage::Taken => Some(None),
            Stage::Withdrawn => {
                *stage = Stage::Withdrawn;
                None
            }
        }
    }
}

impl Drop for ClaimShare {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Reply channel of a proposal, with its share of the in-flight budget and the caller's guard. The
/// guard is dropped with this value, thus when the outcome is certain or raft is gone.
pub(crate) struct PendingProposal {
    reply: oneshot::Sender<Result<Committed, ProposeError>>,
    share: BudgetShare,
    since: Instant,
    /// The only term in which the proposal may be appended.
    term: Option<u64>,
    claim: ClaimShare,
    guard: Option<ProposalGuard>,
}

impl PendingProposal {
    /// Returns the proposal and the caller's share of its claim.
    pub(super) fn new(
        reply: oneshot::Sender<Result<Committed, ProposeError>>,
        share: BudgetShare,
        term: Option<u64>,
        guard: Option<ProposalGuard>,
    ) -> (Self, ClaimShare) {
        let claim = Arc::new(Claim(Mutex::new(Stage::Queued(guard))));
        let caller = ClaimShare(Arc::clone(&claim));
        let pending = Self {
            reply,
            share,
            since: Instant::now(),
            term,
            claim: ClaimShare(claim),
            guard: None,
        };
        (pending, caller)
    }

    /// Takes the proposal to append it in `term`; from here on its caller cannot withdraw it.
    ///
    /// # Errors
    /// The answer for the caller, if the proposal must not be appended: it is bound to another
    /// term, or was withdrawn.
    pub(super) fn begin(&mut self, term: u64) -> Result<(), ProposeError> {
        if self.term.is_some_and(|bound| bound != term) {
            return Err(ProposeError::NoLeader);
        }
        self.guard = self.claim.take().ok_or(ProposeError::Unavailable)?;
        Ok(())
    }

    /// Time since the proposal was made.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    pub(super) fn answer(self, result: Result<Committed, ProposeError>) {
        let Self {
            reply,
            share,
            claim,
            guard,
            ..
        } = self;
        // Released first, so that the proposer can reuse the budget and the lock once it has the
        // answer.
        drop((share, claim, guard));
        // The proposer may have gone; the proposal is committed all the same.
        let _ = reply.send(result);
    }
}
