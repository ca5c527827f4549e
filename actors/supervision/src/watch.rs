//! Watch channels whose changes become messages of a worker.

use std::{future::Future, time::Duration};

use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

use super::worker::{Envelope, Mailbox};

/// A followed watch channel.
///
/// Ownership alternates between the task, which waits for a change, and the envelope, which makes
/// the message when the worker takes it. So at most one message waits in the mailbox, and it
/// carries the newest value.
pub(crate) struct Watch<T, M> {
    pub(crate) receiver: watch::Receiver<T>,
    /// Without a baseline every change is reported.
    pub(crate) baseline: Option<Baseline<T>>,
    /// Minimum time between two messages.
    pub(crate) interval: Duration,
    pub(crate) make: Box<dyn FnMut(T) -> M + Send>,
}

/// Whether two values of a watch differ for its worker.
type Differs<T> = Box<dyn Fn(&T, &T) -> bool + Send>;

/// Last value that the worker handled, and which other values differ from it.
pub(crate) struct Baseline<T> {
    pub(crate) handled: T,
    pub(crate) differs: Differs<T>,
}

impl<T> Baseline<T> {
    fn is_outdated_by(&self, value: &T) -> bool {
        (self.differs)(&self.handled, value)
    }
}

impl<T: Clone + Send + Sync + 'static, M: Send + 'static> Watch<T, M> {
    /// Returns the task that follows the channel until the sender is dropped or the instance ends.
    /// A value that the receiver has not seen yet is in the mailbox before this returns.
    pub(crate) fn follow(self, mailbox: Mailbox<M>) -> impl Future<Output = ()> + Send + 'static {
        let unseen = self.receiver.has_changed().unwrap_or(false);
        let mut handled = if unseen && self.has_news() {
            self.offer(&mailbox)
        } else {
            let (idle, handled) = oneshot::channel();
            // The receiver is not dropped yet.
            let _ = idle.send(self);
            handled
        };
        async move {
            while let Ok(mut watch) = handled.await {
                if !watch.interval.is_zero() {
                    sleep(watch.interval).await;
                }
                loop {
                    if watch.receiver.changed().await.is_err() {
                        return;
                    }
                    if watch.has_news() {
                        break;
                    }
                }
                handled = watch.offer(&mailbox);
            }
        }
    }

    fn has_news(&self) -> bool {
        let baseline = self.baseline.as_ref();
        baseline.is_none_or(|baseline| baseline.is_outdated_by(&self.receiver.borrow()))
    }

    /// Appends an envelope to the mailbox. Returns the receiver of the watch, which is sent when
    /// the worker takes the envelope.
    fn offer(mut self, mailbox: &Mailbox<M>) -> oneshot::Receiver<Self> {
        let (taken, handled) = oneshot::channel();
        let make = move || {
            if taken.is_closed() {
                return None; // the task was aborted
            }
            let value = self.receiver.borrow_and_update().clone();
            let news = match &mut self.baseline {
                Some(baseline) if !baseline.is_outdated_by(&value) => None,
                Some(baseline) => {
                    baseline.handled = value.clone();
                    Some(value)
                }
                None => Some(value),
            };
            let msg = news.map(&mut self.make);
            let _ = taken.send(self); // fails if the task was aborted
            msg
        };
        // An error means that the instance is ending; the task ends with the dropped envelope.
        let _ = mailbox.put(Envelope::Deferred(Box::new(make)));
        handled
    }
}
