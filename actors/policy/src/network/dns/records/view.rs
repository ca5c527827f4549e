//! Names that one container knows.

use std::{collections::BTreeSet, net::Ipv4Addr};

use super::{Record, Records};
use crate::network::names::NetworkId;

/// Names that a container knows on one of its networks.
///
/// They are those of its own deployment, and on networks that deployments share also those that the
/// others have there. Names of the own deployment come first, as far as the container reaches them.
#[derive(Debug)]
pub struct View<'a> {
    records: &'a Records,
    network: &'a NetworkId,
    client: Ipv4Addr,
    /// Name of `network` in the engine.
    engine_network: String,
    /// Deployments that the client may be of: several only on a shared network, before the client
    /// was observed.
    own: Vec<&'a str>,
    /// Deployments that share a network with the client.
    peers: Vec<&'a str>,
}

/// Name that a query asks for, in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// A service or an alias.
    Name(&'a str),
    /// A service or an alias of this deployment.
    Of {
        /// Service or alias.
        name: &'a str,
        /// Deployment, as it is written in the state.
        deployment: &'a str,
    },
}

/// Addresses behind a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Addresses on the network of the query; at least one.
    Here(Vec<Ipv4Addr>),
    /// Another network of the client has them, or will tell which of several services is meant.
    Elsewhere,
    /// No network of the client has any.
    Nowhere,
}

/// Deployments that a name is looked for in, one after the other.
#[derive(Clone, Copy)]
enum Side {
    Own,
    Peers,
}

/// Deployment and service, in lower case.
type Service<'a> = (&'a str, &'a str);

impl<'a> View<'a> {
    pub(super) fn new(records: &'a Records, network: &'a NetworkId, client: Ipv4Addr) -> Self {
        let mut view = Self {
            records,
            network,
            client,
            engine_network: network.engine_name(),
            own: vec![network.deployment()],
            peers: Vec::new(),
        };
        if network.is_shared() {
            view.own = view.owners();
        }
        view.peers = view.sharing();
        view
    }

