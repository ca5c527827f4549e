//! Decides when a network is ensured, repaired and removed.
//!
//! Only one job runs at a time. A request is served by a job that begins after it: the block of an
//! earlier job may have been freed by now. The network is kept while the host has an address block
//! for it, and removed once the block is gone and no container is attached. As long as it is kept it
//! is repaired after a start, after a change of the block, and whenever it differs from the state.

use std::time::{Duration, Instant};

use super::Removal;

/// Delay between the loss of the block and the first removal attempt.
pub const FIRST_REMOVAL: Duration = Duration::from_secs(1);
/// Delay before a failed repair is retried; it doubles up to [`LAST_RETRY`].
pub const FIRST_REPAIR: Duration = Duration::from_secs(1);
/// Longest delay between two attempts to remove or repair.
pub const LAST_RETRY: Duration = Duration::from_secs(30);
/// Time for which a newly allocated block may be missing from this host's state.
pub const ROW_LAG: Duration = Duration::from_secs(60);

/// Action for the driver to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ensure the network for all waiting requests.
    Ensure,
    /// Compare the network and its containers with the state and repair the differences.
    Repair,
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
    /// The network may differ from the state.
    drifted: bool,
    /// Time of the next repair after a failed one, and the delay before that.
    repair_retry: Option<(Instant, Duration)>,
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
            drifted: has_row,
            repair_retry: None,
            busy: false,
            retry: FIRST_REMOVAL,
            gone: false,
        }
    }

    /// Handles a request for the network.
    pub fn handle_request(&mut self) {
        self.requested = true;
    }

    /// Handles a difference between the network and the state.
    pub fn handle_drift(&mut self) {
        self.drifted = true;
    }

    /// Handles the outcome of a repair; a failed one is retried.
    pub fn handle_repaired(&mut self, now: Instant, succeeded: bool) {
        self.busy = false;
        let last = self.repair_retry.map(|(_, delay)| delay);
        let delay = last.map_or(FIRST_REPAIR, |delay| (delay * 2).min(LAST_RETRY));
        self.repair_retry = (!succeeded).then_some((now + delay, delay));
    }

    /// Handles the appearance, change or disappearance of the block in the state.
    pub fn handle_row(&mut self, now: Instant, present: bool) {
        self.drifted = present;
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

    /// Handles the outcome of a removal; `None` if it failed. A network in use that
    /// `needs_block` gets another one.
    pub fn handle_removal(&mut self, now: Instant, outcome: Option<Removal>, needs_block: bool) {
        self.busy = false;
        let (Row::Absent { .. } | Row::Removable) = self.row else {
            return;
        };
        self.requested |= needs_block && outcome == Some(Removal::InUse);
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
        if let Some((due, delay)) = self.repair_retry
            && due <= now
        {
            self.repair_retry = Some((now + delay, delay));
            self.drifted = true;
        }
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
        if std::mem::take(&mut self.drifted) && self.row == Row::Present {
            self.busy = true;
            return Some(Action::Repair);
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
            Row::Present if !self.busy => self.repair_retry.map(|(due, _)| due),
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

    /// Core of a network that has its block and is as wanted.
    fn kept(now: Instant) -> Core {
        let mut core = Core::new(now, true);
        assert_eq!(core.poll_action(), Some(Action::Repair), "on start");
        core.handle_repaired(now, true);
        core
    }

    fn requested(now: Instant, has_row: bool) -> Core {
        let mut core = if has_row {
            kept(now)
        } else {
            Core::new(now, false)
        };
        core.handle_request();
        assert_eq!(poll_at(&mut core, now), Some(Action::Ensure));
        core
    }

    #[test]
    fn network_with_block_is_unchanged() {
        let now = Instant::now();
        let mut core = kept(now);
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
    fn network_of_members_gets_a_block_again() {
        let now = Instant::now();
        for (outcome, needs_block, next) in [
            (Some(Removal::InUse), true, Some(Action::Ensure)),
            (Some(Removal::InUse), false, None),
            (None, true, None),
        ] {
            let mut core = kept(now);
            core.handle_row(now, false);
            let late = now + FIRST_REMOVAL;
            assert_eq!(poll_at(&mut core, late), Some(Action::Remove));
            core.handle_removal(late, outcome, needs_block);
            assert_eq!(poll_at(&mut core, late), next, "{outcome:?}");
        }
    }

    #[test]
    fn network_without_block_is_removed_once_unused() {
        let now = Instant::now();
        let mut core = kept(now);
        core.handle_row(now, false);
        assert_eq!(poll_at(&mut core, now), None);
        let mut at = core.poll_timeout().unwrap();
        assert_eq!(at - now, FIRST_REMOVAL);
        let mut delays = Vec::new();
        for _ in 0..6 {
            assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
            assert_eq!(core.poll_timeout(), None);
            core.handle_removal(at, Some(Removal::InUse), false);
            delays.push((core.poll_timeout().unwrap() - at).as_secs());
            at = core.poll_timeout().unwrap();
        }
        assert_eq!(delays, [2, 4, 8, 16, 30, 30]);
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
        core.handle_removal(at, Some(Removal::Gone), false);
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
        core.handle_removal(at, None, false);
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
        let later = now + ROW_LAG * 2;
        assert_eq!(poll_at(&mut core, later), Some(Action::Repair));
        core.handle_repaired(later, true);
        assert_eq!(poll_at(&mut core, later + ROW_LAG), None);
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
        core.handle_removal(at, Some(Removal::Gone), false);
        assert_eq!(poll_at(&mut core, at), Some(Action::Repair));
        core.handle_repaired(at, true);
        assert_eq!(poll_at(&mut core, at), None);
    }

    #[test]
    fn drift_is_repaired_until_it_succeeds() {
        let now = Instant::now();
        let mut core = kept(now);
        core.handle_drift();
        core.handle_drift();
        let mut at = now;
        let mut delays = Vec::new();
        for _ in 0..7 {
            assert_eq!(poll_at(&mut core, at), Some(Action::Repair));
            assert_eq!(poll_at(&mut core, at), None);
            core.handle_repaired(at, false);
            assert_eq!(poll_at(&mut core, at), None);
            let due = core.poll_timeout().unwrap();
            delays.push((due - at).as_secs());
            at = due;
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(poll_at(&mut core, at), Some(Action::Repair));
        core.handle_repaired(at, true);
        assert_eq!(core.poll_timeout(), None);
    }

    #[test]
    fn repair_waits_for_requests_and_needs_a_block() {
        let now = Instant::now();
        let mut core = requested(now, true);
        core.handle_drift();
        core.handle_request();
        core.handle_ensured(now, true);
        assert_eq!(poll_at(&mut core, now), Some(Action::Ensure));
        core.handle_ensured(now, true);
        core.handle_row(now, false);
        assert_eq!(poll_at(&mut core, now), None, "nothing is left to repair");
        core.handle_drift();
        assert_eq!(poll_at(&mut core, now), None);
        let at = core.poll_timeout().unwrap();
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
    }

    #[test]
    fn failed_repair_does_not_delay_the_removal() {
        let now = Instant::now();
        let mut core = kept(now);
        core.handle_drift();
        assert_eq!(poll_at(&mut core, now), Some(Action::Repair));
        core.handle_repaired(now, false);
        core.handle_row(now, false);
        let at = core.poll_timeout().unwrap();
        assert_eq!(at - now, FIRST_REMOVAL);
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
        assert_eq!(core.poll_timeout(), None);
    }

    #[test]
    fn changed_block_is_repaired() {
        let now = Instant::now();
        let mut core = kept(now);
        core.handle_row(now, true);
        assert_eq!(poll_at(&mut core, now), Some(Action::Repair));
    }

    #[test]
    fn request_during_removal_recreates_network() {
        let now = Instant::now();
        let mut core = Core::new(now, false);
        let at = core.poll_timeout().unwrap();
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
        core.handle_request();
        assert_eq!(poll_at(&mut core, at), None);
        core.handle_removal(at, Some(Removal::Gone), false);
        assert_eq!(poll_at(&mut core, at), Some(Action::Ensure));
    }

    #[test]
    fn failed_request_without_block_leaves_no_network() {
        let now = Instant::now();
        let mut core = requested(now, false);
        core.handle_ensured(now, false);
        let at = core.poll_timeout().unwrap();
        assert_eq!(poll_at(&mut core, at), Some(Action::Remove));
        core.handle_removal(at, Some(Removal::Gone), false);
        assert_eq!(poll_at(&mut core, at), Some(Action::Gone));
        core.handle_request();
        assert_eq!(poll_at(&mut core, at), Some(Action::Ensure));
        core.handle_ensured(at, false);
        assert!(core.poll_timeout().is_some());
    }
}
