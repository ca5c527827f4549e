//! Batches of changes, each of which takes effect as a whole or not at all.

use std::{
    alloc::{Layout, handle_alloc_error},
    ffi::{CStr, CString},
    net::Ipv4Addr,
    ptr::NonNull,
    sync::Arc,
};

use nftnl::{
    Batch, Chain as NftChain, ChainType, MsgType, NlMsg, Policy, ProtoFamily, Rule as NftRule,
    Table as NftTable, expr,
    expr::{Bitwise, Cmp, CmpOp, NetworkHeaderField, Payload, Verdict, ct::States},
    nftnl_sys::{self as sys},
    set::Set as NftSet,
};

use super::{
    Base, Chain, Edit, Elements, Error, PairRule, Rule, Set, TABLE, Table,
    expression::{
        BEHIND_ADDRESS, FIB_FROM_INTERFACE, FIB_INTERFACE, FIB_SOURCE, LOOPBACK,
        META_INTERFACE_NAME, OWN_INTERFACES, VERDICT_REGISTER,
    },
    message::{self, APPEND, CREATE, Writer},
    read::{ADDRESS_AND_NAME, INTERFACE_NAME, JUMP, MAP, VERDICT},
    socket::Socket,
};

const NEW_ELEMENT: u16 = 12;
/// Flag of a set of intervals.
const INTERVAL: u32 = 4;
/// Flag of an element that ends an interval.
const INTERVAL_END: u32 = 1;
/// Elements of a set per message: an attribute is shorter than 64 KiB.
const ELEMENTS: usize = 1000;
/// Elements of a map per message, which have names of chains of up to [`NAME_BYTES`].
const MAP_ELEMENTS: usize = 200;
/// Size of a name with its final zero (`NFT_NAME_MAXLEN`).
const NAME_BYTES: usize = 256;
/// Offset of the flags in a netlink header.
const FLAGS_AT: usize = 6;

/// Replaces the table `inet jaco` by `table` in one batch; at no time is the old one gone and the
/// new one not there. The flags are not written.
///
/// # Errors
/// [`Error::Unsupported`] for a rule that is foreign or names no set of the table. The kernel's
/// table is unchanged then, as after any other error.
pub fn replace_table(table: &Table) -> Result<(), Error> {
    let mut batch = Batch::new();
    let name = text(TABLE)?;
    let handle = NftTable::new(&name, ProtoFamily::Inet);
    // Deleting a table that does not exist would fail.
    batch.add(&handle, MsgType::Add);
    batch.add(&handle, MsgType::Del);
    batch.add(&handle, MsgType::Add);
    let mut sets = Vec::with_capacity(table.sets.len());
    for (set, id) in table.sets.iter().zip(1..) {
        sets.push((&*set.name, add_set(&mut batch, &handle, set, id)?));
    }
    // Elements of a map name chains.
    let mut chains = Vec::with_capacity(table.chains.len());
    for chain in &table.chains {
        chains.push(add_chain(&mut batch, &handle, chain)?);
    }
    for (set, id) in table.sets.iter().zip(1..) {
        for keys in keys(set)?.chunks(per_message(set)) {
            batch.add(&elements(&set.name, id, keys), MsgType::Add);
        }
    }
    sets.sort_unstable_by_key(|(name, _)| *name);
    for (chain, handle) in table.chains.iter().zip(&chains) {
        add_rules(&mut batch, handle, &chain.rules, &sets)?;
    }
    commit(batch)
}

/// Changes a chain of a table of family `ip` in one batch.
///
/// # Errors
/// When a rule to delete is gone, or the chain is; nothing has changed then.
pub fn edit_chain(table: &str, chain: &str, edits: &[Edit]) -> Result<(), Error> {
    let mut batch = Batch::new();
    let table = NftTable::new(text(table)?, ProtoFamily::Ipv4);
    let chain = NftChain::new(text(chain)?, &table);
    for edit in edits {
        let mut rule = NftRule::new(&chain);
        match edit {
            Edit::Delete(handle) => {
                rule.set_handle(*handle);
                batch.add(&rule, MsgType::Del);
            }
            Edit::InsertFirst(pair) => {
                add_pair(&mut rule, pair);
                batch.add(&First(rule), MsgType::Add);
            }
        }
    }
    commit(batch)
}

fn commit(batch: Batch) -> Result<(), Error> {
    let batch = batch.finalize();
    Socket::open(0)?.commit(batch.iter())
}

