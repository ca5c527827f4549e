//! Which Linux bridges of the engine this process can see.
//!
//! The engine may live in another network namespace than this process. Then a bridge that is not
//! there is no loss, and recreating its network would disturb containers again and again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
};

use jaco_engine::{EngineNetwork, cidr::Cidr};
use jaco_proto::config::advertise::Interface;

use super::plan::owner;

/// Bridges seen and not seen by this process, kept for its lifetime; clones share state.
#[derive(Clone, Debug, Default)]
pub struct BridgeSight(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    seen: BTreeSet<String>,
    /// Not visible even right after the engine had made them.
    hidden: BTreeSet<String>,
    /// Gateways of the bridges of JACO's networks.
    gateways: BTreeMap<String, Ipv4Addr>,
}

impl BridgeSight {
    /// Records which bridges of the engine are visible.
    pub fn handle_listing(&self, networks: &[EngineNetwork], interfaces: &[Interface]) {
        let bridges = networks.iter().filter_map(|found| found.bridge.as_ref());
        let listed: BTreeSet<_> = bridges.clone().collect();
        let ours = networks.iter().filter(|found| owner(found).is_some());
        let gateway = |found: &EngineNetwork| {
            let block: Cidr = found.subnets.first()?.parse().ok()?;
            Some((found.bridge.clone()?, block.gateway()))
        };
        let gateways = ours.filter_map(gateway).collect();
        self.with(|inner| {
            inner.gateways = gateways;
            inner.seen.retain(|bridge| listed.contains(bridge));
            inner.hidden.retain(|bridge| listed.contains(bridge));
        });
        for bridge in bridges.filter(|bridge| is_listed(bridge, interfaces)) {
            self.with(|inner| {
                inner.hidden.remove(bridge);
                inner.seen.insert(bridge.clone());
            });
        }
    }

    /// Records whether a bridge is visible right after the engine has made it.
    pub fn handle_created(&self, bridge: &str, visible: bool) {
        self.with(|inner| {
            if visible {
                inner.hidden.remove(bridge);
                inner.seen.insert(bridge.to_owned());
            } else {
                inner.seen.remove(bridge);
                inner.hidden.insert(bridge.to_owned());
            }
        });
    }

    /// Name of the bridge that `network` has lost: it is not visible, but was, or another one of
    /// the engine is.
    #[must_use]
    pub fn missing(
        &self,
        network: &EngineNetwork,
        networks: &[EngineNetwork],
        interfaces: &[Interface],
    ) -> Option<String> {
        let bridge = network.bridge.as_ref()?;
        let mut others = networks.iter().filter_map(|found| found.bridge.as_ref());
        let mut shares_namespace = || others.any(|other| is_listed(other, interfaces));
        let expected = self.with(|inner| {
            inner.seen.contains(bridge) || !inner.hidden.contains(bridge) && shares_namespace()
        });
        (expected && !is_listed(bridge, interfaces)).then(|| bridge.clone())
    }

    /// Whether a bridge that was visible is not among `interfaces`, or is one of JACO's that is down or
    /// without its gateway.
    #[must_use]
    pub fn has_lost(&self, interfaces: &[Interface]) -> bool {
        let whole = |bridge: &String, gateway: Option<&Ipv4Addr>| {
            let found = interfaces.iter().find(|found| found.name == *bridge);
            found.is_some_and(|found| {
                gateway.is_none_or(|ip| found.up && found.addresses.contains(&IpAddr::V4(*ip)))
            })
        };
        self.with(|inner| {
            let mut seen = inner.seen.iter();
            !seen.all(|bridge| whole(bridge, inner.gateways.get(bridge)))
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_listed(bridge: &str, interfaces: &[Interface]) -> bool {
    interfaces.iter().any(|found| found.name == bridge)
}

#[cfg(test)]
mod tests {
    use jaco_engine::labels::{LABEL_DEPLOYMENT, LABEL_NETWORK};

    use super::*;

    fn network(bridge: &str) -> EngineNetwork {
        EngineNetwork {
            bridge: Some(bridge.into()),
            ..Default::default()
        }
    }

    fn interfaces(names: &[&str]) -> Vec<Interface> {
        let interface = |name: &&str| Interface {
            name: (*name).to_owned(),
            up: true,
            loopback: false,
            addresses: Vec::new(),
        };
        names.iter().map(interface).collect()
    }

    #[test]
    fn bridge_is_missing_only_where_bridges_are_visible() {
        let networks = [network("a"), network("b")];
        let sight = BridgeSight::default();
        let missing = |sight: &BridgeSight, names: &[&str]| {
            sight.missing(&networks[0], &networks, &interfaces(names))
        };
        assert_eq!(missing(&sight, &["a", "b"]), None);
        assert_eq!(missing(&sight, &["eth0"]), None, "another namespace");
        assert_eq!(missing(&sight, &["b"]).as_deref(), Some("a"));

        sight.handle_listing(&networks, &interfaces(&["a"]));
        assert_eq!(missing(&sight, &[]).as_deref(), Some("a"), "seen before");
        assert!(sight.has_lost(&interfaces(&["b"])));
        assert!(!sight.has_lost(&interfaces(&["a"])));
        sight.handle_listing(&networks[1..], &[]);
        assert!(!sight.has_lost(&[]), "its network is gone");
        sight.handle_listing(&networks, &interfaces(&["a"]));
        assert_eq!(
            sight.missing(&EngineNetwork::default(), &networks, &[]),
            None
        );
    }

    #[test]
    fn bridge_without_its_gateway_is_lost() {
        let mut of_jaco = network("a");
        of_jaco.subnets = vec!["10.244.1.0/24".to_owned()];
        let labels = [(LABEL_DEPLOYMENT, "web"), (LABEL_NETWORK, "front")];
        of_jaco.labels = labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let mut other = network("b");
        other.subnets = vec!["10.1.0.0/24".to_owned()];
        let whole = |up: bool, address: [u8; 4]| {
            let mut found = interfaces(&["a", "b"]);
            (found[0].up, found[0].addresses) = (up, vec![address.into()]);
            found
        };
        let sight = BridgeSight::default();
        let gateway = [10, 244, 1, 1];
        sight.handle_listing(&[of_jaco, other], &whole(true, gateway));
        assert!(!sight.has_lost(&whole(true, gateway)));
        assert!(sight.has_lost(&whole(false, gateway)));
        assert!(sight.has_lost(&whole(true, [10, 244, 1, 2])));
    }

    #[test]
    fn bridge_hidden_after_its_creation_is_not_missing() {
        let networks = [network("a"), network("b")];
        let sight = BridgeSight::default();
        sight.handle_listing(&networks, &interfaces(&["a", "b"]));
        sight.handle_created("a", false);
        let missing = |names| sight.missing(&networks[0], &networks, &interfaces(names));
        assert_eq!(missing(&["b"]), None);
        sight.handle_listing(&networks, &interfaces(&["a", "b"]));
        assert_eq!(missing(&["b"]).as_deref(), Some("a"));
        sight.handle_created("a", false);
        sight.handle_created("a", true);
        assert_eq!(missing(&["b"]).as_deref(), Some("a"));
    }
}
