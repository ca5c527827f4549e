//! Choice between simultaneous connections to one member, and the dial backoff.

use std::time::Duration;

/// Backoff before the first attempt after a connection is lost.
const FIRST: Duration = Duration::from_millis(100);
/// Longest backoff between attempts.
const LONGEST: Duration = Duration::from_secs(5);
/// Additional wait of the side with the larger raft id. Usually the other side has connected by
/// then, which avoids duplicate connections.
const POLITENESS: Duration = Duration::from_millis(250);

/// Age at which a dial counts as hanging; a handshake without packet loss is far faster.
const OVERTAKEN: Duration = Duration::from_millis(500);

/// Identity of a connection, equal on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dialled {
    /// Raft id of the dialling side.
    pub(super) by: u64,
    /// Random id of the peer's endpoint, drawn anew on every restart.
    pub(super) incarnation: u64,
}

/// Whether connection `new` replaces `old`, which has not been seen to end.
///
/// The decision uses only data known on both sides, so both keep the same connection.
#[must_use]
pub(super) fn replaces(new: Dialled, old: Dialled) -> bool {
    if new.incarnation != old.incarnation {
        // The peer restarted, so the old connection is dead.
        return true;
    }
    // No side dials while it has a connection: a second dial of one side means that it lost the
    // first. With one dial of each side, that of the smaller raft id is kept.
    new.by <= old.by
}

/// Whether a dial of age `so_far` is aborted when a connection of the other side arrives.
///
/// A hanging dial could still complete seconds later, with a retransmitted packet, and then replace
/// the connection in use, possibly in the middle of a snapshot. A recent dial continues, because
/// the other side may be about to keep it.
#[must_use]
pub(super) fn is_overtaken(so_far: Duration) -> bool {
    so_far >= OVERTAKEN
}

/// Backoff before attempt `failures`, counted from 0. `yields` adds [`POLITENESS`]; `chance` is a
/// random byte for jitter.
#[must_use]
pub(super) fn pause(failures: u32, yields: bool, chance: u8) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.min(10)).min(LONGEST);
    // Jitter between half and full backoff, so that two sides that lost each other do not stay in
    // step.
    let wait = doubled / 2 + doubled / 2 * u32::from(chance) / 255;
    if yields { wait + POLITENESS } else { wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_of_smaller_id_wins_in_any_order() {
        let by = |by| Dialled { by, incarnation: 5 };
        assert!(replaces(by(1), by(2)));
        assert!(!replaces(by(2), by(1)));
    }

    #[test]
    fn second_dial_of_same_side_replaces_first() {
        let by = |by, incarnation| Dialled { by, incarnation };
        assert!(replaces(by(2, 5), by(2, 5)));
        // After a restart of the peer the new one wins, whichever side dialled.
        assert!(replaces(by(2, 6), by(1, 5)));
    }

    #[test]
    fn hanging_dial_is_overtaken_and_fresh_one_not() {
        assert!(is_overtaken(Duration::from_secs(2)));
        assert!(!is_overtaken(Duration::from_millis(10)));
    }

    #[test]
    fn backoff_doubles_to_five_seconds_with_jitter() {
        assert_eq!(pause(0, false, 255), Duration::from_millis(100));
        assert_eq!(pause(0, false, 0), Duration::from_millis(50));
        assert_eq!(pause(3, false, 255), Duration::from_millis(800));
        assert_eq!(pause(60, false, 255), LONGEST);
        assert_eq!(pause(0, true, 0), Duration::from_millis(300));
    }
}
