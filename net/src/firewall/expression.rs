//! Expressions of rules as the kernel lists them, and the rules that they form.

use std::net::Ipv4Addr;

use super::{
    Error, PairRule, Rule,
    message::{Attributes, IPV4},
};

/// Beginning of the names of JACO's interfaces.
pub(super) const OWN_INTERFACES: &[u8] = b"jaco";
/// Name of the loopback interface, filled up with zeros.
pub(super) const LOOPBACK: &[u8] = b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Offset of the source address in an IPv4 header.
const SOURCE: u32 = 12;
/// Offset of the destination address in an IPv4 header.
const DESTINATION: u32 = 16;
/// `NF_DROP`
const DROP: i32 = 0;
/// `NF_ACCEPT`
const ACCEPT: i32 = 1;
/// `NFT_RETURN`
const RETURN: i32 = -5;
/// Number of the register of 4 bytes behind the first one (`NFT_REG32_01`).
pub(super) const BEHIND_ADDRESS: u32 = 9;
/// `NFT_META_IIFNAME`
pub(super) const META_INTERFACE_NAME: u32 = 6;
/// `NFT_META_OIFNAME`
const META_LEAVING: u32 = 7;
/// `NFT_FIB_RESULT_OIF`
pub(super) const FIB_INTERFACE: u32 = 1;
/// Number of the register of verdicts (`NFT_REG_VERDICT`).
pub(super) const VERDICT_REGISTER: u32 = 0;
/// `NFTA_FIB_F_SADDR`
pub(super) const FIB_SOURCE: u32 = 1;
/// `NFTA_FIB_F_IIF`
pub(super) const FIB_FROM_INTERFACE: u32 = 8;
/// Bits of the states established and related in a word of conntrack.
const ESTABLISHED_RELATED: u32 = 2 | 4;

/// An expression. Values are loaded into and taken from register 1.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    /// Loads the family of the packet.
    Family,
    /// Loads the state of the connection.
    State,
    /// Loads bytes of the IP header: offset and length.
    Header(u32, u32),
    /// Loads the name of the interface that the packet came by, behind an address.
    InterfaceName,
    /// Loads the name of the interface that the packet leaves by.
    Leaving,
    /// Loads the interface that the packet came by if the route to its source leads there, else 0.
    ReversePath,
    /// Applies a mask.
    Mask(Vec<u8>),
    /// Ends the rule unless the value is equal.
    Equal(Vec<u8>),
    /// Ends the rule unless the value differs.
    Differs(Vec<u8>),
    /// Ends the rule unless the set holds the value.
    Lookup(String),
    /// Goes through the chain that the map has for the value, if there is one.
    Select(String),
    /// Counts.
    Counter,
    /// Decides on the packet.
    Verdict(i32),
    /// Any other.
    Other,
}

