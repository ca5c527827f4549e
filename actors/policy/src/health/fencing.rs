//! Fencing: decides whether this node may act on its own state. Pure.
//!
//! A node that was partitioned, paused or just started has an old state: its replicas may run
//! elsewhere by now. The node is *current* once it has applied every entry committed when it asked
//! the leader, and stays so until it has had no contact with the leader for the time after which
//! the leader stops counting it as live.
//!
//! The time from becoming current until the next fencing is one contact, with a number of its own: a
//! check made in an earlier contact says nothing about this one.
//!
//! Unlike the silence of other members, the time without contact includes pauses of this process:
//! the other members ran on.

use std::time::{Duration, Instant};

use jaco_proto::v1::NodeStatus;

use super::core::LIVE_FOR;

/// Delay between attempts to catch up.
const RETRY: Duration = Duration::from_secs(1);
/// Shortest time without events in which other members may have elected another leader: raft's
/// election timeout.
const DEPOSED_AFTER: Duration = Duration::from_secs(1);
/// Time in which a leader that was deposed finds out: raft checks the quorum once in an election
/// timeout, the first time with answers from before the pause. The rest is for the checks to arrive.
const LEADS_AFTER: Duration = Duration::from_secs(3);

/// Action that the shell must carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Confirm through the leader that this node has applied every committed entry, and report the
    /// result with [`Core::handle_confirmed`].
    Confirm {
        /// Number of the attempt; only the result of the newest one counts.
        attempt: u64,
    },
}

/// Number of one contact with the cluster: the time from catching up until this node is fenced. No
/// two contacts of one process have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContactEpoch(u64);

impl ContactEpoch {
    /// The contact with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Tracks whether this node is current.
#[derive(Debug, Default)]
pub struct Core {
    current: bool,
    /// Number of contacts so far; the present one has this number.
    contacts: u64,
    /// Status of this node, as far as it says that the node is down.
    marked_down: Option<NodeStatus>,
    attempt: u64,
    confirming: bool,
    next: Option<Instant>,
    last: Option<Instant>,
    /// Time of the last proof of contact with the leader.
    last_contact: Option<Instant>,
    /// Time of the last event that had this node in the leader's live set; `None` after one that
    /// did not.
    seen_by_leader: Option<Instant>,
    /// After a pause: time from which on this node leads if it says so.
    leads_from: Option<Instant>,
    action: Option<Action>,
}

impl Core {
    /// Handles a restart of the shell, which never receives the results of attempts in flight: this
    /// node is fenced until it catches up again.
    pub fn handle_restart(&mut self) {
        *self = Self {
            contacts: self.contacts,
            ..Self::default()
        };
    }

    /// Handles a timer tick, as [`Core::handle_tick`], of a node that leads as far as it knows. That
    /// is contact, except right after a pause, in which it may have been deposed.
    pub fn handle_leads(&mut self, now: Instant) {
        self.handle_tick(now);
        if self.leads_from.is_none_or(|from| now >= from) {
            self.handle_seen_by_leader(now, true);
        }
    }

    /// Handles that a heartbeat of the leader says whether its live set contains this node.
    pub fn handle_seen_by_leader(&mut self, now: Instant, seen: bool) {
        self.begin(now);
        if seen {
            // The attempt that failed was made without a leader.
            if !self.is_seen_by_leader(now) {
                self.next = None;
            }
            self.seen_by_leader = Some(now);
            self.last_contact = Some(now);
        } else {
            self.seen_by_leader = None;
        }
        self.finish(now);
    }

    /// Handles the status of this node in the newest state; `None` if it has no row there. Each mark
    /// as `unhealthy` or `offline` fences this node, also one that follows the other: `offline`
    /// moves replicas, which a check made before it did not see.
    pub fn handle_status(&mut self, now: Instant, status: Option<NodeStatus>) {
        self.begin(now);
        let marked_down = status.filter(|status| match status {
            NodeStatus::Unhealthy | NodeStatus::Offline => true,
            NodeStatus::Unspecified
            | NodeStatus::Joining
            | NodeStatus::Ready
            | NodeStatus::IsolationUnavailable
            | NodeStatus::DrainTimeout => false,
        });
        let before = std::mem::replace(&mut self.marked_down, marked_down);
        if marked_down.is_some() && marked_down != before {
            // A live set from before the status change does not allow the return to ready.
            self.seen_by_leader = None;
            self.fence();
        }
        self.finish(now);
    }

