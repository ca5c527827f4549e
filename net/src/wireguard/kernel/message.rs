//! Requests and answers of the generic netlink family `wireguard`.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime},
};

use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute,
    WireguardCmd, WireguardMessage, WireguardPeer, WireguardPeerAttribute, WireguardPeerFlags,
    WireguardTimeSpec,
};

use super::changes::{Change, Network};
use crate::wireguard::{PrivateKey, PublicKey};

/// Most allowed IPs of a request. A nested attribute has at most 64 KiB, and one of them needs 28
/// bytes.
const ALLOWED_IPS_IN_REQUEST: usize = 1024;
/// Most peers of a request, for the same reason; one without its allowed IPs needs 72 bytes.
const PEERS_IN_REQUEST: usize = 256;

/// A device as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Present {
    pub(super) public_key: Option<PublicKey>,
    pub(super) port: u16,
    pub(super) peers: Vec<PresentPeer>,
}

/// A peer as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PresentPeer {
    pub(super) public_key: PublicKey,
    pub(super) endpoint: Option<SocketAddr>,
    pub(super) allowed_ips: BTreeSet<Network>,
    /// Interval in seconds; 0 for none.
    pub(super) keepalive: u16,
    pub(super) last_handshake: Option<SystemTime>,
    pub(super) rx_bytes: u64,
    pub(super) tx_bytes: u64,
}

/// Request for the device `name` and its peers.
pub(super) fn get(name: &str) -> WireguardMessage {
    WireguardMessage {
        cmd: WireguardCmd::GetDevice,
        attributes: vec![WireguardAttribute::IfName(name.to_owned())],
    }
}

/// Request that gives the device `name` its key and its port.
pub(super) fn identity(name: &str, key: &PrivateKey, port: u16) -> WireguardMessage {
    set(
        name,
        vec![
            WireguardAttribute::PrivateKey(key.secret().to_bytes()),
            WireguardAttribute::ListenPort(port),
        ],
    )
}

/// Requests that carry out the changes in order.
pub(super) fn peers(name: &str, changes: Vec<Change>) -> Vec<WireguardMessage> {
    let mut requests = Vec::new();
    let (mut peers, mut allowed_ips) = (Vec::new(), 0);
    for (peer, count) in changes.into_iter().flat_map(parts) {
        let full = peers.len() == PEERS_IN_REQUEST || allowed_ips + count > ALLOWED_IPS_IN_REQUEST;
        if full && !peers.is_empty() {
            let peers = std::mem::take(&mut peers);
            requests.push(set(name, vec![WireguardAttribute::Peers(peers)]));
            allowed_ips = 0;
        }
        peers.push(peer);
        allowed_ips += count;
    }
    if !peers.is_empty() {
        requests.push(set(name, vec![WireguardAttribute::Peers(peers)]));
    }
    requests
}

fn set(name: &str, mut attributes: Vec<WireguardAttribute>) -> WireguardMessage {
    attributes.insert(0, WireguardAttribute::IfName(name.to_owned()));
    WireguardMessage {
        cmd: WireguardCmd::SetDevice,
        attributes,
    }
}

/// The parts of a change that fit in one request each, with their numbers of allowed IPs.
fn parts(change: Change) -> Vec<(WireguardPeer, usize)> {
    use WireguardPeerAttribute as Attribute;
    let (public_key, new, endpoint, allowed_ips, keepalive) = match change {
        Change::Remove(key) => {
            let flags = Attribute::Flags(WireguardPeerFlags::RemoveMe);
            let peer = WireguardPeer(vec![Attribute::PublicKey(key.0), flags]);
            return vec![(peer, 0)];
        }
        Change::Set {
            public_key,
            new,
            endpoint,
            allowed_ips,
            keepalive,
        } => (public_key, new, endpoint, allowed_ips, keepalive),
    };
    let mut flags = WireguardPeerFlags::empty();
    // A peer that another program removed meanwhile must not return without its allowed IPs.
    flags.set(WireguardPeerFlags::UpdateOnly, !new);
    flags.set(WireguardPeerFlags::ReplaceAllowedIps, allowed_ips.is_some());
    let mut attributes = vec![Attribute::PublicKey(public_key.0), Attribute::Flags(flags)];
    attributes.extend(endpoint.map(Attribute::Endpoint));
    attributes.extend(keepalive.map(Attribute::PersistentKeepalive));
    let Some(allowed_ips) = allowed_ips else {
        return vec![(WireguardPeer(attributes), 0)];
    };
    let mut chunks = allowed_ips.chunks(ALLOWED_IPS_IN_REQUEST);
    let first = chunks.next().unwrap_or_default();
    attributes.push(Attribute::AllowedIps(encode(first)));
    let mut parts = vec![(WireguardPeer(attributes), first.len())];
    parts.extend(chunks.map(|chunk| {
        let attributes = vec![
            Attribute::PublicKey(public_key.0),
            Attribute::Flags(WireguardPeerFlags::UpdateOnly),
            Attribute::AllowedIps(encode(chunk)),
        ];
        (WireguardPeer(attributes), chunk.len())
    }));
    parts
}

