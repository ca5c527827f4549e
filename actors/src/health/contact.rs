//! Fencing: decides whether this node may act on its own state. Pure.
//!
//! A node that was partitioned, paused or just started has an old state: its replicas may run
//! elsewhere by now. The node is *current* once it has applied every entry committed when it asked
//! the leader, and stays so until it has had no contact with the leader for the time after which
//! the leader stops counting it as live.
//!
//! Unlike the silence of other members, the time without contact includes pauses of this process:
//! the other members ran on.

use std::time::{Duration, Instant};

use super::core::HEARD_FOR;

/// Delay between attempts to catch up.
const RETRY: Duration = Duration::from_secs(1);

/// Inputs of the core, each with the time of this node's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// This node leads, or a heartbeat of the leader says whether its live set contains this node.
    Listed(bool),
    /// Whether the newest state has this node as `unhealthy` or `offline`.
    Condemned(bool),
    /// Timer tick.
    Tick,
    /// Result of [`Effect::Confirm`]: whether every entry committed when it was requested is
    /// applied here.
    Confirmed {
        /// Number of the attempt.
        attempt: u64,
        /// Whether it succeeded.
        current: bool,
    },
}

/// Effects requested by the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Confirm through the leader that this node has applied every committed entry, and report the
    /// result.
    Confirm {
        /// Number of the attempt; only the result of the newest one counts.
        attempt: u64,
    },
}

/// Tracks whether this node is current.
#[derive(Debug, Default)]
pub struct Core {
    current: bool,
    condemned: bool,
    attempt: u64,
    asking: bool,
    next: Option<Instant>,
    last: Option<Instant>,
    /// Time of the last proof of contact with the leader.
    touched: Option<Instant>,
    /// Time of the last input that had this node in the leader's live set; `None` after one that
    /// did not.
    listed: Option<Instant>,
}

impl Core {
    /// Handles one input and returns the effect, if any.
    pub fn handle(&mut self, now: Instant, input: Input) -> Option<Effect> {
        let paused = self.last.replace(now).is_some_and(|last| old(last, now));
        // The first input after a pause may have been sent before it.
        if paused {
            self.lose();
        }
        match input {
            Input::Listed(true) => {
                self.listed = Some(now);
                self.touched = Some(now);
            }
            Input::Listed(false) => self.listed = None,
            Input::Condemned(condemned) => {
                let already = std::mem::replace(&mut self.condemned, condemned);
                if condemned && !already {
                    // A live set from before the status change does not allow the return to ready.
                    self.listed = None;
                    self.lose();
                }
            }
            Input::Tick => {}
            Input::Confirmed { attempt, current } if attempt == self.attempt && self.asking => {
                self.asking = false;
                if current {
                    self.current = true;
                    self.touched = Some(now);
                } else {
                    self.next = Some(now + RETRY);
                }
            }
            Input::Confirmed { .. } => {}
        }
        if self.current && self.touched.is_none_or(|touched| old(touched, now)) {
            self.lose();
        }
        self.ask(now)
    }

    /// Whether this node may act on its state.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.current
    }

    /// Whether the leader recently had this node in its live set, or this node leads.
    #[must_use]
    pub fn is_listed(&self, now: Instant) -> bool {
        self.listed.is_some_and(|listed| !old(listed, now))
    }

    fn lose(&mut self) {
        self.current = false;
        // A result in flight may be from before.
        self.asking = false;
        self.next = None;
    }

    fn ask(&mut self, now: Instant) -> Option<Effect> {
        if self.current || self.asking || self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.asking = true;
        self.attempt += 1;
        Some(Effect::Confirm {
            attempt: self.attempt,
        })
    }
}

