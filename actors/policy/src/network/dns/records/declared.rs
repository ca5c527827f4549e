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
    /// Networks of all services.
    joined: BTreeSet<NetworkId>,
    /// The service that has the network namespace, by the service that joins it.
    lenders: BTreeMap<String, String>,
    /// Further names of services.
    aliases: BTreeMap<String, Vec<Alias>>,
    /// Names that one service has for another.
    links: BTreeMap<String, Vec<Link>>,
    /// Networks with settings.
    settings: Vec<v1::NetworkSpec>,
}

/// A service, in lower case, that has a further name.
#[derive(Debug)]
struct Alias {
    service: String,
    /// The network on which it has the name; `None` for all its networks.
    network: Option<NetworkId>,
}

/// A link from one service to another, both in lower case.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) from: String,
    pub(super) to: String,
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
        let networks: BTreeMap<String, Vec<NetworkId>> = networks.collect();
        // A document that cannot be parsed has no such names; it was valid when applied.
        let project = Project::parse(&row.compose_yaml).unwrap_or_default();
        Self {
            compose: row.compose_yaml.clone(),
            specs: specs(row).collect(),
            names: row
                .services
                .iter()
                .map(|spec| spec.name.to_ascii_lowercase())
                .collect(),
            joined: networks.values().flatten().cloned().collect(),
            networks,
            lenders: lenders(&project),
            aliases: aliases(&row.name, &project),
            links: links(&project),
            settings: row.networks.clone(),
        }
    }

    /// Whether this is what [`Declared::of`] would return; parses nothing.
    pub(super) fn is_of(&self, row: &v1::Deployment) -> bool {
        self.compose == row.compose_yaml
            && self.settings == row.networks
            && specs(row).eq(self.specs.iter().cloned())
    }

    /// Whether a service has this name, in lower case, or is called so by another one.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
            || self.aliases.contains_key(name)
            || self.links.contains_key(name)
    }

    /// Whether the containers of `network` reach each other only.
    pub(super) fn is_internal(&self, network: &str) -> bool {
        let mut settings = self.settings.iter();
        settings.any(|one| one.internal && one.name == network)
    }

    /// The service that is called `name`, both in lower case.
    pub(super) fn service(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(String::as_str)
    }

    /// Services, in lower case, that have `name` on `network` besides the one that is called so.
    pub(super) fn aliased(&self, network: &NetworkId, name: &str) -> impl Iterator<Item = &str> {
        let services = self.aliases.get(name).into_iter().flatten();
        services
            .filter(move |alias| alias.network.as_ref().is_none_or(|of| of == network))
            .map(|alias| alias.service.as_str())
    }

    /// Links with the alias `name`, in lower case.
    pub(super) fn links(&self, name: &str) -> &[Link] {
        self.links.get(name).map_or(&[], Vec::as_slice)
    }

    /// Networks of all services.
    pub(super) fn all_networks(&self) -> impl Iterator<Item = &NetworkId> {
        self.joined.iter()
    }

    /// Networks that the deployment shares with others.
    pub(super) fn shared(&self) -> impl Iterator<Item = &NetworkId> {
        self.joined.iter().filter(|network| network.is_shared())
    }

    /// Whether a service, in lower case, is on `network`, by itself or in the namespace of another.
    pub(super) fn joins(&self, service: &str, network: &NetworkId) -> bool {
        let mut names = self.networks.keys();
        names.any(|name| {
            name.eq_ignore_ascii_case(service)
                && self
                    .attachment(name)
                    .is_some_and(|(networks, _)| networks.contains(network))
        })
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
/// any number of steps.
fn lenders(project: &Project) -> BTreeMap<String, String> {
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

fn aliases(deployment: &str, project: &Project) -> BTreeMap<String, Vec<Alias>> {
    let mut aliases: BTreeMap<String, Vec<Alias>> = BTreeMap::new();
    let mut add = |name: &str, service: &str, network: Option<NetworkId>| {
        let service = service.to_ascii_lowercase();
        let of_name = aliases.entry(name.to_ascii_lowercase()).or_default();
        of_name.push(Alias { service, network });
    };
    for (name, service) in &project.services {
        if let Some(alias) = &service.container_name {
            add(alias, name, None);
        }
        for (network, settings) in &service.network_settings {
            for alias in &settings.aliases {
                add(alias, name, Some(NetworkId::new(deployment, network)));
            }
        }
    }
    aliases
}

fn links(project: &Project) -> BTreeMap<String, Vec<Link>> {
    let mut links: BTreeMap<String, Vec<Link>> = BTreeMap::new();
    for (name, service) in &project.services {
        for link in &service.links {
            let of_alias = links.entry(link.alias.to_ascii_lowercase()).or_default();
            of_alias.push(Link {
                from: name.to_ascii_lowercase(),
                to: link.service.to_ascii_lowercase(),
            });
        }
    }
    links
}
