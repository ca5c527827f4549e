//! Repairs of the mesh: differences that another program made and a pass removed.
//!
//! A pass also carries out this node's own changes, so only those of its steps are repairs that
//! lead back to the mesh which the last pass had reached.

use std::{collections::BTreeSet, fmt, net::Ipv4Addr};

use jaco_engine::cidr::Cidr;
use jaco_proto::v1::{self, AuditEventType};

use super::{
    plan::{Observed, Peer, Step, plan},
    wanted::Wanted,
};

/// Most repairs that a summary names.
const MAX_SUMMARY: usize = 16;

/// A mesh that a pass leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The mesh of this node.
    pub wanted: Wanted,
    /// Its peers with known addresses.
    pub peers: Vec<Peer>,
}

/// A difference that was removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// There was no working device, and so no address, peer or route.
    Device,
    /// The link was down or had another MTU.
    LinkDown,
    /// The link had no such address.
    AddressMissing(Ipv4Addr),
    /// The link had an address of the mesh that is not this node's.
    AddressExtra(Ipv4Addr),
    /// The device had other peers.
    Peers,
    /// There was no such route over the link.
    RouteMissing(Cidr),
    /// A route over the link had another source.
    RouteDiffers(Cidr),
    /// There was a route over the link that the mesh does not have.
    RouteExtra(Cidr),
    /// Packets to this block could have left the node unencrypted.
    BlackholeMissing(Cidr),
    /// There was a blackhole that the mesh does not have.
    BlackholeExtra(Cidr),
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => f.write_str("missing:device"),
            Self::LinkDown => f.write_str("differs:link"),
            Self::AddressMissing(ip) => write!(f, "missing:address:{ip}"),
            Self::AddressExtra(ip) => write!(f, "extra:address:{ip}"),
            Self::Peers => f.write_str("differs:peers"),
            Self::RouteMissing(cidr) => write!(f, "missing:route:{cidr}"),
            Self::RouteDiffers(cidr) => write!(f, "differs:route:{cidr}"),
            Self::RouteExtra(cidr) => write!(f, "extra:route:{cidr}"),
            Self::BlackholeMissing(cidr) => write!(f, "missing:blackhole:{cidr}"),
            Self::BlackholeExtra(cidr) => write!(f, "extra:blackhole:{cidr}"),
        }
    }
}

impl From<&Step> for Repair {
    fn from(step: &Step) -> Self {
        match step {
            Step::AddBlackhole(cidr) => Self::BlackholeMissing(*cidr),
            Step::OpenDevice => Self::Device,
            Step::SetUp => Self::LinkDown,
            Step::AddAddress(ip) => Self::AddressMissing(*ip),
            Step::SetPeers(_) => Self::Peers,
            Step::RemoveRoute(route) => Self::RouteExtra(route.to),
            Step::AddRoute(route) => Self::RouteMissing(route.to),
            Step::ReplaceRoute(route) => Self::RouteDiffers(route.to),
            Step::RemoveAddress(ip) => Self::AddressExtra(*ip),
            Step::RemoveBlackhole(cidr) => Self::BlackholeExtra(*cidr),
        }
    }
}

/// Returns the repairs among `steps`, which are those of a pass that found `observed` after another
/// one had reached `reached`.
#[must_use]
pub fn repairs(reached: &Target, observed: &Observed, steps: &[Step]) -> BTreeSet<Repair> {
    let back = plan(&reached.wanted, reached.peers.clone(), observed);
    let drift: BTreeSet<Repair> = back.iter().map(Repair::from).collect();
    let done = steps.iter().map(Repair::from);
    let mut repairs: BTreeSet<Repair> = done.filter(|repair| drift.contains(repair)).collect();
    if repairs.contains(&Repair::Device) {
        // The rest went with the device.
        repairs.retain(|repair| {
            matches!(
                repair,
                Repair::Device | Repair::BlackholeMissing(_) | Repair::BlackholeExtra(_)
            )
        });
    }
    repairs
}

/// Comma list of repairs, cut off after some of them.
#[must_use]
pub fn summary(repairs: &BTreeSet<Repair>) -> String {
    let listed = repairs.iter().take(MAX_SUMMARY).map(ToString::to_string);
    let mut listed: Vec<String> = listed.collect();
    if let Some(more @ 1..) = repairs.len().checked_sub(MAX_SUMMARY) {
        listed.push(format!("and {more} more"));
    }
    listed.join(",")
}