fn text(text: &str) -> Result<CString, Error> {
    let name = CString::new(text).ok().filter(|_| text.len() < NAME_BYTES);
    name.ok_or_else(|| Error::Unsupported(format!("the name {text:?}")))
}

fn add_set<'a>(
    batch: &mut Batch,
    table: &'a NftTable,
    set: &Set,
    id: u32,
) -> Result<NftSet<'a, Ipv4Addr>, Error> {
    let name = text(&set.name)?;
    let handle = NftSet::<Ipv4Addr>::new_named(&name, id, table, ProtoFamily::Inet);
    let attributes = match &set.elements {
        Elements::Intervals(_) => &[(sys::NFTNL_SET_FLAGS, INTERVAL)][..],
        Elements::Chains(_) => &[
            (sys::NFTNL_SET_FLAGS, INTERVAL | MAP),
            (sys::NFTNL_SET_DATA_TYPE, VERDICT),
        ],
        Elements::Interfaces(_) => &[
            (sys::NFTNL_SET_KEY_TYPE, ADDRESS_AND_NAME),
            (sys::NFTNL_SET_KEY_LEN, 4 + INTERFACE_NAME as u32),
        ],
        Elements::Other => return Err(Error::Unsupported(format!("the set {}", set.name))),
    };
    for (attribute, value) in attributes {
        #[expect(unsafe_code, reason = "these attributes of a set have no safe wrapper")]
        // SAFETY: the pointer is that of a set which lives until the end of this function.
        unsafe {
            sys::nftnl_set_set_u32(handle.as_ptr().as_ptr(), *attribute as u16, *value);
        }
    }
    batch.add(&handle, MsgType::Add);
    Ok(handle)
}

/// Keys of the elements of a set.
fn keys(set: &Set) -> Result<Vec<Key>, Error> {
    match &set.elements {
        Elements::Intervals(list) => Ok(interval_keys(list.iter().map(|span| (*span, None)))),
        Elements::Chains(list) => {
            // The buffer of a message has room for names of this length.
            if let Some((_, chain)) = list.iter().find(|(_, chain)| chain.len() >= NAME_BYTES) {
                return Err(Error::Unsupported(format!("the chain {chain:?}")));
            }
            let chains = list.iter().map(|(span, chain)| (*span, Some(chain)));
            Ok(interval_keys(chains))
        }
        Elements::Interfaces(list) => list
            .iter()
            .map(|(address, name)| key_with_name(*address, name))
            .collect(),
        Elements::Other => Err(Error::Unsupported(format!("the set {}", set.name))),
    }
}

/// Elements of a set in one message: an attribute is shorter than 64 KiB.
fn per_message(set: &Set) -> usize {
    match set.elements {
        Elements::Chains(_) => MAP_ELEMENTS,
        _ => ELEMENTS,
    }
}

/// An element.
struct Key {
    bytes: Vec<u8>,
    /// Whether it ends an interval.
    ends: bool,
    /// Chain of the element, in a map.
    chain: Option<Arc<str>>,
}

/// Key of an address with the name of an interface.
fn key_with_name(address: Ipv4Addr, name: &str) -> Result<Key, Error> {
    if name.len() >= INTERFACE_NAME {
        return Err(Error::Unsupported(format!("the interface {name:?}")));
    }
    let mut key = [address.octets().as_slice(), name.as_bytes()].concat();
    key.resize(4 + INTERFACE_NAME, 0);
    Ok(Key {
        bytes: key,
        ends: false,
        chain: None,
    })
}

/// First key of each interval, with its chain in a map, and the key after it.
fn interval_keys<'a>(
    intervals: impl Iterator<Item = ((u32, u32), Option<&'a Arc<str>>)>,
) -> Vec<Key> {
    let key = |address: u32, ends, chain: Option<&Arc<str>>| Key {
        bytes: address.to_be_bytes().to_vec(),
        ends,
        chain: chain.cloned(),
    };
    let mut keys = Vec::new();
    for ((first, last), chain) in intervals {
        if keys.is_empty() && first > 0 {
            // nft begins every set of intervals with the end of one.
            keys.push(key(0, true, None));
        }
        keys.push(key(first, false, chain));
        keys.extend(last.checked_add(1).map(|end| key(end, true, None)));
    }
    keys
}

