//! A port whose kernel is a value.

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard},
};

use futures::{FutureExt as _, future::BoxFuture};
use jaco_engine::cidr::Cidr;
use jaco_policy::network::mesh::plan::{DeviceState, Observed, Step};
use tokio::sync::{Notify, watch};

use crate::{
    lock::lock,
    network::mesh::{MeshPort, PortError},
};

/// A kernel without surprises, and the steps that it carried out.
#[derive(Clone)]
pub(super) struct FakePort {
    pub(super) world: Arc<Mutex<World>>,
    pub(super) changes: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct World {
    pub(super) observed: Observed,
    steps: Vec<String>,
    /// Start of the text of steps that fail.
    pub(super) failing: Option<&'static str>,
    pub(super) names: Vec<(&'static str, Ipv4Addr)>,
    /// Holds the step that opens the device until the device is closed.
    pub(super) opening: Option<Arc<Notify>>,
    pub(super) closed: bool,
}

impl FakePort {
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// Changes the kernel, which announces it.
    pub(super) fn damage(&self, change: impl FnOnce(&mut Observed)) {
        change(&mut self.world().observed);
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn steps(&self) -> Vec<String> {
        std::mem::take(&mut self.world().steps)
    }
}

impl World {
    fn apply(&mut self, step: Step) -> Result<(), PortError> {
        let text = step.to_string();
        if self
            .failing
            .is_some_and(|failing| text.starts_with(failing))
        {
            return Err(PortError(format!("failed to {text}")));
        }
        self.steps.push(text);
        let Observed {
            blackholes, device, ..
        } = &mut self.observed;
        match step {
            Step::AddBlackhole(cidr) => drop(blackholes.insert(cidr)),
            Step::RemoveBlackhole(cidr) => drop(blackholes.remove(&cidr)),
            Step::OpenDevice => *device = Some(DeviceState::default()),
            step => {
                let device = device.as_mut().expect("no device");
                match step {
                    Step::SetUp => device.up = true,
                    Step::AddAddress(ip) => drop(device.addresses.insert(ip)),
                    Step::RemoveAddress(ip) => drop(device.addresses.remove(&ip)),
                    Step::SetPeers(peers) => (device.peers, device.altered) = (peers, false),
                    Step::AddRoute(route) => drop(device.routes.insert(route)),
                    Step::RemoveRoute(route) => drop(device.routes.remove(&route)),
                    Step::ReplaceRoute(route) => {
                        device.routes.retain(|other| other.to != route.to);
                        device.routes.insert(route);
                    }
                    step => panic!("{step:?}"),
                }
            }
        }
        Ok(())
    }
}

impl MeshPort for FakePort {
    fn look(&self, _: BTreeSet<Cidr>) -> BoxFuture<'static, Result<Observed, PortError>> {
        let observed = self.world().observed.clone();
        async move { Ok(observed) }.boxed()
    }

    fn apply(&self, step: Step) -> BoxFuture<'static, Result<(), PortError>> {
        let mut world = self.world();
        let held = world.opening.clone();
        let held = held.filter(|_| step == Step::OpenDevice);
        let done = world.apply(step);
        async move {
            if let Some(held) = held {
                held.notified().await;
            }
            done
        }
        .boxed()
    }

    fn resolve(&self, name: String) -> BoxFuture<'static, Option<Ipv4Addr>> {
        let world = self.world();
        let known = world.names.iter().find(|(known, _)| *known == name);
        let ip = known.map(|(_, ip)| *ip);
        async move { ip }.boxed()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn admitted(&self) -> BoxFuture<'static, BTreeSet<Cidr>> {
        let peers = self
            .world()
            .observed
            .device
            .clone()
            .unwrap_or_default()
            .peers;
        let blocks = peers
            .into_iter()
            .flat_map(|peer| peer.allowed_ips)
            .collect();
        async move { blocks }.boxed()
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let port = self.clone();
        let opening = self.world().opening.take();
        async move {
            if let Some(opening) = opening {
                opening.notify_one();
                tokio::task::yield_now().await;
            }
            let mut world = port.world();
            (world.closed, world.observed.device) = (true, None);
        }
        .boxed()
    }
}
