//! Exemptions from the engine's own firewall rules, which would drop or masquerade the traffic
//! between containers of two hosts.
//!
//! The engine puts its rules first whenever it starts, so the exemptions have to be first again.

use jaco_engine::cidr::Cidr;

/// Copies of one rule that one pass deletes.
const MAX_COPIES: usize = 16;

/// A chain of the engine's firewall in which containers need an exemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exemption {
    /// Masquerading would hide the address of a container from the other host.
    Masquerade,
    /// The engine drops packets that are routed to a container from another interface.
    DirectRouting,
    /// The engine drops packets between its networks.
    InterNetwork,
    /// An engine that has created no network since its start, such as one without its default
    /// bridge, has no chain for the rules of others, and drops what its networks forward.
    Forwarding,
}

/// A rule that matches source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExemptionRule {
    /// Block of the source.
    pub source: Cidr,
    /// Block of the destination.
    pub destination: Cidr,
    /// Verdict: return to the calling chain if true, else accept.
    pub returns: bool,
}

/// A rule of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainRule {
    /// Handle in the kernel.
    pub handle: u64,
    /// The rule, if it could be an exemption.
    pub rule: Option<ExemptionRule>,
}

/// A change of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Deletes the rule with this handle.
    Delete(u64),
    /// Inserts the rule before all others.
    InsertFirst(ExemptionRule),
}

/// Outcome of checking one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rules are in place.
    InPlace,
    /// The rules were written.
    Written,
    /// The rules were removed.
    Removed,
    /// The engine has no such chain.
    NoChain,
    /// The engine has no such chain in nf_tables, and tables of iptables-legacy are in use: its rules
    /// are out of reach.
    Legacy,
    /// Reading or writing failed.
    Failed(String),
}

impl Exemption {
    /// All exemptions, in the order of their assertion.
    pub const ALL: [Self; 4] = [
        Self::Masquerade,
        Self::DirectRouting,
        Self::InterNetwork,
        Self::Forwarding,
    ];

    /// Table of family `ip` and chain in it.
    #[must_use]
    pub fn chain(self) -> (&'static str, &'static str) {
        match self {
            Self::Masquerade => ("nat", "POSTROUTING"),
            Self::DirectRouting => ("raw", "PREROUTING"),
            Self::InterNetwork => ("filter", "DOCKER-USER"),
            Self::Forwarding => ("filter", "FORWARD"),
        }
    }

    /// Whether its rules let packets pass that the engine would drop.
    #[must_use]
    pub fn accepts(self) -> bool {
        match self {
            Self::Masquerade => false,
            Self::DirectRouting | Self::InterNetwork | Self::Forwarding => true,
        }
    }

    /// Code of its failure in the audit log.
    #[must_use]
    pub fn failure_code(self) -> &'static str {
        match self {
            Self::Masquerade => "SNAT_EXEMPT_FAILED",
            Self::DirectRouting | Self::InterNetwork | Self::Forwarding => "OVERLAY_EXEMPT_FAILED",
        }
    }

    /// Rules at the top of the chain, in order, for containers in `pool`.
    #[must_use]
    pub fn rules(self, pool: Cidr) -> Vec<ExemptionRule> {
        let rule = |source, returns| ExemptionRule {
            source,
            destination: pool,
            returns,
        };
        match self {
            Self::Masquerade => vec![rule(pool, true)],
            Self::DirectRouting | Self::InterNetwork | Self::Forwarding => {
                vec![rule(pool, false), rule(mesh(), false)]
            }
        }
    }
}

/// Block of the mesh addresses of the hosts.
fn mesh() -> Cidr {
    Cidr::aligned(u32::from_be_bytes([10, 99, 0, 0]), 24)
}

/// Chain of table `filter` of an engine that writes rules.
pub const ENGINE_CHAIN: &str = "DOCKER";

