//! Debouncing of bursts of changes.

use std::time::{Duration, Instant};

/// Debouncer with a bounded delay.
#[derive(Debug)]
pub struct Debounce {
    quiet: Duration,
    limit: Duration,
    /// First and last pending change.
    waiting: Option<(Instant, Instant)>,
}

impl Debounce {
    /// Creates a debouncer that fires `quiet` after the last change of a burst, but at most `limit`
    /// after the first.
    #[must_use]
    pub fn new(quiet: Duration, limit: Duration) -> Self {
        Self {
            quiet,
            limit,
            waiting: None,
        }
    }

    /// Records a change.
    pub fn handle_change(&mut self, now: Instant) {
        let first = self.waiting.map_or(now, |(first, _)| first);
        self.waiting = Some((first, now));
    }

    /// Time at which to fire; `None` without pending changes.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting
            .map(|(first, last)| (first + self.limit).min(last + self.quiet))
    }

    /// Returns whether to fire now; if so, clears the pending changes.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let due = self.poll_timeout().is_some_and(|due| due <= now);
        if due {
            self.waiting = None;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn fires_once_after_a_burst() {
        let start = Instant::now();
        let mut debounce = Debounce::new(ms(200), ms(1000));
        assert!(!debounce.handle_timeout(start));
        debounce.handle_change(start);
        debounce.handle_change(start + ms(150));
        assert!(!debounce.handle_timeout(start + ms(349)));
        assert!(debounce.handle_timeout(start + ms(350)));
        assert!(!debounce.handle_timeout(start + ms(900)));
        assert_eq!(debounce.poll_timeout(), None);
    }

    #[test]
    fn steady_changes_are_delayed_up_to_limit() {
        let start = Instant::now();
        let mut debounce = Debounce::new(ms(200), ms(1000));
        let mut acted = Vec::new();
        for at in (0..3000).step_by(100) {
            debounce.handle_change(start + ms(at));
            if debounce.handle_timeout(start + ms(at)) {
                acted.push(at);
            }
        }
        assert_eq!(acted, [1000, 2100]);
    }
}
