//! Typed handles of workers.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot, watch};

/// Delivers messages of type `M` to the running instance.
pub(crate) type Route<M> = Arc<dyn Fn(M) -> Result<(), Unavailable> + Send + Sync>;

/// The worker is starting, waiting to be restarted, or has ended for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the actor is not running")]
pub struct Unavailable;

/// Reason a call has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The worker was not running, so it did not get the request.
    #[error("the actor is not running")]
    Unavailable,
    /// The worker did not respond in time; it may still act on the request.
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

/// Handle of a worker, valid across restarts.
///
/// Before, between and after instances it returns [`Unavailable`]. Messages still unhandled at the
/// end of an instance are lost; callers get [`CallError::NoReply`].
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

    /// Sends `msg` to the mailbox.
    ///
    /// # Errors
    /// [`Unavailable`] if no instance is running; the message is dropped.
    pub fn cast(&self, msg: M) -> Result<(), Unavailable> {
        let route = self.route.borrow().clone().ok_or(Unavailable)?;
        route(msg)
    }

    /// Sends the request that `make` builds around a [`Reply`], and waits for the response.
    ///
    /// # Errors
    /// [`CallError`] says whether the worker may have seen the request.
    ///
    /// # Cancel safety
    /// Dropping the future drops the response; the worker may still act on the request.
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

    /// Whether an instance is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.route.borrow().is_some()
    }

    /// Waits until an instance is running; without a limit.
    pub async fn running(&self) {
        if self.route.clone().wait_for(Option::is_some).await.is_err() {
            // The child was removed from the tree for good.
            std::future::pending().await
        }
    }
}

impl<M: Send + 'static> Handle<M> {
    /// Returns a handle without a worker, and the receiver of its messages: for tests of workers
    /// that send to others, and for adapters outside the tree.
    ///
    /// Once the receiver is dropped, casts return [`Unavailable`].
    #[must_use]
    pub fn probe() -> (Self, mpsc::UnboundedReceiver<M>) {
        let (messages, inbox) = mpsc::unbounded_channel();
        let route: Route<M> = Arc::new(move |msg| messages.send(msg).map_err(|_| Unavailable));
        (Self::new(watch::channel(Some(route)).1), inbox)
    }
}

/// Response channel of a request.
///
/// Dropping it unsent ends the call with [`CallError::NoReply`].
#[derive(Debug)]
pub struct Reply<T>(oneshot::Sender<T>);

impl<T> Reply<T> {
    /// Returns a reply and the receiver of its value.
    #[must_use]
    pub fn channel() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    /// Responds to the caller; if it stopped waiting, the value is dropped.
    pub fn send(self, value: T) {
        // An error means that the caller stopped waiting, which is no failure of the actor.
        let _ = self.0.send(value);
    }

    /// Whether the caller stopped waiting, so that its request can be skipped.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}
