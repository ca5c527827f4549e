//! The device of a port, and the order of the operations on it.

use std::{collections::BTreeSet, sync::Arc};

use futures::FutureExt as _;
use jaco_engine::cidr::Cidr;
use jaco_net::{handover::NamedSocket, wireguard::PeerStats};
use jaco_policy::network::{
    mesh::plan::Peer,
    probe::drops::{DropTotals, Drops},
};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    task::{spawn_blocking, unconstrained},
};

use super::{
    DEVICE, PortError,
    device::{Opened, Released, set_valid_peers},
    handover::{admitted, named},
    port::of,
};
use crate::log_dedup::LogDedup;

/// Device of a port, open or not; clones share it.
///
/// One operation runs at a time, in the order in which their futures were polled first. From then on
/// it runs to its end, also if its caller is cancelled: the next one finds the device as it left it.
#[derive(Clone, Default)]
pub(super) struct DeviceSlot(Arc<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    held: Option<Held>,
    /// Packets that its devices dropped.
    drops: DropTotals,
    /// Reasons why the kernel's WireGuard is not used.
    fallbacks: LogDedup,
}

/// An open device and the peers that it was given.
pub(super) struct Held {
    pub(super) opened: Opened,
    pub(super) peers: Vec<Peer>,
}

/// Exclusive access to a slot during one operation.
pub(super) struct Turn(OwnedMutexGuard<Slot>);

impl DeviceSlot {
    /// Creates a slot with a device that works already, if there is one.
    pub(super) fn with(held: Option<Held>) -> Self {
        let slot = Slot {
            held,
            drops: DropTotals::default(),
            fallbacks: LogDedup::default(),
        };
        Self(Arc::new(Mutex::new(slot)))
    }

    /// Networks that the device admits packets of; `None` without a device.
    ///
    /// # Errors
    /// Only while the process ends.
    pub(super) async fn admitted(&self) -> Result<Option<BTreeSet<Cidr>>, PortError> {
        let read = |slot: &mut Slot| slot.held.as_ref().map(|held| admitted(&held.peers));
        self.run(move |turn| async move { Ok(turn.block(read).await?.1) })
            .await
    }

    /// Descriptors with which another process carries on, by name; none if it needs none. With
    /// `release`, the device ends here first, and only seems to be open from then on.
    ///
    /// # Errors
    /// If the process is out of descriptors; the device works on then.
    pub(super) async fn descriptors(&self, release: bool) -> Result<Vec<NamedSocket>, PortError> {
        let pass = move |slot: &mut Slot| {
            slot.read_drops();
            let Some(held) = &mut slot.held else {
                return Ok(Vec::new());
            };
            let Some(descriptors) = held.opened.device.descriptors().map_err(of)? else {
                return Ok(Vec::new());
            };
            let named = named(descriptors, &held.peers).map_err(of)?;
            if release {
                held.opened.device = Box::new(Released);
                slot.drops.handle_replaced();
            }
            Ok(named)
        };
        self.run(move |turn| async move { turn.block(pass).await?.1 })
            .await
    }

    /// Ends the device, if one is open, then runs `opening` and keeps its device.
    ///
    /// # Errors
    /// Those of `opening`; no device is open then.
    pub(super) async fn open(
        &self,
        opening: impl Future<Output = Result<Opened, PortError>> + Send + 'static,
    ) -> Result<(), PortError> {
        let operation = |turn: Turn| async move {
            let mut turn = turn.end().await?;
            turn.keep(opening.await?);
            Ok(())
        };
        self.run(operation).await
    }

    /// Ends the device, if one is open, then runs `removal`.
    ///
    /// # Errors
    /// Those of `removal`; no device is open then.
    pub(super) async fn close(
        &self,
        removal: impl Future<Output = Result<(), PortError>> + Send + 'static,
    ) -> Result<(), PortError> {
        let operation = |turn: Turn| async move {
            let _turn = turn.end().await?;
            removal.await
        };
        self.run(operation).await
    }

