//! Reading of tables and chains.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use super::{
    Base, Chain, ChainRule, Elements, Error, Rule, RuleDrops, Set, TABLE, Table, expression,
    message::{Attributes, INET, IPV4, Message, Messages, NF_TABLES, Writer},
    socket::Socket,
};

const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const NEW_SET: u16 = 9;
const GET_SET: u16 = 10;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const GET_GENERATION: u16 = 16;

/// Attempts to read the tables without a change in between.
const ATTEMPTS: usize = 8;
/// Flag of a set of intervals.
const INTERVAL: u32 = 4;
/// Flags of a map from intervals.
const INTERVAL_MAP: u32 = INTERVAL | MAP;
/// Flag of a map.
pub(super) const MAP: u32 = 8;
/// Data type of verdicts (`NFT_DATA_VERDICT`).
pub(super) const VERDICT: u32 = 0xffff_ff00;
/// Verdict that goes through a chain and returns (`NFT_JUMP`).
pub(super) const JUMP: i32 = -3;
/// Data type of IPv4 addresses.
pub(super) const IPV4_ADDRESS: u32 = 7;
/// Data type of IPv4 addresses with names of interfaces, as nft(8) numbers it: 6 bits for each part.
pub(super) const ADDRESS_AND_NAME: u32 = (IPV4_ADDRESS << 6) | 41;
/// Bytes of a name of an interface with its final zero (`IFNAMSIZ`).
pub(super) const INTERFACE_NAME: usize = 16;
/// Flag of an element that ends an interval.
const INTERVAL_END: u32 = 1;

/// The table `inet jaco` at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Number of changes of all tables of the network namespace until then; it wraps around.
    pub generation: u32,
    /// The table; `None` if it does not exist.
    pub table: Option<Table>,
}

/// Reads the table `inet jaco`; `None` if it does not exist.
///
/// # Errors
/// [`Error::Unstable`] if the tables change all the time.
pub fn read_table() -> Result<Option<Table>, Error> {
    let reading = read_table_unless(None)?;
    Ok(reading.and_then(|reading| reading.table))
}

/// Reads the table `inet jaco`, or returns `None` if no table of this network namespace has changed
/// since the reading with the generation `known`.
///
/// Lists of large sets are slow: for each part of a list the kernel walks the set from its beginning.
///
/// # Errors
/// As [`read_table`].
pub fn read_table_unless(known: Option<u32>) -> Result<Option<Reading>, Error> {
    let mut socket = Socket::open(0)?;
    if known.is_some() && known == Some(generation(&mut socket)?) {
        return Ok(None);
    }
    let (generation, table) = consistent(&mut socket, read)?;
    Ok(Some(Reading { generation, table }))
}

/// Whether exactly one change of the tables of this network namespace was made since a reading with the
/// generation `known`, such as one by the caller.
///
/// # Errors
/// When the kernel does not answer.
pub fn is_only_change_since(known: u32) -> Result<bool, Error> {
    // The kernel leaves out zero.
    let next = known.checked_add(1).unwrap_or(1);
    Ok(generation(&mut Socket::open(0)?)? == next)
}

fn read(socket: &mut Socket) -> Result<Option<Table>, Error> {
    let mut found = Parser::default();
    let mut name = Writer::default();
    name.put_text(1, TABLE);
    let each = |message: &Message<'_>| found.message(message);
    if !socket.get((GET_TABLE, INET), &name.0, each)? {
        return Ok(None);
    }
    for kind in [GET_SET, GET_CHAIN, GET_RULE] {
        socket.dump((kind, INET), &name.0, |message| found.message(message))?;
    }
    for index in 0..found.table.sets.len() {
        if found.table.sets[index].elements == Elements::Other {
            continue;
        }
        let mut set = Writer::default();
        set.put_text(1, TABLE);
        set.put_text(2, &found.table.sets[index].name);
        let each = |message: &Message<'_>| found.elements_of(index, message);
        socket.dump((GET_ELEMENT, INET), &set.0, each)?;
    }
    Ok(Some(found.finish()))
}

/// Reads how many packets the rules of the table `inet jaco` dropped; none if it does not exist.
///
/// # Errors
/// As [`read_table`].
pub fn read_drops() -> Result<RuleDrops, Error> {
    let mut socket = Socket::open(0)?;
    let read = consistent(&mut socket, |socket| {
        let mut drops = RuleDrops::default();
        let mut name = Writer::default();
        name.put_text(1, TABLE);
        socket.dump((GET_RULE, INET), &name.0, |message| {
            add(&mut drops, message)
        })?;
        Ok(drops)
    });
    Ok(read?.1)
}

/// Adds the packets that the rule of a message dropped, if it is one that counts them.
fn add(drops: &mut RuleDrops, message: &Message<'_>) -> Result<(), Error> {
    let attributes = message.attributes();
    if message.kind != NF_TABLES | NEW_RULE
        || message.family() != INET
        || attributes.text(1)? != TABLE
    {
        return Ok(());
    }
    let expressions = attributes.nested(4)?;
    let count = match expression::rule(expressions.clone())? {
        Rule::DropUnrouted(_) => &mut drops.unrouted,
        Rule::DropOutside { .. } | Rule::DropSentOutside(_) => &mut drops.outside,
        _ => return Ok(()),
    };
    *count = count.saturating_add(expression::packets(expressions)?);
    Ok(())
}

