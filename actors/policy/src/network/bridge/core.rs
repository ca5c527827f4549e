//! Decides when a network is ensured and when it is removed.
//!
//! Only one job runs at a time. A request is served by a job that begins after it: the block of an
//! earlier job may have been freed by now. The network is kept while the host has an address block
//! for it, and removed once the block is gone and no container is attached.

use std::time::{Duration, Instant};

use super::Removal;

/// Delay between the loss of the block and the first removal attempt.
pub const FIRST_REMOVAL: Duration = Duration::from_secs(1);
/// Longest delay between two removal attempts.
pub const LAST_RETRY: Duration = Duration::from_secs(30);
/// Time for which a newly allocated block may be missing from this host's state.
pub const ROW_LAG: Duration = Duration::from_secs(60);

/// Action for the driver to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ensure the network for all waiting requests.
    Ensure,
    /// Remove the network if nothing is attached.
    Remove,
    /// Notify the manager that the network is removed.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Present,
    /// Allocated to this host, but not yet visible in the state.
    Expected {
        until: Instant,
    },
    Absent {
        remove_at: Instant,
    },
    /// Absent, and a removal is due or in progress.
    Removable,
    /// Absent, and the network is removed.
    Gone,
}

/// State machine of one network; see the module documentation.
#[derive(Clone, Debug)]
pub struct Core {
    row: Row,
    requested: bool,
    busy: bool,
    retry: Duration,
    gone: bool,
}

impl Core {
    /// Creates the core; `has_row` is whether the state has this host's block.
    #[must_use]
    pub fn new(now: Instant, has_row: bool) -> Self {
        let remove_at = now + FIRST_REMOVAL;
        Self {
            row: if has_row {
                Row::Present
            } else {
                Row::Absent { remove_at }
            },
            requested: false,
            busy: false,
            retry: FIRST_REMOVAL,
            gone: false,
        }
    }

    /// Handles a request for the network.
    pub fn handle_request(&mut self) {
        self.requested = true;
    }

    /// Handles the appearance or disappearance of the block in the state.
    pub fn handle_row(&mut self, now: Instant, present: bool) {
        self.row = match (present, self.row) {
            (true, _) => Row::Present,
            (false, Row::Present) => self.absent(now),
            (false, row) => row,
        };
    }

    /// Handles the outcome of ensuring the network.
    pub fn handle_ensured(&mut self, now: Instant, succeeded: bool) {
        self.busy = false;
        self.row = match (succeeded, self.row) {
            (_, Row::Present) => Row::Present,
            (true, _) => Row::Expected {
                until: now + ROW_LAG,
            },
            (false, Row::Gone) => self.absent(now),
            (false, row) => row,
        };
    }

    /// Handles the outcome of a removal; `None` if it failed.
    pub fn handle_removal(&mut self, now: Instant, outcome: Option<Removal>) {
        self.busy = false;
        let (Row::Absent { .. } | Row::Removable) = self.row else {
            return;
        };
        self.row = match outcome {
            Some(Removal::Gone) => {
                self.gone = true;
                Row::Gone
            }
            Some(Removal::InUse) | None => {
                self.retry = (self.retry * 2).min(LAST_RETRY);
                Row::Absent {
                    remove_at: now + self.retry,
                }
            }
        };
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        self.row = match self.row {
            Row::Expected { .. } => self.absent(now),
            Row::Absent { .. } => Row::Removable,
            row @ (Row::Present | Row::Removable | Row::Gone) => row,
        };
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.busy {
            return None;
        }
        if std::mem::take(&mut self.requested) {
            self.busy = true;
            self.gone = false;
            return Some(Action::Ensure);
        }
        if std::mem::take(&mut self.gone) {
            return Some(Action::Gone);
        }
        self.busy = self.row == Row::Removable;
        self.busy.then_some(Action::Remove)
    }

