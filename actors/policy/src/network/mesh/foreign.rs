//! Routes of other programs that lead packets between containers out of this host unencrypted.
//!
//! The kernel asks the table of each rule, in order of their priorities, and takes the most specific
//! route of the first table that has one (ip-rule(8)). The blackholes and the routes of the mesh are in
//! the main table: another route takes their packets if it is more specific, if it has the same
//! destinations and a lower metric, or if it is in a table that is asked before.

use std::{collections::BTreeSet, fmt};

use jaco_engine::cidr::Cidr;

/// Beginning of the names of all interfaces of JACO.
pub const INTERFACE_PREFIX: &str = "jaco";
/// Metric of blackhole routes: any other route to a block is better.
pub const BLACKHOLE_METRIC: u32 = 19_009;
/// Number of the main table (`RT_TABLE_MAIN`).
pub const MAIN_TABLE: u32 = 254;
/// Number of the table with the addresses of this host (`RT_TABLE_LOCAL`).
pub const LOCAL_TABLE: u32 = 255;
/// The loopback interface, by which packets never leave.
const LOOPBACK: &str = "lo";

/// A rule that lets the kernel ask a routing table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingRule {
    /// Rules with lower numbers come first.
    pub priority: u32,
    /// Number of the table.
    pub table: u32,
    /// Sources of the packets it is for; `None` for all.
    pub from: Option<Cidr>,
    /// Destinations of the packets it is for; `None` for all.
    pub to: Option<Cidr>,
    /// Interface by which the packets come that it is for; `None` for all. Those of this host come by
    /// `lo`.
    pub interface: Option<String>,
    /// Whether it is for packets with a mark only, which no packet of JACO has.
    pub marked: bool,
    /// Whether it is for a part of the packets by something else, such as their ports.
    pub partial: bool,
    /// Whether it is for the packets that the above does not describe.
    pub inverted: bool,
    /// Routes whose prefix has at most this many bits are passed over.
    pub suppressed: Option<u8>,
}

/// A route of another program that sends packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendingRoute {
    /// Number of its table.
    pub table: u32,
    /// Destinations.
    pub to: Cidr,
    /// Metric.
    pub metric: u32,
    /// Names of the interfaces that it sends by; more than one if it spreads packets. Empty if unknown.
    pub interfaces: Vec<String>,
}

/// A route of another program that takes packets of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignRoute {
    /// Destinations.
    pub to: Cidr,
    /// Names of the interfaces that it sends by.
    pub interfaces: Vec<String>,
    /// Number of its table.
    pub table: u32,
}

impl fmt::Display for ForeignRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to)?;
        for interface in &self.interfaces {
            write!(f, " dev {interface}")?;
        }
        if self.table != MAIN_TABLE {
            write!(f, " table {}", self.table)?;
        }
        Ok(())
    }
}

/// Selects the routes that take packets to `networks`, for which the main table has blackholes.
///
/// A rule may match if it matches any packet of a container or of this host; a packet without a mark,
/// whatever its ports and its user.
#[must_use]
pub fn foreign_routes(
    networks: &BTreeSet<Cidr>,
    rules: &[RoutingRule],
    routes: &[SendingRoute],
) -> BTreeSet<ForeignRoute> {
    let takes = |route: &&SendingRoute| {
        !route.is_own()
            && networks
                .iter()
                .any(|network| takes(*network, networks, rules, route))
    };
    let foreign = |route: &SendingRoute| ForeignRoute {
        to: route.to,
        interfaces: route.interfaces.clone(),
        table: route.table,
    };
    routes.iter().filter(takes).map(foreign).collect()
}

/// Whether `route` takes packets to `network`, which is one of `networks`.
fn takes(
    network: Cidr,
    networks: &BTreeSet<Cidr>,
    rules: &[RoutingRule],
    route: &SendingRoute,
) -> bool {
    if !route.to.overlaps(network) {
        return false;
    }
    // Whichever table comes after this rule is never asked for the network.
    let main = { rules.iter() }
        .filter(|rule| rule.table == MAIN_TABLE && rule.is_for_all() && rule.considers(network))
        .map(|rule| rule.priority)
        .min();
    if route.table == MAIN_TABLE {
        let (to, length) = (route.to.prefix(), network.prefix());
        return to > length || to == length && route.metric < BLACKHOLE_METRIC;
    }
    rules.iter().any(|rule| {
        rule.table == route.table
            && main.is_none_or(|main| rule.priority < main)
            && rule.considers(route.to)
            && rule.may_match(network, networks)
    })
}

impl SendingRoute {
    /// Whether its packets stay on this host or go into the mesh.
    fn is_own(&self) -> bool {
        let is_own = |name: &String| name.starts_with(INTERFACE_PREFIX) || name == LOOPBACK;
        !self.interfaces.is_empty() && self.interfaces.iter().all(is_own)
    }
}

impl RoutingRule {
    fn is_for_all(&self) -> bool {
        let narrowed = self.from.is_some() || self.to.is_some() || self.interface.is_some();
        !(narrowed || self.marked || self.partial || self.inverted)
    }

    /// Whether a route to `network` counts.
    fn considers(&self, network: Cidr) -> bool {
        self.suppressed
            .is_none_or(|length| network.prefix() > length)
    }

    /// Whether it may be for packets to `network` with a source in `networks`, or with one that is not
    /// chosen yet.
    fn may_match(&self, network: Cidr, networks: &BTreeSet<Cidr>) -> bool {
        let from = |from: Cidr| networks.iter().any(|network| network.overlaps(from));
        let by = |name: &String| name.starts_with(INTERFACE_PREFIX) || name == LOOPBACK;
        self.inverted
            || !self.marked
                && self.from.is_none_or(from)
                && self.to.is_none_or(|to| to.overlaps(network))
                && self.interface.as_ref().is_none_or(by)
    }
}

#[cfg(test)]
mod tests;
