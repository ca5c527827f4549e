//! Sessions by client: bounded in number, and each ends after a time without use.
//!
//! Sans-io: time comes with each call.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// A value that knows when it was last used.
pub(super) trait LastUse {
    /// Time of the last use; never goes back.
    fn last_use(&self) -> Instant;
}

/// Sessions by client.
pub(super) struct Sessions<K, V> {
    timeout: Duration,
    limit: usize,
    entries: BTreeMap<K, Entry<V>>,
    /// One item per entry: a time that is at most its last use. A use does not move the item; it is
    /// corrected when it comes to the front.
    queue: BTreeSet<(Instant, K)>,
}

struct Entry<V> {
    value: V,
    queued: Instant,
}

impl<K: Copy + Ord, V: LastUse> Sessions<K, V> {
    /// Creates a set of at most `limit` sessions, at least one, that end `timeout` after their last
    /// use.
    pub(super) fn new(timeout: Duration, limit: usize) -> Self {
        Self {
            timeout,
            limit: limit.max(1),
            entries: BTreeMap::new(),
            queue: BTreeSet::new(),
        }
    }

    /// Returns the session of a client.
    pub(super) fn get(&self, client: &K) -> Option<&V> {
        self.entries.get(client).map(|entry| &entry.value)
    }

    /// Ends the session of a client.
    pub(super) fn remove(&mut self, client: &K) {
        if let Some(entry) = self.entries.remove(client) {
            self.queue.remove(&(entry.queued, *client));
        }
    }

    /// Adds a session, in place of an earlier one of the client. At the limit, the one that was not
    /// used for longest ends.
    pub(super) fn insert(&mut self, now: Instant, client: K, value: V) {
        self.remove(&client);
        while self.entries.len() >= self.limit {
            self.evict();
        }
        self.queue.insert((now, client));
        let queued = now;
        self.entries.insert(client, Entry { value, queued });
    }

    /// Ends the sessions whose time is over.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(queued, client)) = self.queue.first() {
            if queued + self.timeout > now {
                return;
            }
            if self.correct(queued, client) {
                self.remove(&client);
            }
        }
    }

    /// Time at which to call [`Sessions::handle_timeout`]; `None` without sessions.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.queue.first().map(|(queued, _)| *queued + self.timeout)
    }

    /// Ends the session that was not used for longest.
    fn evict(&mut self) {
        while let Some(&(queued, client)) = self.queue.first() {
            if self.correct(queued, client) {
                return self.remove(&client);
            }
        }
    }

    /// Moves the first item to its session's last use; returns whether it was there already.
    fn correct(&mut self, queued: Instant, client: K) -> bool {
        let Some(entry) = self.entries.get_mut(&client) else {
            self.queue.remove(&(queued, client));
            return false;
        };
        let last_use = entry.value.last_use();
        if last_use <= queued {
            return true;
        }
        entry.queued = last_use;
        self.queue.remove(&(queued, client));
        self.queue.insert((last_use, client));
        false
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone)]
    struct Used(Rc<Cell<Instant>>);

    impl LastUse for Used {
        fn last_use(&self) -> Instant {
            self.0.get()
        }
    }

    fn used(at: Instant) -> Used {
        Used(Rc::new(Cell::new(at)))
    }

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn clients(sessions: &Sessions<u8, Used>) -> Vec<u8> {
        sessions.entries.keys().copied().collect()
    }

    #[test]
    fn session_ends_a_timeout_after_its_last_use() {
        let start = Instant::now();
        let mut sessions = Sessions::new(TIMEOUT, 9);
        assert_eq!(sessions.poll_timeout(), None);
        let session = used(start);
        sessions.insert(start, 1, session.clone());
        sessions.handle_timeout(start + TIMEOUT - Duration::from_millis(1));
        assert_eq!(clients(&sessions), [1]);
        session.0.set(start + Duration::from_secs(10));
        sessions.handle_timeout(start + TIMEOUT);
        assert_eq!(clients(&sessions), [1], "used since");
        let due = start + Duration::from_secs(70);
        assert_eq!(sessions.poll_timeout(), Some(due));
        sessions.handle_timeout(due);
        assert!(clients(&sessions).is_empty());
        assert_eq!(sessions.poll_timeout(), None);
    }

    #[test]
    fn oldest_idle_session_ends_at_the_limit() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut sessions = Sessions::new(TIMEOUT, 3);
        let first = used(start);
        sessions.insert(start, 1, first.clone());
        sessions.insert(start + second, 2, used(start + second));
        sessions.insert(start + 2 * second, 3, used(start + 2 * second));
        first.0.set(start + 3 * second);
        sessions.insert(start + 4 * second, 4, used(start + 4 * second));
        assert_eq!(clients(&sessions), [1, 3, 4]);
        sessions.insert(start + 5 * second, 5, used(start + 5 * second));
        assert_eq!(clients(&sessions), [1, 4, 5]);
    }

    proptest! {
        /// Compares with a map that looks at every session.
        #[test]
        fn behaves_as_the_plain_model(
            steps in prop::collection::vec((0..4_u8, 0..6_u8, 0..40_u64), 1..80),
        ) {
            let mut now = Instant::now();
            let mut sessions = Sessions::new(TIMEOUT, 4);
            let mut model: BTreeMap<u8, Used> = BTreeMap::new();
            for (action, client, seconds) in steps {
                // Distinct times, so that the longest unused session is unique.
                now += Duration::from_secs(seconds) + Duration::from_nanos(1);
                match action {
                    0 => {
                        let session = used(now);
                        sessions.insert(now, client, session.clone());
                        model.remove(&client);
                        if model.len() == 4 {
                            let oldest = model.iter().min_by_key(|(_, used)| used.0.get());
                            let oldest = *oldest.unwrap().0;
                            model.remove(&oldest);
                        }
                        model.insert(client, session);
                    }
                    1 => {
                        sessions.remove(&client);
                        model.remove(&client);
                    }
                    2 => {
                        sessions.handle_timeout(now);
                        model.retain(|_, used| used.0.get() + TIMEOUT > now);
                        prop_assert!(sessions.poll_timeout().is_none_or(|at| at > now));
                    }
                    _ => {
                        if let Some(session) = model.get(&client) {
                            session.0.set(now);
                        }
                    }
                }
                prop_assert_eq!(sessions.queue.len(), sessions.entries.len());
                prop_assert!(clients(&sessions).iter().eq(model.keys()));
            }
        }
    }
}
