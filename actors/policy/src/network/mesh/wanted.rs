//! Peers and routes of a node, computed from the state.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use jaco_engine::cidr::Cidr;
use jaco_proto::v1;
use jaco_state::State;

use super::address::{assign, join_order, network};
use crate::network::{names::NetworkId, readiness::Overlap, scopes::network_id};

/// Interval of the packets that keep the path to a peer open.
pub const KEEPALIVE: Duration = Duration::from_secs(25);
/// Length of a Curve25519 key.
const KEY_BYTES: usize = 32;

/// Mesh of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Address of this node.
    pub address: Ipv4Addr,
    /// Address that the others reach this node by, if it has published one and no name.
    pub underlay: Option<Ipv4Addr>,
    /// The other nodes that have published a key, in order of their hostnames.
    pub peers: Vec<WantedPeer>,
    /// Networks whose packets never leave this node unencrypted: those without a better route are
    /// discarded.
    pub blackholes: BTreeSet<Cidr>,
}

/// Another node in the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPeer {
    /// Its name.
    pub hostname: String,
    /// Its Curve25519 key.
    pub public_key: [u8; KEY_BYTES],
    /// Name or IPv4 address it is reached by.
    pub host: String,
    /// Its UDP port.
    pub port: u16,
    /// Its address in the mesh and the blocks of its networks.
    pub allowed_ips: BTreeSet<Cidr>,
}

impl Wanted {
    /// Computes the mesh of `hostname`; `None` unless it is a member with an address.
    ///
    /// Members without a key are no peers: a daemon that knows no mesh has none. `port` is used for
    /// members that have published no port. `pool` holds the blocks of all networks. Only blocks
    /// that are `admitted` are routed and accepted from their host.
    #[must_use]
    pub fn of(
        state: &State,
        hostname: &str,
        port: u16,
        pool: Cidr,
        admitted: impl Fn(&NetworkId, Cidr) -> bool,
    ) -> Option<Self> {
        let addresses = assign(state.nodes.values().map(|node| &**node));
        let own = state.nodes.get(hostname)?;
        let mut blackholes = BTreeSet::from([network(), pool]);
        let mut blocks = BTreeMap::<&str, BTreeSet<Cidr>>::new();
        for (cidr, ((deployment, network_name, host), _)) in holders(state, hostname) {
            if host == hostname || cidr.overlaps(network()) {
                continue;
            }
            if !cidr.overlaps(pool) {
                blackholes.insert(cidr);
            }
            if admitted(&network_id(deployment, network_name), cidr) {
                blocks.entry(host).or_default().insert(cidr);
            }
        }
        // A device refuses two peers with one key. A copied key must neither stop the mesh nor
        // replace the peer that had it before.
        let mut keys = BTreeSet::from([own.wireguard_pubkey.as_slice()]);
        let mut others: Vec<&v1::Node> = state.nodes.values().map(|node| &**node).collect();
        others.retain(|node| node.hostname != hostname);
        others.sort_by_key(|node| join_order(node));
        let mut peers = Vec::new();
        for node in others {
            if let Some(peer) = peer(node, &addresses, &blocks, port)
                && keys.insert(&node.wireguard_pubkey)
            {
                peers.push(peer);
            }
        }
        peers.sort_by(|one, other| one.hostname.cmp(&other.hostname));
        Some(Self {
            address: *addresses.get(hostname)?,
            underlay: host(own).and_then(|host| host.parse().ok()),
            peers,
            blackholes,
        })
    }

    /// The blackhole, if any, that would take the packets of this node's own network, and with them
    /// those to nodes behind a gateway.
    #[must_use]
    pub fn overlap(&self) -> Option<Overlap> {
        let address = self.underlay?;
        let network = self.blackhole_of(address)?;
        Some(Overlap { address, network })
    }

