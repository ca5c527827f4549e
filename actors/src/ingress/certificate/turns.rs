//! Lets a bounded number of domains order at once, the one that has been due for longest first.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use jaco_policy::ingress::certificate::queue::{LIMIT, Queue, Ticket};
use tokio::sync::oneshot;

use crate::lock::lock;

/// The queue of the domains of one node; clones share it.
#[derive(Clone)]
pub struct Turns(Arc<Mutex<Waiting>>);

struct Waiting {
    queue: Queue,
    waiting: BTreeMap<Ticket, oneshot::Sender<()>>,
}

/// A turn, or the wait for one. It ends when the value is dropped.
pub struct Turn {
    turns: Turns,
    ticket: Ticket,
}

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Waiting {
            queue: Queue::new(LIMIT),
            waiting: BTreeMap::new(),
        })))
    }
}

impl Turns {
    /// Waits for the turn of a domain whose attempt has been due since `due`.
    ///
    /// # Cancel safety
    /// Cancelled, the domain leaves the queue.
    pub(super) async fn wait(self, due: SystemTime, domain: String) -> Turn {
        let (sender, granted) = oneshot::channel();
        let ticket = {
            let mut shared = lock(&self.0);
            let ticket = shared.queue.handle_request(due, &domain);
            shared.waiting.insert(ticket, sender);
            ticket
        };
        let turns = self.clone();
        let turn = Turn { turns, ticket };
        self.grant();
        // The sender is kept until the turn begins.
        let _ = granted.await;
        turn
    }

    fn grant(&self) {
        let mut shared = lock(&self.0);
        while let Some(ticket) = shared.queue.poll_turn() {
            if let Some(sender) = shared.waiting.remove(&ticket) {
                let _ = sender.send(()); // who gave up ends the turn as well
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut shared = lock(&self.turns.0);
            shared.queue.handle_end(self.ticket);
            shared.waiting.remove(&self.ticket);
        }
        self.turns.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[tokio::test]
    async fn dropped_turn_lets_the_next_begin() {
        let turns = Turns::default();
        let wait = |due, name: &str| turns.clone().wait(at(due), name.to_owned());
        let mut held = Vec::new();
        for number in 0..LIMIT {
            held.push(wait(0, &number.to_string()).await);
        }
        let (mut late, mut early) = (Box::pin(wait(9, "late")), Box::pin(wait(1, "early")));
        assert!((&mut late).now_or_never().is_none());
        assert!((&mut early).now_or_never().is_none());
        held.pop();
        assert!((&mut late).now_or_never().is_none());
        let early = (&mut early).now_or_never();
        assert!(early.is_some(), "it has been due for longer");
        // A turn that begins while its domain gives up is passed on.
        let mut next = Box::pin(wait(10, "next"));
        assert!((&mut next).now_or_never().is_none());
        drop(early);
        drop(late);
        assert!((&mut next).now_or_never().is_some());
    }
}