/// Parses the expressions of a rule of the table.
pub(super) fn rule(expressions: Attributes<'_>) -> Result<Rule, Error> {
    use Expression as E;
    let expressions = list(expressions)?;
    let zero = [0; 4];
    Ok(match expressions.as_slice() {
        [
            E::State,
            E::Mask(mask),
            E::Differs(value),
            E::Verdict(ACCEPT),
        ] if *mask == ESTABLISHED_RELATED.to_ne_bytes() && *value == zero => {
            Rule::AcceptEstablished
        }
        [
            E::Family,
            E::Equal(family),
            E::Header(SOURCE, 4),
            E::Lookup(set),
            E::Header(DESTINATION, 4),
            E::Lookup(other),
            E::Verdict(verdict),
        ] if *family == [IPV4] && set == other && *verdict == DROP => Rule::DropWithin(set.clone()),
        [
            E::Family,
            E::Equal(family),
            E::Header(SOURCE, 4),
            E::Select(map),
        ] if *family == [IPV4] => Rule::Select(map.clone()),
        [
            E::Family,
            E::Equal(family),
            E::Header(DESTINATION, 4),
            E::Lookup(set),
            E::Verdict(ACCEPT),
        ] if *family == [IPV4] => Rule::AcceptTo(set.clone()),
        [
            E::Family,
            E::Equal(family),
            E::Header(SOURCE, 4),
            E::Lookup(set),
            E::Verdict(ACCEPT),
        ] if *family == [IPV4] => Rule::AcceptFrom(set.clone()),
        [
            E::Family,
            E::Equal(family),
            E::Header(SOURCE, 4),
            E::Lookup(set),
            E::Counter,
            E::Verdict(DROP),
        ] if *family == [IPV4] => Rule::DropFrom(set.clone()),
        [
            E::Family,
            E::Equal(family),
            E::Header(SOURCE, 4),
            E::InterfaceName,
            E::Lookup(set),
            E::Verdict(ACCEPT),
        ] if *family == [IPV4] => Rule::AcceptAttached(set.clone()),
        [
            E::Family,
            E::Equal(family),
            E::Header(SOURCE, 4),
            E::Lookup(set),
            E::ReversePath,
            E::Equal(none),
            E::Counter,
            E::Verdict(DROP),
        ] if *family == [IPV4] && *none == zero => Rule::DropUnrouted(set.clone()),
        [
            E::Leaving,
            E::Differs(own),
            E::Family,
            E::Equal(family),
            E::Header(SOURCE, 4),
            E::Lookup(from),
            E::Header(DESTINATION, 4),
            E::Lookup(to),
            E::Counter,
            E::Verdict(DROP),
        ] if *own == OWN_INTERFACES && *family == [IPV4] => Rule::DropOutside {
            from: from.clone(),
            to: to.clone(),
        },
        [
            E::Leaving,
            E::Differs(own),
            E::Leaving,
            E::Differs(loopback),
            E::Family,
            E::Equal(family),
            E::Header(DESTINATION, 4),
            E::Lookup(set),
            E::Counter,
            E::Verdict(DROP),
        ] if *own == OWN_INTERFACES && *loopback == LOOPBACK && *family == [IPV4] => {
            Rule::DropSentOutside(set.clone())
        }
        _ => Rule::Foreign,
    })
}

/// Packets that the first counter of a rule has counted; 0 without one.
pub(super) fn packets(expressions: Attributes<'_>) -> Result<u64, Error> {
    const PACKETS: u16 = 2;
    for item in expressions {
        let item = Attributes(item?.1);
        if item.text(1)? == "counter" {
            return Ok(item.nested(2)?.long_number(PACKETS)?.unwrap_or_default());
        }
    }
    Ok(0)
}

/// Parses the expressions of a rule of iptables; `None` if it has another form than [`PairRule`].
pub(super) fn pair_rule(expressions: Attributes<'_>) -> Result<Option<PairRule>, Error> {
    let expressions = list(expressions)?;
    let parse = || {
        let (source, rest) = block(&expressions, SOURCE)?;
        let (destination, rest) = block(rest, DESTINATION)?;
        let returns = match rest {
            [Expression::Counter, Expression::Verdict(ACCEPT)] => false,
            [Expression::Counter, Expression::Verdict(RETURN)] => true,
            _ => return None,
        };
        Some(PairRule {
            source,
            destination,
            returns,
        })
    };
    Ok(parse())
}

/// Splits the match of a block of addresses off: the bytes of the prefix, or all bytes and a mask.
fn block(expressions: &[Expression], at: u32) -> Option<((Ipv4Addr, u8), &[Expression])> {
    let (value, mask, rest) = match expressions {
        [
            Expression::Header(offset, 4),
            Expression::Mask(mask),
            Expression::Equal(value),
            rest @ ..,
        ] if *offset == at => (
            value,
            u32::from_be_bytes(mask.as_slice().try_into().ok()?),
            rest,
        ),
        [
            Expression::Header(offset, length),
            Expression::Equal(value),
            rest @ ..,
        ] if *offset == at && *length <= 4 && value.len() == *length as usize => {
            let bits = 32 - 8 * length;
            (value, u32::MAX.checked_shl(bits).unwrap_or(0), rest)
        }
        _ => return None,
    };
    if mask.leading_ones() + mask.trailing_zeros() != 32 {
        return None;
    }
    let mut address = [0; 4];
    address.get_mut(..value.len())?.copy_from_slice(value);
    let prefix = u8::try_from(mask.leading_ones()).ok()?;
    Some(((address.into(), prefix), rest))
}

