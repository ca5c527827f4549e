//! Mutual exclusion for requests that propose a command based on the state they read.

use std::{sync::Arc, time::Duration};

use jaco_policy::COMMIT_BUDGET;
use jaco_proto::{Error, ErrorCode, v1};
use jaco_raftnode::{Committed, LeaderProposer, propose::ProposeFuture};
use tokio::{
    sync::{Mutex, OwnedMutexGuard, watch},
    time::{Instant, sleep_until},
};

use super::{included, outcome};

/// Time after its proposal at which a holder counts as stuck: when its own caller has an answer.
const STUCK_AFTER: Duration = COMMIT_BUDGET.saturating_add(Duration::from_millis(500));

/// Mutex held from reading the state until the resulting command is applied or has definitely
/// failed. It belongs to a term of this node's leadership: the next term begins with a state that
/// shows what became of the command, so the end of the term releases it too.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommitLock {
    mutex: Arc<Mutex<()>>,
    /// Time of the holder's proposal.
    proposed: watch::Sender<Option<Instant>>,
}

/// Guard of a [`CommitLock`]; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct CommitGuard {
    held: Vec<Held>,
    term: u64,
}

/// The locked mutex.
#[derive(Debug)]
struct Held {
    _until_dropped: OwnedMutexGuard<()>,
    proposed: watch::Sender<Option<Instant>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The mutex is released after this.
        self.proposed.send_replace(None);
    }
}

impl CommitLock {
    /// Waits for the lock. The state must be read afterwards.
    ///
    /// # Errors
    /// `no_leader` if this node does not lead; `raft_unavailable` once the command of the holder
    /// has not been decided for longer than its caller waits, as on a disk that does not answer.
    /// A retry is safe.
    pub(crate) async fn lock(&self, raft: &dyn LeaderProposer) -> Result<CommitGuard, Error> {
        let locked = tokio::select! {
            biased;
            locked = Arc::clone(&self.mutex).lock_owned() => locked,
            () = self.stuck() => {
                let message = "an earlier change is not decided yet";
                return Err(Error::new(ErrorCode::RaftUnavailable, message));
            }
        };
        let held = Held {
            _until_dropped: locked,
            proposed: self.proposed.clone(),
        };
        match raft.leading_term() {
            Some(term) => Ok(CommitGuard {
                held: vec![held],
                term,
            }),
            None => Err(Error::new(ErrorCode::NoLeader, "this node does not lead")),
        }
    }

    /// Returns once the command of a holder is undecided for too long.
    async fn stuck(&self) {
        let mut proposed = self.proposed.subscribe();
        loop {
            let since = *proposed.borrow_and_update();
            let late = async {
                match since {
                    Some(since) => sleep_until(since + STUCK_AFTER).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as this lock.
                _ = proposed.changed() => {}
                () = late => return,
            }
        }
    }
}

impl CommitGuard {
    /// Term in which the lock was taken.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// Adds a lock that was taken after this one and that the proposal holds, too.
    ///
    /// # Errors
    /// `no_leader` if another term began between the two.
    pub(crate) fn with(mut self, other: Self) -> Result<Self, Error> {
        if other.term != self.term {
            return Err(Error::new(ErrorCode::NoLeader, "this node leads anew"));
        }
        self.held.extend(other.held);
        Ok(self)
    }

    /// Proposes as [`propose`](super::propose), in the term in which the lock was taken. The lock
    /// is held until the outcome is certain, not until this call returns: when the caller is
    /// cancelled, or gets an unknown outcome, the next request must not read a state that this
    /// command may still change.
    pub(crate) async fn propose(
        self,
        raft: &dyn LeaderProposer,
        command: v1::Command,
    ) -> Result<Committed, Error> {
        outcome(self.begin(raft, command)).await
    }

    /// Proposes as [`CommitGuard::propose`], and waits until the local state includes the command,
    /// so that the next decision is based on it.
    pub(crate) async fn commit(
        self,
        raft: &dyn LeaderProposer,
        command: v1::Command,
    ) -> Result<Committed, Error> {
        outcome(included(raft, self.begin(raft, command))).await
    }