fn encode(networks: &[Network]) -> Vec<WireguardAllowedIp> {
    let encode = |(ip, prefix): &Network| {
        WireguardAllowedIp(vec![
            WireguardAllowedIpAttr::Family(WireguardAddressFamily::Ipv4),
            WireguardAllowedIpAttr::IpAddr(IpAddr::V4(*ip)),
            WireguardAllowedIpAttr::Cidr(*prefix),
        ])
    };
    networks.iter().map(encode).collect()
}

/// Reads the answers to [`get`]. A peer with many allowed IPs comes in several answers.
///
/// # Errors
/// The defect of an answer.
pub(super) fn parse(answers: Vec<WireguardMessage>) -> Result<Present, &'static str> {
    let mut present = Present::default();
    for attribute in answers.into_iter().flat_map(|answer| answer.attributes) {
        match attribute {
            WireguardAttribute::PublicKey(key) => present.public_key = Some(PublicKey(key)),
            WireguardAttribute::ListenPort(port) => present.port = port,
            WireguardAttribute::Peers(peers) => {
                for peer in &peers {
                    let peer = parse_peer(peer)?;
                    match present.peers.last_mut() {
                        Some(last) if last.public_key == peer.public_key => {
                            last.allowed_ips.extend(peer.allowed_ips);
                        }
                        _ => present.peers.push(peer),
                    }
                }
            }
            _ => {}
        }
    }
    Ok(present)
}

fn parse_peer(peer: &WireguardPeer) -> Result<PresentPeer, &'static str> {
    use WireguardPeerAttribute as Attribute;
    let mut key = None;
    let mut parsed = PresentPeer {
        public_key: PublicKey([0; 32]),
        endpoint: None,
        allowed_ips: BTreeSet::new(),
        keepalive: 0,
        last_handshake: None,
        rx_bytes: 0,
        tx_bytes: 0,
    };
    for attribute in &peer.0 {
        match attribute {
            Attribute::PublicKey(bytes) => key = Some(PublicKey(*bytes)),
            Attribute::Endpoint(endpoint) => parsed.endpoint = Some(*endpoint),
            Attribute::PersistentKeepalive(seconds) => parsed.keepalive = *seconds,
            Attribute::LastHandshake(at) => parsed.last_handshake = time(*at),
            Attribute::RxBytes(bytes) => parsed.rx_bytes = *bytes,
            Attribute::TxBytes(bytes) => parsed.tx_bytes = *bytes,
            Attribute::AllowedIps(networks) => {
                parsed.allowed_ips = networks.iter().filter_map(parse_network).collect();
            }
            _ => {}
        }
    }
    parsed.public_key = key.ok_or("a peer without a key")?;
    Ok(parsed)
}

/// Returns `None` for networks of another family, which the routes of the mesh do not lead to.
fn parse_network(network: &WireguardAllowedIp) -> Option<Network> {
    let (mut address, mut prefix) = (None, None);
    for attribute in &network.0 {
        match attribute {
            WireguardAllowedIpAttr::IpAddr(IpAddr::V4(ip)) => address = Some(*ip),
            WireguardAllowedIpAttr::Cidr(bits) => prefix = Some(*bits),
            _ => {}
        }
    }
    Some((address?, prefix?))
}

/// Returns `None` for zero: there was no handshake.
fn time(at: WireguardTimeSpec) -> Option<SystemTime> {
    let seconds = u64::try_from(at.seconds).ok()?;
    let nanos = u32::try_from(at.nano_seconds).ok()?;
    let since = Duration::new(seconds, nanos.min(999_999_999));
    (!since.is_zero()).then_some(SystemTime::UNIX_EPOCH + since)
}