fn elements(set: &str, id: u32, keys: &[Key]) -> Raw {
    let mut body = Writer::default();
    body.put_text(1, TABLE);
    body.put_text(2, set);
    body.put_number(4, id);
    body.nest(3, |list| {
        for key in keys {
            list.nest(1, |element| {
                element.nest(1, |data| data.put(1, &key.bytes));
                if let Some(chain) = &key.chain {
                    element.nest(2, |data| {
                        data.nest(2, |verdict| {
                            verdict.put_number(1, JUMP.cast_unsigned());
                            verdict.put_text(2, chain);
                        });
                    });
                }
                if key.ends {
                    element.put_number(3, INTERVAL_END);
                }
            });
        }
    });
    Raw {
        kind: NEW_ELEMENT,
        flags: CREATE,
        body: body.0,
    }
}

fn add_chain<'a>(
    batch: &mut Batch,
    table: &'a NftTable,
    chain: &Chain,
) -> Result<NftChain<'a>, Error> {
    let mut handle = NftChain::new(text(&chain.name)?, table);
    if let Some(base) = &chain.base {
        attach(&mut handle, base)?;
    }
    batch.add(&handle, MsgType::Add);
    Ok(handle)
}

fn add_rules(
    batch: &mut Batch,
    chain: &NftChain<'_>,
    rules: &[Rule],
    sets: &[(&str, NftSet<'_, Ipv4Addr>)],
) -> Result<(), Error> {
    for rule in rules {
        let mut written = NftRule::new(chain);
        match rule {
            Rule::AcceptEstablished => add_established(&mut written),
            Rule::Select(map) => add_select(&mut written, find(sets, map)?),
            Rule::AcceptTo(set) => add_to(&mut written, find(sets, set)?),
            Rule::AcceptFrom(set) => {
                add_from(&mut written, find(sets, set)?);
                written.add_expr(&Verdict::Accept);
            }
            Rule::DropFrom(set) => {
                add_from(&mut written, find(sets, set)?);
                written.add_expr(&expr::Counter);
                written.add_expr(&Verdict::Drop);
            }
            Rule::DropWithin(set) => add_within(&mut written, find(sets, set)?),
            Rule::AcceptAttached(set) => add_attached(&mut written, find(sets, set)?),
            Rule::DropUnrouted(set) => add_unrouted(&mut written, find(sets, set)?),
            Rule::DropOutside { from, to } => {
                add_outside(&mut written, find(sets, from)?, find(sets, to)?);
            }
            Rule::DropSentOutside(set) => add_sent_outside(&mut written, find(sets, set)?),
            Rule::Foreign => return Err(Error::Unsupported("a foreign rule".to_owned())),
        }
        batch.add(&written, MsgType::Add);
    }
    Ok(())
}

fn attach(chain: &mut NftChain<'_>, base: &Base) -> Result<(), Error> {
    let kind = match &*base.kind {
        "filter" => ChainType::Filter,
        other => return Err(Error::Unsupported(format!("a chain of type {other}"))),
    };
    let hook = match base.hook {
        0 => nftnl::Hook::PreRouting,
        1 => nftnl::Hook::In,
        2 => nftnl::Hook::Forward,
        3 => nftnl::Hook::Out,
        other => return Err(Error::Unsupported(format!("a chain at hook {other}"))),
    };
    chain.set_type(kind);
    chain.set_hook(hook, base.priority);
    chain.set_policy(if base.accepts {
        Policy::Accept
    } else {
        Policy::Drop
    });
    Ok(())
}

fn find<'a, 'b>(
    sets: &'a [(&str, NftSet<'b, Ipv4Addr>)],
    name: &str,
) -> Result<&'a NftSet<'b, Ipv4Addr>, Error> {
    let found = sets.binary_search_by(|(set, _)| (*set).cmp(name));
    let index = found.map_err(|_| Error::Unsupported(format!("a rule about the set {name}")))?;
    Ok(&sets[index].1)
}

fn add_established(rule: &mut NftRule<'_>) {
    let states = (States::ESTABLISHED | States::RELATED).bits();
    rule.add_expr(&expr::Conntrack::State);
    rule.add_expr(&Bitwise::new(states, 0_u32));
    rule.add_expr(&Cmp::new(CmpOp::Neq, 0_u32));
    rule.add_expr(&Verdict::Accept);
}

