//! Decision about one query.

use std::net::{IpAddr, Ipv4Addr};

use super::{
    message::Request,
    records::Records,
    scope::{Meaning, classify},
};
use crate::network::names::NetworkId;

/// Answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// These addresses.
    Addresses(Vec<Ipv4Addr>),
    /// The name exists, without records of the requested type.
    NoData,
    /// The name does not exist.
    NxDomain,
    /// The name does not exist here, but may exist on another network of the deployment.
    Elsewhere,
    /// Not answered.
    Refused,
    /// Forwarded to the upstream servers.
    Forward,
}

/// Decides about `request` of `client`, a container of network `scope` on host `here`; records of
/// hosts for which `is_fresh` is false do not count.
///
/// A client with an address of another network is refused: the responder can be reached from every
/// bridge of the host, and the names of a network are no business of the others.
#[must_use]
pub fn decide(
    records: &Records,
    scope: &NetworkId,
    here: &str,
    is_fresh: impl Fn(&str) -> bool,
    client: IpAddr,
    request: &Request,
) -> Decision {
    if let IpAddr::V4(client) = client.to_canonical()
        && records.owner(client).is_some_and(|owner| owner != scope)
    {
        return Decision::Refused;
    }
    let declares = |name: &str| records.declares(scope.deployment(), name);
    match classify(request.labels(), scope.deployment(), declares) {
        Meaning::External if request.is_transfer() => Decision::Refused,
        Meaning::External => Decision::Forward,
        Meaning::Unknown => Decision::NxDomain,
        Meaning::Service(name) => {
            let addresses = records.addresses(scope, &name, here, is_fresh);
            if addresses.is_empty() && records.is_elsewhere(scope, &name) {
                Decision::Elsewhere
            } else if addresses.is_empty() {
                Decision::NxDomain
            } else if request.asks_addresses() {
                Decision::Addresses(addresses)
            } else {
                Decision::NoData
            }
        }
    }
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