    /// Names of the peers whose own address lies in a blackhole.
    pub fn overlapping(&self) -> impl Iterator<Item = &str> {
        let overlaps = move |peer: &&WantedPeer| {
            let ip = peer.literal().ok();
            ip.is_some_and(|ip| self.blackhole_of(ip).is_some())
        };
        let peers = self.peers.iter().filter(overlaps);
        peers.map(|peer| peer.hostname.as_str())
    }

    /// The blackhole that contains `ip`.
    fn blackhole_of(&self, ip: Ipv4Addr) -> Option<Cidr> {
        let ip = Cidr::new(ip, 32).ok()?;
        let mut blackholes = self.blackholes.iter();
        blackholes.find(|blackhole| blackhole.overlaps(ip)).copied()
    }

    /// Destinations that are routed over the device.
    #[must_use]
    pub fn routes(&self) -> BTreeSet<Cidr> {
        let mut routes = BTreeSet::from([network()]);
        for peer in &self.peers {
            let blocks = peer.allowed_ips.iter();
            routes.extend(blocks.filter(|cidr| !cidr.overlaps(network())));
        }
        routes
    }
}

/// Row of a block.
type Row<'a> = (&'a (String, String, String), &'a Arc<v1::Subnet>);

/// The row that has each block. A device refuses two peers with one block: of several rows that of this
/// host has it, else the oldest, whose containers may have talked before.
fn holders<'a>(state: &'a State, hostname: &str) -> BTreeMap<Cidr, Row<'a>> {
    let age = |(key, row): &Row<'_>| {
        let at = row.allocated_at.as_ref();
        (key.2 != hostname, at.map(|at| (at.seconds, at.nanos)))
    };
    let mut holders = BTreeMap::<Cidr, Row<'a>>::new();
    for row in &state.subnets {
        let Ok(cidr) = row.1.cidr.parse::<Cidr>() else {
            continue;
        };
        let holder = holders.entry(cidr).or_insert(row);
        if age(&row) < age(holder) {
            *holder = row;
        }
    }
    holders
}

fn peer(
    node: &v1::Node,
    addresses: &BTreeMap<&str, Ipv4Addr>,
    blocks: &BTreeMap<&str, BTreeSet<Cidr>>,
    port: u16,
) -> Option<WantedPeer> {
    let public_key = <[u8; KEY_BYTES]>::try_from(node.wireguard_pubkey.as_slice()).ok()?;
    let mesh = Cidr::new(*addresses.get(node.hostname.as_str())?, 32).ok()?;
    let mut allowed_ips = blocks
        .get(node.hostname.as_str())
        .cloned()
        .unwrap_or_default();
    allowed_ips.insert(mesh);
    let host = host(node)?.to_owned();
    Some(WantedPeer {
        hostname: node.hostname.clone(),
        public_key,
        host,
        port: match u16::try_from(node.wg_port) {
            Ok(0) | Err(_) => port,
            Ok(published) => published,
        },
        allowed_ips,
    })
}

/// Host part of a node's address.
fn host(node: &v1::Node) -> Option<&str> {
    Some(node.address.rsplit_once(':')?.0)
}

impl WantedPeer {
    /// The address, if `host` is an IPv4 address; `Err` with the name otherwise.
    ///
    /// # Errors
    /// The name to resolve, or an IPv6 address, which the mesh does not use.
    pub fn literal(&self) -> Result<Ipv4Addr, &str> {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V4(ip)) => Ok(ip),
            Ok(IpAddr::V6(_)) | Err(_) => Err(&self.host),
        }
    }
}