fn list(expressions: Attributes<'_>) -> Result<Vec<Expression>, Error> {
    let expression = |item: Result<(u16, &[u8]), Error>| {
        let item = Attributes(item?.1);
        let (name, data) = (item.text(1)?, item.nested(2)?);
        Ok(decode(&name, &data)?.unwrap_or(Expression::Other))
    };
    expressions.map(expression).collect()
}

/// Decodes the expression `name`; `None` if it does not have one of the forms above.
///
/// Source: the enumerations `nft_*_attributes` of `linux/netfilter/nf_tables.h`.
fn decode(name: &str, data: &Attributes<'_>) -> Result<Option<Expression>, Error> {
    const NETWORK_HEADER: u32 = 1;
    const META_FAMILY: u32 = 15;
    const CT_STATE: u32 = 0;
    let register = |kind| Ok::<_, Error>(data.number(kind)?.is_some_and(is_first_register));
    // An attribute that is absent in the forms above.
    let absent = |kind| Ok::<_, Error>(data.number(kind)?.unwrap_or_default() == 0);
    Ok(match name {
        "meta" if register(1)? && data.number(2)? == Some(META_FAMILY) => Some(Expression::Family),
        "meta"
            if data.number(1)? == Some(BEHIND_ADDRESS)
                && data.number(2)? == Some(META_INTERFACE_NAME) =>
        {
            Some(Expression::InterfaceName)
        }
        "meta" if register(1)? && data.number(2)? == Some(META_LEAVING) => {
            Some(Expression::Leaving)
        }
        "fib"
            if register(1)?
                && data.number(2)? == Some(FIB_INTERFACE)
                && data.number(3)? == Some(FIB_SOURCE | FIB_FROM_INTERFACE) =>
        {
            Some(Expression::ReversePath)
        }
        "ct" if register(1)? && data.number(2)? == Some(CT_STATE) && data.find(3)?.is_none() => {
            Some(Expression::State)
        }
        "payload" if register(1)? && data.number(2)? == Some(NETWORK_HEADER) => {
            let (offset, length) = (data.number(3)?, data.number(4)?);
            offset.zip(length).map(|(o, l)| Expression::Header(o, l))
        }
        "bitwise" if register(1)? && register(2)? && absent(6)? => {
            let flips = value(data, 5)?.iter().any(|byte| *byte != 0);
            (!flips).then_some(Expression::Mask(value(data, 4)?))
        }
        "cmp" if register(1)? => match data.number(2)? {
            Some(0) => Some(Expression::Equal(value(data, 3)?)),
            Some(1) => Some(Expression::Differs(value(data, 3)?)),
            _ => None,
        },
        "lookup" if register(2)? && data.find(3)?.is_none() && absent(5)? => {
            Some(Expression::Lookup(data.text(1)?))
        }
        "lookup" if register(2)? && data.number(3)? == Some(VERDICT_REGISTER) && absent(5)? => {
            Some(Expression::Select(data.text(1)?))
        }
        "counter" => Some(Expression::Counter),
        "immediate" if data.number(1)? == Some(0) => {
            let code = data.nested(2)?.nested(2)?.number(1)?;
            code.map(|code| Expression::Verdict(code.cast_signed()))
        }
        _ => None,
    })
}

/// Whether a register number is the first one of 16 bytes, which has two numbers.
fn is_first_register(register: u32) -> bool {
    matches!(register, 1 | 8)
}

/// Value nested in an attribute of type `nft_data_attributes`.
fn value(data: &Attributes<'_>, kind: u16) -> Result<Vec<u8>, Error> {
    let value = data.nested(kind)?.find(1)?;
    Ok(value.unwrap_or_default().to_vec())
}
