//! Addresses of each service on each network.

mod clients;
mod declared;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use imbl::{OrdMap, OrdSet, ordmap::DiffItem};
use jaco_proto::v1::{ReplicaDesired, ReplicaObserved, ReplicaState};
use jaco_state::State;

use crate::{network::names::NetworkId, runtime::replica::report::LENDER};
use clients::Clients;
use declared::Declared;

/// Index of the names of a state.
///
/// It is updated by the difference of two states, so the cost follows what changed. Maps are
/// persistent: a clone is O(1) and can be published while the next one is made. All names are in
/// lower case; services that differ in case only share their records.
#[derive(Clone, Debug, Default)]
pub struct Records {
    deployments: OrdMap<String, Arc<Declared>>,
    /// Ids of the replicas with a row, by (deployment, service).
    replicas: OrdMap<(String, String), OrdSet<String>>,
    networks: OrdMap<NetworkId, OrdMap<String, Arc<[Record]>>>,
    clients: Clients,
}

/// Address of a running replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    address: Ipv4Addr,
    host: String,
}

impl Records {
    /// Indexes a whole state.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let mut records = Self::default();
        records.update(&State::default(), state);
        records
    }

    /// Changes the index of state `before` into that of `after`.
    pub fn update(&mut self, before: &State, after: &State) {
        let mut changed = BTreeSet::new();
        self.update_deployments(before, after, &mut changed);
        self.update_rows(before, after, &mut changed);
        for item in before.replicas_observed.diff(&after.replicas_observed) {
            let id = key(&item);
            let row = after.replicas_desired.get(id);
            changed.extend(row.map(|row| service_of(row)));
            let seen = |state: &State| state.replicas_observed.get(id).cloned();
            let (old, new) = (seen(before), seen(after));
            self.clients.update(old.as_deref(), new.as_deref());
        }
        self.add_borrowers(&mut changed);
        for (deployment, service) in changed {
            self.update_service(after, &deployment, &service);
        }
    }

    /// Whether a service of `deployment` has this name, in lower case, or is called so by another.
    #[must_use]
    pub fn declares(&self, deployment: &str, name: &str) -> bool {
        let declared = self.deployments.get(deployment);
        declared.is_some_and(|declared| declared.has(name))
    }

    /// Whether containers of `network` reach each other only.
    #[must_use]
    pub fn is_internal(&self, network: &NetworkId) -> bool {
        let declared = self.deployments.get(network.deployment());
        declared.is_some_and(|declared| declared.is_internal(network.network()))
    }

    /// Whether a name (in lower case) has addresses on another network on which the container
    /// with address `client` on `network` is. A container that was not observed yet may be on every
    /// network that shares a service with `network`.
    #[must_use]
    pub fn is_elsewhere(
        &self,
        network: &NetworkId,
        client: Ipv4Addr,
        name: &str,
        is_fresh: impl Fn(&str) -> bool,
    ) -> bool {
        let Some(declared) = self.deployments.get(network.deployment()) else {
            return false;
        };
        let own = network.engine_name();
        let is_known = self.clients.knows(client, &own);
        let is_on = |other: &NetworkId| {
            if is_known {
                self.clients.is_on(client, &own, &other.engine_name())
            } else {
                declared.share_a_service(network, other)
            }
        };
        let has_addresses =
            |records: &Arc<[Record]>| records.iter().any(|record| is_fresh(&record.host));
        let mut others = self.networks_of(network.deployment());
        others.any(|(other, services)| {
            let named = self.services_named(declared, network, client, other, name);
            let mut found = named
                .into_iter()
                .filter_map(|service| services.get(service));
            other != network && found.any(has_addresses) && is_on(other)
        })
    }

    /// Addresses of the running replicas of the services that `client` on `network` knows by `name`
    /// (in lower case), on hosts for which `is_fresh` is true; only those on host `here`, if there
    /// are any.
    #[must_use]
    pub fn addresses(
        &self,
        network: &NetworkId,
        client: Ipv4Addr,
        name: &str,
        here: &str,
        is_fresh: impl Fn(&str) -> bool,
    ) -> Vec<Ipv4Addr> {
        let declared = self.deployments.get(network.deployment());
        let (Some(services), Some(declared)) = (self.networks.get(network), declared) else {
            return Vec::new();
        };
        let named = self.services_named(declared, network, client, network, name);
        let records = || {
            let records = named.iter().filter_map(|service| services.get(*service));
            records.flat_map(|records| records.iter())
        };
        let addresses = |of: &dyn Fn(&str) -> bool| {
            let of_host = records().filter(|record| of(&record.host));
            let mut addresses: Vec<_> = of_host.map(|record| record.address).collect();
            addresses.sort_unstable();
            addresses.dedup();
            addresses
        };
        let local = addresses(&|host| host == here && is_fresh(host));
        if local.is_empty() {
            addresses(&is_fresh)
        } else {
            local
        }
    }

    /// Services, in lower case, that `client`, a container on `network`, knows by `name` on network
    /// `other`: those that it links to under this name, else the service that is called so and those
    /// with the alias. A container that was not observed yet may be one of any service with links,
    /// whose names it resolves unless they are names of services.
    fn services_named<'a>(
        &self,
        declared: &'a Declared,
        network: &NetworkId,
        client: Ipv4Addr,
        other: &NetworkId,
        name: &str,
    ) -> Vec<&'a str> {
        let links = declared.links(name);
        let is_from = |service: &str| {
            let service = (network.deployment().to_owned(), service.to_owned());
            let ids = self.replicas.get(&service);
            let is_replica = |id: &str| ids.is_some_and(|ids| ids.contains(id));
            let own = network.engine_name();
            self.clients.is_any(client, &own, is_replica)
        };
        let linked = links.iter().filter(|link| is_from(&link.from));
        let linked: Vec<&str> = linked.map(|link| link.to.as_str()).collect();
        if !linked.is_empty() {
            return linked;
        }
        let mut named: Vec<&str> = declared.service(name).into_iter().collect();
        named.extend(declared.aliased(other, name));
        if named.is_empty() && !self.clients.knows(client, &network.engine_name()) {
            named.extend(links.iter().map(|link| link.to.as_str()));
        }
        named
    }

    fn update_deployments(&mut self, before: &State, after: &State, changed: &mut Changed) {
        for item in before.deployments.diff(&after.deployments) {
            let name = key(&item);
            let row = after.deployments.get(name);
            let old = self.deployments.get(name).cloned();
            if let (Some(old), Some(row)) = (&old, row)
                && old.is_of(row)
            {
                continue;
            }
            let new = row.map(|row| Arc::new(Declared::of(row)));
            for declared in old.iter().chain(&new) {
                let services = declared.services();
                changed.extend(services.map(|service| (name.clone(), service.to_owned())));
            }
            match new {
                Some(new) => self.deployments.insert(name.clone(), new),
                None => self.deployments.remove(name),
            };
        }
    }

    fn update_rows(&mut self, before: &State, after: &State, changed: &mut Changed) {
        for item in before.replicas_desired.diff(&after.replicas_desired) {
            let (old, new) = match item {
                DiffItem::Add(_, new) => (None, Some(new)),
                DiffItem::Update { old, new } => (Some(old.1), Some(new.1)),
                DiffItem::Remove(_, old) => (Some(old), None),
            };
            if let Some(old) = old {
                let service = service_of(old);
                if let Some(ids) = self.replicas.get_mut(&service) {
                    ids.remove(&old.id);
                    if ids.is_empty() {
                        self.replicas.remove(&service);
                    }
                }
                changed.insert(service);
            }
            if let Some(new) = new {
                let service = service_of(new);
                let ids = self.replicas.entry(service.clone()).or_default();
                ids.insert(new.id.clone());
                changed.insert(service);
            }
        }
    }

    /// Adds the services in the network namespaces of the changed ones.
    fn add_borrowers(&self, changed: &mut Changed) {
        let mut borrowers = Vec::new();
        for (deployment, service) in changed.iter() {
            if let Some(declared) = self.deployments.get(deployment) {
                let of_service = declared.borrowers(service);
                borrowers.extend(of_service.map(|name| (deployment.clone(), name)));
            }
        }
        changed.extend(borrowers);
    }

    /// Recomputes the records of one service on all networks of its deployment.
    fn update_service(&mut self, state: &State, deployment: &str, service: &str) {
        let mut found: BTreeMap<NetworkId, BTreeSet<Record>> = BTreeMap::new();
        if let Some(declared) = self.deployments.get(deployment) {
            for (row, seen) in self.running(state, deployment, service) {
                let Some((networks, lender)) = declared.attachment(&row.service) else {
                    continue;
                };
                for network in networks {
                    let detail = format!("ip.{}", network.engine_name());
                    let Some(text) = seen.details.get(&detail) else {
                        continue;
                    };
                    // The container in another one's network namespace was observed with the
                    // addresses of that one, which must still run: addresses are used again, also
                    // by the next container of that replica.
                    let is_valid = lender
                        .is_none_or(|lender| self.lends(state, deployment, lender, seen, &detail));
                    if let (Ok(address), true) = (text.parse(), is_valid) {
                        let host = seen.host.clone();
                        let of_network = found.entry(network.clone()).or_default();
                        of_network.insert(Record { address, host });
                    }
                }
            }
        }
        let present = self.networks_with(deployment, service);
        for network in present.into_iter().filter(|id| !found.contains_key(id)) {
            if let Some(services) = self.networks.get_mut(&network) {
                services.remove(service);
                if services.is_empty() {
                    self.networks.remove(&network);
                }
            }
        }
        for (network, records) in found {
            let services = self.networks.entry(network).or_default();
            services.insert(service.to_owned(), records.into_iter().collect());
        }
    }

    /// Running replicas of a service, by id.
    fn running<'a>(
        &'a self,
        state: &'a State,
        deployment: &str,
        service: &str,
    ) -> impl Iterator<Item = (&'a ReplicaDesired, &'a ReplicaObserved)> {
        let ids = self
            .replicas
            .get(&(deployment.to_owned(), service.to_owned()));
        ids.into_iter().flatten().filter_map(|id| {
            let row = state.replicas_desired.get(id)?;
            let seen = state.replicas_observed.get(id)?;
            (seen.state() == ReplicaState::Running).then_some((&**row, &**seen))
        })
    }

    /// Whether a running replica of service `lender` has the container whose network namespace
    /// `borrower` uses, and the address that `borrower` has under `detail`.
    fn lends(
        &self,
        state: &State,
        deployment: &str,
        lender: &str,
        borrower: &ReplicaObserved,
        detail: &str,
    ) -> bool {
        let name = lender.to_ascii_lowercase();
        let container = borrower.details.get(LENDER);
        self.running(state, deployment, &name).any(|(row, seen)| {
            row.service == lender
                && seen.host == borrower.host
                // Older members publish the address only.
                && container.is_none_or(|id| *id == seen.container_id)
                && seen.details.get(detail) == borrower.details.get(detail)
        })
    }

    fn networks_with(&self, deployment: &str, service: &str) -> Vec<NetworkId> {
        self.networks_of(deployment)
            .filter(|(_, services)| services.contains_key(service))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Networks of a deployment with their services.
    fn networks_of(
        &self,
        deployment: &str,
    ) -> impl Iterator<Item = (&NetworkId, &OrdMap<String, Arc<[Record]>>)> {
        // The network with the lowest name is the first of a deployment.
        let of_deployment = self.networks.range(NetworkId::new(deployment, "")..);
        of_deployment.take_while(move |(id, _)| id.deployment() == deployment)
    }
}

/// Services, by (deployment, name), whose records may differ.
type Changed = BTreeSet<(String, String)>;

fn service_of(row: &ReplicaDesired) -> (String, String) {
    (row.deployment.clone(), row.service.to_ascii_lowercase())
}

fn key<'a, K, V>(item: &DiffItem<'a, 'a, K, V>) -> &'a K {
    match item {
        DiffItem::Add(key, _)
        | DiffItem::Remove(key, _)
        | DiffItem::Update { new: (key, _), .. } => key,
    }
}

#[cfg(test)]
mod tests;