fn old(then: Instant, now: Instant) -> bool {
    now.saturating_duration_since(then) >= HEARD_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        core: Core,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let (core, now) = (Core::default(), Instant::now());
            Self { core, now }
        }

        /// A world in which the node has caught up.
        fn current() -> Self {
            let mut world = Self::new();
            let attempt = world.tell(Input::Tick).expect("first attempt");
            assert_eq!(world.answer(attempt, true), None);
            assert!(world.core.is_current());
            world
        }

        fn tell(&mut self, input: Input) -> Option<u64> {
            let effect = self.core.handle(self.now, input);
            effect.map(|Effect::Confirm { attempt }| attempt)
        }

        fn answer(&mut self, attempt: u64, current: bool) -> Option<u64> {
            self.tell(Input::Confirmed { attempt, current })
        }

        /// Attempts started during this many seconds of ticks.
        fn run(&mut self, seconds: u64, listed: bool) -> Vec<u64> {
            let mut attempts = Vec::new();
            for _ in 0..4 * seconds {
                self.now += Duration::from_millis(250);
                if listed {
                    attempts.extend(self.tell(Input::Listed(true)));
                }
                attempts.extend(self.tell(Input::Tick));
            }
            attempts
        }
    }

    #[test]
    fn starting_node_is_fenced_until_leader_confirms() {
        let mut world = World::new();
        let first = world.tell(Input::Tick).unwrap();
        assert_eq!(world.run(20, false).len(), 0, "one attempt at a time");
        assert_eq!(world.answer(first, false), None);
        let next = world.run(2, false);
        assert_eq!(next.len(), 1);
        assert!(!world.core.is_current());
        world.answer(next[0], true);
        assert!(world.core.is_current());
        assert!(!world.core.is_listed(world.now), "not in a live set");
    }

    #[test]
    fn contact_with_leader_keeps_node_current() {
        let mut world = World::current();
        assert_eq!(world.run(600, true).len(), 0);
        assert!(world.core.is_current() && world.core.is_listed(world.now));
    }

    #[test]
    fn lost_contact_fences_node_until_confirmed() {
        let mut world = World::current();
        world.run(10, true);
        assert_eq!(world.run(5, false).len(), 0);
        assert!(world.core.is_current());
        let attempts = world.run(1, false);
        assert_eq!(attempts.len(), 1);
        assert!(!world.core.is_current() && !world.core.is_listed(world.now));
        // Renewed contact is not enough: log entries in between are missing.
        world.run(5, true);
        assert!(!world.core.is_current());
        world.answer(attempts[0], true);
        assert!(world.core.is_current());
    }

    #[test]
    fn newest_live_set_decides_whether_node_is_listed() {
        let mut world = World::current();
        world.tell(Input::Listed(true));
        assert!(world.core.is_listed(world.now));
        world.tell(Input::Listed(false));
        assert!(!world.core.is_listed(world.now));
        world.tell(Input::Listed(true));
        world.tell(Input::Condemned(true));
        assert!(
            !world.core.is_listed(world.now),
            "a live set from before the mark does not count"
        );
    }

    #[test]
    fn long_pause_fences_despite_leader_heartbeat() {
        let mut world = World::current();
        world.now += Duration::from_secs(30);
        let attempt = world.tell(Input::Listed(true)).expect("an attempt starts");
        assert!(!world.core.is_current());
        // The result of an attempt from before the pause is ignored.
        world.answer(attempt - 1, true);
        assert!(!world.core.is_current());
        world.answer(attempt, true);
        assert!(world.core.is_current());
    }

    #[test]
    fn mark_down_fences_and_voids_attempt_in_flight() {
        let mut world = World::current();
        let first = world.tell(Input::Condemned(true)).unwrap();
        assert!(!world.core.is_current());
        world.tell(Input::Condemned(false));
        let second = world.tell(Input::Condemned(true)).unwrap();
        world.answer(first, true);
        assert!(!world.core.is_current());
        world.answer(second, true);
        assert!(world.core.is_current());
        assert_eq!(world.tell(Input::Condemned(true)), None);
        assert!(world.core.is_current(), "still the same mark");
    }
}
