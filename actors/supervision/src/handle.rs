//! Typed addresses of workers.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot, watch};

/// Where a message of type `M` goes right now.
pub(crate) type Route<M> = Arc<dyn Fn(M) -> Result<(), Unavailable> + Send + Sync>;

/// The worker is not running: it is starting, waiting to be restarted, or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the actor is not running")]
pub struct Unavailable;

/// Why a call brought no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The worker was not running, so it never saw the request.
    #[error("the actor is not running")]
    Unavailable,
    /// The worker did not answer in time; it may still act on the request.
    #[error("the actor did not answer in time")]
    Timeout,
    /// The worker ended or dropped the reply; it may have acted on the request.
    #[error("the actor dropped the request")]
    NoReply,
}

impl From<Unavailable> for CallError {
    fn from(Unavailable: Unavailable) -> Self {
        Self::Unavailable
    }
}

/// The address of a worker; it stays valid across restarts.
///
/// Between two instances, and before the first and after the last, it answers
/// [`Unavailable`]. Messages that an instance had not handled when it ended are lost, which
/// callers see as [`CallError::NoReply`].
pub struct Handle<M> {
    route: watch::Receiver<Option<Route<M>>>,
}

impl<M> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Self {
            route: self.route.clone(),
        }
    }
}

impl<M> fmt::Debug for Handle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("running", &self.is_running())
            .finish()
    }
}

impl<M> Handle<M> {
    pub(crate) fn new(route: watch::Receiver<Option<Route<M>>>) -> Self {
        Self { route }
    }

    /// Puts `msg` into the mailbox.
    ///
    /// # Errors
    /// [`Unavailable`] when no instance is running; the message is dropped.
    pub fn cast(&self, msg: M) -> Result<(), Unavailable> {
        let route = self.route.borrow().clone().ok_or(Unavailable)?;
        route(msg)
    }

    /// Sends the request that `make` builds around a [`Reply`] and waits for the answer.
    ///
    /// # Errors
    /// [`CallError`] says whether the worker can have seen the request.
    ///
    /// # Cancel safety
    /// Dropping the future drops the answer; the worker may still act on the request.
    pub async fn call<T>(
        &self,
        timeout: Duration,
        make: impl FnOnce(Reply<T>) -> M,
    ) -> Result<T, CallError> {
        let (reply, answer) = Reply::channel();
        self.cast(make(reply))?;
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(CallError::NoReply),
            Err(_) => Err(CallError::Timeout),
        }
    }

    /// Whether an instance is running right now.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.route.borrow().is_some()
    }

    /// Waits until an instance is running; forever, if none ever will.
    pub async fn running(&self) {
        if self.route.clone().wait_for(Option::is_some).await.is_err() {
            // The place was taken out of the tree for good.
            std::future::pending().await
        }
    }
}

impl<M: Send + 'static> Handle<M> {
    /// An address whose messages come out of the returned receiver instead of reaching a
    /// worker: for testing a worker that talks to others, and for adapters outside the tree.
    ///
    /// Once the receiver is dropped, casts answer [`Unavailable`].
    #[must_use]
    pub fn probe() -> (Self, mpsc::UnboundedReceiver<M>) {
        let (messages, inbox) = mpsc::unbounded_channel();
        let route: Route<M> = Arc::new(move |msg| messages.send(msg).map_err(|_| Unavailable));
        (Self::new(watch::channel(Some(route)).1), inbox)
    }
}

/// The way back to the caller of a request.
///
/// Dropping it unsent ends the call with [`CallError::NoReply`].
#[derive(Debug)]
pub struct Reply<T>(oneshot::Sender<T>);

impl<T> Reply<T> {
    /// A reply and where its value comes out.
    #[must_use]
    pub fn channel() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    /// Answers the caller; if it stopped waiting, the value is dropped.
    pub fn send(self, value: T) {
        // A caller that left is no failure of the actor.
        let _ = self.0.send(value);
    }

    /// Whether the caller stopped waiting, so that work for it can be skipped.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}
