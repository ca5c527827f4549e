//! The kernel's packet filter, nf_tables: one table that is replaced and read as a whole, rules at
//! the top of chains of others, and notifications of changes.
//!
//! Every function works in the network namespace of the calling thread, blocks, and needs
//! `CAP_NET_ADMIN`. Rules are written with libnftnl; answers of the kernel are parsed here.
//!
//! - [`read_table`], [`read_table_unless`], [`replace_table`]: the table `inet jaco`.
//! - [`read_drops`]: the packets that rules of this table dropped.
//! - [`read_chain`], [`edit_chain`]: rules that match source and destination, in chains of
//!   iptables-nft.
//! - [`cut_flows`]: ends tracked connections, which pass the rules as established ones.
//! - [`Changes`], [`AsyncChanges`]: notifications of changes of any table.

mod changes;
mod expression;
mod flows;
mod message;
mod read;
mod socket;
mod write;

#[cfg(test)]
mod tests;

use std::{io, net::Ipv4Addr, sync::Arc};

pub use changes::{AsyncChanges, Changes};
pub use flows::cut_flows;
pub use read::{
    Reading, is_legacy_table, is_only_change_since, read_chain, read_drops, read_table,
    read_table_unless,
};
pub use write::{edit_chain, replace_table};

/// Name of the table, in family `inet`.
pub const TABLE: &str = "jaco";

/// Why the packet filter was not read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a request.
    #[error("netfilter refused to {0}")]
    Refused(&'static str, #[source] io::Error),
    /// The kernel's answer could not be parsed.
    #[error("malformed answer of netfilter: {0}")]
    Malformed(&'static str),
    /// The tables changed during every attempt to read them.
    #[error("the tables changed while they were read")]
    Unstable,
    /// The rules are more than one batch can hold.
    #[error("a batch of {0} bytes is too large")]
    TooLarge(usize),
    /// The kernel lists no tracked connections: it has no ctnetlink.
    #[error("the kernel lists no tracked connections")]
    NoConntrack,
    /// A name or a rule cannot be written.
    #[error("{0} cannot be written")]
    Unsupported(String),
}

/// Contents of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Flags of the table (`NFT_TABLE_F_*` of `linux/netfilter/nf_tables.h`).
    pub flags: u32,
    /// Sets.
    pub sets: Vec<Set>,
    /// Chains.
    pub chains: Vec<Chain>,
}

/// A named set or map.
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
    /// First and last address of intervals of IPv4 addresses.
    Intervals(Vec<(u32, u32)>),
    /// First and last address of intervals of IPv4 addresses, each with the chain that a packet goes
    /// through.
    Chains(Vec<((u32, u32), Arc<str>)>),
    /// IPv4 addresses with the name of an interface.
    Interfaces(Vec<(Ipv4Addr, String)>),
    /// Those of a set of any other kind, which cannot be written.
    Other,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Name.
    pub name: String,
    /// Attachment to the packet path; `None` for a chain that is only jumped to.
    pub base: Option<Base>,
    /// Rules, in order.
    pub rules: Vec<Rule>,
}

/// Attachment of a chain to the packet path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Type, such as `filter`.
    pub kind: String,
    /// Hook (`NF_INET_*` of `linux/netfilter.h`).
    pub hook: u32,
    /// Priority.
    pub priority: i32,
    /// Whether packets that no rule decides on are accepted.
    pub accepts: bool,
}

/// A rule of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `ct state established,related accept`
    AcceptEstablished,
    /// `ip saddr vmap @map`
    Select(String),
    /// `ip daddr @set accept`
    AcceptTo(String),
    /// `ip saddr @set accept`
    AcceptFrom(String),
    /// `ip saddr @set counter drop`
    DropFrom(String),
    /// `ip saddr @set ip daddr @set drop`
    DropWithin(String),
    /// `ip saddr . iifname @set accept`
    AcceptAttached(String),
    /// `ip saddr @set fib saddr . iif oif 0 counter drop`
    DropUnrouted(String),
    /// `oifname != "jaco*" ip saddr @from ip daddr @to counter drop`
    DropOutside {
        /// Set of the sources.
        from: String,
        /// Set of the destinations.
        to: String,
    },
    /// `oifname != "jaco*" oifname != "lo" ip daddr @set counter drop`
    DropSentOutside(String),
    /// Any other rule, which cannot be written.
    Foreign,
}

/// Packets that rules of the table dropped, since the table was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleDrops {
    /// By rules of [`Rule::DropUnrouted`].
    pub unrouted: u64,
    /// By rules of [`Rule::DropOutside`] and [`Rule::DropSentOutside`].
    pub outside: u64,
}

/// A rule `-s source -d destination -j verdict` of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairRule {
    /// Source: address and length of the prefix in bits.
    pub source: (Ipv4Addr, u8),
    /// Destination: address and length of the prefix in bits.
    pub destination: (Ipv4Addr, u8),
    /// Verdict: return to the calling chain if true, else accept.
    pub returns: bool,
}

/// A rule of a chain of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainRule {
    /// Handle in the kernel.
    pub handle: u64,
    /// The rule, if it is of this form.
    pub rule: Option<PairRule>,
}

/// A change of a chain of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Deletes the rule with this handle.
    Delete(u64),
    /// Inserts a rule before all others.
    InsertFirst(PairRule),
}

/// Parses bytes as the kernel's list of tracked connections over IPv4: both ends of each; never
/// panics.
///
/// # Errors
/// [`Error::Malformed`].
pub fn parse_flows(bytes: &[u8]) -> Result<Vec<(Ipv4Addr, Ipv4Addr)>, Error> {
    flows::parse(bytes)
}

/// Parses bytes as messages of the kernel about a table; never panics.
///
/// # Errors
/// [`Error::Malformed`].
pub fn parse(bytes: &[u8]) -> Result<Table, Error> {
    read::parse(bytes)
}

/// Parses bytes as messages of the kernel about rules, and adds up what they dropped; never panics.
///
/// # Errors
/// [`Error::Malformed`].
pub fn parse_drops(bytes: &[u8]) -> Result<RuleDrops, Error> {
    read::parse_drops(bytes)
}
