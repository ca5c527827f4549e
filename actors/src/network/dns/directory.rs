//! Responders requested by the bridges.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use jaco_engine::cidr::Cidr;
use jaco_policy::network::names::NetworkId;
use tokio::sync::watch;

use crate::network::responders::Responders;

/// Blocks of the networks with a requested responder.
pub(super) type Wanted = BTreeMap<NetworkId, Cidr>;

/// Addresses at which responders listen, with their number: one that ends may be counted after its
/// successor.
pub(super) type Listening = BTreeMap<SocketAddr, usize>;

/// The responders that the bridges request. Clones share the requests, which outlive a restart of
/// the actor that fulfils them.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    wanted: Arc<watch::Sender<Wanted>>,
    listening: Arc<watch::Sender<Listening>>,
}

impl Directory {
    pub(super) fn subscribe(&self) -> watch::Receiver<Wanted> {
        self.wanted.subscribe()
    }

    /// Records that a responder listens at `address`, until the guard is dropped.
    pub(super) fn listens(&self, address: SocketAddr) -> ListensGuard {
        self.listening
            .send_modify(|listening| *listening.entry(address).or_default() += 1);
        ListensGuard {
            listening: Arc::clone(&self.listening),
            address,
        }
    }

    #[cfg(test)]
    pub(super) fn listening(&self) -> watch::Receiver<Listening> {
        self.listening.subscribe()
    }
}

/// A responder that listens.
pub(super) struct ListensGuard {
    listening: Arc<watch::Sender<Listening>>,
    address: SocketAddr,
}

impl Drop for ListensGuard {
    fn drop(&mut self) {
        self.listening.send_modify(|listening| {
            if let Some(count) = listening.get_mut(&self.address) {
                *count -= 1;
            }
            listening.retain(|_, count| *count > 0);
        });
    }
}

impl Responders for Directory {
    fn ensure(&self, network: &NetworkId, block: Cidr) {
        self.wanted
            .send_if_modified(|wanted| wanted.insert(network.clone(), block) != Some(block));
    }

    fn remove(&self, network: &NetworkId) {
        self.wanted
            .send_if_modified(|wanted| wanted.remove(network).is_some());
    }
}
