//! Services of a deployment and the networks on which each has its addresses.

use std::collections::{BTreeMap, BTreeSet};

use jaco_engine::spec::joined_service;
use jaco_proto::{manifest::compose::Project, v1};

use crate::network::names::{DEFAULT_NETWORK, NetworkId};

/// Longest chain of services that share a network namespace.
const MAX_CHAIN: usize = 16;

/// The part of a deployment that names depend on.
#[derive(Debug)]
pub(super) struct Declared {
    compose: Vec<u8>,
    specs: Vec<(String, Vec<String>)>,
    /// Names in lower case.
    names: BTreeSet<String>,
    networks: BTreeMap<String, Vec<NetworkId>>,
    /// The service that has the network namespace, by the service that joins it.
    lenders: BTreeMap<String, String>,
}

impl Declared {
    pub(super) fn of(row: &v1::Deployment) -> Self {
        let network = |name: &str| NetworkId::new(&row.name, name);
        let networks = row.services.iter().map(|spec| {
            let listed = spec.networks.iter().map(|name| network(name));
            let mut networks: Vec<_> = listed.collect();
            if networks.is_empty() {
                networks.push(network(DEFAULT_NETWORK));
            }
            (spec.name.clone(), networks)
        });
        Self {
            compose: row.compose_yaml.clone(),
            specs: specs(row).collect(),
            names: row
                .services
                .iter()
                .map(|spec| spec.name.to_ascii_lowercase())
                .collect(),
            networks: networks.collect(),
            lenders: lenders(row),
        }
    }

    /// Whether this is what [`Declared::of`] would return; parses nothing.
    pub(super) fn is_of(&self, row: &v1::Deployment) -> bool {
        self.compose == row.compose_yaml && specs(row).eq(self.specs.iter().cloned())
    }

    /// Whether there is a service with this name in lower case.
    pub(super) fn has(&self, service: &str) -> bool {
        self.names.contains(service)
    }

    /// Whether a service is on both networks.
    pub(super) fn share_a_service(&self, a: &NetworkId, b: &NetworkId) -> bool {
        let mut services = self.networks.values();
        services.any(|networks| networks.contains(a) && networks.contains(b))
    }

    /// Names of the services, in lower case.
    pub(super) fn services(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Networks of a service, and the service that has its network namespace, if that is another.
    pub(super) fn attachment(&self, service: &str) -> Option<(&[NetworkId], Option<&str>)> {
        let lender = self.lenders.get(service).map(String::as_str);
        let networks = self.networks.get(lender.unwrap_or(service))?;
        Some((networks, lender))
    }

    /// Services, in lower case, in the network namespace of service `lender`, in lower case.
    pub(super) fn borrowers(&self, lender: &str) -> impl Iterator<Item = String> {
        let joined = self.lenders.iter();
        let joined = joined.filter(move |(_, name)| name.eq_ignore_ascii_case(lender));
        joined.map(|(borrower, _)| borrower.to_ascii_lowercase())
    }
}

fn specs(row: &v1::Deployment) -> impl Iterator<Item = (String, Vec<String>)> {
    let specs = row.services.iter();
    specs.map(|spec| (spec.name.clone(), spec.networks.clone()))
}

/// The service that each service with `network_mode: service:x` shares its addresses with, over
/// any number of links. A document that cannot be parsed has none; it was valid when applied.
fn lenders(row: &v1::Deployment) -> BTreeMap<String, String> {
    let Ok(project) = Project::parse(&row.compose_yaml) else {
        return BTreeMap::new();
    };
    let joined = |name: &str| project.services.get(name).and_then(joined_service);
    let lender = |name: &str| {
        let mut lender = joined(name)?;
        for _ in 0..MAX_CHAIN {
            match joined(lender) {
                Some(next) => lender = next,
                None => return Some(lender.to_owned()),
            }
        }
        None
    };
    let names = project.services.keys();
    names
        .filter_map(|name| Some((name.clone(), lender(name)?)))
        .collect()
}
