//! Routes.

use std::{fmt, net::Ipv4Addr};

use futures::StreamExt as _;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{
        AddressFamily,
        route::{
            RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
            RouteType,
        },
    },
};
use rustix::io::Errno;

use super::{Error, Links};

/// Origin of JACO's routes (`rtm_protocol` of rtnetlink(7)), beside those of
/// `/etc/iproute2/rt_protos`.
pub const PROTOCOL: u8 = 74;

/// Destination of the packets of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The interface with this number.
    Link(u32),
    /// Packets are discarded; a program on this machine gets an error.
    Blackhole,
}

/// A route of the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// First address of the destinations.
    pub network: Ipv4Addr,
    /// Length of their prefix, at most 32.
    pub prefix: u8,
    /// Where their packets go.
    pub target: Target,
    /// Address that packets of this machine get as their source.
    pub source: Option<Ipv4Addr>,
    /// The route with the lowest metric is used of those to one destination.
    pub metric: u32,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl Links {
    /// Lists the routes with [`PROTOCOL`] and, whatever their origin, those over the link
    /// `device`.
    ///
    /// # Errors
    /// When the kernel refuses to list routes.
    pub async fn routes(&self, device: Option<u32>) -> Result<Vec<Route>, Error> {
        let mut all = Vec::new();
        for message in self.route_messages(device).await? {
            all.extend(parse(&message));
        }
        all.sort_unstable();
        Ok(all)
    }

    /// Adds a route.
    ///
    /// # Errors
    /// [`Error::ForeignRoute`] if one of another program is in its place; when its link is gone or
    /// down, or its source no address of this machine.
    pub async fn add_route(&self, route: Route) -> Result<(), Error> {
        let add = self.netlink().route().add(message(route));
        let done = add.execute().await;
        match done.map_err(|error| Error::of("add a route", error)) {
            Err(error) if error.is(&[Errno::EXIST]) => {
                let present = self.routes(None).await?;
                if present.contains(&route) {
                    return Ok(());
                }
                Err(Error::ForeignRoute(route.to_string()))
            }
            done => done,
        }
    }

    /// Replaces the route to the same destinations with the same metric in one operation, or adds
    /// it if there is none. The caller knows from [`Links::routes`] that it replaces one of its own
    /// link.
    ///
    /// # Errors
    /// When its link is gone or down, or its source no address of this machine.
    pub async fn replace_route(&self, route: Route) -> Result<(), Error> {
        let replace = self.netlink().route().add(message(route)).replace();
        let done = replace.execute().await;
        done.map_err(|error| Error::of("replace a route", error))
    }

    /// Removes a route that [`Links::routes`] lists. One over a link is removed whatever its origin,
    /// and whatever its metric and source if `route` has none.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn remove_route(&self, route: Route) -> Result<(), Error> {
        let done = self.netlink().route().del(removal(route)).execute().await;
        Error::unless_missing("remove a route", done)
    }

    async fn route_messages(&self, device: Option<u32>) -> Result<Vec<RouteMessage>, Error> {
        let mut ours = RouteMessage::default();
        ours.header.protocol = RouteProtocol::Other(PROTOCOL);
        let mut all = self.dump(ours, is_ours).await?;
        if let Some(device) = device {
            let mut over = RouteMessage::default();
            over.attributes.push(RouteAttribute::Oif(device));
            let is_other = |message: &_| link_of(message) == Some(device) && !is_ours(message);
            all.extend(self.dump(over, is_other).await?);
        }
        Ok(all)
    }

    /// Lists routes of the main table like `request`. The kernel filters them, as the table may hold
    /// very many; one that does not know how leaves all of it to `is_wanted`.
    async fn dump(
        &self,
        mut request: RouteMessage,
        is_wanted: impl Fn(&RouteMessage) -> bool,
    ) -> Result<Vec<RouteMessage>, Error> {
        request.header.address_family = AddressFamily::Inet;
        request.header.table = RouteHeader::RT_TABLE_MAIN;
        let mut found = self.netlink().route().get(request).execute().boxed();
        let mut all = Vec::new();
        while let Some(message) = found.next().await {
            match message.map_err(|error| Error::of("list routes", error)) {
                Ok(message) => {
                    let main = message.header.table == RouteHeader::RT_TABLE_MAIN;
                    if main && is_wanted(&message) {
                        all.push(message);
                    }
                }
                // The kernel makes the table with its first route, and knows a link by its number.
                Err(error) if error.is_missing() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

fn message(route: Route) -> RouteMessage {
    let mut builder = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(route.network, route.prefix)
        .protocol(RouteProtocol::Other(PROTOCOL));
    if let Some(source) = route.source {
        builder = builder.pref_source(source);
    }
    if route.metric != 0 {
        builder = builder.priority(route.metric);
    }
    match route.target {
        Target::Link(index) => builder.output_interface(index).scope(RouteScope::Link),
        Target::Blackhole => builder.kind(RouteType::BlackHole),
    }
    .build()
}

/// Request to remove a route; the kernel compares what is set.
fn removal(route: Route) -> RouteMessage {
    let mut message = message(route);
    message.header.scope = RouteScope::NoWhere;
    if let Target::Link(_) = route.target {
        message.header.protocol = RouteProtocol::Unspec;
        message.header.kind = RouteType::Unspec;
    }
    message
}

/// Returns `None` for routes that JACO never makes, such as those over a gateway.
fn parse(message: &RouteMessage) -> Option<Route> {
    let target = match message.header.kind {
        RouteType::BlackHole => Target::Blackhole,
        _ => Target::Link(link_of(message)?),
    };
    let (network, prefix) = destination(message);
    let mut route = Route {
        network,
        prefix,
        target,
        source: None,
        metric: 0,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::PrefSource(RouteAddress::Inet(ip)) => route.source = Some(*ip),
            RouteAttribute::Priority(metric) => route.metric = *metric,
            _ => {}
        }
    }
    Some(route)
}

/// First address of the destinations, and the length of their prefix.
pub(super) fn destination(message: &RouteMessage) -> (Ipv4Addr, u8) {
    let network = { message.attributes.iter() }.find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(ip)) => Some(*ip),
        _ => None,
    });
    let network = network.unwrap_or(Ipv4Addr::UNSPECIFIED);
    (network, message.header.destination_prefix_length)
}

pub(super) fn link_of(message: &RouteMessage) -> Option<u32> {
    message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        })
}

/// Whether the route carries [`PROTOCOL`].
pub(super) fn is_ours(message: &RouteMessage) -> bool {
    message.header.protocol == RouteProtocol::Other(PROTOCOL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_is_removed_by_its_own_fields() {
        let hole = Route {
            network: Ipv4Addr::new(10, 244, 1, 0),
            prefix: 24,
            target: Target::Blackhole,
            source: None,
            metric: 4096,
        };
        let message = removal(hole);
        assert_eq!(message.header.protocol, RouteProtocol::Other(PROTOCOL));
        assert_eq!(parse(&message), Some(hole));
        let over = Route {
            target: Target::Link(7),
            source: Some(Ipv4Addr::new(10, 99, 0, 7)),
            ..hole
        };
        let message = removal(over);
        assert_eq!(message.header.protocol, RouteProtocol::Unspec);
        assert_eq!(parse(&message), Some(over));
    }
}