/// Ends the rule for packets of IPv6, which have other bytes at the place of the addresses.
fn add_family(rule: &mut NftRule<'_>) {
    rule.add_expr(&expr::Meta::NfProto);
    rule.add_expr(&Cmp::new(CmpOp::Eq, message::IPV4));
}

fn add_select(rule: &mut NftRule<'_>, map: &NftSet<'_, Ipv4Addr>) {
    add_family(rule);
    rule.add_expr(&header(12, 4));
    rule.add_expr(&Select(map));
}

fn add_to(rule: &mut NftRule<'_>, set: &NftSet<'_, Ipv4Addr>) {
    add_family(rule);
    rule.add_expr(&header(16, 4));
    rule.add_expr(&expr::Lookup::new(set));
    rule.add_expr(&Verdict::Accept);
}

/// Ends the rule unless the set has the source.
fn add_from(rule: &mut NftRule<'_>, set: &NftSet<'_, Ipv4Addr>) {
    add_family(rule);
    rule.add_expr(&header(12, 4));
    rule.add_expr(&expr::Lookup::new(set));
}

fn add_within(rule: &mut NftRule<'_>, set: &NftSet<'_, Ipv4Addr>) {
    add_family(rule);
    for offset in [12, 16] {
        rule.add_expr(&header(offset, 4));
        rule.add_expr(&expr::Lookup::new(set));
    }
    rule.add_expr(&Verdict::Drop);
}

fn add_attached(rule: &mut NftRule<'_>, set: &NftSet<'_, Ipv4Addr>) {
    add_family(rule);
    rule.add_expr(&header(12, 4));
    rule.add_expr(&Numbers {
        name: c"meta",
        attributes: &[
            (sys::NFTNL_EXPR_META_DREG, BEHIND_ADDRESS),
            (sys::NFTNL_EXPR_META_KEY, META_INTERFACE_NAME),
        ],
    });
    rule.add_expr(&expr::Lookup::new(set));
    rule.add_expr(&Verdict::Accept);
}

fn add_unrouted(rule: &mut NftRule<'_>, set: &NftSet<'_, Ipv4Addr>) {
    add_family(rule);
    rule.add_expr(&header(12, 4));
    rule.add_expr(&expr::Lookup::new(set));
    rule.add_expr(&Numbers {
        name: c"fib",
        attributes: &[
            (sys::NFTNL_EXPR_FIB_DREG, expr::Register::Reg1 as u32),
            (sys::NFTNL_EXPR_FIB_RESULT, FIB_INTERFACE),
            (sys::NFTNL_EXPR_FIB_FLAGS, FIB_SOURCE | FIB_FROM_INTERFACE),
        ],
    });
    rule.add_expr(&Cmp::new(CmpOp::Eq, 0_u32));
    rule.add_expr(&expr::Counter);
    rule.add_expr(&Verdict::Drop);
}

fn add_outside(rule: &mut NftRule<'_>, from: &NftSet<'_, Ipv4Addr>, to: &NftSet<'_, Ipv4Addr>) {
    // Most packets between containers end here.
    add_leaving(rule, &[OWN_INTERFACES]);
    add_family(rule);
    for (offset, set) in [(12, from), (16, to)] {
        rule.add_expr(&header(offset, 4));
        rule.add_expr(&expr::Lookup::new(set));
    }
    rule.add_expr(&expr::Counter);
    rule.add_expr(&Verdict::Drop);
}

fn add_sent_outside(rule: &mut NftRule<'_>, to: &NftSet<'_, Ipv4Addr>) {
    add_leaving(rule, &[OWN_INTERFACES, LOOPBACK]);
    add_family(rule);
    rule.add_expr(&header(16, 4));
    rule.add_expr(&expr::Lookup::new(to));
    rule.add_expr(&expr::Counter);
    rule.add_expr(&Verdict::Drop);
}

/// Ends the rule if the name of the interface that the packet leaves by begins with one of `names`.
fn add_leaving(rule: &mut NftRule<'_>, names: &[&[u8]]) {
    for name in names {
        rule.add_expr(&expr::Meta::OifName);
        rule.add_expr(&Cmp::new(CmpOp::Neq, *name));
    }
}

/// An expression for which nftnl has no wrapper: its name and its attributes, which are numbers.
struct Numbers {
    name: &'static CStr,
    attributes: &'static [(u32, u32)],
}

