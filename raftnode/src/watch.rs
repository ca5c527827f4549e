//! The event stream: replay of recent events, then live events, without blocking applies.
//!
//! A subscriber that falls behind loses the queued events of that kind and gets one
//! [`Update::Resync`] for it; it then reloads the kind from the state. Publish the state before its
//! events, so that a subscriber that reacts to an event finds the change in the state.

mod filter;
mod queue;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use jaco_proto::v1;
use jaco_state::event::{self, EntityType, Event};

pub use filter::Filter;
use queue::Queue;

/// Maximum number of events kept for replay.
pub const RETAINED_EVENTS: usize = 4096;
/// Bytes of manifests that the kept events may hold in memory; the newest event always stays.
pub const RETAINED_BYTES: usize = 16 << 20;
/// Maximum number of undelivered events of one kind per subscriber.
pub const QUEUE_BOUND: usize = 256;

/// An element of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// An entity changed.
    Event(Arc<Event>),
    /// Events of this kind up to and including this index are missing; reload the kind.
    Resync {
        /// The kind.
        entity: EntityType,
        /// Index of the newest event that may be missing.
        raft_index: u64,
    },
}

impl Update {
    /// Returns the log index of the change.
    #[must_use]
    pub fn raft_index(&self) -> u64 {
        match self {
            Self::Event(event) => event.raft_index,
            Self::Resync { raft_index, .. } => *raft_index,
        }
    }

    /// Returns the kind of the entity.
    #[must_use]
    pub fn entity(&self) -> EntityType {
        match self {
            Self::Event(event) => event.change.entity(),
            Self::Resync { entity, .. } => *entity,
        }
    }

    /// Converts the update to its wire format, without secrets.
    #[must_use]
    pub fn to_wire(&self) -> v1::SubscribeEvent {
        match self {
            Self::Event(event) => event.to_wire(),
            Self::Resync { entity, raft_index } => event::resync(*entity, *raft_index),
        }
    }
}

/// Publisher of the stream; clones publish to the same subscribers.
#[derive(Clone, Debug)]
pub struct WatchHub {
    shared: Arc<HubInner>,
}

#[derive(Debug)]
struct HubInner(Mutex<Hub>);

#[derive(Debug)]
struct Hub {
    /// The newest events, oldest first.
    retained: VecDeque<Arc<Event>>,
    /// Manifest bytes of the retained events.
    retained_bytes: usize,
    /// Events at or below this index may have been evicted.
    floor: u64,
    subscribers: BTreeMap<u64, Arc<Queue>>,
    next_id: u64,
    closed: bool,
}

impl HubInner {
    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HubInner {
    fn drop(&mut self) {
        self.hub().close();
    }
}

impl Hub {
    fn close(&mut self) {
        self.closed = true;
        for queue in std::mem::take(&mut self.subscribers).into_values() {
            queue.close();
        }
    }

    fn retain(&mut self, event: Arc<Event>) {
        let weight = event.manifest_bytes();
        while self.retained.len() >= RETAINED_EVENTS
            || self.retained_bytes + weight > RETAINED_BYTES
        {
            let Some(oldest) = self.retained.pop_front() else {
                break;
            };
            self.retained_bytes -= oldest.manifest_bytes();
            self.floor = oldest.raft_index;
        }
        self.retained_bytes += weight;
        self.retained.push_back(event);
    }
}

impl WatchHub {
    /// Creates a hub for a state at `applied_index`; earlier events cannot be replayed.
    #[must_use]
    pub fn new(applied_index: u64) -> Self {
        Self {
            shared: Arc::new(HubInner(Mutex::new(Hub {
                retained: VecDeque::new(),
                retained_bytes: 0,
                floor: applied_index,
                subscribers: BTreeMap::new(),
                next_id: 0,
                closed: false,
            }))),
        }
    }

    /// Delivers the events of applied entries to every subscriber whose filter accepts them.
    ///
    /// Never blocks on a subscriber. Indexes must not decrease from call to call.
    pub fn publish(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let mut hub = self.shared.hub();
        for event in events {
            let event = Arc::new(event);
            for queue in hub.subscribers.values() {
                queue.offer(&event);
            }
            hub.retain(event);
        }
    }

    /// Drops the retained events, because the whole state was replaced by one at `applied_index`.
    /// Every subscriber gets one resync per kind it follows.
    pub fn reset(&self, applied_index: u64) {
        let mut hub = self.shared.hub();
        hub.retained.clear();
        hub.retained_bytes = 0;
        hub.floor = applied_index;
        for queue in hub.subscribers.values() {
            queue.resync_all(applied_index);
        }
    }

    /// Subscribes to the events that `filter` accepts.
    ///
    /// Subscribe first and read the state second, so that no change is missed in between.
    #[must_use]
    pub fn subscribe(&self, filter: Filter) -> Subscription {
        let mut hub = self.shared.hub();
        let since = filter.since;
        let queue = Arc::new(Queue::new(filter));
        if since > 0 {
            if since < hub.floor {
                queue.resync_all(hub.floor);
            }
            queue.replay(hub.retained.iter().filter(|e| e.raft_index > hub.floor));
        }
        let id = hub.next_id;
        hub.next_id += 1;
        if hub.closed {
            queue.close();
        } else {
            hub.subscribers.insert(id, Arc::clone(&queue));
        }
        Subscription {
            id,
            queue,
            hub: Arc::downgrade(&self.shared),
        }
    }

    /// Ends every subscription after its queued updates; later subscriptions end at once.
    pub fn close(&self) {
        self.shared.hub().close();
    }
}

/// Receiving end of a subscription; dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscription {
    id: u64,
    queue: Arc<Queue>,
    hub: Weak<HubInner>,
}

impl Subscription {
    /// Returns the next update, in log order; `None` once the hub is closed and the queue is empty.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Update> {
        self.queue.next().await
    }

    /// Returns the next update if one is queued.
    pub fn try_next(&mut self) -> Option<Update> {
        self.queue.pop()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(shared) = self.hub.upgrade() {
            shared.hub().subscribers.remove(&self.id);
        }
    }
}
