//! Whose turn it is to change what only one request at a time may.

use std::sync::Arc;

use jaco_proto::{Error, v1};
use jaco_raftnode::{Committed, Propose, ProposeError};
use tokio::{sync::OwnedMutexGuard, task::JoinError};

use super::shared::outcome;

/// What one request at a time holds from its look at the state until its command is applied or
/// certainly is not on its way any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn(Arc<tokio::sync::Mutex<()>>);

/// A turn that was given; dropped, it is the next one's.
#[derive(Debug)]
pub(crate) struct Taken {
    _until_dropped: OwnedMutexGuard<()>,
}

impl Turn {
    /// Waits for the turn.
    pub(crate) async fn take(&self) -> Taken {
        Taken {
            _until_dropped: Arc::clone(&self.0).lock_owned().await,
        }
    }
}

impl Taken {
    /// The same as [`propose`](super::propose). The turn ends with the proposal and not with this call: a caller
    /// that leaves, or is told that the outcome is unknown, must not let somebody look at a state
    /// that the command is about to change.
    pub(crate) async fn propose(
        self,
        raft: &dyn Propose,
        command: v1::Command,
    ) -> Result<Committed, Error> {
        let proposal = raft.propose(command);
        let ended = tokio::spawn(async move {
            let ended = proposal.await;
            drop(self);
            ended
        });
        // It ends early only with the process.
        let lost = |error: JoinError| Err(ProposeError::Unknown(error.to_string()));
        outcome(async { ended.await.unwrap_or_else(lost) }).await
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Mutex, time::Duration};

    use futures::{FutureExt as _, future::BoxFuture, poll};
    use jaco_raftnode::State;
    use tokio::sync::{oneshot, watch};

    use super::*;
    use crate::lock::lock;

    type Outcome = Result<Committed, ProposeError>;

    /// Commits when the test says so.
    struct Slow(Mutex<Option<oneshot::Receiver<Outcome>>>);

    impl Propose for Slow {
        fn propose(&self, _: v1::Command) -> BoxFuture<'static, Outcome> {
            let outcome = lock(&self.0).take().unwrap();
            outcome.map(Result::unwrap).boxed()
        }

        fn state(&self) -> Arc<State> {
            Arc::default()
        }

        fn subscribe(&self) -> watch::Receiver<Arc<State>> {
            watch::channel(Arc::default()).1
        }
    }

    fn slow() -> (oneshot::Sender<Outcome>, Slow) {
        let (end, ended) = oneshot::channel();
        (end, Slow(Mutex::new(Some(ended))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_lasts_until_its_proposal_has_ended_whatever_its_caller_does() {
        for leaves in [true, false] {
            let turns = Turn::default();
            let (end, raft) = slow();
            let turn = turns.take().await;
            let mut call = Box::pin(turn.propose(&raft, v1::Command::default()));
            if leaves {
                assert!(poll!(&mut call).is_pending());
                drop(call);
            } else {
                let error = call.await.unwrap_err();
                assert_eq!(error.details["outcome"], "unknown");
            }
            let mut next = pin!(turns.take());
            let waits = tokio::time::timeout(Duration::from_secs(60), &mut next).await;
            assert!(waits.is_err(), "leaves: {leaves}");
            end.send(Err(ProposeError::NoLeader)).unwrap();
            next.await;
        }
    }
}
