//! Which of two connections to one member stays, and when to dial again.

use std::time::Duration;

/// Wait before the first attempt after a connection is lost.
const FIRST: Duration = Duration::from_millis(100);
/// Longest wait between attempts.
const LONGEST: Duration = Duration::from_secs(5);
/// How much longer the side with the larger raft id waits: mostly the other one has dialled by
/// then, and there is nothing to settle.
const POLITENESS: Duration = Duration::from_millis(250);

/// Far more than an attempt takes whose first packets arrive.
const OVERTAKEN: Duration = Duration::from_millis(500);

/// A connection as both sides see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dialled {
    /// Raft id of the side that dialled.
    pub(super) by: u64,
    /// Tells runs of the other side apart.
    pub(super) incarnation: u64,
}

/// Whether `new` takes the place of `old`, which is not known to have ended.
///
/// Both sides decide by what both know, so they keep the same one.
#[must_use]
pub(super) fn replaces(new: Dialled, old: Dialled) -> bool {
    if new.incarnation != old.incarnation {
        // The other side was started again, so the old one leads nowhere.
        return true;
    }
    // Nobody dials who has a connection: a second one of the same side means that it lost the
    // first. With one of each side, that of the smaller id stays.
    new.by <= old.by
}

/// Whether an attempt that has lasted `so_far` is given up when the other side gets through.
///
/// It would otherwise succeed with the next packet that it repeats, seconds later, and take the
/// place of a connection that is in use by then, with a snapshot on it maybe. One that has just
/// begun goes on: the other side may be about to keep it.
#[must_use]
pub(super) fn is_overtaken(so_far: Duration) -> bool {
    so_far >= OVERTAKEN
}

/// How long to wait before attempt `failures`, counted from 0, of the side that `yields`;
/// `chance` is drawn at random for each.
#[must_use]
pub(super) fn pause(failures: u32, yields: bool, chance: u8) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.min(10)).min(LONGEST);
    // Between a half and the whole, so that those who lost each other do not stay in step.
    let wait = doubled / 2 + doubled / 2 * u32::from(chance) / 255;
    if yields { wait + POLITENESS } else { wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_keep_the_connection_of_the_smaller_id_in_any_order() {
        let by = |by| Dialled { by, incarnation: 5 };
        assert!(replaces(by(1), by(2)));
        assert!(!replaces(by(2), by(1)));
    }

    #[test]
    fn who_dials_again_has_lost_the_first_connection() {
        let by = |by, incarnation| Dialled { by, incarnation };
        assert!(replaces(by(2, 5), by(2, 5)));
        // It was restarted, whoever dials.
        assert!(replaces(by(2, 6), by(1, 5)));
    }

    #[test]
    fn an_attempt_that_hangs_is_overtaken_and_a_fresh_one_is_not() {
        assert!(is_overtaken(Duration::from_secs(2)));
        assert!(!is_overtaken(Duration::from_millis(10)));
    }

    #[test]
    fn waits_grow_to_five_seconds_and_are_spread() {
        assert_eq!(pause(0, false, 255), Duration::from_millis(100));
        assert_eq!(pause(0, false, 0), Duration::from_millis(50));
        assert_eq!(pause(3, false, 255), Duration::from_millis(800));
        assert_eq!(pause(60, false, 255), LONGEST);
        assert_eq!(pause(0, true, 0), Duration::from_millis(300));
    }
}
