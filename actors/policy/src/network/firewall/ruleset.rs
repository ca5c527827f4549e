//! The ruleset as a value.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use crate::network::scopes::{Scope, disjoint, scopes};

/// Set with the blocks of all scopes.
pub const POOL_SET: &str = "jaco_pool";
/// Chain with the rules.
pub const FORWARD: &str = "forward";

/// Contents of the table `inet jaco`: as expected, or as read from the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Flags of the table; 0 unless it is dormant or owned by a process.
    pub flags: u32,
    /// Sets, in the order of their creation.
    pub sets: Vec<Set>,
    /// Chains, in the order of their creation.
    pub chains: Vec<Chain>,
}

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Name.
    pub name: String,
    /// Whether it holds intervals of IPv4 addresses and nothing else.
    pub of_intervals: bool,
    /// Elements, sorted.
    pub elements: Vec<Span>,
}

/// Range of IPv4 addresses; shown as a block if it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First address.
    pub first: u32,
    /// Last address.
    pub last: u32,
}

/// A chain and its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Name.
    pub name: String,
    /// Attachment to the packet path; `None` for a chain that is only jumped to.
    pub base: Option<Base>,
    /// Rules, in order.
    pub rules: Vec<Rule>,
}

/// Attachment of a chain to the packet path, in the words of nft(8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Type: `filter`, `nat` or `route`.
    pub kind: String,
    /// Hook, such as `forward`.
    pub hook: String,
    /// Priority.
    pub priority: i32,
    /// Policy: `accept` or `drop`.
    pub policy: String,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `ct state established,related accept`
    AcceptEstablished,
    /// `ip saddr @set ip daddr @set accept`
    AcceptWithin(String),
    /// `ip saddr @set ip daddr @set drop`
    DropWithin(String),
    /// Any other rule.
    Foreign,
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Accept,
    /// It is dropped.
    Drop,
}

impl Ruleset {
    /// Renders the ruleset of the address blocks in `state`.
    #[must_use]
    pub fn of_state(state: &State) -> Self {
        Self::of_scopes(&scopes(state))
    }

    /// Renders the ruleset of `scopes`.
    #[must_use]
    pub fn of_scopes(scopes: &[Scope]) -> Self {
        Self::with_retired(scopes, &[])
    }

    /// Renders the ruleset of `scopes` and of `retired` blocks, which are part of no scope: nothing
    /// passes between them and any other block.
    #[must_use]
    pub fn with_retired(scopes: &[Scope], retired: &[Cidr]) -> Self {
        let mut pool: Vec<Cidr> = scopes.iter().flat_map(|s| &s.blocks).copied().collect();
        pool.extend(retired);
        disjoint(&mut pool);
        let set = |name: &str, blocks: &[Cidr]| Set {
            name: name.to_owned(),
            of_intervals: true,
            elements: blocks.iter().copied().map(Span::from).collect(),
        };
        let mut sets: Vec<Set> = scopes.iter().map(|s| set(&s.set, &s.blocks)).collect();
        let mut rules = vec![Rule::AcceptEstablished];
        rules.extend(sets.iter().map(|set| Rule::AcceptWithin(set.name.clone())));
        if !pool.is_empty() {
            sets.push(set(POOL_SET, &pool));
            rules.push(Rule::DropWithin(POOL_SET.to_owned()));
        }
        Self {
            flags: 0,
            sets,
            chains: chains(rules),
        }
    }

    /// Whether this is a ruleset of some blocks, whichever they are: every rule belongs to a set, no
    /// address to two networks, and the pool set covers all other sets.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let (pool, scopes): (Vec<&Set>, Vec<&Set>) =
            self.sets.iter().partition(|set| set.name == POOL_SET);
        let within = scopes
            .iter()
            .map(|set| Rule::AcceptWithin(set.name.clone()));
        let drops = pool.iter().map(|set| Rule::DropWithin(set.name.clone()));
        let rules: Vec<Rule> = { [Rule::AcceptEstablished].into_iter() }
            .chain(within)
            .chain(drops)
            .collect();
        let mut spans: Vec<&Span> = scopes.iter().flat_map(|set| &set.elements).collect();
        spans.sort_unstable();
        let covered = |span: &&Span| {
            let mut pool = pool.iter().flat_map(|set| &set.elements);
            pool.any(|held| held.first <= span.first && span.last <= held.last)
        };
        self.flags == 0
            && self.sets.iter().all(|set| set.of_intervals)
            && are_rules_of(&self.chains, &rules)
            && spans.is_sorted_by(|one, next| one.last < next.first)
            && spans.iter().all(covered)
    }

    /// Whether a network has an address here that it does not have in `before`.
    #[must_use]
    pub fn gives_addresses(&self, before: &Self) -> bool {
        let before: BTreeMap<&str, &Set> = { before.sets.iter() }
            .map(|set| (set.name.as_str(), set))
            .collect();
        let networks = self.sets.iter().filter(|set| set.name != POOL_SET);
        networks.into_iter().any(|set| {
            let held = before.get(set.name.as_str());
            let holds = |span| held.is_some_and(|held| held.elements.binary_search(span).is_ok());
            !set.elements.iter().all(holds)
        })
    }

    /// Fate of a forwarded packet under these rules.
    #[must_use]
    pub fn verdict(&self, from: Ipv4Addr, to: Ipv4Addr, established: bool) -> Verdict {
        let within = |name: &str| {
            let set = self.sets.iter().find(|set| set.name == name);
            set.is_some_and(|set| set.contains(from) && set.contains(to))
        };
        let forward = self.chains.iter().find(|chain| chain.name == FORWARD);
        for rule in forward.into_iter().flat_map(|chain| &chain.rules) {
            match rule {
                Rule::AcceptEstablished if established => return Verdict::Accept,
                Rule::AcceptWithin(set) if within(set) => return Verdict::Accept,
                Rule::DropWithin(set) if within(set) => return Verdict::Drop,
                Rule::AcceptEstablished
                | Rule::AcceptWithin(_)
                | Rule::DropWithin(_)
                | Rule::Foreign => {}
            }
        }
        Verdict::Accept
    }
}