    fn begin(self, raft: &dyn LeaderProposer, command: v1::Command) -> ProposeFuture {
        let Self { held, term } = self;
        for held in &held {
            held.proposed.send_replace(Some(Instant::now()));
        }
        raft.propose_in_term(term, command, Box::new(held))
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Mutex};

    use futures::poll;
    use jaco_raftnode::{ProposalGuard, ProposeError, State, StateReader};
    use tokio::sync::oneshot;

    use super::*;
    use crate::lock::lock;

    type Outcome = Result<Committed, ProposeError>;

    /// Commits when the test sends the outcome; the caller gets an unknown one after 5 s.
    struct Slow {
        outcome: Mutex<Option<oneshot::Receiver<Outcome>>>,
        term: Option<u64>,
    }

    impl StateReader for Slow {
        fn state(&self) -> Arc<State> {
            Arc::default()
        }

        fn subscribe(&self) -> watch::Receiver<Arc<State>> {
            watch::channel(Arc::default()).1
        }
    }

    impl LeaderProposer for Slow {
        fn leading_term(&self) -> Option<u64> {
            self.term
        }

        fn propose(&self, _: v1::Command) -> ProposeFuture {
            unreachable!("a proposal under the lock belongs to a term")
        }

        fn propose_in_term(
            &self,
            term: u64,
            _: v1::Command,
            guard: ProposalGuard,
        ) -> ProposeFuture {
            assert_eq!(self.term, Some(term));
            let outcome = lock(&self.outcome).take().unwrap();
            let decided = tokio::spawn(async move {
                let outcome = outcome.await.unwrap();
                drop(guard);
                outcome
            });
            Box::pin(async move {
                let answer = tokio::time::timeout(COMMIT_BUDGET, decided).await;
                let unknown = || Err(ProposeError::Unknown("no answer in time".to_owned()));
                answer.map_or_else(|_| unknown(), Result::unwrap)
            })
        }
    }

    fn slow() -> (oneshot::Sender<Outcome>, Slow) {
        let (end, ended) = oneshot::channel();
        let raft = Slow {
            outcome: Mutex::new(Some(ended)),
            term: Some(7),
        };
        (end, raft)
    }

    #[tokio::test(start_paused = true)]
    async fn lock_is_held_until_the_proposal_ends() {
        for leaves in [true, false] {
            let lock = CommitLock::default();
            let (end, raft) = slow();
            let guard = lock.lock(&raft).await.unwrap();
            let mut call = Box::pin(guard.propose(&raft, v1::Command::default()));
            if leaves {
                assert!(poll!(&mut call).is_pending());
                drop(call);
            } else {
                let error = call.await.unwrap_err();
                assert_eq!(error.details["outcome"], "unknown");
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            let mut next = pin!(lock.mutex.lock());
            assert!(poll!(&mut next).is_pending(), "leaves: {leaves}");
            end.send(Err(ProposeError::NoLeader)).unwrap();
            drop(next.await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_behind_a_stuck_one_is_refused() {
        let lock = CommitLock::default();
        let (end, raft) = slow();
        let guard = lock.lock(&raft).await.unwrap();
        let begun = Instant::now();
        let mut waiting = pin!(lock.lock(&raft));
        // Reading and checking may take any time.
        let patient = tokio::time::timeout(Duration::from_secs(60), &mut waiting).await;
        assert!(patient.is_err(), "nothing is proposed yet");
        let mut call = Box::pin(guard.propose(&raft, v1::Command::default()));
        assert!(poll!(&mut call).is_pending());
        for waited in [STUCK_AFTER, Duration::ZERO] {
            let asked = Instant::now();
            let refused = lock.lock(&raft).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::RaftUnavailable);
            assert_eq!(asked.elapsed().as_secs(), waited.as_secs());
        }
        assert_eq!(
            waiting.await.unwrap_err().code,
            ErrorCode::RaftUnavailable,
            "{:?}",
            begun.elapsed()
        );
        end.send(Ok(Committed { index: 1 })).unwrap();
        drop(call);
        tokio::task::yield_now().await;
        lock.lock(&raft).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn deposed_node_takes_no_lock() {
        let lock = CommitLock::default();
        let (_end, mut raft) = slow();
        raft.term = None;
        let refused = lock.lock(&raft).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoLeader);
        raft.term = Some(8);
        lock.lock(&raft).await.unwrap();
    }
}
