//! Turns of the domains: how many certificates the leader orders at once.
//!
//! A first start with thousands of domains asks for all of their certificates at the same moment. The
//! queue lets a few of them begin; the next one is the one that has been due for longest, so neither a
//! name nor repeated failures get ahead of others.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

/// Attempts under way at once, from the check of a domain's addresses to the stored certificate.
pub const LIMIT: usize = 8;

/// A place in the queue, later a turn; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Place of a waiting domain: oldest first, then by name.
type Place = (SystemTime, String, Ticket);

/// The queue of one node. It holds one entry per domain that waits or has its turn.
#[derive(Clone, Debug)]
pub struct Queue {
    limit: usize,
    last: u64,
    running: BTreeSet<Ticket>,
    waiting: BTreeSet<Place>,
    places: BTreeMap<Ticket, Place>,
}

impl Queue {
    /// Creates a queue in which `limit` domains have their turn at once.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            last: 0,
            running: BTreeSet::new(),
            waiting: BTreeSet::new(),
            places: BTreeMap::new(),
        }
    }

    /// Handles the request of a domain whose attempt has been due since `due`.
    pub fn handle_request(&mut self, due: SystemTime, domain: &str) -> Ticket {
        self.last += 1;
        let ticket = Ticket(self.last);
        let place = (due, domain.to_owned(), ticket);
        self.waiting.insert(place.clone());
        self.places.insert(ticket, place);
        ticket
    }

    /// Handles the end of a turn, or of the wait for it.
    pub fn handle_end(&mut self, ticket: Ticket) {
        if let Some(place) = self.places.remove(&ticket) {
            self.waiting.remove(&place);
        }
        self.running.remove(&ticket);
    }

    /// Returns the next domain whose turn begins.
    pub fn poll_turn(&mut self) -> Option<Ticket> {
        if self.running.len() >= self.limit {
            return None;
        }
        let (_, _, ticket) = self.waiting.pop_first()?;
        self.places.remove(&ticket);
        self.running.insert(ticket);
        Some(ticket)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Domains whose turn begins now.
    fn begun(queue: &mut Queue, names: &BTreeMap<Ticket, String>) -> Vec<(Ticket, String)> {
        let turns = std::iter::from_fn(|| queue.poll_turn());
        turns
            .map(|ticket| (ticket, names[&ticket].clone()))
            .collect()
    }

    #[test]
    fn oldest_begins_first_and_ties_follow_the_name() {
        /// Requests as due time and name, and the order of their turns.
        type Case = (&'static [(u64, &'static str)], &'static [&'static str]);
        let table: &[Case] = &[
            (&[], &[]),
            (&[(5, "a"), (3, "b")], &["b", "a"]),
            (&[(5, "b"), (5, "a"), (5, "c")], &["a", "b", "c"]),
            (&[(9, "a"), (0, "z"), (4, "m")], &["z", "m", "a"]),
            (&[(1, "a"), (1, "a")], &["a", "a"]),
        ];
        for (requests, expected) in table {
            let mut queue = Queue::new(1);
            let tickets = requests.iter().map(|(due, name)| {
                let ticket = queue.handle_request(at(*due), name);
                (ticket, (*name).to_owned())
            });
            let names: BTreeMap<_, _> = tickets.collect();
            let mut order = Vec::new();
            while let [(ticket, name)] = &begun(&mut queue, &names)[..] {
                order.push(name.clone());
                queue.handle_end(*ticket);
            }
            assert_eq!(order, *expected, "{requests:?}");
        }
    }

    #[test]
    fn five_thousand_domains_take_turns() {
        let mut queue = Queue::new(LIMIT);
        let mut names = BTreeMap::new();
        for number in 0..5000 {
            let name = format!("{number:04}.example");
            names.insert(queue.handle_request(at(1), &name), name);
        }
        let mut running: Vec<_> = begun(&mut queue, &names);
        let mut served = 0;
        while let Some((ticket, name)) = running.first().cloned() {
            assert!(running.len() <= LIMIT);
            assert_eq!(name, format!("{served:04}.example"));
            served += 1;
            running.remove(0);
            queue.handle_end(ticket);
            running.extend(begun(&mut queue, &names));
        }
        assert_eq!(served, 5000);
        assert!(queue.places.is_empty() && queue.running.is_empty() && queue.waiting.is_empty());
    }

    #[test]
    fn domain_that_failed_waits_behind_the_others() {
        let mut queue = Queue::new(1);
        let failing = queue.handle_request(at(0), "a");
        assert_eq!(queue.poll_turn(), Some(failing));
        let other = queue.handle_request(at(10), "b");
        queue.handle_end(failing);
        // Its next attempt has been due since the end of its wait.
        let again = queue.handle_request(at(60), "a");
        assert_eq!(queue.poll_turn(), Some(other));
        queue.handle_end(other);
        assert_eq!(queue.poll_turn(), Some(again));
    }

    #[test]
    fn domain_that_gave_up_is_passed_over() {
        let mut queue = Queue::new(1);
        let [first, second, third] = ["a", "b", "c"].map(|name| queue.handle_request(at(0), name));
        assert_eq!(queue.poll_turn(), Some(first));
        queue.handle_end(second);
        queue.handle_end(second);
        assert_eq!(queue.poll_turn(), None);
        queue.handle_end(first);
        assert_eq!(queue.poll_turn(), Some(third));
    }
}