    /// Deployments whose names the client knows, its own first.
    pub fn deployments(&self) -> impl Iterator<Item = &'a str> + Clone {
        self.own.iter().chain(&self.peers).copied()
    }

    /// Whether a service of `deployment` has this name, in lower case, or is called so by another. Of
    /// another deployment than the client's only the names on shared networks count.
    #[must_use]
    pub fn declares(&self, deployment: &str, name: &str) -> bool {
        if self.own.contains(&deployment) {
            let declared = self.records.deployments.get(deployment);
            return declared.is_some_and(|declared| declared.has(name));
        }
        self.peers.contains(&deployment)
            && self.networks().into_iter().any(|network| {
                let services = self.called(deployment, network, name);
                !services.is_empty()
            })
    }

    /// Addresses of the running replicas of the services that the client knows by a name, on hosts for
    /// which `is_fresh` is true; only those on host `here`, if there are any.
    #[must_use]
    pub fn resolve(&self, asked: Asked<'_>, here: &str, is_fresh: impl Fn(&str) -> bool) -> Found {
        let mut others: Option<Vec<&NetworkId>> = None;
        for side in [Side::Own, Side::Peers] {
            let owners = match side {
                Side::Own => &self.own,
                Side::Peers => &self.peers,
            };
            let services = |network: &NetworkId| self.services(side, network, asked);
            if owners.is_empty() {
                continue;
            }
            let found = self.records_of(self.network, &services(self.network), &is_fresh);
            let deployments: BTreeSet<&str> = found.iter().map(|(of, _)| *of).collect();
            if self.own.len() > 1 && deployments.len() > 1 {
                return Found::Elsewhere;
            }
            let addresses = |of: &dyn Fn(&str) -> bool| {
                let of_host = found.iter().filter(|(_, record)| of(&record.host));
                let mut addresses: Vec<_> = of_host.map(|(_, record)| record.address).collect();
                addresses.sort_unstable();
                addresses.dedup();
                addresses
            };
            if !found.is_empty() {
                let local = addresses(&|host| host == here);
                let all = || addresses(&|_| true);
                return Found::Here(if local.is_empty() { all() } else { local });
            }
            let mut others = others.get_or_insert_with(|| self.others()).iter();
            let has_records = |network: &&NetworkId| {
                let services = services(network);
                !self.records_of(network, &services, &is_fresh).is_empty()
            };
            if others.any(has_records) {
                return Found::Elsewhere;
            }
        }
        Found::Nowhere
    }

    /// Deployments of the containers that may be the client of a shared network.
    fn owners(&self) -> Vec<&'a str> {
        let ids = self
            .records
            .clients
            .replicas(self.client, &self.engine_network);
        let owner = |id: &String| Some(self.records.owners.get(id)?.0.as_str());
        let known: BTreeSet<&str> = ids.filter_map(owner).collect();
        if known.is_empty() {
            self.records.sharing(self.network).collect()
        } else {
            known.into_iter().collect()
        }
    }

    /// Other deployments on the shared networks of the client.
    fn sharing(&self) -> Vec<&'a str> {
        let mut found = BTreeSet::new();
        for network in self.networks() {
            found.extend(self.records.sharing(network));
        }
        let peers = found.into_iter();
        peers.filter(|name| !self.own.contains(name)).collect()
    }

    /// Shared networks of the client.
    fn networks(&self) -> Vec<&'a NetworkId> {
        let any_shared = self.own.iter().any(|name| {
            let declared = self.records.deployments.get(*name);
            declared.is_some_and(|declared| declared.shared().next().is_some())
        });
        if !any_shared {
            return Vec::new();
        }
        let mut networks = self.others();
        networks.push(self.network);
        networks.retain(|network| network.is_shared());
        networks
    }

    /// Networks besides that of the query on which the client is. One that was not observed yet may be
    /// on every network that shares a service with it.
    fn others(&self) -> Vec<&'a NetworkId> {
        let clients = &self.records.clients;
        let is_known = clients.knows(self.client, &self.engine_network);
        let mut others = Vec::new();
        for declared in self
            .own
            .iter()
            .filter_map(|name| self.records.deployments.get(*name))
        {
            let networks = declared
                .all_networks()
                .filter(|network| *network != self.network);
            others.extend(networks.filter(|network| {
                if is_known {
                    clients.is_on(self.client, &self.engine_network, &network.engine_name())
                } else {
                    declared.share_a_service(self.network, network)
                }
            }));
        }
        others
    }

    fn services(&self, side: Side, network: &NetworkId, asked: Asked<'_>) -> Vec<Service<'a>> {
        match side {
            Side::Own => self.own_services(network, asked),
            Side::Peers => self.peer_services(network, asked),
        }
    }

    /// Services of the client's own deployment that it knows by a name on `network`.
    fn own_services(&self, network: &NetworkId, asked: Asked<'_>) -> Vec<Service<'a>> {
        let (name, of) = asked.parts();
        let own = self
            .own
            .iter()
            .filter(|own| of.is_none_or(|of| of == **own));
        own.flat_map(|deployment| {
            let services = self.known_as(deployment, network, name);
            services.into_iter().map(|service| (*deployment, service))
        })
        .collect()
    }

    /// Services of other deployments with a name on `network`, if that is shared.
    fn peer_services(&self, network: &NetworkId, asked: Asked<'_>) -> Vec<Service<'a>> {
        let (name, of) = asked.parts();
        let peers = self
            .peers
            .iter()
            .filter(|peer| of.is_none_or(|of| of == **peer));
        let peers = peers.filter(|_| network.is_shared());
        peers
            .flat_map(|deployment| {
                let services = self.called(deployment, network, name);
                services.into_iter().map(|service| (*deployment, service))
            })
            .collect()
    }

    /// Services of an own deployment that the client knows by `name` on `network`: those that it links
    /// to under this name, else those that are called so. A container that was not observed yet may be
    /// one of any service with links, whose names it resolves unless they are names of services.
    fn known_as(&self, deployment: &str, network: &NetworkId, name: &str) -> Vec<&'a str> {
        let Some(declared) = self.records.deployments.get(deployment) else {
            return Vec::new();
        };
        let links = declared.links(name);
        let is_from = |service: &str| {
            let service = (deployment.to_owned(), service.to_owned());
            let ids = self.records.replicas.get(&service);
            let is_replica = |id: &str| ids.is_some_and(|ids| ids.contains(id));
            let clients = &self.records.clients;
            clients.is_any(self.client, &self.engine_network, is_replica)
        };
        let linked = links.iter().filter(|link| is_from(&link.from));
        let linked: Vec<&str> = linked.map(|link| link.to.as_str()).collect();
        if !linked.is_empty() {
            return linked;
        }
        let mut named = self.called(deployment, network, name);
        let clients = &self.records.clients;
        if named.is_empty() && !clients.knows(self.client, &self.engine_network) {
            named.extend(links.iter().map(|link| link.to.as_str()));
        }
        named
    }

    /// Services of a deployment that have a name, or an alias on `network`; on a shared network only
    /// those that join it.
    fn called(&self, deployment: &str, network: &NetworkId, name: &str) -> Vec<&'a str> {
        let Some(declared) = self.records.deployments.get(deployment) else {
            return Vec::new();
        };
        let mut named: Vec<&str> = declared.service(name).into_iter().collect();
        named.extend(declared.aliased(network, name));
        if network.is_shared() {
            named.retain(|service| declared.joins(service, network));
        }
        named
    }

    /// Records of services on `network` and fresh hosts, each with its deployment.
    fn records_of(
        &self,
        network: &NetworkId,
        named: &[Service<'a>],
        is_fresh: impl Fn(&str) -> bool,
    ) -> Vec<(&'a str, &'a Record)> {
        let Some(services) = self.records.networks.get(network) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for (deployment, service) in named {
            let key = ((*deployment).to_owned(), (*service).to_owned());
            let records = services.get(&key).into_iter().flat_map(|list| list.iter());
            let fresh = records.filter(|record| is_fresh(&record.host));
            found.extend(fresh.map(|record| (*deployment, record)));
        }
        found
    }
}

impl<'a> Asked<'a> {
    fn parts(self) -> (&'a str, Option<&'a str>) {
        match self {
            Asked::Name(name) => (name, None),
            Asked::Of { name, deployment } => (name, Some(deployment)),
        }
    }
}

#[cfg(test)]
mod tests;
