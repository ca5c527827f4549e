//! Admission control for incoming handshakes, as a pure decision: a flood of datagrams costs
//! neither memory nor the members' own connections.

use std::{collections::HashMap, net::IpAddr};

use super::Settings;

/// Decision about an incoming connection attempt, in the terms of `quinn::Incoming`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Start the handshake; the caller reports its end by [`HandshakeLimiter::release`].
    Accept,
    /// Send a Retry: the client must come back with a token that was sent to its address. No state
    /// is kept for it.
    Retry,
    /// Drop the datagram without an answer.
    Ignore,
}

/// Counts the handshakes in progress and admits new ones within the limits.
#[derive(Debug)]
pub struct HandshakeLimiter {
    unknown: usize,
    members: usize,
    limits: HandshakeLimits,
    by_address: HashMap<IpAddr, HandshakeCounts>,
}

/// The limits of [`Settings`] that this module applies.
#[derive(Debug)]
struct HandshakeLimits {
    unknown: usize,
    members: usize,
    per_address: usize,
    unvalidated: usize,
    unvalidated_per_address: usize,
}

/// Handshakes in progress with one address. Unvalidated attempts are counted separately because
/// their source address may be spoofed: they must not use up the quota of the address's owner.
#[derive(Debug, Default)]
struct HandshakeCounts {
    validated: usize,
    unvalidated: usize,
}

impl HandshakeCounts {
    fn of(&mut self, validated: bool) -> &mut usize {
        if validated {
            &mut self.validated
        } else {
            &mut self.unvalidated
        }
    }
}

impl HandshakeLimiter {
    /// Starts with the limits of `settings` and no handshake in progress.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            unknown: 0,
            members: 0,
            limits: HandshakeLimits {
                unknown: settings.unknown,
                members: settings.members,
                per_address: settings.per_address,
                unvalidated: settings.unvalidated,
                unvalidated_per_address: settings.unvalidated_per_address,
            },
            by_address: HashMap::new(),
        }
    }

    /// Decides about an attempt from `address`. `member`: the roster knows a member there.
    /// `validated`: the address was validated, so it is not spoofed.
    pub fn admit(&mut self, address: IpAddr, member: bool, validated: bool) -> Admission {
        let counts = self.by_address.get(&address);
        if !validated
            && (self.requires_validation()
                || counts.is_some_and(|h| h.unvalidated >= self.limits.unvalidated_per_address))
        {
            return Admission::Retry;
        }
        let (count, limit) = if member {
            (&mut self.members, self.limits.members)
        } else {
            (&mut self.unknown, self.limits.unknown)
        };
        let crowded = validated && counts.is_some_and(|h| h.validated >= self.limits.per_address);
        if *count >= limit || crowded {
            return Admission::Ignore;
        }
        *count += 1;
        *self.by_address.entry(address).or_default().of(validated) += 1;
        Admission::Accept
    }

    /// Reports the end of a handshake with `address`; `member` and `validated` as in the call of
    /// [`HandshakeLimiter::admit`].
    pub fn release(&mut self, address: IpAddr, member: bool, validated: bool) {
        let count = if member {
            &mut self.members
        } else {
            &mut self.unknown
        };
        *count = count.saturating_sub(1);
        if let Some(counts) = self.by_address.get_mut(&address) {
            let count = counts.of(validated);
            *count = count.saturating_sub(1);
            if counts.validated == 0 && counts.unvalidated == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Whether new addresses must be validated before any further work is done for them.
    #[must_use]
    pub fn requires_validation(&self) -> bool {
        self.in_progress() >= self.limits.unvalidated
    }

    /// Number of handshakes in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.unknown + self.members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> HandshakeLimiter {
        HandshakeLimiter::new(&Settings {
            unknown: 3,
            members: 2,
            per_address: 2,
            unvalidated: 1,
            unvalidated_per_address: 1,
            ..Settings::default()
        })
    }

    /// Checks the verdict for each `(address, member, validated)` in order; no handshake ends
    /// meanwhile.
    fn play(admission: &mut HandshakeLimiter, table: &[(u8, bool, bool, Admission)]) {
        for (at, (address, member, validated, expected)) in table.iter().enumerate() {
            let verdict = admission.admit(ip(*address), *member, *validated);
            assert_eq!(verdict, *expected, "{at}");
        }
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn limits_apply_per_kind_address_and_validation() {
        use Admission::*;
        let mut admission = admission();
        let table = [
            // An idle node demands no validation.
            (1, false, false, Accept),
            (1, false, false, Retry),
            (1, false, true, Accept),
            (1, false, true, Accept),
            (1, false, true, Ignore), // both limits are reached
            (3, false, true, Ignore),
            (4, true, false, Retry),
            (4, true, true, Accept),
            (5, true, true, Accept),
            (6, true, true, Ignore), // the limit of two members is reached
        ];
        play(&mut admission, &table);
        assert_eq!(admission.in_progress(), 5);
        admission.release(ip(1), false, false);
        assert_eq!(admission.admit(ip(1), false, true), Ignore);
        assert_eq!(admission.admit(ip(3), false, true), Accept);
    }

    #[test]
    fn spoofed_attempts_use_no_quota_of_the_address() {
        use Admission::*;
        let settings = Settings::default();
        let mut admission = HandshakeLimiter::new(&settings);
        for _ in 0..settings.unvalidated_per_address {
            assert_eq!(admission.admit(ip(1), true, false), Accept);
        }
        for _ in 0..1000 {
            assert_eq!(admission.admit(ip(1), true, false), Retry);
        }
        // Other addresses still need no validation, and the validated address gets its whole quota.
        assert_eq!(admission.admit(ip(2), false, false), Accept);
        for _ in 0..settings.per_address {
            assert_eq!(admission.admit(ip(1), true, true), Accept);
        }
        assert_eq!(admission.admit(ip(1), true, true), Ignore);
        // The end of an unvalidated handshake frees no slot of the validated ones.
        admission.release(ip(1), true, false);
        assert_eq!(admission.admit(ip(1), true, true), Ignore);
        admission.release(ip(1), true, true);
        assert_eq!(admission.admit(ip(1), true, true), Accept);
    }

    #[test]
    fn spoofed_attempts_leave_room_for_validated_ones() {
        let settings = Settings::default();
        let mut admission = HandshakeLimiter::new(&settings);
        for address in 0..=255 {
            for _ in 0..settings.unvalidated_per_address + 1 {
                admission.admit(ip(address), true, false);
            }
        }
        assert_eq!(admission.in_progress(), settings.unvalidated);
        assert_eq!(admission.admit(ip(1), true, true), Admission::Accept);
        assert_eq!(admission.admit(ip(1), false, true), Admission::Accept);
    }

    #[test]
    fn counts_are_dropped_with_the_last_handshake() {
        let mut admission = admission();
        assert_eq!(admission.admit(ip(1), false, true), Admission::Accept);
        admission.release(ip(1), false, true);
        admission.release(ip(9), true, true);
        assert!(admission.by_address.is_empty());
        assert_eq!(admission.in_progress(), 0);
    }
}
