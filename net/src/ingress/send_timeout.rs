//! Timeout of HTTP/2 responses that the client does not take.
//!
//! A client that opens no flow control window may answer pings and hold its streams forever. hyper
//! waits for the window in the task of the stream, where it polls no body; so the timer belongs to
//! the task, and the body tells it whether the replica or the client is waited for.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    body::{Body, Frame, SizeHint},
    rt::Executor,
};
use tokio::time::{Instant, sleep_until};

use super::{body::ResponseBody, connection::poll_expired};

/// Since when a response waits for its client; `None` while it waits for the replica.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Option<Instant>>);

impl Waiting {
    fn set(&self, since: Option<Instant>) {
        *self.since() = since;
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response body that records whether the replica or the client is waited for.
pub(super) struct TimedBody {
    body: ResponseBody,
    waiting: Arc<Waiting>,
}

impl TimedBody {
    /// The body of a response whose head is about to be sent.
    pub(super) fn new(body: ResponseBody, waiting: Arc<Waiting>) -> Self {
        waiting.set(Some(Instant::now()));
        Self { body, waiting }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.waiting.set(polled.is_ready().then(Instant::now));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Spawns the tasks of the streams of one connection.
#[derive(Clone, Debug)]
pub(super) struct StreamTasks(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Longest time in which a client may take less than one part of a body, as replicas send them:
    /// at most the size of the buffer of a connection to a replica.
    limit: Duration,
    /// Belongs to the request that was accepted last. hyper calls the service and spawns the task
    /// in one poll of the connection, and a worker has one thread, so the next task is that of the
    /// request.
    accepted: Mutex<Option<Arc<Waiting>>>,
}

impl StreamTasks {
    pub(super) fn new(limit: Duration) -> Self {
        Self(Arc::new(Shared {
            limit,
            accepted: Mutex::default(),
        }))
    }

    /// Announces the task of a request; called when hyper has accepted it.
    pub(super) fn accept(&self) -> Arc<Waiting> {
        let waiting = Arc::new(Waiting::default());
        *self.accepted() = Some(waiting.clone());
        waiting
    }

    fn accepted(&self) -> MutexGuard<'_, Option<Arc<Waiting>>> {
        let accepted = &self.0.accepted;
        accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Executor<F> for StreamTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        // The tasks of tunnels belong to no request: they have no limit.
        match self.accepted().take() {
            Some(waiting) => drop(tokio::spawn(limited(stream, waiting, self.0.limit))),
            None => drop(tokio::spawn(stream)),
        }
    }
}

/// Runs the task of a stream to its end, or drops it, which resets the stream.
async fn limited(stream: impl Future<Output = ()>, waiting: Arc<Waiting>, limit: Duration) {
    let deadline = || waiting.since().map(|since| since + limit);
    let expired = async {
        let mut timer = pin!(sleep_until(Instant::now()));
        poll_fn(|cx| poll_expired(deadline, timer.as_mut(), cx)).await;
    };
    tokio::select! {
        biased;
        () = stream => {}
        () = expired => {
            tracing::debug!(subsystem = "ingress", "client takes nothing of a response");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    #[tokio::test(start_paused = true)]
    async fn only_waits_for_the_client_are_limited() {
        let waiting = Arc::new(Waiting::default());
        let (start, part) = (Instant::now(), LIMIT - Duration::from_secs(1));
        let stream = async {
            sleep(LIMIT * 3).await; // no response yet
            for _ in 0..3 {
                waiting.set(Some(Instant::now()));
                sleep(part).await;
            }
            waiting.set(None);
            sleep(LIMIT * 3).await; // the replica pauses
            waiting.set(Some(Instant::now()));
            pending().await
        };
        limited(stream, waiting.clone(), LIMIT).await;
        assert_eq!(start.elapsed(), LIMIT * 7 + part * 3);
    }
}
