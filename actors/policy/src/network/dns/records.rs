//! Addresses of each service on each network.

mod clients;
mod declared;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use imbl::{OrdMap, OrdSet, ordmap::DiffItem};
use jaco_proto::{
    manifest::compose::SHARED_SCOPE,
    v1::{ReplicaDesired, ReplicaObserved, ReplicaState},
};
use jaco_state::State;

use crate::{network::names::NetworkId, runtime::replica::report::LENDER};
use clients::Clients;
use declared::Declared;

pub use view::{Asked, Found, View};

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
    /// Deployment and service of each replica with a row.
    owners: OrdMap<String, (String, String)>,
    networks: OrdMap<NetworkId, Services>,
    /// Deployments on each shared network.
    sharing: OrdMap<NetworkId, OrdSet<String>>,
    clients: Clients,
}

/// Records of each service on one network, by (deployment, service).
type Services = OrdMap<(String, String), Arc<[Record]>>;

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

    /// Names that `client`, a container on `network`, knows there.
    #[must_use]
    pub fn view<'a>(&'a self, network: &'a NetworkId, client: Ipv4Addr) -> View<'a> {
        View::new(self, network, client)
    }

    /// Whether containers of `network` reach each other only.
    #[must_use]
    pub fn is_internal(&self, network: &NetworkId) -> bool {
        let declared = self.deployments.get(network.deployment());
        declared.is_some_and(|declared| declared.is_internal(network.network()))
    }

    /// Deployments with a service on a shared network.
    fn sharing(&self, network: &NetworkId) -> impl Iterator<Item = &str> {
        let names = self.sharing.get(network).into_iter().flatten();
        names.map(String::as_str)
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
            self.share(name, old.as_deref(), new.as_deref());
            match new {
                Some(new) => self.deployments.insert(name.clone(), new),
                None => self.deployments.remove(name),
            };
        }
    }

    /// Replaces the shared networks of a deployment.
    fn share(&mut self, deployment: &str, old: Option<&Declared>, new: Option<&Declared>) {
        for network in old.into_iter().flat_map(Declared::shared) {
            if let Some(names) = self.sharing.get_mut(network) {
                names.remove(deployment);
                if names.is_empty() {
                    self.sharing.remove(network);
                }
            }
        }
        for network in new.into_iter().flat_map(Declared::shared) {
            let names = self.sharing.entry(network.clone()).or_default();
            names.insert(deployment.to_owned());
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
                self.owners.remove(&old.id);
                changed.insert(service);
            }
            if let Some(new) = new {
                let service = service_of(new);
                let ids = self.replicas.entry(service.clone()).or_default();
                ids.insert(new.id.clone());
                self.owners.insert(new.id.clone(), service.clone());
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
        let key = (deployment.to_owned(), service.to_owned());
        let present = self.networks_with(&key);
        for network in present.into_iter().filter(|id| !found.contains_key(id)) {
            if let Some(services) = self.networks.get_mut(&network) {
                services.remove(&key);
                if services.is_empty() {
                    self.networks.remove(&network);
                }
            }
        }
        for (network, records) in found {
            let services = self.networks.entry(network).or_default();
            services.insert(key.clone(), records.into_iter().collect());
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

    /// Networks on which a service, by (deployment, name), has records.
    fn networks_with(&self, key: &(String, String)) -> Vec<NetworkId> {
        let with = [key.0.as_str(), SHARED_SCOPE]
            .into_iter()
            .flat_map(|scope| {
                // The network with the lowest name is the first of a deployment.
                let networks = self.networks.range(NetworkId::new(scope, "")..);
                networks.take_while(move |(id, _)| id.deployment() == scope)
            });
        with.filter(|(_, services)| services.contains_key(key))
            .map(|(id, _)| id.clone())
            .collect()
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