/// Writes that delete the copies of `unwanted` from a chain with the rules `found`.
#[must_use]
pub fn removal(unwanted: &[ExemptionRule], found: &[ChainRule]) -> Vec<Write> {
    let copies = unwanted.iter().flat_map(|rule| {
        let copies = found.iter().filter(move |found| found.rule == Some(*rule));
        copies
            .take(MAX_COPIES)
            .map(|copy| Write::Delete(copy.handle))
    });
    copies.collect()
}

/// Writes that put `wanted` at the top of a chain with the rules `found`; none if they are there.
///
/// Applied as one batch, the chain is never without the rules.
#[must_use]
pub fn plan(wanted: &[ExemptionRule], found: &[ChainRule]) -> Vec<Write> {
    let top = found.iter().map(|found| found.rule);
    if top.take(wanted.len()).eq(wanted.iter().copied().map(Some)) {
        return Vec::new();
    }
    let mut writes = removal(wanted, found);
    writes.extend(wanted.iter().rev().copied().map(Write::InsertFirst));
    writes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool() -> Cidr {
        "10.244.0.0/16".parse().unwrap()
    }

    /// Rules of a chain: indices of `wanted`, or `None` for a rule of the engine.
    fn chain(wanted: &[ExemptionRule], rules: &[Option<usize>]) -> Vec<ChainRule> {
        let rules = rules.iter().zip(1..);
        rules
            .map(|(rule, handle)| ChainRule {
                handle,
                rule: rule.map(|index| wanted[index]),
            })
            .collect()
    }

    fn apply(chain: &[ChainRule], writes: &[Write]) -> Vec<ChainRule> {
        let mut chain = chain.to_vec();
        for write in writes {
            match write {
                Write::Delete(handle) => chain.retain(|rule| rule.handle != *handle),
                Write::InsertFirst(rule) => chain.insert(
                    0,
                    ChainRule {
                        handle: 1000 + chain.len() as u64,
                        rule: Some(*rule),
                    },
                ),
            }
        }
        chain
    }

    #[test]
    fn rules_at_the_top_are_left_alone() {
        let wanted = Exemption::InterNetwork.rules(pool());
        let first = |rules: &[Option<usize>]| plan(&wanted, &chain(&wanted, rules)).is_empty();
        assert!(first(&[Some(0), Some(1), None]));
        assert!(first(&[Some(0), Some(1), None, Some(0)]));
        for rules in [
            &[][..],
            &[None],
            &[Some(0), None],
            &[Some(1), Some(0), None],
            &[None, Some(0), Some(1)],
        ] {
            assert!(!first(rules), "{rules:?}");
        }
    }

    #[test]
    fn copies_are_deleted_up_to_the_limit() {
        let wanted = Exemption::Masquerade.rules(pool());
        let mut rules = vec![None];
        rules.extend([Some(0); 20]);
        let writes = plan(&wanted, &chain(&wanted, &rules));
        assert_eq!(writes.len(), MAX_COPIES + 1);
        assert_eq!(writes[0], Write::Delete(2));
        assert_eq!(writes[MAX_COPIES], Write::InsertFirst(wanted[0]));
    }

    proptest! {
        #[test]
        fn planned_writes_leave_nothing_to_plan(
            rules in prop::collection::vec(prop::option::of(0_usize..2), 0..30),
        ) {
            let wanted = Exemption::DirectRouting.rules(pool());
            let before = chain(&wanted, &rules);
            let after = apply(&before, &plan(&wanted, &before));
            prop_assert_eq!(plan(&wanted, &after), []);
            let foreign = |chain: &[ChainRule]| -> Vec<u64> {
                let foreign = chain.iter().filter(|rule| rule.rule.is_none());
                foreign.map(|rule| rule.handle).collect()
            };
            prop_assert_eq!(foreign(&after), foreign(&before), "rules of the engine");
            let removed = apply(&after, &removal(&wanted, &after));
            prop_assert_eq!(foreign(&removed), foreign(&before), "rules of the engine");
            if rules.len() < MAX_COPIES {
                prop_assert_eq!(removed.len(), foreign(&before).len(), "none is left");
            }
        }
    }
}
