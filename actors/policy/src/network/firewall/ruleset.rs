//! The ruleset as a value.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use crate::network::{
    ipam::Pool,
    mesh::address,
    scopes::{Scope, disjoint, scopes},
};

/// Set with the blocks of all scopes.
pub const POOL_SET: &str = "jaco_pool";
/// Set with the addresses that containers and hosts of the cluster can have, used or not.
pub const SOURCE_SET: &str = "jaco_sources";
/// Set with the further interfaces of containers on several networks.
pub const ATTACHMENT_SET: &str = "jaco_attachments";
/// Chain with the rules about paths.
pub const FORWARD: &str = "forward";
/// Chain with the rules about sources.
pub const PREROUTING: &str = "prerouting";
/// Priority of [`PREROUTING`]: `raw`, before connections are tracked.
const RAW: i32 = -300;

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
    /// Elements.
    pub elements: Elements,
}

/// Elements of a set, sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Intervals of IPv4 addresses.
    Spans(Vec<Span>),
    /// IPv4 addresses with the name of an interface.
    Attachments(Vec<Attachment>),
    /// Those of a set of any other kind.
    Foreign,
}

/// Interface by which packets from an address of a container may come besides that to which the
/// address is routed.
///
/// A container on several networks has one default route, by which it answers all other hosts: its
/// packets to them come by that network's bridge, whichever of its addresses they have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// Address of the container on one network.
    pub address: Ipv4Addr,
    /// Bridge of another network that it is on.
    pub interface: String,
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
    /// `ip saddr . iifname @set accept`
    AcceptAttached(String),
    /// `ip saddr @set fib saddr . iif oif 0 counter drop`: drops a packet unless the route to its
    /// source leads to the interface it came by, as the strict mode of RFC 3704 does.
    DropUnrouted(String),
    /// `oifname != "jaco*" ip saddr @from ip daddr @to counter drop`: drops a packet between
    /// containers that would leave this host by another way than the mesh, unencrypted.
    DropOutside {
        /// Set of the sources.
        from: String,
        /// Set of the destinations.
        to: String,
    },
    /// `oifname != "jaco*" oifname != "lo" ip daddr @set counter drop`: the same for packets of this
    /// host to containers.
    DropSentOutside(String),
    /// Any other rule.
    Foreign,
}

/// Inputs of the ruleset of one host beside the rows of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInputs {
    /// Addresses of all blocks.
    pub pool: Cidr,
    /// Blocks in which containers of a former network may be, sorted and disjoint; part of no scope.
    pub retired: Vec<Cidr>,
    /// Further interfaces of this host's containers, sorted.
    pub attachments: Vec<Attachment>,
}

impl Default for HostInputs {
    fn default() -> Self {
        Self {
            pool: Pool::default().range(),
            retired: Vec::new(),
            attachments: Vec::new(),
        }
    }
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
    /// Renders the ruleset of the address blocks in `state` on a host without special inputs.
    #[must_use]
    pub fn of_state(state: &State) -> Self {
        Self::of_scopes(&scopes(state), &HostInputs::default())
    }

    /// Renders the ruleset of `scopes` on a host with these `inputs`. Nothing passes between its
    /// retired blocks and any other block.
    #[must_use]
    pub fn of_scopes(scopes: &[Scope], inputs: &HostInputs) -> Self {
        let mut pool: Vec<Cidr> = scopes.iter().flat_map(|s| &s.blocks).copied().collect();
        pool.extend(&inputs.retired);
        disjoint(&mut pool);
        let mut sources = vec![inputs.pool, address::network()];
        sources.extend(&pool);
        disjoint(&mut sources);
        let attachments = inputs.attachments.clone();
        let mut sets: Vec<Set> = { scopes.iter() }
            .map(|scope| Set::of_blocks(&scope.set, &scope.blocks))
            .collect();
        let within = { sets.iter() }.map(|set| set.name.clone()).collect();
        if !pool.is_empty() {
            sets.push(Set::of_blocks(POOL_SET, &pool));
        }
        sets.push(Set::of_blocks(SOURCE_SET, &sources));
        sets.push(Set {
            name: ATTACHMENT_SET.to_owned(),
            elements: Elements::Attachments(attachments),
        });
        Self {
            flags: 0,
            sets,
            chains: chains(within, !pool.is_empty()),
        }
    }

