//! Responders requested by the bridges.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use jaco_policy::network::names::NetworkId;
use tokio::sync::watch;

use crate::network::responders::Responders;

/// Requested addresses by network.
pub(super) type Wanted = BTreeMap<NetworkId, Ipv4Addr>;

/// The responders that the bridges request. Clones share the requests, which outlive a restart of
/// the actor that fulfils them.
#[derive(Clone, Debug, Default)]
pub struct Directory(Arc<watch::Sender<Wanted>>);

impl Directory {
    pub(super) fn subscribe(&self) -> watch::Receiver<Wanted> {
        self.0.subscribe()
    }
}

impl Responders for Directory {
    fn ensure(&self, network: &NetworkId, address: Ipv4Addr) {
        self.0
            .send_if_modified(|wanted| wanted.insert(network.clone(), address) != Some(address));
    }

    fn remove(&self, network: &NetworkId) {
        self.0
            .send_if_modified(|wanted| wanted.remove(network).is_some());
    }
}