/// Whether the mesh treats the nodes of two states alike: their statuses change all the time.
pub(super) fn are_like(one: &State, other: &State) -> bool {
    let is_like = |one: &v1::Node, other: &v1::Node| {
        join_order(one) == join_order(other)
            && one.address == other.address
            && one.wireguard_pubkey == other.wireguard_pubkey
            && one.wg_port == other.wg_port
    };
    let mut pairs = one.nodes.values().zip(other.nodes.values());
    one.nodes.len() == other.nodes.len()
        && pairs.all(|(one, other)| Arc::ptr_eq(one, other) || is_like(one, other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::mesh::testing::{allocate, node, pool, state, wanted_of};

    fn cidrs(texts: &[&str]) -> BTreeSet<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn peers_reach_the_blocks_of_their_host() {
        let mut other = node("node-2", 2);
        (other.address, other.wg_port) = ("192.0.2.2:7001".to_owned(), 40000);
        let mut third = node("node-3", 3);
        (third.address, third.wg_port) = ("three.example:7001".to_owned(), 0);
        let mut state = state(&[node("node-1", 1), other, third]);
        for (host, cidr) in [
            ("node-1", "10.244.0.0/24"),
            ("node-2", "10.244.1.0/24"),
            ("node-2", "10.244.2.0/24"),
            ("node-3", "10.244.3.0/24"),
            ("node-3", "no block"),
            ("gone", "10.244.4.0/24"),
        ] {
            allocate(&mut state, host, cidr);
        }
        let wanted = wanted_of(&state, "node-1", 51821).unwrap();
        assert_eq!(wanted.address, Ipv4Addr::new(10, 99, 0, 53));
        let [second, third] = &wanted.peers[..] else {
            panic!("{:?}", wanted.peers);
        };
        assert_eq!(second.literal(), Ok(Ipv4Addr::new(192, 0, 2, 2)));
        assert_eq!((second.port, third.port), (40000, 51821));
        assert_eq!(third.literal(), Err("three.example"));
        let blocks = cidrs(&["10.99.0.23/32", "10.244.1.0/24", "10.244.2.0/24"]);
        assert_eq!(second.allowed_ips, blocks);
        assert_eq!(
            third.allowed_ips,
            cidrs(&["10.99.0.168/32", "10.244.3.0/24"])
        );
        let routes = [
            "10.99.0.0/24",
            "10.244.1.0/24",
            "10.244.2.0/24",
            "10.244.3.0/24",
        ];
        assert_eq!(wanted.routes(), cidrs(&routes));
        assert_eq!(wanted.blackholes, cidrs(&["10.99.0.0/24", "10.244.0.0/16"]));
        assert_eq!(wanted_of(&state, "gone", 51821), None);
    }

    #[test]
    fn block_outside_the_ruleset_is_not_admitted() {
        let mut state = state(&[node("node-1", 1), node("node-2", 2)]);
        allocate(&mut state, "node-2", "10.244.1.0/24");
        allocate(&mut state, "node-2", "10.244.2.0/24");
        let second: Cidr = "10.244.2.0/24".parse().unwrap();
        let id = NetworkId::new("web", "10.244.2.0/24");
        let wanted = Wanted::of(&state, "node-1", 51820, pool(), |network, block| {
            (network, block) == (&id, second)
        });
        let wanted = wanted.unwrap();
        let allowed = cidrs(&["10.99.0.23/32", "10.244.2.0/24"]);
        assert_eq!(wanted.peers[0].allowed_ips, allowed);
        assert_eq!(wanted.routes(), cidrs(&["10.99.0.0/24", "10.244.2.0/24"]));
    }

    #[test]
    fn block_outside_the_pool_never_leaves_unencrypted() {
        let mut state = state(&[node("node-1", 1), node("node-2", 2)]);
        allocate(&mut state, "node-2", "10.245.1.0/24");
        let wanted = wanted_of(&state, "node-1", 51820).unwrap();
        let blackholes = ["10.99.0.0/24", "10.244.0.0/16", "10.245.1.0/24"];
        assert_eq!(wanted.blackholes, cidrs(&blackholes));
    }

    #[test]
    fn members_without_a_usable_key_are_no_peers() {
        let mut none = node("none", 2);
        none.wireguard_pubkey.clear();
        let mut short = node("short", 3);
        short.wireguard_pubkey.truncate(31);
        let (mut copied, mut copied_own) = (node("copied", 4), node("copied-own", 5));
        copied.wireguard_pubkey = node("true", 0).wireguard_pubkey;
        copied_own.wireguard_pubkey = node("node-1", 0).wireguard_pubkey;
        let mut state = state(&[node("node-1", 1), none, short, copied_own]);
        allocate(&mut state, "none", "10.244.1.0/24");
        let wanted = wanted_of(&state, "node-1", 51820).unwrap();
        assert_eq!(wanted.peers, []);
        assert_eq!(wanted.routes(), cidrs(&["10.99.0.0/24"]));
        // In order of the names the copy comes first.
        state.nodes.insert("copied".into(), copied.into());
        state.nodes.insert("true".into(), node("true", 1).into());
        let wanted = wanted_of(&state, "node-1", 51820).unwrap();
        let names: Vec<_> = wanted.peers.iter().map(|peer| &peer.hostname).collect();
        assert_eq!(names, ["true"], "the member that had the key first");
    }

    #[test]
    fn block_of_two_rows_belongs_to_the_oldest() {
        let mut state = state(&[node("node-1", 1), node("node-2", 2), node("node-3", 3)]);
        let mut put = |host: &str, cidr: &str, seconds| {
            let row = v1::Subnet {
                cidr: cidr.to_owned(),
                host: host.to_owned(),
                allocated_at: Some(prost_types::Timestamp { seconds, nanos: 0 }),
                ..Default::default()
            };
            let key = ("web".to_owned(), format!("{cidr} {host}"), host.to_owned());
            state.subnets.insert(key, row.into());
        };
        put("node-2", "10.244.1.0/24", 7);
        put("node-3", "10.244.1.0/24", 6);
        put("node-2", "10.244.2.0/24", 1);
        put("node-3", "10.244.2.0/24", 2);
        put("node-1", "10.244.3.0/24", 9);
        put("node-2", "10.244.3.0/24", 1);
        let wanted = wanted_of(&state, "node-1", 51820).unwrap();
        let allowed = wanted.peers.iter().map(|peer| &peer.allowed_ips);
        let expected = [
            cidrs(&["10.99.0.23/32", "10.244.2.0/24"]),
            cidrs(&["10.99.0.168/32", "10.244.1.0/24"]),
        ];
        assert!(allowed.eq(&expected), "{:?}", wanted.peers);
    }

    #[test]
    fn pool_over_the_nodes_network_overlaps() {
        let range = |text: &str| text.parse::<Cidr>().unwrap();
        for (address, text, expected) in [
            ("192.0.2.7:7001", "10.0.0.0/8", None),
            ("10.0.0.7:7001", "10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.0.0.7:7001", "10.128.0.0/9", None),
            ("10.99.0.7:7001", "10.128.0.0/9", Some("10.99.0.0/24")),
            ("one.example:7001", "10.0.0.0/8", None),
            ("", "10.0.0.0/8", None),
        ] {
            let mut own = node("node-1", 1);
            own.address = address.to_owned();
            let one = state(&[own.clone()]);
            let wanted = Wanted::of(&one, "node-1", 51820, range(text), |_, _| true);
            let overlap = wanted.unwrap().overlap();
            let found = overlap.map(|overlap| overlap.network.to_string());
            assert_eq!(found.as_deref(), expected, "{address} {text}");
            // The other node sees it too.
            let two = state(&[node("node-0", 1), own]);
            let wanted = Wanted::of(&two, "node-0", 51820, range(text), |_, _| true);
            let wanted = wanted.unwrap();
            assert_eq!(
                wanted.overlapping().count(),
                usize::from(expected.is_some())
            );
        }
    }

    #[test]
    fn mesh_network_is_never_a_block() {
        let mut state = state(&[node("node-1", 1), node("node-2", 2)]);
        allocate(&mut state, "node-2", "10.99.0.0/25");
        let wanted = wanted_of(&state, "node-1", 51820).unwrap();
        assert_eq!(wanted.peers[0].allowed_ips, cidrs(&["10.99.0.23/32"]));
        assert_eq!(wanted.routes(), cidrs(&["10.99.0.0/24"]));
    }
}