    /// Replaces the peers of the device.
    ///
    /// # Errors
    /// Without a device, or when it refuses.
    pub(super) async fn set_peers(&self, peers: Vec<Peer>) -> Result<(), PortError> {
        let set = move |slot: &mut Slot| {
            let Some(held) = &mut slot.held else {
                return Err(PortError("the mesh device is not open".to_owned()));
            };
            set_valid_peers(&*held.opened.device, &peers).map_err(of)?;
            held.peers = peers;
            Ok(())
        };
        self.run(move |turn| async move { turn.block(set).await?.1 })
            .await
    }

    /// State of the tunnel to each peer, which is empty without a device, and the packets that the
    /// devices dropped so far.
    ///
    /// # Errors
    /// Only while the process ends.
    pub(super) async fn stats(&self) -> Result<(Vec<PeerStats>, Drops), PortError> {
        let read = |slot: &mut Slot| {
            slot.read_drops();
            let held = slot.held.as_ref();
            let peers = held.map(|held| held.opened.device.stats());
            (peers.unwrap_or_default(), slot.drops.totals().clone())
        };
        self.run(move |turn| async move { Ok(turn.block(read).await?.1) })
            .await
    }

    /// Runs an operation after those that were begun before it.
    ///
    /// # Errors
    /// Those of the operation, and if it panics or the process ends.
    pub(super) async fn run<T, F>(
        &self,
        operation: impl FnOnce(Turn) -> F + Send + 'static,
    ) -> Result<T, PortError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, PortError>> + Send + 'static,
    {
        let mut waiting = Box::pin(Arc::clone(&self.0).lock_owned());
        // The first poll takes a place in the queue, which a task polled later might not get.
        let at_once = unconstrained(waiting.as_mut()).now_or_never();
        let task = tokio::spawn(async move {
            let slot = match at_once {
                Some(slot) => slot,
                None => waiting.await,
            };
            operation(Turn(slot)).await
        });
        task.await.map_err(of)?
    }
}

impl Turn {
    /// Peers that the device was given, and whether another program changed them; `None` without a
    /// working device with the link of this number.
    ///
    /// # Errors
    /// Only while the process ends.
    pub(super) async fn inspect(
        self,
        link: u32,
    ) -> Result<(Self, Option<(Vec<Peer>, bool)>), PortError> {
        self.block(move |slot| slot.held.as_ref()?.inspect(link))
            .await
    }

    /// Ends the device in user space, whose name and port are free then.
    async fn end(self) -> Result<Self, PortError> {
        // The end of a device waits for its threads.
        let end = |slot: &mut Slot| {
            slot.read_drops();
            slot.drops.handle_replaced();
            drop(slot.held.take());
        };
        Ok(self.block(end).await?.0)
    }

    fn keep(&mut self, opened: Opened) {
        if let Some(reason) = &opened.fallback
            && self.0.fallbacks.is_new(reason)
        {
            tracing::info!(subsystem = "wgmesh", %reason, "WireGuard runs in user space");
        }
        tracing::info!(
            subsystem = "wgmesh",
            device = DEVICE,
            backend = opened.backend,
            "mesh device opened"
        );
        self.0.held = Some(Held {
            opened,
            peers: Vec::new(),
        });
    }

    /// Runs work that may wait for threads or for the kernel.
    async fn block<T: Send + 'static>(
        mut self,
        work: impl FnOnce(&mut Slot) -> T + Send + 'static,
    ) -> Result<(Self, T), PortError> {
        let done = spawn_blocking(move || {
            let done = work(&mut self.0);
            (self, done)
        });
        done.await.map_err(of)
    }
}

impl Slot {
    fn read_drops(&mut self) {
        if let Some(held) = &self.held {
            self.drops.handle_reading(held.opened.device.drops());
        }
    }
}

impl Held {
    fn inspect(&self, link: u32) -> Option<(Vec<Peer>, bool)> {
        let device = &self.opened.device;
        if let Some(reason) = device.failure() {
            tracing::warn!(subsystem = "wgmesh", %reason, "the mesh device failed");
            return None;
        }
        let same = self.opened.index.is_none_or(|opened| opened == link);
        same.then(|| (self.peers.clone(), device.is_altered()))
    }
}

impl Drop for Slot {
    /// The end of a device waits for its threads, so it must not happen on an async thread.
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            std::thread::spawn(move || drop(held));
        }
    }
}

#[cfg(test)]
mod tests;
