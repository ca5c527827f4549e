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

/// Effect for the driver to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
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
    pub fn new(has_row: bool, now: Instant) -> Self {
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
    pub fn handle_row(&mut self, present: bool, now: Instant) {
        self.row = match (present, self.row) {
            (true, _) => Row::Present,
            (false, Row::Present) => self.absent(now),
            (false, row) => row,
        };
    }

    /// Handles the outcome of ensuring the network.
    pub fn handle_ensured(&mut self, succeeded: bool, now: Instant) {
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
    pub fn handle_removal(&mut self, outcome: Option<Removal>, now: Instant) {
        self.busy = false;
        let Row::Absent { .. } = self.row else {
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

    /// Returns the next effect; call it until it returns `None`.
    pub fn poll_effect(&mut self, now: Instant) -> Option<Effect> {
        if let Row::Expected { until } = self.row
            && until <= now
        {
            self.row = self.absent(now);
        }
        if self.busy {
            return None;
        }
        if std::mem::take(&mut self.requested) {
            self.busy = true;
            self.gone = false;
            return Some(Effect::Ensure);
        }
        if std::mem::take(&mut self.gone) {
            return Some(Effect::Gone);
        }
        match self.row {
            Row::Absent { remove_at } if remove_at <= now => {
                self.busy = true;
                Some(Effect::Remove)
            }
            Row::Absent { .. } | Row::Present | Row::Expected { .. } | Row::Gone => None,
        }
    }

    /// Time at which to poll again if no input arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.row {
            Row::Expected { until } => Some(until),
            Row::Absent { remove_at } if !self.busy => Some(remove_at),
            Row::Absent { .. } | Row::Present | Row::Gone => None,
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

    fn requested(has_row: bool, now: Instant) -> Core {
        let mut core = Core::new(has_row, now);
        core.handle_request();
        assert_eq!(core.poll_effect(now), Some(Effect::Ensure));
        core
    }

    #[test]
    fn network_with_block_is_unchanged() {
        let now = Instant::now();
        let mut core = Core::new(true, now);
        assert_eq!(core.poll_effect(now + SECOND * 3600), None);
        assert_eq!(core.poll_timeout(), None);
    }

    #[test]
    fn requests_during_a_job_share_the_next() {
        let now = Instant::now();
        let mut core = requested(true, now);
        core.handle_request();
        core.handle_request();
        assert_eq!(core.poll_effect(now), None);
        core.handle_ensured(true, now);
        assert_eq!(core.poll_effect(now), Some(Effect::Ensure));
        core.handle_ensured(true, now);
        assert_eq!(core.poll_effect(now), None);
    }

    #[test]
    fn network_without_block_is_removed_once_unused() {
        let now = Instant::now();
        let mut core = Core::new(true, now);
        core.handle_row(false, now);
        assert_eq!(core.poll_effect(now), None);
        let mut at = core.poll_timeout().unwrap();
        assert_eq!(at - now, FIRST_REMOVAL);
        let mut delays = Vec::new();
        for _ in 0..6 {
            assert_eq!(core.poll_effect(at), Some(Effect::Remove));
            assert_eq!(core.poll_timeout(), None);
            core.handle_removal(Some(Removal::InUse), at);
            delays.push((core.poll_timeout().unwrap() - at).as_secs());
            at = core.poll_timeout().unwrap();
        }
        assert_eq!(delays, [2, 4, 8, 16, 30, 30]);
        assert_eq!(core.poll_effect(at), Some(Effect::Remove));
        core.handle_removal(Some(Removal::Gone), at);
        assert_eq!(core.poll_effect(at), Some(Effect::Gone));
        assert_eq!(core.poll_effect(at), None);
        assert_eq!(core.poll_timeout(), None);
    }

    #[test]
    fn failed_removal_is_retried() {
        let now = Instant::now();
        let mut core = Core::new(false, now);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), Some(Effect::Remove));
        core.handle_removal(None, at);
        assert_eq!(core.poll_effect(at), None);
        assert_eq!(core.poll_timeout(), Some(at + SECOND * 2));
    }

    #[test]
    fn new_network_survives_lagging_state() {
        let now = Instant::now();
        let mut core = requested(false, now);
        core.handle_ensured(true, now);
        core.handle_row(false, now);
        for second in 0..60 {
            assert_eq!(core.poll_effect(now + SECOND * second), None);
        }
        core.handle_row(true, now + SECOND * 59);
        assert_eq!(core.poll_effect(now + ROW_LAG * 2), None);
    }

    #[test]
    fn new_network_without_visible_block_is_removed() {
        let now = Instant::now();
        let mut core = requested(false, now);
        core.handle_ensured(true, now);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), None);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), Some(Effect::Remove));
    }

    #[test]
    fn block_returning_during_removal_keeps_the_actor() {
        let now = Instant::now();
        let mut core = Core::new(false, now);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), Some(Effect::Remove));
        core.handle_row(true, at);
        core.handle_removal(Some(Removal::Gone), at);
        assert_eq!(core.poll_effect(at), None);
    }

    #[test]
    fn request_during_removal_recreates_network() {
        let now = Instant::now();
        let mut core = Core::new(false, now);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), Some(Effect::Remove));
        core.handle_request();
        assert_eq!(core.poll_effect(at), None);
        core.handle_removal(Some(Removal::Gone), at);
        assert_eq!(core.poll_effect(at), Some(Effect::Ensure));
    }

    #[test]
    fn failed_request_without_block_leaves_no_network() {
        let now = Instant::now();
        let mut core = requested(false, now);
        core.handle_ensured(false, now);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), Some(Effect::Remove));
        core.handle_removal(Some(Removal::Gone), at);
        assert_eq!(core.poll_effect(at), Some(Effect::Gone));
        core.handle_request();
        assert_eq!(core.poll_effect(at), Some(Effect::Ensure));
        core.handle_ensured(false, at);
        assert!(core.poll_timeout().is_some());
    }
}
