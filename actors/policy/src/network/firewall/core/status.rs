//! State of the firewall of a node.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use crate::network::{
    firewall::{
        difference::Difference,
        ruleset::{HostInputs, Ruleset},
    },
    names::NetworkId,
    readiness::IsolationStatus,
    scopes::{Scope, scopes},
};

/// A ruleset and the state it was rendered from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Applied index of the state.
    pub index: u64,
    /// Scopes without the retired blocks, sorted by network.
    pub scopes: Vec<Scope>,
    /// Blocks in which containers of a former network may be, sorted and disjoint; part of no scope.
    pub retired: Vec<Cidr>,
    /// Ruleset of the scopes and the retired blocks.
    pub ruleset: Ruleset,
}

impl Rendered {
    /// Renders the ruleset of the blocks of `state` on a host with these `inputs`.
    #[must_use]
    pub fn of(state: &State, inputs: HostInputs) -> Self {
        let mut scopes = scopes(state);
        for scope in &mut scopes {
            // A shared network has no deployment, and its block may have been an internal one's.
            let is_abandoned =
                !scope.id.is_shared() && !state.deployments.contains_key(scope.id.deployment());
            let mut blocks = scope.blocks.iter();
            scope.internal |= is_abandoned && blocks.any(|block| inputs.was_internal(*block));
        }
        if !inputs.retired.is_empty() {
            for scope in &mut scopes {
                scope
                    .blocks
                    .retain(|block| !overlaps(&inputs.retired, *block));
            }
            scopes.retain(|scope| !scope.blocks.is_empty());
        }
        Self {
            index: state.applied_index,
            ruleset: Ruleset::of_scopes(&scopes, &inputs),
            scopes,
            retired: inputs.retired,
        }
    }

    /// Whether the ruleset isolates `block` as part of `network`.
    #[must_use]
    pub fn includes(&self, network: &NetworkId, block: Cidr) -> bool {
        let found = self.scopes.binary_search_by(|scope| scope.id.cmp(network));
        found.is_ok_and(|index| {
            let mut blocks = self.scopes[index].blocks.iter();
            blocks.any(|held| held.first() <= block.first() && block.last() <= held.last())
        })
    }
}

/// Whether `block` shares an address with one of `retired`, which are sorted and disjoint.
fn overlaps(retired: &[Cidr], block: Cidr) -> bool {
    let after = retired.partition_point(|other| other.first() <= block.last());
    let last = after.checked_sub(1).and_then(|index| retired.get(index));
    last.is_some_and(|other| block.first() <= other.last())
}

/// State of the firewall of this node, as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether deployments are isolated.
    pub isolation: IsolationStatus,
    /// The ruleset that the kernel held when it was last tested.
    pub enforced: Option<Arc<Rendered>>,
    /// The ruleset that was last handed to the kernel.
    pub attempted: Option<Arc<Rendered>>,
    /// Whether connections may be established that the ruleset forbids: they began without it, or
    /// when their addresses were those of other networks.
    pub has_stale_flows: bool,
    /// Whether the kernel lists connections, so that they can be ended; `None` before the first attempt.
    pub lists_flows: Option<bool>,
    /// Number of repairs of changes that were made by others.
    pub repairs: u64,
    /// Addresses that a table leads out of an internal network although no container of this host has
    /// them any more, sorted. The engine gives them to the containers that start next.
    pub vacated: Vec<Ipv4Addr>,
}

impl Status {
    /// Whether the ruleset isolates a container that is started now in `block` of `network`.
    #[must_use]
    pub fn isolates(&self, network: &NetworkId, block: Cidr) -> bool {
        let enforced = self.enforced.as_ref();
        let enforced = enforced.filter(|_| self.isolation == IsolationStatus::Enforced);
        enforced.is_some_and(|enforced| enforced.includes(network, block))
            && !self.is_vacated(block)
    }