/// Audit event about repairs of the mesh of `host`, whose link is `device`.
#[must_use]
pub fn audit_event(host: &str, device: &str, repairs: &BTreeSet<Repair>) -> v1::AuditEvent {
    let detail = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let payload = [
        detail("node", host),
        detail("device", device),
        detail("summary", &summary(repairs)),
    ];
    v1::AuditEvent {
        r#type: AuditEventType::NetworkRepaired.into(),
        payload: payload.into(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::mesh::{
        plan::{DeviceRoute, DeviceState, resolve_peers},
        testing::{allocate, node, state, wanted_of},
    };

    fn target(blocks: &[(&str, &str)]) -> Target {
        let mut state = state(&[node("node-1", 1), node("node-2", 2)]);
        for (host, block) in blocks {
            allocate(&mut state, host, block);
        }
        let wanted = wanted_of(&state, "node-1", 51820).unwrap();
        let (peers, _) = resolve_peers(&wanted, &Default::default());
        Target { wanted, peers }
    }

    fn reached(target: &Target) -> Observed {
        let routes = target.wanted.routes().into_iter();
        let source = Some(target.wanted.address);
        let device = DeviceState {
            up: true,
            addresses: [target.wanted.address].into(),
            routes: routes
                .map(|to| DeviceRoute {
                    to,
                    source,
                    metric: 0,
                })
                .collect(),
            peers: target.peers.clone(),
            altered: false,
        };
        Observed {
            blackholes: target.wanted.blackholes.clone(),
            foreign: BTreeSet::new(),
            device: Some(device),
        }
    }

    fn found(from: &Target, observed: &Observed, to: &Target) -> String {
        let steps = plan(&to.wanted, to.peers.clone(), observed);
        summary(&repairs(from, observed, &steps))
    }

    #[test]
    fn damage_is_distinguished_from_own_changes() {
        let one = target(&[("node-2", "10.244.1.0/24")]);
        let two = target(&[("node-2", "10.244.1.0/24"), ("node-2", "10.244.2.0/24")]);
        let whole = reached(&one);
        assert_eq!(found(&one, &whole, &one), "");
        assert_eq!(found(&one, &whole, &two), "", "a new block");
        assert_eq!(found(&two, &reached(&two), &one), "", "a freed block");

        type Damage = fn(&mut Observed);
        let on_device: [(Damage, &str); 7] = [
            (|observed| observed.device = None, "missing:device"),
            (
                |observed| {
                    let device = observed.device.as_mut().unwrap();
                    *device = DeviceState {
                        peers: std::mem::take(&mut device.peers),
                        ..DeviceState::default()
                    };
                },
                "differs:link,missing:address:10.99.0.53,missing:route:10.99.0.0/24,\
                 missing:route:10.244.1.0/24",
            ),
            (
                |observed| observed.device.as_mut().unwrap().altered = true,
                "differs:peers",
            ),
            (
                |observed| {
                    observed.device.as_mut().unwrap().routes.pop_last().unwrap();
                },
                "missing:route:10.244.1.0/24",
            ),
            (
                |observed| {
                    let routes = &mut observed.device.as_mut().unwrap().routes;
                    let mut route = routes.pop_last().unwrap();
                    route.source = None;
                    routes.insert(route);
                },
                "differs:route:10.244.1.0/24",
            ),
            (
                |observed| {
                    let device = observed.device.as_mut().unwrap();
                    device.addresses.insert(Ipv4Addr::new(10, 99, 0, 9));
                },
                "extra:address:10.99.0.9",
            ),
            (
                |observed| observed.blackholes.clear(),
                "missing:blackhole:10.99.0.0/24,missing:blackhole:10.244.0.0/16",
            ),
        ];
        for (damage, expected) in on_device {
            let mut observed = whole.clone();
            damage(&mut observed);
            assert_eq!(found(&one, &observed, &one), expected);
            // Own changes at the same time are not among the repairs.
            assert_eq!(found(&one, &observed, &two), expected);
        }
    }

    #[test]
    fn loss_of_unwanted_route_is_no_repair() {
        let (one, two) = (
            target(&[("node-2", "10.244.1.0/24")]),
            target(&[("node-2", "10.244.2.0/24")]),
        );
        let mut observed = reached(&one);
        observed.device.as_mut().unwrap().routes.pop_last();
        assert_eq!(found(&one, &observed, &two), "");
    }

    #[test]
    fn summary_is_bounded() {
        let mut all = BTreeSet::new();
        for third in 0..200 {
            let block = Cidr::aligned(u32::from_be_bytes([10, 244, third, 0]), 24);
            all.insert(Repair::RouteMissing(block));
        }
        let text = summary(&all);
        assert!(text.ends_with(",and 184 more"), "{text}");
        let event = audit_event("n1", "jaco0", &all);
        assert_eq!(event.payload["summary"], text);
        assert_eq!(event.r#type(), AuditEventType::NetworkRepaired);
    }
}
