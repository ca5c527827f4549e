//! Debouncing of bursts of changes.

use std::time::{Duration, Instant};

/// Action for the driver to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Act on all changes so far.
    Run,
}

/// Debouncer with a bounded delay.
#[derive(Clone, Debug)]
pub struct Debounce {
    quiet: Duration,
    limit: Duration,
    /// First and last pending change.
    waiting: Option<(Instant, Instant)>,
    action: Option<Action>,
}

impl Debounce {
    /// Creates a debouncer that acts `quiet` after the last change of a burst, but at most `limit`
    /// after the first.
    #[must_use]
    pub fn new(quiet: Duration, limit: Duration) -> Self {
        Self {
            quiet,
            limit,
            waiting: None,
            action: None,
        }
    }

    /// Handles a change.
    pub fn handle_change(&mut self, now: Instant) {
        let first = self.waiting.map_or(now, |(first, _)| first);
        self.waiting = Some((first, now));
    }

    /// Time of the first pending change.
    #[must_use]
    pub fn pending_since(&self) -> Option<Instant> {
        self.waiting.map(|(first, _)| first)
    }

    /// Time at which to call [`Debounce::handle_timeout`]; `None` without pending changes.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting
            .map(|(first, last)| (first + self.limit).min(last + self.quiet))
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.waiting = None;
            self.action = Some(Action::Run);
        }
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.action.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Whether the changes are acted on at `now`.
    fn runs(debounce: &mut Debounce, now: Instant) -> bool {
        debounce.handle_timeout(now);
        debounce.poll_action() == Some(Action::Run)
    }

    #[test]
    fn acts_once_after_a_burst() {
        let start = Instant::now();
        let mut debounce = Debounce::new(ms(200), ms(1000));
        assert!(!runs(&mut debounce, start));
        debounce.handle_change(start);
        debounce.handle_change(start + ms(150));
        assert!(!runs(&mut debounce, start + ms(349)));
        assert!(runs(&mut debounce, start + ms(350)));
        assert!(!runs(&mut debounce, start + ms(900)));
        assert_eq!(debounce.poll_timeout(), None);
    }

    #[test]
    fn steady_changes_are_delayed_up_to_limit() {
        let start = Instant::now();
        let mut debounce = Debounce::new(ms(200), ms(1000));
        let mut acted = Vec::new();
        for at in (0..3000).step_by(100) {
            debounce.handle_change(start + ms(at));
            if runs(&mut debounce, start + ms(at)) {
                acted.push(at);
            }
        }
        assert_eq!(acted, [1000, 2100]);
    }
}