    /// Whether this is a ruleset of some blocks, whichever they are: every rule belongs to a set, no
    /// address to two networks, and the pool set covers all other sets.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let named = |name| self.sets.iter().filter(move |set| set.name == name);
        let pool: Vec<&Set> = named(POOL_SET).collect();
        let scopes: Vec<&Set> = self.scope_sets().collect();
        let within = scopes.iter().map(|set| set.name.clone()).collect();
        let expected = chains(within, !pool.is_empty());
        let mut spans: Vec<&Span> = scopes.iter().flat_map(|set| set.spans()).collect();
        spans.sort_unstable();
        let covered = |span: &&Span| {
            let mut pool = pool.iter().flat_map(|set| set.spans());
            pool.any(|held| held.first <= span.first && span.last <= held.last)
        };
        let is_of_kind = |set: &Set| match &set.elements {
            Elements::Spans(_) => set.name != ATTACHMENT_SET,
            Elements::Attachments(_) => set.name == ATTACHMENT_SET,
            Elements::Foreign => false,
        };
        self.flags == 0
            && self.sets.iter().all(is_of_kind)
            && named(SOURCE_SET).count() == 1
            && named(ATTACHMENT_SET).count() == 1
            && pool.len() <= 1
            && are_alike(&self.chains, &expected)
            && spans.is_sorted_by(|one, next| one.last < next.first)
            && spans.iter().all(covered)
    }

    /// Whether a network has an address here that it does not have in `before`.
    #[must_use]
    pub fn gives_addresses(&self, before: &Self) -> bool {
        let before: BTreeMap<&str, &Set> = { before.sets.iter() }
            .map(|set| (set.name.as_str(), set))
            .collect();
        self.scope_sets().any(|set| {
            let held = before.get(set.name.as_str());
            let holds = |span| held.is_some_and(|held| held.spans().binary_search(span).is_ok());
            !set.spans().iter().all(holds)
        })
    }

    /// The sets of the networks.
    pub fn scope_sets(&self) -> impl Iterator<Item = &Set> {
        let others = [POOL_SET, SOURCE_SET, ATTACHMENT_SET];
        { self.sets.iter() }.filter(move |set| !others.contains(&set.name.as_str()))
    }

    /// Whether a packet from address `from` that comes by `interface` passes the rules about sources.
    /// `routed` is whether the route to `from` leads to that interface.
    #[must_use]
    pub fn admits_source(&self, from: Ipv4Addr, interface: &str, routed: bool) -> bool {
        let find = |name: &str| self.sets.iter().find(|set| set.name == name);
        let prerouting = self.chains.iter().find(|chain| chain.name == PREROUTING);
        for rule in prerouting.into_iter().flat_map(|chain| &chain.rules) {
            match rule {
                Rule::AcceptAttached(set)
                    if find(set).is_some_and(|set| set.attaches(from, interface)) =>
                {
                    return true;
                }
                Rule::DropUnrouted(set)
                    if !routed && find(set).is_some_and(|set| set.contains(from)) =>
                {
                    return false;
                }
                _ => {}
            }
        }
        true
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
                | Rule::AcceptAttached(_)
                | Rule::DropUnrouted(_)
                | Rule::DropOutside { .. }
                | Rule::DropSentOutside(_)
                | Rule::Foreign => {}
            }
        }
        Verdict::Accept
    }

    /// Whether a forwarded packet is dropped that would leave by an interface of another program.
    #[must_use]
    pub fn drops_outside(&self, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        let holds = |name: &str, address| {
            let set = self.sets.iter().find(|set| set.name == name);
            set.is_some_and(|set| set.contains(address))
        };
        let forward = self.chains.iter().find(|chain| chain.name == FORWARD);
        let mut rules = forward.into_iter().flat_map(|chain| &chain.rules);
        rules.any(|rule| match rule {
            Rule::DropOutside {
                from: sources,
                to: destinations,
            } => holds(sources, from) && holds(destinations, to),
            _ => false,
        })
    }
}

