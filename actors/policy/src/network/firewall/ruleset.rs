//! The ruleset as a value.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr, sync::Arc};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use crate::network::{
    ipam::Pool,
    mesh::address,
    scopes::{Scope, disjoint, scopes},
};

/// Map from the addresses of each network to the chain of the network, which has the name of its set.
pub const NETWORK_MAP: &str = "jaco_networks";
/// Set with the blocks of all scopes.
pub const POOL_SET: &str = "jaco_pool";
/// Set with the addresses that containers and hosts of the cluster can have, used or not.
pub const SOURCE_SET: &str = "jaco_sources";
/// Set with the further interfaces of containers on several networks.
pub const ATTACHMENT_SET: &str = "jaco_attachments";
/// Set with the blocks of the internal networks.
pub const INTERNAL_SET: &str = "jaco_internal";
/// Set with the addresses in internal networks of containers that are also on another network: the
/// engine may have made the internal one their default route.
pub const OUTBOUND_SET: &str = "jaco_outbound";
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

/// A set or a map.
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
    /// Intervals of IPv4 addresses, each with the name of a chain.
    Selections(Vec<Selection>),
    /// IPv4 addresses with the name of an interface.
    Attachments(Vec<Attachment>),
    /// Those of a set of any other kind.
    Foreign,
}

/// Addresses of a network and its chain, through which packets from there go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selection {
    /// The addresses.
    pub span: Span,
    /// Name of the chain.
    pub chain: Arc<str>,
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
    /// `ip saddr vmap @map`: goes through the chain that the map has for the source, whatever the number
    /// of networks.
    Select(String),
    /// `ip daddr @set accept`
    AcceptTo(String),
    /// `ip saddr @set ip daddr @set drop`
    DropWithin(String),
    /// `ip saddr @set accept`
    AcceptFrom(String),
    /// `ip saddr @set counter drop`
    DropFrom(String),
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
    /// Addresses in internal networks of this host's containers that are also on another one, sorted.
    pub outbound: Vec<Ipv4Addr>,
    /// Addresses of the internal networks in the ruleset before, sorted: containers that are being
    /// stopped, of a deployment or network that is gone, may still have them.
    pub confined: Vec<Span>,
}

impl Default for HostInputs {
    fn default() -> Self {
        Self {
            pool: Pool::default().range(),
            retired: Vec::new(),
            attachments: Vec::new(),
            outbound: Vec::new(),
            confined: Vec::new(),
        }
    }
}

