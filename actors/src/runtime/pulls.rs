//! Deduplicates pulls in flight: replicas that need the same image with the same credential share
//! one attempt.
//!
//! Registries rate-limit pulls, and the replicas of a service start together.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, Shared, WeakShared},
};
use tokio::{sync::watch, time::Instant};

use jaco_engine::{Credential, Engine, EngineError};

/// An attempt without progress for this long is not joined: a replica that cancels a stalled
/// attempt must not rejoin it.
const STALLED_AFTER: Duration = Duration::from_secs(10);

type Attempt = BoxFuture<'static, Result<(), EngineError>>;

/// Attempts of one node.
#[derive(Default)]
pub(crate) struct Pulls(Mutex<Vec<InFlightPull>>);

struct InFlightPull {
    image: String,
    platform: Option<String>,
    credential: Option<Credential>,
    attempt: WeakShared<Attempt>,
    progress: watch::Receiver<Instant>,
}

/// Share of an attempt; the attempt is cancelled when its last share is dropped.
pub(crate) struct Pull {
    attempt: Shared<Attempt>,
    progress: watch::Receiver<Instant>,
}

impl Pulls {
    /// Joins the attempt in flight, or starts one.
    pub(crate) fn join(
        &self,
        engine: &Arc<dyn Engine>,
        image: &str,
        platform: Option<&str>,
        credential: Option<Credential>,
    ) -> Pull {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|flight| flight.pull().is_some());
        let same = |flight: &&InFlightPull| {
            flight.image == image
                && flight.platform.as_deref() == platform
                && flight.credential == credential
                && flight.progress.borrow().elapsed() < STALLED_AFTER
        };
        if let Some(pull) = flights.iter().find(same).and_then(InFlightPull::pull) {
            return pull;
        }
        let (progress_sender, progress) = watch::channel(Instant::now());
        let attempt = attempt(
            Arc::clone(engine),
            image.to_owned(),
            platform.map(str::to_owned),
            credential.clone(),
            progress_sender,
        );
        let attempt = attempt.boxed().shared();
        flights.extend(attempt.downgrade().map(|attempt| InFlightPull {
            image: image.to_owned(),
            platform: platform.map(str::to_owned),
            credential,
            attempt,
            progress: progress.clone(),
        }));
        Pull { attempt, progress }
    }
}

impl InFlightPull {
    /// Returns a share; `None` once the attempt is over.
    fn pull(&self) -> Option<Pull> {
        let attempt = self.attempt.upgrade()?;
        attempt.peek().is_none().then(|| Pull {
            attempt,
            progress: self.progress.clone(),
        })
    }
}

impl Pull {
    /// Waits for the outcome; calls `progressed` when the attempt progresses, at most once per
    /// `every`.
    pub(crate) async fn finish(
        mut self,
        every: Duration,
        progressed: impl Fn() + Send,
    ) -> Result<(), EngineError> {
        let mut last_report = Instant::now();
        loop {
            tokio::select! {
                outcome = &mut self.attempt => return outcome,
                // `changed` fails once the attempt is over; its outcome is then available.
                Ok(()) = self.progress.changed() => {
                    if last_report.elapsed() >= every {
                        progressed();
                        last_report = Instant::now();
                    }
                }
            }
        }
    }
}