    /// Whether an address of `block` is led out without a container that may have it.
    fn is_vacated(&self, block: Cidr) -> bool {
        let held = block.first()..=block.last();
        let mut vacated = self.vacated.iter();
        vacated.any(|address| held.contains(&u64::from(u32::from(*address))))
    }

    /// Notes which of the addresses that the tables of this process lead out are `used`, sorted.
    pub(super) fn note_outbound(&mut self, used: &[Ipv4Addr]) {
        let tables = [&self.enforced, &self.attempted];
        let spans = tables
            .into_iter()
            .flatten()
            .flat_map(|table| table.ruleset.outbound());
        let led_out = spans.flat_map(|span| span.first..=span.last);
        let led_out: BTreeSet<Ipv4Addr> = led_out.map(Ipv4Addr::from).collect();
        let vacated = led_out.into_iter();
        self.vacated = vacated
            .filter(|address| used.binary_search(address).is_err())
            .collect();
    }

    /// Whether no table was tested or loaded in this process.
    pub(super) fn is_fresh(&self) -> bool {
        self.enforced.is_none() && self.attempted.is_none()
    }

    /// Summary of the changes that others made to the table, if there are any; `expected` is the
    /// ruleset of the newest rows.
    ///
    /// A table that is absent when the process starts was lost with the last boot. One that is
    /// consistent in itself was rendered by an earlier process from other rows.
    pub(super) fn drift(&self, expected: &Ruleset, found: Option<&Ruleset>) -> Option<String> {
        if let Some(attempted) = &self.attempted
            && found.is_some()
            && Difference::between(&attempted.ruleset, found).is_empty()
        {
            return None;
        }
        let reference = match &self.enforced {
            Some(enforced) => &enforced.ruleset,
            None if found.is_none_or(Ruleset::is_consistent) => return None,
            None => expected,
        };
        let drift = Difference::between(reference, found);
        (!drift.is_empty()).then(|| drift.summary())
    }
}

impl Default for Status {
    fn default() -> Self {
        Self {
            isolation: IsolationStatus::Pending,
            enforced: None,
            attempted: None,
            has_stale_flows: false,
            lists_flows: None,
            repairs: 0,
            vacated: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{firewall::ruleset::Span, testing::state};

    #[test]
    fn block_waits_for_the_release_of_its_addresses() {
        let led_out = Ipv4Addr::new(10, 244, 1, 2);
        let inputs = HostInputs {
            outbound: vec![led_out],
            confined: vec![Span::from("10.244.1.0/24".parse::<Cidr>().unwrap())],
            ..HostInputs::default()
        };
        let blocks = [
            ("app", "a", "n1", "10.244.1.0/24"),
            ("app", "b", "n1", "10.244.2.0/24"),
        ];
        let mut status = Status {
            isolation: IsolationStatus::Enforced,
            enforced: Some(Arc::new(Rendered::of(&state(&blocks), inputs))),
            ..Status::default()
        };
        for (used, expected) in [(vec![led_out], [true, true]), (vec![], [false, true])] {
            status.note_outbound(&used);
            let isolates = |(_, network, _, block): &(&str, &str, &str, &str)| {
                status.isolates(&NetworkId::new("app", *network), block.parse().unwrap())
            };
            assert_eq!([isolates(&blocks[0]), isolates(&blocks[1])], expected);
        }
        status.isolation = IsolationStatus::Unavailable("no".to_owned());
        assert!(!status.isolates(
            &NetworkId::new("app", "b"),
            "10.244.2.0/24".parse().unwrap()
        ));
    }

    #[test]
    fn shared_network_leads_out_of_formerly_internal_blocks() {
        let block: Cidr = "10.244.1.0/24".parse().unwrap();
        for (deployment, internal) in [("shared", false), ("gone", true)] {
            let inputs = HostInputs {
                confined: vec![Span::from(block)],
                ..HostInputs::default()
            };
            let state = state(&[(deployment, "edge", "n1", "10.244.1.0/24")]);
            let rendered = Rendered::of(&state, inputs);
            assert_eq!(rendered.scopes[0].internal, internal, "{deployment}");
        }
    }
}