impl Ruleset {
    /// Whether a rendered ruleset drops packets between these addresses, unless their connection is
    /// established: an answer for many addresses.
    #[must_use]
    pub fn forbids(&self, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        let holds_both = |set: &Set| set.contains(from) && set.contains(to);
        let (mut pool, mut scopes) = (false, false);
        for set in self.sets.iter().filter(|set| holds_both(set)) {
            match set.name == POOL_SET {
                true => pool = true,
                false => scopes = true,
            }
        }
        pool && !scopes
    }
}

/// The chains with these rules in [`FORWARD`].
fn chains(rules: Vec<Rule>) -> Vec<Chain> {
    let chain = |hook: &str, rules| Chain {
        name: hook.to_owned(),
        base: Some(Base {
            kind: "filter".to_owned(),
            hook: hook.to_owned(),
            priority: 0,
            policy: "accept".to_owned(),
        }),
        rules,
    };
    vec![
        chain(FORWARD, rules),
        chain("input", Vec::new()),
        chain("output", Vec::new()),
    ]
}

/// Whether these are [`chains`] with `rules`; the accepting rules of the networks may have another
/// order, as may the chains.
fn are_rules_of(found: &[Chain], rules: &[Rule]) -> bool {
    let sorted = |chains: &[Chain]| {
        let mut chains = chains.to_vec();
        chains.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for chain in &mut chains {
            let name = |rule: &Rule| match rule {
                Rule::AcceptWithin(set) => set.clone(),
                Rule::AcceptEstablished | Rule::DropWithin(_) | Rule::Foreign => String::new(),
            };
            for run in chain
                .rules
                .chunk_by_mut(|one, other| !name(one).is_empty() && !name(other).is_empty())
            {
                run.sort_by_key(name);
            }
        }
        chains
    };
    sorted(found) == sorted(&chains(rules.to_vec()))
}

impl Set {
    /// Whether the set holds `address`.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        let address = u32::from(address);
        let after = self.elements.partition_point(|span| span.first <= address);
        let span = after.checked_sub(1).map(|index| self.elements[index]);
        span.is_some_and(|span| address <= span.last)
    }
}

impl Span {
    /// The largest blocks that the part of this range in `pool` consists of, in order.
    pub(super) fn blocks_within(self, pool: Cidr) -> impl Iterator<Item = Cidr> {
        let mut next = u64::from(self.first).max(pool.first());
        let end = u64::from(self.last).min(pool.last()) + 1;
        std::iter::from_fn(move || {
            let left = end.checked_sub(next).filter(|left| *left > 0)?;
            let first = u32::try_from(next).ok()?;
            // Limited by the alignment of the first address and by the number of those left.
            let bits = first.trailing_zeros().min(left.ilog2());
            next += 1 << bits;
            Some(Cidr::aligned(first, u8::try_from(32 - bits).ok()?))
        })
    }
}

impl From<Cidr> for Span {
    fn from(cidr: Cidr) -> Self {
        let first = u32::from(cidr.network());
        let hosts = u32::MAX.checked_shr(cidr.prefix().into()).unwrap_or(0);
        Self {
            first,
            last: first | hosts,
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (Ipv4Addr::from(self.first), Ipv4Addr::from(self.last));
        let prefix = (self.first ^ self.last).leading_zeros();
        let hosts = u32::MAX.checked_shr(prefix).unwrap_or(0);
        if self.first & hosts == 0 && self.last & hosts == hosts {
            write!(f, "{first}/{prefix}")
        } else {
            write!(f, "{first}-{last}")
        }
    }
}

#[cfg(test)]
mod tests;
