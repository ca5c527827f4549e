//! Admission control for incoming handshakes, as a pure decision: a flood of datagrams costs
//! neither memory nor the members' own connections.

use std::{collections::HashMap, net::IpAddr};

use super::Settings;

/// Decision about an incoming connection attempt, in the terms of `quinn::Incoming`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Start the handshake; the caller reports its end by [`Gate::left`].
    Enter,
    /// Send a Retry: the client must come back with a token that was sent to its address. No state
    /// is kept for it.
    Prove,
    /// Drop the datagram without an answer.
    Ignore,
}

/// Counts the handshakes in progress and admits new ones within the limits.
#[derive(Debug)]
pub struct Gate {
    strangers: usize,
    members: usize,
    limits: Limits,
    by_address: HashMap<IpAddr, Here>,
}

/// The limits of [`Settings`] that this module applies.
#[derive(Debug)]
struct Limits {
    strangers: usize,
    members: usize,
    per_address: usize,
    unproven: usize,
    claimed: usize,
}

/// Handshakes in progress with one address. Unvalidated attempts are counted separately because
/// their source address may be spoofed: they must not use up the quota of the address's owner.
#[derive(Debug, Default)]
struct Here {
    proven: usize,
    unproven: usize,
}

impl Here {
    fn of(&mut self, proven: bool) -> &mut usize {
        if proven {
            &mut self.proven
        } else {
            &mut self.unproven
        }
    }
}

impl Gate {
    /// Starts with the limits of `settings` and no handshake in progress.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            strangers: 0,
            members: 0,
            limits: Limits {
                strangers: settings.strangers,
                members: settings.members,
                per_address: settings.per_address,
                unproven: settings.unproven,
                claimed: settings.claimed,
            },
            by_address: HashMap::new(),
        }
    }

    /// Decides about an attempt from `address`. `member`: the roster knows a member there.
    /// `proven`: the address was validated, so it is not spoofed.
    pub fn enter(&mut self, address: IpAddr, member: bool, proven: bool) -> Verdict {
        let here = self.by_address.get(&address);
        if !proven
            && (self.wants_proof() || here.is_some_and(|h| h.unproven >= self.limits.claimed))
        {
            return Verdict::Prove;
        }
        let (count, limit) = if member {
            (&mut self.members, self.limits.members)
        } else {
            (&mut self.strangers, self.limits.strangers)
        };
        let crowded = proven && here.is_some_and(|h| h.proven >= self.limits.per_address);
        if *count >= limit || crowded {
            return Verdict::Ignore;
        }
        *count += 1;
        *self.by_address.entry(address).or_default().of(proven) += 1;
        Verdict::Enter
    }

    /// Reports the end of a handshake with `address`; `member` and `proven` as in the call of
    /// [`Gate::enter`].
    pub fn left(&mut self, address: IpAddr, member: bool, proven: bool) {
        let count = if member {
            &mut self.members
        } else {
            &mut self.strangers
        };
        *count = count.saturating_sub(1);
        if let Some(here) = self.by_address.get_mut(&address) {
            let count = here.of(proven);
            *count = count.saturating_sub(1);
            if here.proven == 0 && here.unproven == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Whether new addresses must be validated before any further work is done for them.
    #[must_use]
    pub fn wants_proof(&self) -> bool {
        self.inside() >= self.limits.unproven
    }

    /// Number of handshakes in progress.
    #[must_use]
    pub fn inside(&self) -> usize {
        self.strangers + self.members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        Gate::new(&Settings {
            strangers: 3,
            members: 2,
            per_address: 2,
            unproven: 1,
            claimed: 1,
            ..Settings::default()
        })
    }

    /// Checks the verdict for each `(address, member, proven)` in order; no handshake ends
    /// meanwhile.
    fn play(gate: &mut Gate, table: &[(u8, bool, bool, Verdict)]) {
        for (at, (address, member, proven, expected)) in table.iter().enumerate() {
            let verdict = gate.enter(ip(*address), *member, *proven);
            assert_eq!(verdict, *expected, "{at}");
        }
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn limits_apply_per_kind_address_and_validation() {
        use Verdict::*;
        let mut gate = gate();
        let table = [
            // An idle node demands no validation.
            (1, false, false, Enter),
            (1, false, false, Prove),
            (1, false, true, Enter),
            (1, false, true, Enter),
            (1, false, true, Ignore), // both limits are reached
            (3, false, true, Ignore),
            (4, true, false, Prove),
            (4, true, true, Enter),
            (5, true, true, Enter),
            (6, true, true, Ignore), // the limit of two members is reached
        ];
        play(&mut gate, &table);
        assert_eq!(gate.inside(), 5);
        gate.left(ip(1), false, false);
        assert_eq!(gate.enter(ip(1), false, true), Ignore);
        assert_eq!(gate.enter(ip(3), false, true), Enter);
    }

    #[test]
    fn spoofed_attempts_use_no_quota_of_the_address() {
        use Verdict::*;
        let settings = Settings::default();
        let mut gate = Gate::new(&settings);
        for _ in 0..settings.claimed {
            assert_eq!(gate.enter(ip(1), true, false), Enter);
        }
        for _ in 0..1000 {
            assert_eq!(gate.enter(ip(1), true, false), Prove);
        }
        // Other addresses still need no validation, and the validated address gets its whole quota.
        assert_eq!(gate.enter(ip(2), false, false), Enter);
        for _ in 0..settings.per_address {
            assert_eq!(gate.enter(ip(1), true, true), Enter);
        }
        assert_eq!(gate.enter(ip(1), true, true), Ignore);
        // The end of an unvalidated handshake frees no slot of the validated ones.
        gate.left(ip(1), true, false);
        assert_eq!(gate.enter(ip(1), true, true), Ignore);
        gate.left(ip(1), true, true);
        assert_eq!(gate.enter(ip(1), true, true), Enter);
    }

    #[test]
    fn spoofed_attempts_leave_room_for_validated_ones() {
        let settings = Settings::default();
        let mut gate = Gate::new(&settings);
        for address in 0..=255 {
            for _ in 0..settings.claimed + 1 {
                gate.enter(ip(address), true, false);
            }
        }
        assert_eq!(gate.inside(), settings.unproven);
        assert_eq!(gate.enter(ip(1), true, true), Verdict::Enter);
        assert_eq!(gate.enter(ip(1), false, true), Verdict::Enter);
    }

    #[test]
    fn counts_are_dropped_with_the_last_handshake() {
        let mut gate = gate();
        assert_eq!(gate.enter(ip(1), false, true), Verdict::Enter);
        gate.left(ip(1), false, true);
        gate.left(ip(9), true, true);
        assert!(gate.by_address.is_empty());
        assert_eq!(gate.inside(), 0);
    }
}
