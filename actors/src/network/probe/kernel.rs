//! The [`Prober`] of a real host: probe endpoints in the kernel.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, Mutex},
};

use futures::future::BoxFuture;
use jaco_net::{
    interfaces,
    probe::{self, Binder, Endpoint, Error, Spec},
};
use jaco_policy::network::{
    names::NetworkId,
    probe::{ANSWER_TIMEOUT, PORT, core::Outcome, endpoint, report::BridgeView},
};
use jaco_proto::config::advertise::Interface;
use tokio::{
    net::UdpSocket,
    task::{AbortHandle, spawn_blocking},
    time::Instant,
};
use tracing::{info, warn};

use super::{LocalNetwork, Prober};
use crate::{lock::lock, log_dedup::LogDedup, network::gate::SharedGate};

/// MTU of the bridges.
const MTU: u32 = 1420;

/// An endpoint and the tasks that answer probes.
struct Attached {
    endpoint: Endpoint,
    answering: Responder,
    /// Answers probes at the address of the bridge.
    gateway: Option<Responder>,
}

/// A task that answers probes; dropping it closes its socket.
struct Responder(AbortHandle);

impl Responder {
    fn start(socket: UdpSocket) -> Self {
        Self(tokio::spawn(probe::respond(socket)).abort_handle())
    }

    fn is_running(&self) -> bool {
        !self.0.is_finished()
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct Shared {
    attached: BTreeMap<NetworkId, Attached>,
    errors: BTreeMap<NetworkId, LogDedup>,
}

/// Probe endpoints in the network namespace of this process; needs `CAP_NET_ADMIN` and
/// `CAP_SYS_ADMIN`.
pub struct KernelProber {
    /// Name of this node and its cluster, for the labels of links.
    label: String,
    gate: SharedGate,
    binder: Binder,
    listing: Arc<Listing>,
    shared: Arc<Mutex<Shared>>,
}

impl KernelProber {
    /// Creates a prober without endpoints. An endpoint is a container to the others, so it waits for
    /// the isolation of its block as well.
    #[must_use]
    pub fn new(cluster_id: &str, host: &str, gate: SharedGate) -> Self {
        Self {
            label: format!("{cluster_id}/{host}"),
            gate,
            binder: Binder::default(),
            listing: Arc::default(),
            shared: Arc::default(),
        }
    }
}

impl Prober for KernelProber {
    fn ensure(&self, network: LocalNetwork) -> BoxFuture<'static, BridgeView> {
        let label = format!("{}/{}", self.label, network.id);
        let (gate, shared) = (Arc::clone(&self.gate), Arc::clone(&self.shared));
        let (binder, listing) = (self.binder.clone(), Arc::clone(&self.listing));
        let asked = Instant::now();
        Box::pin(async move {
            let interfaces = listing.since(asked).await;
            let Some((bridge, up)) = find_bridge(&network, &interfaces) else {
                lock(&shared).attached.remove(&network.id);
                return BridgeView::default();
            };
            let spec = Spec {
                label,
                bridge: bridge.clone(),
                address: endpoint(network.block),
                prefix: network.block.prefix(),
                gateway: network.block.gateway(),
                mtu: MTU,
            };
            let address = spec.address;
            let outcome = match gate.wait_enforced(&network.id, network.block).await {
                Ok(()) => attach(&shared, &network.id, spec, binder).await,
                Err(error) => Err(error.to_string()),
            };
            let mut shared = lock(&shared);
            let errors = shared.errors.entry(network.id.clone()).or_default();
            let endpoint = match outcome {
                Ok(()) => {
                    errors.clear();
                    Some(address)
                }
                Err(error) => {
                    if errors.is_new(&error) {
                        warn!(subsystem = "firewall", network = %network.id, %error, "network is not probed");
                    }
                    shared.attached.remove(&network.id);
                    None
                }
            };
            BridgeView {
                bridge,
                up,
                endpoint,
            }
        })
    }

    fn remove(&self, id: &NetworkId) {
        let mut shared = lock(&self.shared);
        shared.attached.remove(id);
        shared.errors.remove(id);
    }

    fn retain(&self, networks: &BTreeMap<NetworkId, LocalNetwork>) {
        let mut shared = lock(&self.shared);
        shared.attached.retain(|id, _| networks.contains_key(id));
        shared.errors.retain(|id, _| networks.contains_key(id));
    }

    fn probe(&self, from: &NetworkId, to: Ipv4Addr) -> BoxFuture<'static, Outcome> {
        let shared = lock(&self.shared);
        let endpoint = shared
            .attached
            .get(from)
            .map(|found| found.endpoint.clone());
        Box::pin(async move {
            let Some(endpoint) = endpoint else {
                return Outcome::NotSent;
            };
            let Ok(socket) = endpoint.bind(0).await else {
                return Outcome::NotSent;
            };
            let target = SocketAddrV4::new(to, PORT);
            match probe::exchange(socket, target, ANSWER_TIMEOUT).await {
                Ok(Some(rtt)) => Outcome::Answered(rtt),
                Ok(None) => Outcome::Silent,
                Err(_) => Outcome::NotSent,
            }
        })
    }
}

