//! Whether this node may act on what its own state says. Pure.
//!
//! A node that was cut off, paused or just started holds an old state: its replicas may run
//! elsewhere by now. It is *current* once it has applied everything that was committed when it
//! asked the leader, and until it loses the leader for as long as it takes to be found missing.
//!
//! Unlike the silence of others, its own is measured in all of the time that passed: the others
//! did not stop when this process did.

use std::time::{Duration, Instant};

use super::core::HEARD_FOR;

/// Time between two attempts to catch up.
const RETRY: Duration = Duration::from_secs(1);

/// What the core is told; each with the time of this node's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// This node leads, or a leader said whether it hears this node.
    Listed(bool),
    /// Whether the newest state calls this node `unhealthy` or `offline`.
    Condemned(bool),
    /// Time passed.
    Tick,
    /// Outcome of [`Effect::Confirm`]: whether everything committed by then is applied here.
    Confirmed {
        /// The attempt it answers.
        attempt: u64,
        /// Whether it went well.
        current: bool,
    },
}

/// What the core asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask the leader what is committed, apply it, and tell the outcome.
    Confirm {
        /// Number of the attempt; only the newest one counts.
        attempt: u64,
    },
}

/// Follows whether this node is current.
#[derive(Debug, Default)]
pub struct Core {
    current: bool,
    condemned: bool,
    attempt: u64,
    asking: bool,
    next: Option<Instant>,
    last: Option<Instant>,
    /// When the leader was last proven to be there.
    touched: Option<Instant>,
    /// When a leader last said that it hears this node.
    listed: Option<Instant>,
}

impl Core {
    /// Takes one input and returns what must be done.
    pub fn handle(&mut self, now: Instant, input: Input) -> Option<Effect> {
        let paused = self.last.replace(now).is_some_and(|last| old(last, now));
        // What comes in right after a pause may have been sent before it.
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
                    // What was said before the verdict is no way back from it.
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

    /// Whether what the state says may be acted on.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.current
    }

    /// Whether the leader hears this node, or is it.
    #[must_use]
    pub fn is_listed(&self, now: Instant) -> bool {
        self.listed.is_some_and(|listed| !old(listed, now))
    }

    fn lose(&mut self) {
        self.current = false;
        // An answer under way may be from before.
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

        /// One that has caught up.
        fn current() -> Self {
            let mut world = Self::new();
            let attempt = world.tell(Input::Tick).expect("it asks at once");
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

        /// Attempts that were begun in this many seconds of ticks.
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
    fn a_node_that_starts_is_behind_until_the_leader_answered() {
        let mut world = World::new();
        let first = world.tell(Input::Tick).unwrap();
        assert_eq!(world.run(20, false).len(), 0, "one attempt at a time");
        assert_eq!(world.answer(first, false), None);
        let next = world.run(2, false);
        assert_eq!(next.len(), 1);
        assert!(!world.core.is_current());
        world.answer(next[0], true);
        assert!(world.core.is_current());
        assert!(!world.core.is_listed(world.now), "it was not heard yet");
    }

    #[test]
    fn one_that_is_in_touch_stays_current_without_asking() {
        let mut world = World::current();
        assert_eq!(world.run(600, true).len(), 0);
        assert!(world.core.is_current() && world.core.is_listed(world.now));
    }

    #[test]
    fn one_that_lost_the_leader_is_behind_and_asks_again() {
        let mut world = World::current();
        world.run(10, true);
        assert_eq!(world.run(5, false).len(), 0);
        assert!(world.core.is_current());
        let attempts = world.run(1, false);
        assert_eq!(attempts.len(), 1);
        assert!(!world.core.is_current() && !world.core.is_listed(world.now));
        // A leader that hears it is not enough: the log in between is missing.
        world.run(5, true);
        assert!(!world.core.is_current());
        world.answer(attempts[0], true);
        assert!(world.core.is_current());
    }

    #[test]
    fn only_the_newest_word_of_a_leader_lists_a_node() {
        let mut world = World::current();
        world.tell(Input::Listed(true));
        assert!(world.core.is_listed(world.now));
        world.tell(Input::Listed(false));
        assert!(!world.core.is_listed(world.now));
        world.tell(Input::Listed(true));
        world.tell(Input::Condemned(true));
        assert!(
            !world.core.is_listed(world.now),
            "that was before the verdict"
        );
    }

    #[test]
    fn a_long_pause_shows_though_the_first_thing_heard_is_a_leader() {
        let mut world = World::current();
        world.now += Duration::from_secs(30);
        let attempt = world.tell(Input::Listed(true)).expect("it asks");
        assert!(!world.core.is_current());
        // The answer to an attempt from before the pause is no answer.
        world.answer(attempt - 1, true);
        assert!(!world.core.is_current());
        world.answer(attempt, true);
        assert!(world.core.is_current());
    }

    #[test]
    fn being_condemned_counts_once_and_outdates_an_answer_under_way() {
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
        assert!(world.core.is_current(), "it is still the same verdict");
    }
}
