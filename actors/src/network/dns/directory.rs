//! Responders requested by the bridges.

use std::{collections::BTreeMap, sync::Arc};

use jaco_engine::cidr::Cidr;
use jaco_policy::network::names::NetworkId;
use tokio::sync::watch;

use crate::network::responders::Responders;

/// Blocks of the networks with a requested responder.
pub(super) type Wanted = BTreeMap<NetworkId, Cidr>;

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
    fn ensure(&self, network: &NetworkId, block: Cidr) {
        self.0
            .send_if_modified(|wanted| wanted.insert(network.clone(), block) != Some(block));
    }

    fn remove(&self, network: &NetworkId) {
        self.0
            .send_if_modified(|wanted| wanted.remove(network).is_some());
    }
}