    /// Time at which to call [`Core::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.row {
            Row::Expected { until } => Some(until),
            Row::Absent { remove_at } if !self.busy => Some(remove_at),
            Row::Absent { .. } | Row::Present | Row::Removable | Row::Gone => None,
        }
    }

    fn absent(&mut self, now: Instant) -> Row {
        self.retry = FIRST_REMOVAL;
        Row::Absent {
            remove_at: now + FIRST_REMOVAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the next action after the deadlines up to `now`.
    fn poll_at(core: &mut Core, now: Instant) -> Option<Action> {
        core.handle_timeout(now);
        core.poll_action()
    }

    fn requested(now: Instant, has_row: bool) -> Core {
        let mut core = Core::new(now, has_row);
        core.handle_request();
        assert_eq!(poll_at(&mut core, now), Some(Action::Ensure));
        core
    }

    #[test]
    fn network_with_block_is_unchanged() {
        let now = Instant::now();
        let mut core = Core::new(now, true);
        assert_eq!(poll_at(&mut core, now + SECOND * 3600), None);
        assert_eq!(core.poll_timeout(), None);
    }

    #[test]
    fn requests_during_a_job_share_the_next() {
        let now = Instant::now();
        let mut core = requested(now, true);
        core.handle_request();
        core.handle_request();
        assert_eq!(poll_at(&mut core, now), None);
        core.handle_ensured(now, true);
        assert_eq!(poll_at(&mut core, now), Some(Action::Ensure));
        core.handle_ensured(now, true);
        assert_eq!(poll_at(&mut core, now), None);
    }

    #[test]
    fn network_without_block_is_removed_once_unused() {
        let now = Instant::now();
        let mut core = Core::new(now, true);
        core.handle_row(now, false);
        assert_eq!(poll_at(&mut core, now), None);
        let mut at = core.poll_timeout().unwrap();
        assert_eq!(at - now, FIRST_REMOVAL);
        let mut delays = Vec::new();
        for _ in 0..6 {
            assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
            assert_eq!(core.poll_timeout(), None);
            core.handle_removal(at, Some(Removal::InUse));
            delays.push((core.poll_timeout().unwrap() - at).as_secs());
            at = core.poll_timeout().unwrap();
        }
        assert_eq!(delays, [2, 4, 8, 16, 30, 30]);
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
        core.handle_removal(at, Some(Removal::Gone));
        assert_eq!(poll_at(&mut core, at), Some(Action::Gone));
        assert_eq!(poll_at(&mut core, at), None);
        assert_eq!(core.poll_timeout(), None);
    }

    #[test]
    fn failed_removal_is_retried() {
        let now = Instant::now();
        let mut core = Core::new(now, false);
        let at = core.poll_timeout().unwrap();
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
        core.handle_removal(at, None);
        assert_eq!(poll_at(&mut core, at), None);
        assert_eq!(core.poll_timeout(), Some(at + SECOND * 2));
    }

    #[test]
    fn new_network_survives_lagging_state() {
        let now = Instant::now();
        let mut core = requested(now, false);
        core.handle_ensured(now, true);
        core.handle_row(now, false);
        for second in 0..60 {
            assert_eq!(poll_at(&mut core, now + SECOND * second), None);
        }
        core.handle_row(now + SECOND * 59, true);
        assert_eq!(poll_at(&mut core, now + ROW_LAG * 2), None);
    }

    #[test]
    fn new_network_without_visible_block_is_removed() {
        let now = Instant::now();
        let mut core = requested(now, false);
        core.handle_ensured(now, true);
        let at = core.poll_timeout().unwrap();
        assert_eq!(poll_at(&mut core, at), None);
        let at = core.poll_timeout().unwrap();
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
    }

    #[test]
    fn block_returning_during_removal_keeps_the_actor() {
        let now = Instant::now();
        let mut core = Core::new(now, false);
        let at = core.poll_timeout().unwrap();
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
        core.handle_row(at, true);
        core.handle_removal(at, Some(Removal::Gone));
        assert_eq!(poll_at(&mut core, at), None);
    }

    #[test]
    fn request_during_removal_recreates_network() {
        let now = Instant::now();
        let mut core = Core::new(now, false);
        let at = core.poll_timeout().unwrap();
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
        core.handle_request();
        assert_eq!(poll_at(&mut core, at), None);
        core.handle_removal(at, Some(Removal::Gone));
        assert_eq!(poll_at(&mut core, at), Some(Action::Ensure));
    }

    #[test]
    fn failed_request_without_block_leaves_no_network() {
        let now = Instant::now();
        let mut core = requested(now, false);
        core.handle_ensured(now, false);
        let at = core.poll_timeout().unwrap();
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
        core.handle_removal(at, Some(Removal::Gone));
        assert_eq!(poll_at(&mut core, at), Some(Action::Gone));
        core.handle_request();
        assert_eq!(poll_at(&mut core, at), Some(Action::Ensure));
        core.handle_ensured(at, false);
        assert!(core.poll_timeout().is_some());
    }
}