    /// Handles the result of [`Action::Confirm`]: whether every entry committed when it was
    /// requested is applied here.
    pub fn handle_confirmed(&mut self, now: Instant, attempt: u64, current: bool) {
        self.begin(now);
        if attempt == self.attempt && self.confirming {
            self.confirming = false;
            if current {
                self.contacts += u64::from(!self.current);
                self.current = true;
                self.last_contact = Some(now);
            } else {
                self.next = Some(now + RETRY);
            }
        }
        self.finish(now);
    }

    /// Handles that the log is not applied here at the moment, as on a disk that does not answer.
    /// Contact with the leader does not outweigh that; entries that are missing must be read first.
    pub fn handle_stalled(&mut self, now: Instant) {
        self.begin(now);
        // Attempts go on, but none succeeds before the log is applied again.
        if self.current {
            self.fence();
        }
        self.finish(now);
    }

    /// Handles a timer tick, due several times a second in any case. There is no deadline to sleep
    /// until: a long time without any event is how this core finds a pause of its process.
    pub fn handle_tick(&mut self, now: Instant) {
        self.begin(now);
        self.finish(now);
    }

    /// Takes the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.action.take()
    }

    /// Whether this node may act on its state, as of the last event.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.current
    }

    /// The present contact, if this node may act on its state at `now`. Unlike
    /// [`Core::is_current`], it does not wait for an event to find that contact was lost or that the
    /// process was paused.
    #[must_use]
    pub fn contact(&self, now: Instant) -> Option<ContactEpoch> {
        let recent = |at: Option<Instant>| at.is_some_and(|at| !is_expired(at, now));
        (self.current && recent(self.last) && recent(self.last_contact))
            .then_some(ContactEpoch(self.contacts))
    }

    /// Whether the leader recently had this node in its live set, or this node leads.
    #[must_use]
    pub fn is_seen_by_leader(&self, now: Instant) -> bool {
        self.seen_by_leader
            .is_some_and(|seen_by_leader| !is_expired(seen_by_leader, now))
    }

    /// Fences this node if it was paused or has lost contact, whatever the event says: the event may
    /// have been sent before that, and [`Core::contact`] may already have said so.
    fn begin(&mut self, now: Instant) {
        let expired = |at| is_expired(at, now);
        let before = self.last.replace(now);
        if before.is_some_and(|last| now.saturating_duration_since(last) >= DEPOSED_AFTER) {
            self.leads_from = Some(now + LEADS_AFTER);
        }
        let paused = before.is_some_and(expired);
        let lost = self.current && self.last_contact.is_none_or(expired);
        if paused || lost {
            self.fence();
        }
    }

    /// Requests a confirmation if one is due.
    fn finish(&mut self, now: Instant) {
        if self.current || self.confirming || self.next.is_some_and(|next| now < next) {
            return;
        }
        self.confirming = true;
        self.attempt += 1;
        self.action = Some(Action::Confirm {
            attempt: self.attempt,
        });
    }

    fn fence(&mut self) {
        self.current = false;
        // A result in flight may be from before.
        self.confirming = false;
        self.next = None;
    }
}

