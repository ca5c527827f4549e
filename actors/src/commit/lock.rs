//! Mutual exclusion for requests that propose a command based on the state they read.

use std::sync::Arc;

use jaco_proto::{Error, v1};
use jaco_raftnode::{Committed, LeaderProposer, ProposeError};
use tokio::{sync::OwnedMutexGuard, task::JoinError};

use super::outcome;

/// Mutex held from reading the state until the resulting command is applied or has definitely
/// failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommitLock(Arc<tokio::sync::Mutex<()>>);

/// Guard of a [`CommitLock`]; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct CommitGuard {
    _until_dropped: OwnedMutexGuard<()>,
}

impl CommitLock {
    /// Waits for the lock.
    pub(crate) async fn lock(&self) -> CommitGuard {
        CommitGuard {
            _until_dropped: Arc::clone(&self.0).lock_owned().await,
        }
    }
}

impl CommitGuard {
    /// Proposes as [`propose`](super::propose). The lock is held until the proposal ends, not until
    /// this call returns: when the caller is cancelled, or gets an unknown outcome, the next
    /// request must not read a state that this command may still change.
    pub(crate) async fn propose(
        self,
        raft: &dyn LeaderProposer,
        command: v1::Command,
    ) -> Result<Committed, Error> {
        let proposal = raft.propose(command);
        let ended = tokio::spawn(async move {
            let ended = proposal.await;
            drop(self);
            ended
        });
        // The task ends early only when the runtime shuts down.
        let lost = |error: JoinError| Err(ProposeError::Unknown(error.to_string()));
        outcome(async { ended.await.unwrap_or_else(lost) }).await
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Mutex, time::Duration};

    use futures::{FutureExt as _, future::BoxFuture, poll};
    use jaco_raftnode::{State, StateReader};
    use tokio::sync::{oneshot, watch};

    use super::*;
    use crate::lock::lock;

    type Outcome = Result<Committed, ProposeError>;

    /// Commits when the test sends the outcome.
    struct Slow(Mutex<Option<oneshot::Receiver<Outcome>>>);

    impl StateReader for Slow {
        fn state(&self) -> Arc<State> {
            Arc::default()
        }

        fn subscribe(&self) -> watch::Receiver<Arc<State>> {
            watch::channel(Arc::default()).1
        }
    }

    impl LeaderProposer for Slow {
        fn propose(&self, _: v1::Command) -> BoxFuture<'static, Outcome> {
            let outcome = lock(&self.0).take().unwrap();
            outcome.map(Result::unwrap).boxed()
        }
    }

    fn slow() -> (oneshot::Sender<Outcome>, Slow) {
        let (end, ended) = oneshot::channel();
        (end, Slow(Mutex::new(Some(ended))))
    }

    #[tokio::test(start_paused = true)]
    async fn lock_is_held_until_the_proposal_ends() {
        for leaves in [true, false] {
            let lock = CommitLock::default();
            let (end, raft) = slow();
            let guard = lock.lock().await;
            let mut call = Box::pin(guard.propose(&raft, v1::Command::default()));
            if leaves {
                assert!(poll!(&mut call).is_pending());
                drop(call);
            } else {
                let error = call.await.unwrap_err();
                assert_eq!(error.details["outcome"], "unknown");
            }
            let mut next = pin!(lock.lock());
            let waits = tokio::time::timeout(Duration::from_secs(60), &mut next).await;
            assert!(waits.is_err(), "leaves: {leaves}");
            end.send(Err(ProposeError::NoLeader)).unwrap();
            next.await;
        }
    }
}