/// Opens or repairs an endpoint, and starts the tasks that answer probes.
async fn attach(
    shared: &Mutex<Shared>,
    id: &NetworkId,
    spec: Spec,
    binder: Binder,
) -> Result<(), String> {
    let present = lock(shared)
        .attached
        .get(id)
        .filter(|found| *found.endpoint.spec() == spec && found.answering.is_running())
        .map(|found| found.endpoint.clone());
    let repaired = match &present {
        Some(endpoint) => match endpoint.repair().await {
            Err(Error::Gone(_)) => None,
            repaired => Some(repaired.map_err(|error| jaco_proto::chain(&error))?),
        },
        None => None,
    };
    match repaired {
        Some(true) => {
            info!(subsystem = "firewall", network = %id, "probe endpoint attached again");
        }
        Some(false) => {}
        None => {
            // The old link would have the name of the new one.
            drop(present);
            lock(shared).attached.remove(id);
            let opened = Endpoint::open(spec.clone(), binder).await;
            let endpoint = opened.map_err(|error| jaco_proto::chain(&error))?;
            let socket = endpoint.bind(PORT).await;
            let socket = socket.map_err(|error| format!("cannot answer probes: {error}"))?;
            let attached = Attached {
                endpoint,
                answering: Responder::start(socket),
                gateway: None,
            };
            lock(shared).attached.insert(id.clone(), attached);
        }
    }
    let answers = |found: &Attached| found.gateway.as_ref().is_some_and(Responder::is_running);
    if !lock(shared).attached.get(id).is_some_and(answers) {
        // The endpoint works without it, unless no other host has the network.
        let socket = UdpSocket::bind(SocketAddrV4::new(spec.gateway, PORT)).await;
        if let (Ok(socket), Some(found)) = (socket, lock(shared).attached.get_mut(id)) {
            found.gateway = Some(Responder::start(socket));
        }
    }
    Ok(())
}

/// The newest list of the interfaces of this host. All networks are checked at once, and a list is
/// long on a host with many.
#[derive(Default)]
struct Listing(tokio::sync::Mutex<Option<(Instant, Arc<[Interface]>)>>);

impl Listing {
    /// Returns a list that was begun after `asked`; empty if the kernel refuses.
    async fn since(&self, asked: Instant) -> Arc<[Interface]> {
        let mut last = self.0.lock().await;
        if let Some((began, found)) = &*last
            && *began >= asked
        {
            return Arc::clone(found);
        }
        let began = Instant::now();
        let listed = spawn_blocking(interfaces::list).await;
        let listed = listed.unwrap_or_else(|error| Err(io::Error::other(error)));
        let found: Arc<[Interface]> = listed.unwrap_or_default().into();
        *last = Some((began, Arc::clone(&found)));
        found
    }
}

/// Finds the bridge of a network by its two possible names and its address; returns its name and
/// whether it is up.
fn find_bridge(network: &LocalNetwork, interfaces: &[Interface]) -> Option<(String, bool)> {
    let names = [network.id.bridge_name(), network.id.fallback_bridge_name()];
    let gateway = network.block.gateway();
    let mut listed = interfaces.iter();
    let bridge = listed
        .find(|found| names.contains(&found.name) && found.addresses.contains(&gateway.into()));
    bridge.map(|bridge| (bridge.name.clone(), bridge.up))
}

#[cfg(test)]
mod tests;