impl HostInputs {
    /// Whether the ruleset before had `block` in an internal network.
    #[must_use]
    pub fn was_internal(&self, block: Cidr) -> bool {
        contains(&self.confined, block.network())
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
        let mut sets = scope_sets(scopes);
        let within: Vec<String> = sets.iter().map(|set| set.name.clone()).collect();
        if !sets.is_empty() {
            sets.push(Set::of_networks(&sets));
        }
        let internal = scopes.iter().filter(|scope| scope.internal);
        let mut internal: Vec<Cidr> = internal.flat_map(|s| &s.blocks).copied().collect();
        let retired = inputs.retired.iter().copied();
        internal.extend(retired.filter(|block| inputs.was_internal(*block)));
        disjoint(&mut internal);
        if !internal.is_empty() {
            sets.push(Set::of_blocks(INTERNAL_SET, &internal));
            let outbound = inputs.outbound.iter();
            let outbound: Vec<Cidr> = outbound.map(|ip| Cidr::aligned((*ip).into(), 32)).collect();
            sets.push(Set::of_blocks(OUTBOUND_SET, &outbound));
        }
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
            chains: chains(&within, !pool.is_empty(), !internal.is_empty()),
        }
    }

    /// Whether this is a ruleset of some blocks, whichever they are: every rule belongs to a set, no
    /// address to two networks, and the pool set covers all other sets.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let named = |name| self.sets.iter().filter(move |set| set.name == name);
        let pool: Vec<&Set> = named(POOL_SET).collect();
        let scopes: Vec<Set> = self.scope_sets().cloned().collect();
        let within: Vec<String> = scopes.iter().map(|set| set.name.clone()).collect();
        let confined: Vec<&Set> = named(INTERNAL_SET).chain(named(OUTBOUND_SET)).collect();
        let expected = chains(&within, !pool.is_empty(), !confined.is_empty());
        let mut spans: Vec<&Span> = scopes.iter().flat_map(|set| set.spans()).collect();
        spans.sort_unstable();
        let covered = |span: &&Span| {
            let mut pool = pool.iter().flat_map(|set| set.spans());
            pool.any(|held| held.first <= span.first && span.last <= held.last)
        };
        let is_of_kind = |set: &Set| match &set.elements {
            Elements::Spans(_) => ![ATTACHMENT_SET, NETWORK_MAP].contains(&set.name.as_str()),
            Elements::Selections(_) => set.name == NETWORK_MAP,
            Elements::Attachments(_) => set.name == ATTACHMENT_SET,
            Elements::Foreign => false,
        };
        let networks: Vec<&Set> = named(NETWORK_MAP).collect();
        let selects_all = match networks[..] {
            [] => scopes.is_empty(),
            [map] => !scopes.is_empty() && *map == Set::of_networks(&scopes),
            _ => false,
        };
        self.flags == 0
            && self.sets.iter().all(is_of_kind)
            && named(SOURCE_SET).count() == 1
            && named(ATTACHMENT_SET).count() == 1
            && pool.len() <= 1
            && matches!(confined.len(), 0 | 2)
            && { named(INTERNAL_SET).flat_map(Set::spans) }.all(|span| covered(&span))
            && are_alike(&self.chains, &expected)
            && spans.is_sorted_by(|one, next| one.last < next.first)
            && spans.iter().all(covered)
            && selects_all
    }

    /// Addresses of internal networks, sorted.
    #[must_use]
    pub fn internal(&self) -> &[Span] {
        self.spans_of(INTERNAL_SET)
    }

    fn spans_of(&self, name: &str) -> &[Span] {
        let set = self.sets.iter().find(|set| set.name == name);
        set.map_or(&[], Set::spans)
    }

    /// Addresses that the rules about networks concern, sorted.
    fn pool(&self) -> &[Span] {
        self.spans_of(POOL_SET)
    }

    /// Addresses in internal networks that may reach the outside, sorted.
    #[must_use]
    pub fn outbound(&self) -> &[Span] {
        self.spans_of(OUTBOUND_SET)
    }

    /// Whether a network has an address here that it does not have in `before`, or there is one that
    /// `before` has no rule about: its connections passed without any.
    #[must_use]
    pub fn gives_addresses(&self, before: &Self) -> bool {
        let known = before.pool();
        let is_known = |span: &Span| {
            let after = known.partition_point(|known| known.first <= span.first);
            let below = known[..after].last();
            below.is_some_and(|below| below.last >= span.last)
        };
        if !self.pool().iter().all(is_known) {
            return true;
        }
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
        let others = [
            NETWORK_MAP,
            POOL_SET,
            SOURCE_SET,
            ATTACHMENT_SET,
            INTERNAL_SET,
            OUTBOUND_SET,
        ];
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
        let forward = self.chains.iter().find(|chain| chain.name == FORWARD);
        for rule in forward.into_iter().flat_map(|chain| &chain.rules) {
            match rule {
                Rule::AcceptEstablished if established => return Verdict::Accept,
                Rule::Select(map) if self.is_accepted(map, from, to) => return Verdict::Accept,
                Rule::DropWithin(set) => {
                    let set = self.sets.iter().find(|held| held.name == *set);
                    if set.is_some_and(|set| set.contains(from) && set.contains(to)) {
                        return Verdict::Drop;
                    }
                }
                Rule::AcceptFrom(set) if self.holds(set, from) => return Verdict::Accept,
                Rule::DropFrom(set) if self.holds(set, from) => return Verdict::Drop,
                Rule::AcceptEstablished
                | Rule::AcceptFrom(_)
                | Rule::DropFrom(_)
                | Rule::Select(_)
                | Rule::AcceptTo(_)
                | Rule::AcceptAttached(_)
                | Rule::DropUnrouted(_)
                | Rule::DropOutside { .. }
                | Rule::DropSentOutside(_)
                | Rule::Foreign => {}
            }
        }
        Verdict::Accept
    }

    /// Whether the set `name` has an address.
    fn holds(&self, name: &str, address: Ipv4Addr) -> bool {
        let set = self.sets.iter().find(|set| set.name == name);
        set.is_some_and(|set| set.contains(address))
    }

    /// Whether the chain that `map` has for the source accepts a packet.
    fn is_accepted(&self, map: &str, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        let find = |name: &str| self.sets.iter().find(|set| set.name == name);
        let name = find(map).and_then(|map| map.selected(from));
        let chain = name.and_then(|name| self.chains.iter().find(|chain| chain.name == name));
        let mut rules = chain.into_iter().flat_map(|chain| &chain.rules);
        rules.any(|rule| match rule {
            Rule::AcceptTo(set) => find(set).is_some_and(|set| set.contains(to)),
            _ => false,
        })
    }

    /// Whether a forwarded packet is dropped that would leave by an interface of another program.
    #[must_use]
    pub fn drops_outside(&self, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        let forward = self.chains.iter().find(|chain| chain.name == FORWARD);
        let mut rules = forward.into_iter().flat_map(|chain| &chain.rules);
        rules.any(|rule| match rule {
            Rule::DropOutside {
                from: sources,
                to: destinations,
            } => self.holds(sources, from) && self.holds(destinations, to),
            _ => false,
        })
    }
}

impl Ruleset {
    /// Whether a rendered ruleset drops packets between these addresses, unless their connection is
    /// established: an answer for many addresses.
    #[must_use]
    pub fn forbids(&self, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        // Few connections of a host are between containers.
        let is_within = self.holds(POOL_SET, from) && self.holds(POOL_SET, to);
        let is_confined = self.holds(INTERNAL_SET, from) && !self.holds(OUTBOUND_SET, from);
        (is_within || is_confined) && !self.is_accepted(NETWORK_MAP, from, to)
    }
}

