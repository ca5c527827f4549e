//! Which datagrams of strangers become handshakes: a pure decision, so that a flood costs
//! neither memory nor the members' own connections.

use std::{collections::HashMap, net::IpAddr};

use super::Settings;

/// What becomes of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It gets a handshake; [`Gate::left`] is told of its end.
    Enter,
    /// It must come back with a token that was sent to its address; nothing is kept of it.
    Prove,
    /// It gets no answer at all.
    Ignore,
}

/// Counts handshakes under way.
#[derive(Debug)]
pub struct Gate {
    strangers: usize,
    members: usize,
    limits: Limits,
    by_address: HashMap<IpAddr, Here>,
}

/// What the settings say.
#[derive(Debug)]
struct Limits {
    strangers: usize,
    members: usize,
    per_address: usize,
    unproven: usize,
    claimed: usize,
}

/// Handshakes under way with one address. Whoever proved nothing may have made the address up,
/// so it takes nothing from those who are there.
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
    /// A gate with the limits of `settings`, and nobody inside.
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

    /// Decides about an attempt from `address`. `member`: one is known there. `proven`: it
    /// receives what is sent to it, so the address is its own.
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

    /// A handshake with `address` ended; `member` and `proven` as it was said when it entered.
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

    /// Whether an address has to prove itself before anything else is done about it.
    #[must_use]
    pub fn wants_proof(&self) -> bool {
        self.inside() >= self.limits.unproven
    }

    /// Handshakes under way.
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

    /// What becomes of `(address, member, proven)`, one after another, nobody of whom leaves.
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
    fn limits_hold_by_kind_by_address_and_for_the_unproven() {
        use Verdict::*;
        let mut gate = gate();
        let table = [
            // An idle node asks nobody for a proof.
            (1, false, false, Enter),
            (1, false, false, Prove),
            (1, false, true, Enter),
            (1, false, true, Enter),
            (1, false, true, Ignore), // two of one address, and three strangers
            (3, false, true, Ignore),
            (4, true, false, Prove),
            (4, true, true, Enter),
            (5, true, true, Enter),
            (6, true, true, Ignore), // two members
        ];
        play(&mut gate, &table);
        assert_eq!(gate.inside(), 5);
        gate.left(ip(1), false, false);
        assert_eq!(gate.enter(ip(1), false, true), Ignore);
        assert_eq!(gate.enter(ip(3), false, true), Enter);
    }

    #[test]
    fn whoever_claims_the_address_of_a_member_keeps_it_out_of_nothing() {
        use Verdict::*;
        let settings = Settings::default();
        let mut gate = Gate::new(&settings);
        for _ in 0..settings.claimed {
            assert_eq!(gate.enter(ip(1), true, false), Enter);
        }
        for _ in 0..1000 {
            assert_eq!(gate.enter(ip(1), true, false), Prove);
        }
        // Others are still asked for no proof, and whoever is there gets all that an address gets.
        assert_eq!(gate.enter(ip(2), false, false), Enter);
        for _ in 0..settings.per_address {
            assert_eq!(gate.enter(ip(1), true, true), Enter);
        }
        assert_eq!(gate.enter(ip(1), true, true), Ignore);
        // The end of one that proved nothing makes no room for those that did.
        gate.left(ip(1), true, false);
        assert_eq!(gate.enter(ip(1), true, true), Ignore);
        gate.left(ip(1), true, true);
        assert_eq!(gate.enter(ip(1), true, true), Enter);
    }

    #[test]
    fn claims_of_many_addresses_leave_room_for_whoever_proves_itself() {
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
    fn an_empty_gate_remembers_nobody() {
        let mut gate = gate();
        assert_eq!(gate.enter(ip(1), false, true), Verdict::Enter);
        gate.left(ip(1), false, true);
        gate.left(ip(9), true, true);
        assert!(gate.by_address.is_empty());
        assert_eq!(gate.inside(), 0);
    }
}