impl expr::Expression for Numbers {
    #[expect(unsafe_code, reason = "expressions are objects of libnftnl")]
    fn to_expr(&self, _: &NftRule<'_>) -> NonNull<sys::nftnl_expr> {
        // SAFETY: the name is a string of C; the attributes are numbers of this expression.
        let made = NonNull::new(unsafe { sys::nftnl_expr_alloc(self.name.as_ptr()) });
        // libnftnl knows both names; it fails without memory.
        let made = made.unwrap_or_else(|| handle_alloc_error(Layout::new::<[u64; 8]>()));
        for (attribute, value) in self.attributes {
            // SAFETY: as above.
            unsafe { sys::nftnl_expr_set_u32(made.as_ptr(), *attribute as u16, *value) };
        }
        made
    }
}

/// The expression that goes through the chain that a map has for the value in register 1; nftnl has one
/// for sets only.
struct Select<'a>(&'a NftSet<'a, Ipv4Addr>);

impl expr::Expression for Select<'_> {
    #[expect(unsafe_code, reason = "expressions are objects of libnftnl")]
    fn to_expr(&self, rule: &NftRule<'_>) -> NonNull<sys::nftnl_expr> {
        let made = expr::Lookup::new(self.0).to_expr(rule);
        let attribute = sys::NFTNL_EXPR_LOOKUP_DREG as u16;
        // SAFETY: a lookup has this attribute, which is a number.
        unsafe { sys::nftnl_expr_set_u32(made.as_ptr(), attribute, VERDICT_REGISTER) };
        made
    }
}

/// Adds the expressions that iptables-nft writes, which it can read for that reason.
fn add_pair(rule: &mut NftRule<'_>, pair: &PairRule) {
    for (offset, (address, prefix)) in [(12, pair.source), (16, pair.destination)] {
        let mask = u32::MAX
            .checked_shl(32 - u32::from(prefix.min(32)))
            .unwrap_or(0);
        let address = address.octets();
        if prefix % 8 == 0 {
            // Whole bytes need no mask.
            let length = usize::from(prefix / 8).clamp(1, 4);
            rule.add_expr(&header(offset, length as u32));
            rule.add_expr(&Cmp::new(CmpOp::Eq, &address[..length]));
        } else {
            rule.add_expr(&header(offset, 4));
            rule.add_expr(&Bitwise::new(&mask.to_be_bytes()[..], &[0_u8; 4][..]));
            rule.add_expr(&Cmp::new(CmpOp::Eq, &address[..]));
        }
    }
    rule.add_expr(&expr::Counter);
    rule.add_expr(if pair.returns {
        &Verdict::Return
    } else {
        &Verdict::Accept
    });
}

/// Loads bytes of the IP header. nftnl calls the fields bits, and passes them on as bytes.
fn header(offset: u32, length: u32) -> Payload {
    Payload::Network(NetworkHeaderField::Raw {
        offset_bits: offset,
        length_bits: length,
    })
}

/// A rule that goes before all others of its chain; nftnl appends.
struct First<'a>(NftRule<'a>);

#[expect(
    unsafe_code,
    reason = "nftnl's messages write into a buffer of libnftnl"
)]
// SAFETY: writes what `Rule` does and changes flags in the header that it wrote.
unsafe impl NlMsg for First<'_> {
    unsafe fn write(&self, buf: *mut std::ffi::c_void, seq: u32, msg_type: MsgType) {
        // SAFETY: the caller's promise about `buf`; the header is written by then.
        unsafe {
            self.0.write(buf, seq, msg_type);
            let flags = buf.cast::<u8>().add(FLAGS_AT).cast::<u16>();
            flags.write_unaligned(flags.read_unaligned() & !APPEND);
        }
    }
}

/// A message of whole attributes in family `inet`.
struct Raw {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

#[expect(
    unsafe_code,
    reason = "nftnl's messages write into a buffer of libnftnl"
)]
// SAFETY: the buffer holds more than 64 KiB, and the body at most `ELEMENTS` elements of 48 bytes, or
// `MAP_ELEMENTS` of 300, and two names, each shorter than the 256 bytes that the kernel takes.
unsafe impl NlMsg for Raw {
    unsafe fn write(&self, buf: *mut std::ffi::c_void, seq: u32, _: MsgType) {
        let bytes = message::request(self.kind, self.flags, message::INET, seq, &self.body);
        // SAFETY: `buf` has room for the longest message, as above, and does not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len());
        }
    }
}