impl Ruleset {
    /// Whether a rendered ruleset drops packets between these addresses, unless their connection is
    /// established: an answer for many addresses.
    #[must_use]
    pub fn forbids(&self, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        let holds_both = |set: &Set| set.contains(from) && set.contains(to);
        let mut pool = self.sets.iter().filter(|set| set.name == POOL_SET);
        // Few connections of a host are between containers.
        pool.any(holds_both) && !self.scope_sets().any(holds_both)
    }
}

/// The chains of a ruleset that accepts packets within each of these sets; `pooled` is whether there is
/// any block.
fn chains(within: Vec<String>, pooled: bool) -> Vec<Chain> {
    let pool = || POOL_SET.to_owned();
    let (mut paths, mut sent) = (Vec::new(), Vec::new());
    if pooled {
        // Before the rule for connections: a route may be added while they last.
        paths.push(Rule::DropOutside {
            from: pool(),
            to: SOURCE_SET.to_owned(),
        });
        sent.push(Rule::DropSentOutside(pool()));
    }
    paths.push(Rule::AcceptEstablished);
    paths.extend(within.into_iter().map(Rule::AcceptWithin));
    if pooled {
        paths.push(Rule::DropWithin(pool()));
    }
    let chain = |hook: &str, priority, rules| Chain {
        name: hook.to_owned(),
        base: Some(Base {
            kind: "filter".to_owned(),
            hook: hook.to_owned(),
            priority,
            policy: "accept".to_owned(),
        }),
        rules,
    };
    let sources = vec![
        Rule::AcceptAttached(ATTACHMENT_SET.to_owned()),
        Rule::DropUnrouted(SOURCE_SET.to_owned()),
    ];
    vec![
        chain(FORWARD, 0, paths),
        chain("input", 0, Vec::new()),
        chain("output", 0, sent),
        chain(PREROUTING, RAW, sources),
    ]
}

/// Whether the chains have the same rules; the accepting rules of the networks may have another order,
/// as may the chains.
fn are_alike(found: &[Chain], expected: &[Chain]) -> bool {
    let sorted = |chains: &[Chain]| {
        let mut chains = chains.to_vec();
        chains.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for chain in &mut chains {
            let name = |rule: &Rule| match rule {
                Rule::AcceptWithin(set) => set.clone(),
                _ => String::new(),
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
    sorted(found) == sorted(expected)
}

impl Set {
    fn of_blocks(name: &str, blocks: &[Cidr]) -> Self {
        Self {
            name: name.to_owned(),
            elements: Elements::Spans(blocks.iter().copied().map(Span::from).collect()),
        }
    }

    /// Its intervals; none if it is of another kind.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        match &self.elements {
            Elements::Spans(spans) => spans,
            Elements::Attachments(_) | Elements::Foreign => &[],
        }
    }

    /// Its intervals, to be changed; `None` if it is of another kind.
    pub fn spans_mut(&mut self) -> Option<&mut Vec<Span>> {
        match &mut self.elements {
            Elements::Spans(spans) => Some(spans),
            Elements::Attachments(_) | Elements::Foreign => None,
        }
    }

    /// Whether the set holds `address`.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        let (address, spans) = (u32::from(address), self.spans());
        let after = spans.partition_point(|span| span.first <= address);
        let span = after.checked_sub(1).map(|index| spans[index]);
        span.is_some_and(|span| address <= span.last)
    }

    /// Whether the set holds `address` with `interface`.
    fn attaches(&self, address: Ipv4Addr, interface: &str) -> bool {
        let Elements::Attachments(attachments) = &self.elements else {
            return false;
        };
        let place =
            |held: &Attachment| (held.address, held.interface.as_str()).cmp(&(address, interface));
        attachments.binary_search_by(place).is_ok()
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.address, self.interface)
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