async fn attempt(
    engine: Arc<dyn Engine>,
    image: String,
    platform: Option<String>,
    credential: Option<Credential>,
    progress_sender: watch::Sender<Instant>,
) -> Result<(), EngineError> {
    let mut progress = engine.pull(&image, platform.as_deref(), credential.as_ref());
    while let Some(step) = progress.next().await {
        step.map_err(|error| match &credential {
            Some(credential) => error.map(|message| credential.redact(&message)),
            None => error,
        })?;
        progress_sender.send_replace(Instant::now());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use jaco_engine::fake::FakeEngine;

    fn login(secret: &str) -> Option<Credential> {
        Some(Credential {
            username: "robot".into(),
            secret: secret.to_owned().into(),
            server: "r.io".into(),
        })
    }

    fn fake() -> (FakeEngine, Arc<dyn Engine>) {
        let fake = FakeEngine::new();
        (fake.clone(), Arc::new(fake))
    }

    async fn outcome(pull: Pull) -> Result<(), EngineError> {
        pull.finish(Duration::ZERO, || ()).await
    }

    #[tokio::test(start_paused = true)]
    async fn equal_pulls_share_one_attempt_and_outcome() {
        let (fake, engine) = fake();
        let pulls = Pulls::default();
        let refused = EngineError::Conflict("no".into());
        fake.script_pull(stream::iter([Ok(()), Err(refused.clone())]));
        let shares = [(); 3].map(|()| pulls.join(&engine, "a", None, login("s")));
        let others = [
            pulls.join(&engine, "b", None, login("s")),
            pulls.join(&engine, "a", None, login("t")),
            pulls.join(&engine, "a", None, None),
        ];
        for share in shares {
            assert_eq!(outcome(share).await, Err(refused.clone()));
        }
        for other in others {
            assert_eq!(outcome(other).await, Ok(()));
        }
        assert_eq!(fake.pulls().len(), 4);
        // A finished attempt is not joined.
        assert_eq!(
            outcome(pulls.join(&engine, "a", None, login("s"))).await,
            Ok(())
        );
        assert_eq!(fake.pulls().len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_last_share_cancels_attempt() {
        let (fake, engine) = fake();
        let pulls = Pulls::default();
        let (held, mut dropped) = tokio::sync::oneshot::channel::<()>();
        fake.script_pull(stream::once(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(held);
            Ok(())
        }));
        let mut first = Box::pin(outcome(pulls.join(&engine, "a", None, None)));
        assert!(first.as_mut().now_or_never().is_none());
        let second = pulls.join(&engine, "a", None, None);
        drop(first);
        assert!(
            dropped
                .try_recv()
                .is_err_and(|why| why == tokio::sync::oneshot::error::TryRecvError::Empty)
        );
        assert_eq!(outcome(second).await, Ok(()));

        let (held, dropped) = tokio::sync::oneshot::channel::<()>();
        fake.script_pull(stream::once(async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok(())
        }));
        let mut only = Box::pin(outcome(pulls.join(&engine, "a", None, None)));
        assert!(only.as_mut().now_or_never().is_none());
        drop(only);
        assert!(dropped.await.is_err(), "the attempt was cancelled");
    }

    #[tokio::test(start_paused = true)]
    async fn progress_reaches_all_shares_stalled_attempt_not_joined() {
        let (fake, engine) = fake();
        let pulls = Pulls::default();
        let steps = stream::iter(0..10).then(|_| async {
            tokio::time::sleep(STALLED_AFTER - Duration::from_secs(1)).await;
            Ok(())
        });
        fake.script_pull(steps);
        let reports = [(); 2].map(|()| Arc::new(std::sync::atomic::AtomicU32::new(0)));
        let shares = reports.clone().map(|reports| {
            let pull = pulls.join(&engine, "a", None, None);
            tokio::spawn(pull.finish(Duration::from_secs(1), move || {
                reports.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }))
        });
        tokio::time::sleep(STALLED_AFTER * 5).await;
        let late = pulls.join(&engine, "a", None, None);
        assert_eq!(fake.pulls().len(), 1);
        assert_eq!(outcome(late).await, Ok(()));
        for share in shares {
            assert_eq!(share.await.unwrap(), Ok(()));
        }
        for reports in reports {
            assert!(reports.load(std::sync::atomic::Ordering::Relaxed) >= 9);
        }

        fake.script_pull(stream::pending());
        let stuck = tokio::spawn(outcome(pulls.join(&engine, "a", None, None)));
        tokio::time::sleep(STALLED_AFTER).await;
        assert_eq!(outcome(pulls.join(&engine, "a", None, None)).await, Ok(()));
        stuck.abort();
    }
}