/// Reads the rules of a chain of a table of family `ip`; `None` if it does not exist.
///
/// # Errors
/// As [`read_table`].
pub fn read_chain(table: &str, chain: &str) -> Result<Option<Vec<ChainRule>>, Error> {
    let mut socket = Socket::open(0)?;
    let rules = consistent(&mut socket, |socket| {
        let names = |chain_attribute| {
            let mut names = Writer::default();
            names.put_text(1, table);
            names.put_text(chain_attribute, chain);
            names.0
        };
        if !socket.get((GET_CHAIN, IPV4), &names(3), |_| Ok(()))? {
            return Ok(None);
        }
        let mut rules = Vec::new();
        socket.dump((GET_RULE, IPV4), &names(2), |message| {
            let rule = message.attributes();
            // Kernels may list the rules of other chains, too.
            if rule.text(1)? == table && rule.text(2)? == chain {
                let handle = rule.long_number(3)?;
                rules.push(ChainRule {
                    handle: handle.ok_or(Error::Malformed("a rule without a handle"))?,
                    rule: expression::pair_rule(rule.nested(4)?)?,
                });
            }
            Ok(())
        })?;
        Ok(Some(rules))
    });
    Ok(rules?.1)
}

/// Whether iptables-legacy uses a table of this name in the network namespace of this thread.
#[must_use]
pub fn is_legacy_table(table: &str) -> bool {
    // Absent without its kernel module.
    let names = std::fs::read_to_string("/proc/thread-self/net/ip_tables_names");
    names.is_ok_and(|names| names.lines().any(|name| name == table))
}

/// Repeats `read` until no table changed meanwhile; returns the generation of the tables, too.
fn consistent<T>(
    socket: &mut Socket,
    read: impl Fn(&mut Socket) -> Result<T, Error>,
) -> Result<(u32, T), Error> {
    for _ in 0..ATTEMPTS {
        let before = generation(socket)?;
        let outcome = match read(socket) {
            // The rest of an unfinished list would be taken for the next answer.
            Err(Error::Unstable) => {
                *socket = Socket::open(0)?;
                continue;
            }
            outcome => outcome,
        };
        if generation(socket)? == before {
            return outcome.map(|found| (before, found));
        }
        *socket = Socket::open(0)?;
    }
    Err(Error::Unstable)
}

/// Number of changes of the tables of this namespace.
fn generation(socket: &mut Socket) -> Result<u32, Error> {
    let mut generation = None;
    socket.get((GET_GENERATION, 0), &[], |message| {
        generation = message.attributes().number(1)?;
        Ok(())
    })?;
    generation.ok_or(Error::Malformed("no generation"))
}

/// Parses a datagram with messages about a table.
pub(super) fn parse(bytes: &[u8]) -> Result<Table, Error> {
    let mut found = Parser::default();
    for message in Messages(bytes) {
        let message = message?;
        if message.kind == NF_TABLES | NEW_ELEMENT {
            if let Some(last) = found.table.sets.len().checked_sub(1) {
                found.elements_of(last, &message)?;
            }
        } else {
            found.message(&message)?;
        }
    }
    Ok(found.finish())
}

/// Parses a datagram with messages about rules.
pub(super) fn parse_drops(bytes: &[u8]) -> Result<RuleDrops, Error> {
    let mut drops = RuleDrops::default();
    Messages(bytes).try_for_each(|message| add(&mut drops, &message?))?;
    Ok(drops)
}

/// Key of an element of a set of intervals.
struct Key {
    address: u32,
    /// Whether it ends an interval.
    ends: bool,
    /// Chain of the element, in a map.
    chain: Option<Arc<str>>,
}

/// First and last address, and the chain in a map.
type Interval = ((u32, u32), Option<Arc<str>>);

/// Collects the messages about a table.
#[derive(Default)]
struct Parser {
    table: Table,
    rules: BTreeMap<String, Vec<Rule>>,
    /// Keys of the elements of each set of intervals, by its index.
    keys: BTreeMap<usize, Vec<Key>>,
    /// Names of the chains in maps, most of which many elements have.
    names: BTreeSet<Arc<str>>,
}

