//! Decision about one query.

use std::net::{IpAddr, Ipv4Addr};

use jaco_engine::cidr::Cidr;

use super::{
    message::Request,
    records::{Asked, Found, Records},
    scope::{Meaning, NameText, classify},
};
use crate::network::names::NetworkId;

/// Answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// These addresses.
    Addresses(Vec<Ipv4Addr>),
    /// The name exists, without records of the requested type.
    NoData,
    /// The name does not exist on any network of the client.
    NxDomain,
    /// Not answered here. Resolvers ask their next server then, which is the responder of the next
    /// network of the client.
    Refused,
    /// Forwarded to the upstream servers.
    Forward,
}

/// Decides about `request` of `client`, a container of network `scope` on host `here`; records of
/// hosts for which `is_fresh` is false do not count.
///
/// A responder never tells addresses of another network than its own: which networks a client is
/// on is proved by the address from which it asks each responder. A name that another one of them
/// answers is refused rather than denied, because resolvers end at a denial: the engine's since
/// version 24, and those of libc.
#[must_use]
pub fn decide(
    records: &Records,
    scope: &NetworkId,
    here: &str,
    is_fresh: impl Fn(&str) -> bool,
    client: Ipv4Addr,
    request: &Request,
) -> Decision {
    let view = records.view(scope, client);
    let name = NameText::of(request.labels());
    let declares = |deployment: &str, name: &str| view.declares(deployment, name);
    let asked = match classify(&name, view.deployments(), declares) {
        Meaning::External if request.is_transfer() => return Decision::Refused,
        // A query is a way to the outside too.
        Meaning::External if records.is_internal(scope) => return Decision::Refused,
        Meaning::External => return Decision::Forward,
        Meaning::Unknown => return Decision::NxDomain,
        Meaning::Service(name) => Asked::Name(name),
        Meaning::ServiceOf {
            service: name,
            deployment,
        } => Asked::Of { name, deployment },
    };
    match view.resolve(asked, here, is_fresh) {
        Found::Here(addresses) if request.asks_addresses() => Decision::Addresses(addresses),
        Found::Here(_) => Decision::NoData,
        Found::Elsewhere => Decision::Refused,
        Found::Nowhere => Decision::NxDomain,
    }
}

/// Address of a client that a responder answers; `None` for any other `source`. Clients are the
/// containers of its `block`, and the host, whose queries come from the responder's own address or
/// from loopback. Packets of other bridges of the host and of other machines arrive as well.
#[must_use]
pub fn is_client(block: Cidr, source: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V4(source) = source.to_canonical() else {
        return None;
    };
    let number = u64::from(u32::from(source));
    let is_in_block = (block.first()..=block.last()).contains(&number);
    (is_in_block || source.is_loopback()).then_some(source)
}

/// Brings the addresses of an answer into an order that follows from `seed`, so that clients that
/// take the first one spread over all.
pub fn shuffle(addresses: &mut [Ipv4Addr], seed: u64) {
    let mut random = seed;
    for last in (1..addresses.len()).rev() {
        // SplitMix64; the order protects nothing.
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let choices = u64::try_from(last).unwrap_or(u64::MAX) + 1;
        let chosen = usize::try_from(bits % choices).unwrap_or(0);
        addresses.swap(last, chosen);
    }
}

#[cfg(test)]
mod tests;
