//! Changes from the peers that a device has to those that it is to have.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
};

use super::{super::Peer, message::PresentPeer};
use crate::wireguard::PublicKey;

/// A network of allowed IPs: address without host bits, and length of the prefix.
pub(super) type Network = (Ipv4Addr, u8);

/// A change of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The peer and its session end.
    Remove(PublicKey),
    /// The peer is added, or its fields that are given are replaced.
    Set {
        public_key: PublicKey,
        /// Whether the device does not have it yet.
        new: bool,
        endpoint: Option<SocketAddr>,
        allowed_ips: Option<Vec<Network>>,
        /// Interval in seconds; 0 for none.
        keepalive: Option<u16>,
    },
}

/// Clears the host bits of an allowed IP, as the kernel does.
pub(super) fn network(ip: Ipv4Addr, prefix: u8) -> Network {
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0);
    (Ipv4Addr::from(u32::from(ip) & mask), prefix)
}

/// Computes the changes from `present`, to which `last` was set, to `wanted`: removals first, so
/// that a network moves to another peer only after the one that had it is gone.
///
/// A peer may have moved to another endpoint by itself, so its endpoint is a difference only if
/// `wanted` and `last` have different ones.
pub(super) fn changes(present: &[PresentPeer], last: &[Peer], wanted: &[Peer]) -> Vec<Change> {
    let keys: BTreeSet<PublicKey> = wanted.iter().map(|peer| peer.public_key).collect();
    let gone = present
        .iter()
        .map(|peer| peer.public_key)
        .filter(|key| !keys.contains(key));
    let removed: Vec<Change> = gone.map(Change::Remove).collect();
    let present: BTreeMap<PublicKey, &PresentPeer> =
        present.iter().map(|peer| (peer.public_key, peer)).collect();
    let last: BTreeMap<PublicKey, &Peer> =
        last.iter().map(|peer| (peer.public_key, peer)).collect();
    let set = wanted.iter().filter_map(|peer| {
        let key = &peer.public_key;
        change(present.get(key).copied(), last.get(key).copied(), peer)
    });
    removed.into_iter().chain(set).collect()
}

fn change(present: Option<&PresentPeer>, last: Option<&Peer>, wanted: &Peer) -> Option<Change> {
    let allowed_ips: BTreeSet<Network> = wanted
        .allowed_ips
        .iter()
        .map(|(ip, prefix)| network(*ip, *prefix))
        .collect();
    let seconds = wanted.keepalive.map_or(0, |interval| interval.as_secs());
    let keepalive = u16::try_from(seconds).unwrap_or(u16::MAX);
    let Some(present) = present else {
        return Some(Change::Set {
            public_key: wanted.public_key,
            new: true,
            endpoint: wanted.endpoint,
            allowed_ips: Some(allowed_ips.into_iter().collect()),
            keepalive: Some(keepalive),
        });
    };
    let moved = last.is_none_or(|last| last.endpoint != wanted.endpoint);
    let endpoint = wanted
        .endpoint
        .filter(|endpoint| moved && present.endpoint != Some(*endpoint));
    let differs = allowed_ips != present.allowed_ips;
    let allowed_ips = differs.then(|| allowed_ips.into_iter().collect());
    let keepalive = Some(keepalive).filter(|wanted| *wanted != present.keepalive);
    if endpoint.is_none() && allowed_ips.is_none() && keepalive.is_none() {
        return None;
    }
    Some(Change::Set {
        public_key: wanted.public_key,
        new: false,
        endpoint,
        allowed_ips,
        keepalive,
    })
}
