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
    /// Limits of the two counts, of one address, and of those that proved nothing.
    limits: [usize; 4],
    by_address: HashMap<IpAddr, usize>,
}

impl Gate {
    /// A gate with the limits of `settings`, and nobody inside.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            strangers: 0,
            members: 0,
            limits: [
                settings.strangers,
                settings.members,
                settings.per_address,
                settings.unproven,
            ],
            by_address: HashMap::new(),
        }
    }

    /// Decides about an attempt from `address`. `member`: one is known there. `proven`: it
    /// receives what is sent to it, so the address is its own.
    pub fn enter(&mut self, address: IpAddr, member: bool, proven: bool) -> Verdict {
        let [strangers, members, per_address, unproven] = self.limits;
        if !proven && self.strangers + self.members >= unproven {
            return Verdict::Prove;
        }
        let here = self.by_address.get(&address).copied().unwrap_or(0);
        let (count, limit) = if member {
            (&mut self.members, members)
        } else {
            (&mut self.strangers, strangers)
        };
        if *count >= limit || here >= per_address {
            return Verdict::Ignore;
        }
        *count += 1;
        *self.by_address.entry(address).or_default() += 1;
        Verdict::Enter
    }

    /// A handshake with `address` ended; `member` as it was said when it entered.
    pub fn left(&mut self, address: IpAddr, member: bool) {
        let count = if member {
            &mut self.members
        } else {
            &mut self.strangers
        };
        *count = count.saturating_sub(1);
        if let Some(here) = self.by_address.get_mut(&address) {
            *here -= 1;
            if *here == 0 {
                self.by_address.remove(&address);
            }
        }
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
            ..Settings::default()
        })
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
            (1, false, true, Ignore), // two of one address
            (2, false, true, Enter),
            (3, false, true, Ignore), // three strangers
            (4, true, false, Prove),
            (4, true, true, Enter),
            (5, true, true, Enter),
            (6, true, true, Ignore), // two members
        ];
        for (at, (address, member, proven, expected)) in table.into_iter().enumerate() {
            assert_eq!(gate.enter(ip(address), member, proven), expected, "{at}");
        }
        assert_eq!(gate.inside(), 5);
        gate.left(ip(2), false);
        assert_eq!(gate.enter(ip(1), false, true), Ignore);
        assert_eq!(gate.enter(ip(3), false, true), Enter);
    }

    #[test]
    fn an_empty_gate_remembers_nobody() {
        let mut gate = gate();
        assert_eq!(gate.enter(ip(1), false, true), Verdict::Enter);
        gate.left(ip(1), false);
        gate.left(ip(9), true);
        assert!(gate.by_address.is_empty());
        assert_eq!(gate.inside(), 0);
    }
}