fn is_expired(then: Instant, now: Instant) -> bool {
    now.saturating_duration_since(then) >= LIVE_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        core: Core,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let (core, now) = (Core::default(), Instant::now());
            Self { core, now }
        }

        /// A world in which the node has caught up.
        fn current() -> Self {
            let mut fixture = Self::new();
            let attempt = fixture.tick().expect("first attempt");
            assert_eq!(fixture.answer(attempt, true), None);
            assert!(fixture.core.is_current());
            fixture
        }

        fn attempt(&mut self) -> Option<u64> {
            let action = self.core.poll_action();
            action.map(|Action::Confirm { attempt }| attempt)
        }

        fn tick(&mut self) -> Option<u64> {
            self.core.handle_tick(self.now);
            self.attempt()
        }

        fn see(&mut self, seen: bool) -> Option<u64> {
            self.core.handle_seen_by_leader(self.now, seen);
            self.attempt()
        }

        fn mark(&mut self, status: NodeStatus) -> Option<u64> {
            self.core.handle_status(self.now, Some(status));
            self.attempt()
        }

        fn answer(&mut self, attempt: u64, current: bool) -> Option<u64> {
            self.core.handle_confirmed(self.now, attempt, current);
            self.attempt()
        }

        /// Attempts started during this many seconds of ticks.
        fn run(&mut self, seconds: u64, seen_by_leader: bool) -> Vec<u64> {
            let mut attempts = Vec::new();
            for _ in 0..4 * seconds {
                self.now += Duration::from_millis(250);
                if seen_by_leader {
                    attempts.extend(self.see(true));
                }
                attempts.extend(self.tick());
            }
            attempts
        }
    }

    #[test]
    fn starting_node_is_fenced_until_leader_confirms() {
        let mut fixture = Fixture::new();
        let first = fixture.tick().unwrap();
        assert_eq!(fixture.run(20, false).len(), 0, "one attempt at a time");
        assert_eq!(fixture.answer(first, false), None);
        let next = fixture.run(2, false);
        assert_eq!(next.len(), 1);
        assert!(!fixture.core.is_current());
        fixture.answer(next[0], true);
        assert!(fixture.core.is_current());
        assert!(
            !fixture.core.is_seen_by_leader(fixture.now),
            "not in a live set"
        );
    }

    #[test]
    fn new_contact_with_leader_retries_at_once() {
        let mut fixture = Fixture::new();
        let first = fixture.tick().unwrap();
        fixture.answer(first, false);
        assert_eq!(fixture.tick(), None, "too early to retry");
        let second = fixture.see(true).expect("an attempt starts");
        fixture.answer(second, false);
        assert_eq!(fixture.see(true), None, "the contact is not new");
    }

    #[test]
    fn contact_with_leader_keeps_node_current() {
        let mut fixture = Fixture::current();
        assert_eq!(fixture.run(600, true).len(), 0);
        assert!(fixture.core.is_current() && fixture.core.is_seen_by_leader(fixture.now));
    }

    #[test]
    fn lost_contact_fences_node_until_confirmed() {
        let mut fixture = Fixture::current();
        fixture.run(10, true);
        assert_eq!(fixture.run(5, false).len(), 0);
        assert!(fixture.core.is_current());
        let attempts = fixture.run(1, false);
        assert_eq!(attempts.len(), 1);
        assert!(!fixture.core.is_current() && !fixture.core.is_seen_by_leader(fixture.now));
        // Renewed contact is not enough: log entries in between are missing.
        fixture.run(5, true);
        assert!(!fixture.core.is_current());
        fixture.answer(attempts[0], true);
        assert!(fixture.core.is_current());
    }

    #[test]
    fn newest_live_set_decides_whether_node_is_listed() {
        let mut fixture = Fixture::current();
        fixture.see(true);
        assert!(fixture.core.is_seen_by_leader(fixture.now));
        fixture.see(false);
        assert!(!fixture.core.is_seen_by_leader(fixture.now));
        fixture.see(true);
        fixture.mark(NodeStatus::Unhealthy);
        assert!(
            !fixture.core.is_seen_by_leader(fixture.now),
            "a live set from before the mark does not count"
        );
    }

    #[test]
    fn long_pause_fences_despite_leader_heartbeat() {
        let mut fixture = Fixture::current();
        fixture.now += Duration::from_secs(30);
        let attempt = fixture.see(true).expect("an attempt starts");
        assert!(!fixture.core.is_current());
        // The result of an attempt from before the pause is ignored.
        fixture.answer(attempt - 1, true);
        assert!(!fixture.core.is_current());
        fixture.answer(attempt, true);
        assert!(fixture.core.is_current());
    }

    #[test]
    fn paused_leader_is_no_contact_of_its_own() {
        let mut fixture = Fixture::current();
        for _ in 0..4 * 60 {
            fixture.now += Duration::from_millis(250);
            fixture.core.handle_leads(fixture.now);
        }
        assert!(fixture.core.is_current(), "a leader is in contact");
        // Shorter than a contact, and long enough for the others to elect another leader.
        fixture.now += Duration::from_secs(4);
        fixture.core.handle_leads(fixture.now);
        assert!(fixture.core.is_current(), "contact was two seconds longer");
        fixture.run(2, false);
        assert!(
            !fixture.core.is_current(),
            "it counts from before the pause"
        );
    }

    #[test]
    fn leader_that_stays_leader_is_in_contact_again() {
        let mut fixture = Fixture::current();
        fixture.now += Duration::from_secs(2);
        for _ in 0..4 * 60 {
            fixture.core.handle_leads(fixture.now);
            assert!(fixture.core.is_current());
            fixture.now += Duration::from_millis(250);
        }
    }

    #[test]
    fn stalled_log_fences_despite_contact() {
        let mut fixture = Fixture::current();
        fixture.see(true);
        fixture.core.handle_stalled(fixture.now);
        assert!(!fixture.core.is_current());
        let attempt = fixture.attempt().expect("an attempt starts");
        fixture.core.handle_stalled(fixture.now);
        assert_eq!(fixture.attempt(), None, "one attempt at a time");
        assert_eq!(fixture.run(60, true).len(), 0);
        assert!(!fixture.core.is_current(), "contact is not enough");
        fixture.answer(attempt, true);
        assert!(fixture.core.is_current());
    }

    #[test]
    fn contact_ends_in_time_without_events() {
        let mut fixture = Fixture::current();
        let first = fixture.core.contact(fixture.now).expect("in contact");
        fixture.run(10, true);
        assert_eq!(fixture.core.contact(fixture.now), Some(first));
        let almost = LIVE_FOR - Duration::from_millis(1);
        assert_eq!(fixture.core.contact(fixture.now + almost), Some(first));
        // The process was paused, and the core has had no event since.
        fixture.now += LIVE_FOR;
        assert_eq!(fixture.core.contact(fixture.now), None);
        assert!(fixture.core.is_current(), "as of the last event");
        // A heartbeat that waited during the pause does not continue the contact.
        let attempt = fixture.see(true).expect("an attempt starts");
        fixture.answer(attempt, true);
        let second = fixture.core.contact(fixture.now).expect("in contact");
        assert!(second > first);
        fixture.core.handle_restart();
        assert_eq!(fixture.core.contact(fixture.now), None);
        let attempt = fixture.tick().expect("an attempt starts");
        fixture.answer(attempt, true);
        assert!(fixture.core.contact(fixture.now) > Some(second));
    }

    #[test]
    fn late_heartbeat_does_not_continue_lost_contact() {
        let mut fixture = Fixture::current();
        let first = fixture.core.contact(fixture.now).expect("in contact");
        fixture.run(5, false);
        fixture.now += Duration::from_secs(1);
        assert_eq!(fixture.core.contact(fixture.now), None);
        let attempt = fixture.see(true).expect("an attempt starts");
        assert!(!fixture.core.is_current());
        fixture.answer(attempt, true);
        assert!(fixture.core.contact(fixture.now) > Some(first));
    }

    #[test]
    fn mark_down_fences_and_voids_attempt_in_flight() {
        let mut fixture = Fixture::current();
        let first = fixture.mark(NodeStatus::Unhealthy).unwrap();
        assert!(!fixture.core.is_current());
        fixture.mark(NodeStatus::Ready);
        let second = fixture.mark(NodeStatus::Unhealthy).unwrap();
        fixture.answer(first, true);
        assert!(!fixture.core.is_current());
        fixture.answer(second, true);
        assert!(fixture.core.is_current());
        assert_eq!(fixture.mark(NodeStatus::Unhealthy), None);
        assert!(fixture.core.is_current(), "still the same mark");
        let third = fixture.mark(NodeStatus::Offline).unwrap();
        assert!(!fixture.core.is_current(), "replicas moved since the check");
        fixture.answer(third, true);
        fixture.mark(NodeStatus::Ready);
        assert!(fixture.core.is_current(), "no mark");
    }
}