impl Parser {
    fn message(&mut self, message: &Message<'_>) -> Result<(), Error> {
        let attributes = message.attributes();
        let name = |kind| attributes.text(kind);
        if message.family() != INET || name(1)? != TABLE {
            return Ok(());
        }
        match message.kind ^ NF_TABLES {
            NEW_TABLE => self.table.flags = attributes.number(2)?.unwrap_or_default(),
            NEW_CHAIN => self.table.chains.push(Chain {
                name: name(3)?,
                base: base(&attributes)?,
                rules: Vec::new(),
            }),
            NEW_RULE => {
                let rule = expression::rule(attributes.nested(4)?)?;
                self.rules.entry(name(2)?).or_default().push(rule);
            }
            NEW_SET => {
                let flags = attributes.number(3)?.unwrap_or_default();
                let is_verdict = attributes.number(6)? == Some(VERDICT);
                let elements = match (flags, attributes.number(4)?) {
                    (INTERVAL, Some(IPV4_ADDRESS)) => Elements::Intervals(Vec::new()),
                    (INTERVAL_MAP, Some(IPV4_ADDRESS)) if is_verdict => {
                        Elements::Chains(Vec::new())
                    }
                    (0, Some(ADDRESS_AND_NAME)) => Elements::Interfaces(Vec::new()),
                    _ => Elements::Other,
                };
                self.table.sets.push(Set {
                    name: name(2)?,
                    elements,
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn elements_of(&mut self, set: usize, message: &Message<'_>) -> Result<(), Error> {
        // An element without a key matches whatever the others do not.
        const NO_KEY: Error = Error::Malformed("an element without a key");
        for element in message.attributes().nested(3)? {
            let element = Attributes(element?.1);
            let key = element.nested(1)?;
            match &mut self.table.sets[set].elements {
                elements @ (Elements::Intervals(_) | Elements::Chains(_)) => {
                    let flags = element.number(3)?.unwrap_or_default();
                    let ends = flags & INTERVAL_END != 0;
                    let chain = match elements {
                        Elements::Chains(_) if !ends => Some(chain_of(&element)?),
                        _ => None,
                    };
                    let chain = match chain {
                        Some(name) => Some(shared(&mut self.names, name)),
                        None => None,
                    };
                    let keys = self.keys.entry(set).or_default();
                    keys.push(Key {
                        address: key.number(1)?.ok_or(NO_KEY)?,
                        ends,
                        chain,
                    });
                }
                Elements::Interfaces(list) => {
                    let key = key.find(1)?.and_then(|key| key.split_first_chunk::<4>());
                    let (address, name) = key.ok_or(NO_KEY)?;
                    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                    let name = String::from_utf8_lossy(name).into_owned();
                    list.push((Ipv4Addr::from(*address), name));
                }
                Elements::Other => {}
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Table {
        for (index, keys) in self.keys {
            let elements = &mut self.table.sets[index].elements;
            let intervals = intervals(keys);
            match elements {
                Elements::Chains(list) => {
                    let named = |(span, chain): (_, Option<_>)| Some((span, chain?));
                    *list = intervals.into_iter().filter_map(named).collect();
                }
                _ => {
                    let spans = intervals.into_iter().map(|(span, _)| span);
                    *elements = Elements::Intervals(spans.collect());
                }
            }
        }
        for set in &mut self.table.sets {
            if let Elements::Interfaces(list) = &mut set.elements {
                list.sort_unstable();
            }
        }
        for chain in &mut self.table.chains {
            chain.rules = self.rules.remove(&chain.name).unwrap_or_default();
        }
        self.table
    }
}

/// Attachment of a chain.
fn base(chain: &Attributes<'_>) -> Result<Option<Base>, Error> {
    const ACCEPT: u32 = 1;
    let hook = chain.nested(4)?;
    let Some(number) = hook.number(1)? else {
        return Ok(None);
    };
    Ok(Some(Base {
        kind: chain.text(7)?,
        hook: number,
        priority: hook.number(2)?.unwrap_or_default().cast_signed(),
        accepts: chain.number(5)? == Some(ACCEPT),
    }))
}

/// The name as it is kept already, or kept from now on.
fn shared(names: &mut BTreeSet<Arc<str>>, name: String) -> Arc<str> {
    if let Some(known) = names.get(name.as_str()) {
        return Arc::clone(known);
    }
    let name: Arc<str> = name.into();
    names.insert(Arc::clone(&name));
    name
}

/// Chain of an element of a map; empty if the element has another verdict.
fn chain_of(element: &Attributes<'_>) -> Result<String, Error> {
    let verdict = element.nested(2)?.nested(2)?;
    let code = verdict.number(1)?.unwrap_or_default();
    match code.cast_signed() {
        JUMP => verdict.text(2),
        _ => Ok(String::new()),
    }
}

/// Joins the first key of each interval and the one after it; the last interval may be open.
fn intervals(mut keys: Vec<Key>) -> Vec<Interval> {
    // An end sorts before the beginning of the next interval with the same key.
    keys.sort_unstable_by_key(|key| (key.address, !key.ends));
    let mut intervals = Vec::with_capacity(keys.len() / 2);
    let mut open = None;
    for key in keys {
        if let Some((first, chain)) = open.take() {
            let last = key.address.saturating_sub(1).max(first);
            intervals.push(((first, last), chain));
        }
        open = (!key.ends).then_some((key.address, key.chain));
    }
    intervals.extend(open.map(|(first, chain)| ((first, u32::MAX), chain)));
    intervals
}
