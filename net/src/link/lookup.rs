//! Rules and routes of all tables, which decide the way of a packet.

use std::net::{IpAddr, Ipv4Addr};

use futures::{Stream, StreamExt as _};
use rtnetlink::{
    IpVersion,
    packet_route::{
        AddressFamily,
        route::{RouteAttribute, RouteHeader, RouteMessage, RouteType},
        rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
    },
};

use super::{Error, Links, route};

/// A rule that lets the kernel ask a routing table, as ip-rule(8) shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingRule {
    /// Rules with lower numbers come first.
    pub priority: u32,
    /// Number of the table.
    pub table: u32,
    /// Sources of the packets it is for, with the length of the prefix.
    pub from: Option<(Ipv4Addr, u8)>,
    /// Destinations of the packets it is for, with the length of the prefix.
    pub to: Option<(Ipv4Addr, u8)>,
    /// Interface by which the packets come that it is for.
    pub interface: Option<String>,
    /// Whether it is for packets with a mark other than 0.
    pub marked: bool,
    /// Whether it is for a part of the packets by anything else.
    pub partial: bool,
    /// Whether it is for all packets but those that the above describes.
    pub inverted: bool,
    /// Routes whose prefix has at most this many bits are passed over.
    pub suppressed: Option<u8>,
}

/// A route by which packets are sent to another machine or to a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SendingRoute {
    /// Number of its table.
    pub table: u32,
    /// First address of the destinations.
    pub network: Ipv4Addr,
    /// Length of their prefix.
    pub prefix: u8,
    /// The route with the lowest metric is used of those to one destination.
    pub metric: u32,
    /// Numbers of the links that it sends over; more than one if it spreads packets, none if unknown.
    pub links: Vec<u32>,
}

impl Links {
    /// Lists the rules that ask a table, in order.
    ///
    /// # Errors
    /// When the kernel refuses to list rules.
    pub async fn rules(&self) -> Result<Vec<RoutingRule>, Error> {
        let found = self.netlink().rule().get(IpVersion::V4).execute();
        let parse = |message: RuleMessage| parse_rule(&message);
        let mut all = collect("list rules", found, parse).await?;
        all.sort_by_key(|rule| rule.priority);
        Ok(all)
    }

    /// Lists the routes of all tables that send packets, if `is_wanted` wants that table and these
    /// destinations: a table may hold very many. Those that discard packets or deliver them to this
    /// machine send none.
    ///
    /// # Errors
    /// When the kernel refuses to list routes.
    pub async fn sending_routes(
        &self,
        is_wanted: impl Fn(u32, (Ipv4Addr, u8)) -> bool,
    ) -> Result<Vec<SendingRoute>, Error> {
        let mut request = RouteMessage::default();
        request.header.address_family = AddressFamily::Inet;
        request.header.table = RouteHeader::RT_TABLE_UNSPEC;
        let found = self.netlink().route().get(request).execute();
        let parse = |message: RouteMessage| {
            is_wanted(table(&message), route::destination(&message)).then_some(())?;
            parse_route(&message)
        };
        let mut all = collect("list routes", found, parse).await?;
        all.sort_unstable();
        Ok(all)
    }
}

/// Collects what `parse` makes of the messages of a list.
async fn collect<M, T>(
    action: &'static str,
    found: impl Stream<Item = Result<M, rtnetlink::Error>>,
    parse: impl Fn(M) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let mut found = std::pin::pin!(found);
    let mut all = Vec::new();
    while let Some(message) = found.next().await {
        match message.map_err(|error| Error::of(action, error)) {
            Ok(message) => all.extend(parse(message)),
            // The kernel makes a table with its first route.
            Err(error) if error.is_missing() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Returns `None` for a rule that asks no table.
fn parse_rule(message: &RuleMessage) -> Option<RoutingRule> {
    let header = &message.header;
    if header.action != RuleAction::ToTable {
        return None;
    }
    let mut rule = RoutingRule {
        table: header.table.into(),
        partial: header.tos != 0,
        inverted: header.flags.contains(RuleFlags::Invert),
        ..RoutingRule::default()
    };
    for attribute in &message.attributes {
        use RuleAttribute as A;
        match attribute {
            A::Priority(priority) => rule.priority = *priority,
            A::Table(table) => rule.table = *table,
            A::Source(IpAddr::V4(ip)) => rule.from = Some((*ip, header.src_len)),
            A::Destination(IpAddr::V4(ip)) => rule.to = Some((*ip, header.dst_len)),
            A::Iifname(name) => rule.interface = Some(name.clone()),
            A::FwMark(mark) => rule.marked = *mark != 0,
            // All bits are set in the mask that means none.
            A::SuppressPrefixLen(length) => rule.suppressed = u8::try_from(*length).ok(),
            A::Oifname(_)
            | A::L3MDev(true)
            | A::UidRange(_)
            | A::IpProtocol(_)
            | A::SourcePortRange(_)
            | A::DestinationPortRange(_)
            | A::TunId(_) => rule.partial = true,
            _ => {}
        }
    }
    Some(rule)
}

/// Returns `None` for a route that sends no packets.
fn parse_route(message: &RouteMessage) -> Option<SendingRoute> {
    match message.header.kind {
        RouteType::BlackHole
        | RouteType::Unreachable
        | RouteType::Prohibit
        | RouteType::Throw
        | RouteType::Local
        | RouteType::Broadcast
        | RouteType::Anycast
        | RouteType::Multicast => return None,
        _ => {}
    }
    let (network, prefix) = route::destination(message);
    let mut sending = SendingRoute {
        table: table(message),
        network,
        prefix,
        metric: 0,
        links: Vec::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Priority(metric) => sending.metric = *metric,
            RouteAttribute::Oif(link) => sending.links.push(*link),
            RouteAttribute::MultiPath(hops) => {
                let links = hops.iter().map(|hop| hop.interface_index);
                sending.links.extend(links);
            }
            _ => {}
        }
    }
    Some(sending)
}

/// Number of the table of a route; the header holds numbers of one byte only.
fn table(message: &RouteMessage) -> u32 {
    let table = { message.attributes.iter() }.find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or_else(|| message.header.table.into())
}
