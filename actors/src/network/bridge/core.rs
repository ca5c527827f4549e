//! When a network is ensured and when it is removed.
//!
//! One job at a time. A request makes the network, by a job that begins after it: one that is
//! under way may have got a block that the deployment has lost again by now. The network stays for as long as the host has an
//! address block for it, and goes when the block is gone and nothing is attached any more.

use std::time::{Duration, Instant};

use super::Removal;

/// Time between the loss of the block and the first try to remove the network.
pub(super) const FIRST_REMOVAL: Duration = Duration::from_secs(1);
/// Longest time between two tries.
pub(super) const LAST_RETRY: Duration = Duration::from_secs(30);
/// How long a block that was just given may be missing from this host's state.
pub(super) const ROW_LAG: Duration = Duration::from_secs(60);

/// What the shell must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Make the network as wanted, for everybody who asked.
    Ensure,
    /// Remove the network if nothing is attached.
    Remove,
    /// Tell the manager that nothing is left to look after.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Present,
    /// Given to us, and not seen in the state yet.
    Expected {
        until: Instant,
    },
    Absent {
        remove_at: Instant,
    },
    /// Absent, and so is the network.
    Gone,
}

/// Decides for one network; see the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Core {
    row: Row,
    requested: bool,
    busy: bool,
    retry: Duration,
    gone: bool,
}

impl Core {
    /// Starts with what the state says about the block.
    pub(super) fn new(has_row: bool, now: Instant) -> Self {
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

    /// Somebody wants to use the network.
    pub(super) fn handle_request(&mut self) {
        self.requested = true;
    }

    /// The state has the block, or has it no longer.
    pub(super) fn handle_row(&mut self, present: bool, now: Instant) {
        self.row = match (present, self.row) {
            (true, _) => Row::Present,
            (false, Row::Present) => self.absent(now),
            (false, row) => row,
        };
    }

    /// The network was made, or could not be.
    pub(super) fn handle_ensured(&mut self, succeeded: bool, now: Instant) {
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

    /// A removal is over; `None` if it failed.
    pub(super) fn handle_removal(&mut self, outcome: Option<Removal>, now: Instant) {
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

    /// What to do now; to be asked until there is nothing.
    pub(super) fn poll_effect(&mut self, now: Instant) -> Option<Effect> {
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

    /// When to poll again if nothing happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
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
    fn network_with_a_block_is_left_alone() {
        let now = Instant::now();
        let mut core = Core::new(true, now);
        assert_eq!(core.poll_effect(now + SECOND * 3600), None);
        assert_eq!(core.poll_timeout(), None);
    }

    #[test]
    fn requests_that_arrive_during_a_job_share_the_next_one() {
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
    fn network_goes_after_its_block_once_nothing_is_attached() {
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
    fn failed_removal_is_tried_again() {
        let now = Instant::now();
        let mut core = Core::new(false, now);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), Some(Effect::Remove));
        core.handle_removal(None, at);
        assert_eq!(core.poll_effect(at), None);
        assert_eq!(core.poll_timeout(), Some(at + SECOND * 2));
    }

    #[test]
    fn fresh_network_survives_a_state_that_lags() {
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
    fn fresh_network_whose_block_never_appears_is_removed() {
        let now = Instant::now();
        let mut core = requested(false, now);
        core.handle_ensured(true, now);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), None);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), Some(Effect::Remove));
    }

    #[test]
    fn block_that_returns_during_a_removal_keeps_the_actor() {
        let now = Instant::now();
        let mut core = Core::new(false, now);
        let at = core.poll_timeout().unwrap();
        assert_eq!(core.poll_effect(at), Some(Effect::Remove));
        core.handle_row(true, at);
        core.handle_removal(Some(Removal::Gone), at);
        assert_eq!(core.poll_effect(at), None);
    }

    #[test]
    fn request_during_a_removal_makes_the_network_again() {
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
    fn failed_request_without_a_block_leaves_nothing_behind() {
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