/// The sets of the scopes. An address that several of them have, which the allocation of blocks rules
/// out, is in none.
fn scope_sets(scopes: &[Scope]) -> Vec<Set> {
    let all = scopes.iter().flat_map(|scope| &scope.blocks);
    let mut all: Vec<Span> = all.copied().map(Span::from).collect();
    all.sort_unstable();
    let (mut shared, mut end) = (Vec::new(), None);
    for span in all {
        if let Some(end) = end.filter(|end| span.first <= *end) {
            let last = span.last.min(end);
            shared.push(Span { last, ..span });
        }
        end = end.max(Some(span.last));
    }
    let set = |scope: &Scope| {
        let mut set = Set::of_blocks(&scope.set, &scope.blocks);
        if let Some(spans) = set.spans_mut().filter(|_| !shared.is_empty()) {
            *spans = spans
                .iter()
                .flat_map(|span| span.without(&shared))
                .collect();
        }
        set
    };
    scopes.iter().map(set).collect()
}

/// The chains of a ruleset that accepts packets within each of these sets; `pooled` is whether there is
/// any block, `confined` whether one is of an internal network.
fn chains(within: &[String], pooled: bool, confined: bool) -> Vec<Chain> {
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
    if !within.is_empty() {
        paths.push(Rule::Select(NETWORK_MAP.to_owned()));
    }
    if pooled {
        paths.push(Rule::DropWithin(pool()));
    }
    if confined {
        paths.push(Rule::AcceptFrom(OUTBOUND_SET.to_owned()));
        paths.push(Rule::DropFrom(INTERNAL_SET.to_owned()));
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
    let of_network = |set: &String| Chain {
        name: set.clone(),
        base: None,
        rules: vec![Rule::AcceptTo(set.clone())],
    };
    let base = [
        chain(FORWARD, 0, paths),
        chain("input", 0, Vec::new()),
        chain("output", 0, sent),
        chain(PREROUTING, RAW, sources),
    ];
    base.into_iter()
        .chain(within.iter().map(of_network))
        .collect()
}

/// Whether the chains have the same rules; their order does not matter.
fn are_alike(found: &[Chain], expected: &[Chain]) -> bool {
    let sorted = |chains: &[Chain]| {
        let mut chains = chains.to_vec();
        chains.sort_unstable_by(|one, other| one.name.cmp(&other.name));
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

    /// The map from the addresses of the sets of networks, which are disjoint, to chains of their names.
    fn of_networks(sets: &[Self]) -> Self {
        let selections = sets.iter().flat_map(|set| {
            let chain: Arc<str> = set.name.as_str().into();
            let selection = move |span: &Span| Selection {
                span: *span,
                chain: Arc::clone(&chain),
            };
            set.spans().iter().map(selection)
        });
        let mut selections: Vec<_> = selections.collect();
        selections.sort_unstable_by_key(|selection| selection.span);
        Self {
            name: NETWORK_MAP.to_owned(),
            elements: Elements::Selections(selections),
        }
    }

    /// Its intervals; none if it is of another kind.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        match &self.elements {
            Elements::Spans(spans) => spans,
            Elements::Selections(_) | Elements::Attachments(_) | Elements::Foreign => &[],
        }
    }

    /// Its intervals, to be changed; `None` if it is of another kind.
    pub fn spans_mut(&mut self) -> Option<&mut Vec<Span>> {
        match &mut self.elements {
            Elements::Spans(spans) => Some(spans),
            Elements::Selections(_) | Elements::Attachments(_) | Elements::Foreign => None,
        }
    }

    /// Whether the set holds `address`.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        contains(self.spans(), address)
    }

    /// Chain that the map has for `address`.
    fn selected(&self, address: Ipv4Addr) -> Option<&str> {
        let Elements::Selections(selections) = &self.elements else {
            return None;
        };
        let address = u32::from(address);
        let after = selections.partition_point(|held| held.span.first <= address);
        let found = &selections[after.checked_sub(1)?];
        (address <= found.span.last).then_some(&*found.chain)
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

/// Whether one of `spans`, which are sorted and disjoint, has an address.
fn contains(spans: &[Span], address: Ipv4Addr) -> bool {
    let address = u32::from(address);
    let after = spans.partition_point(|span| span.first <= address);
    let span = after.checked_sub(1).and_then(|index| spans.get(index));
    span.is_some_and(|span| address <= span.last)
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.span, self.chain)
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.address, self.interface)
    }
}

impl Span {
    /// The parts of this range outside `others`, which are sorted by their first addresses.
    fn without(self, others: &[Self]) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut next = Some(self.first);
        for other in others {
            let Some(first) = next.filter(|first| *first <= self.last) else {
                break;
            };
            if other.last < first || other.first > self.last {
                continue;
            }
            if other.first > first {
                let last = other.first - 1;
                parts.push(Self { first, last });
            }
            next = other.last.checked_add(1);
        }
        if let Some(first) = next.filter(|first| *first <= self.last) {
            let last = self.last;
            parts.push(Self { first, last });
        }
        parts
    }

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
