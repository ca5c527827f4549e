//! Undelivered updates of one subscriber, bounded per kind.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jaco_state::event::{EntityType, Event};
use tokio::sync::Notify;

use super::{Filter, QUEUE_BOUND, Update};

#[derive(Debug)]
pub(super) struct Queue {
    filter: Filter,
    pending: Mutex<Pending>,
    /// Holds one permit while updates may be queued.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    /// Replayed events; bounded by the number of retained events.
    replay: VecDeque<Update>,
    /// Updates since the subscription, in order.
    live: VecDeque<Update>,
    /// Length of `live` by kind.
    counts: BTreeMap<EntityType, usize>,
    closed: bool,
}

impl Pending {
    fn push(&mut self, update: Update) {
        *self.counts.entry(update.entity()).or_default() += 1;
        self.live.push_back(update);
    }

    fn pop(&mut self) -> Option<Update> {
        if let Some(update) = self.replay.pop_front() {
            return Some(update);
        }
        let update = self.live.pop_front()?;
        if let Some(count) = self.counts.get_mut(&update.entity()) {
            *count -= 1;
        }
        Some(update)
    }

    /// Replaces the queued updates of this kind by one resync.
    fn resync(&mut self, entity: EntityType, raft_index: u64) {
        self.live.retain(|update| update.entity() != entity);
        self.counts.remove(&entity);
        self.push(Update::Resync { entity, raft_index });
    }
}

impl Queue {
    pub(super) fn new(filter: Filter) -> Self {
        Self {
            filter,
            pending: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a live event if the filter accepts it.
    pub(super) fn offer(&self, event: &Arc<Event>) {
        if !self.filter.accepts(event) {
            return;
        }
        let entity = event.change.entity();
        let mut pending = self.pending();
        if pending
            .counts
            .get(&entity)
            .is_some_and(|count| *count >= QUEUE_BOUND)
        {
            pending.resync(entity, event.raft_index);
        } else {
            pending.push(Update::Event(Arc::clone(event)));
        }
        drop(pending);
        self.changed.notify_one();
    }

    /// Queues past events that the filter accepts, behind those queued already.
    pub(super) fn replay<'a>(&self, events: impl Iterator<Item = &'a Arc<Event>>) {
        let mut pending = self.pending();
        let Pending {
            replay,
            live,
            counts,
            ..
        } = &mut *pending;
        // Called before live events arrive: the queued updates are resyncs, which go first.
        replay.extend(live.drain(..));
        counts.clear();
        replay.extend(
            events
                .filter(|event| self.filter.accepts(event))
                .map(|event| Update::Event(Arc::clone(event))),
        );
        drop(pending);
        self.changed.notify_one();
    }

    /// Replaces all queued updates by one resync per kind.
    pub(super) fn resync_all(&self, raft_index: u64) {
        let mut pending = self.pending();
        pending.replay.clear();
        for entity in EntityType::ALL {
            if self.filter.follows(*entity) {
                pending.resync(*entity, raft_index);
            }
        }
        drop(pending);
        self.changed.notify_one();
    }

    /// Ends the stream after the queued updates.
    pub(super) fn close(&self) {
        self.pending().closed = true;
        self.changed.notify_one();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pending().live.len()
    }

    pub(super) fn pop(&self) -> Option<Update> {
        self.pending().pop()
    }

    pub(super) async fn next(&self) -> Option<Update> {
        loop {
            let notified = self.changed.notified();
            {
                let mut pending = self.pending();
                if let Some(update) = pending.pop() {
                    return Some(update);
                }
                if pending.closed {
                    return None;
                }
            }
            notified.await;
        }
    }
}
