//! Choice between simultaneous connections to one member, and the dial backoff.

use std::time::Duration;

/// Backoff before the first attempt after a connection is lost.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// Longest backoff between attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// Additional wait of the side with the larger raft id. Usually the other side has connected by
/// then, which avoids duplicate connections.
pub const DIAL_STAGGER: Duration = Duration::from_millis(250);

/// Age at which a dial counts as hanging; a handshake without packet loss is far faster.
const HANGING_AFTER: Duration = Duration::from_millis(500);

/// Identity of a connection, equal on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialled {
    /// Raft id of the dialling side.
    pub by: u64,
    /// Random id of the peer's endpoint, drawn anew on every restart.
    pub incarnation: u64,
}

/// Whether connection `new` replaces `old`, which has not been seen to end.
///
/// The decision uses only data known on both sides, so both keep the same connection.
#[must_use]
pub fn replaces(new: Dialled, old: Dialled) -> bool {
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
pub fn is_hanging(so_far: Duration) -> bool {
    so_far >= HANGING_AFTER
}

/// Backoff before attempt `failures`, counted from 0. `dials_second` adds [`DIAL_STAGGER`];
/// `jitter` is a random byte for jitter.
#[must_use]
pub fn backoff(failures: u32, dials_second: bool, jitter: u8) -> Duration {
    let doubled = MIN_BACKOFF
        .saturating_mul(1 << failures.min(10))
        .min(MAX_BACKOFF);
    // Jitter between half and full backoff, so that two sides that lost each other do not stay in
    // step.
    let wait = doubled / 2 + doubled / 2 * u32::from(jitter) / 255;
    if dials_second {
        wait + DIAL_STAGGER
    } else {
        wait
    }
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
        assert!(is_hanging(Duration::from_secs(2)));
        assert!(!is_hanging(Duration::from_millis(10)));
    }

    #[test]
    fn backoff_doubles_to_five_seconds_with_jitter() {
        assert_eq!(backoff(0, false, 255), Duration::from_millis(100));
        assert_eq!(backoff(0, false, 0), Duration::from_millis(50));
        assert_eq!(backoff(3, false, 255), Duration::from_millis(800));
        assert_eq!(backoff(60, false, 255), MAX_BACKOFF);
        assert_eq!(backoff(0, true, 0), Duration::from_millis(300));
    }
}
