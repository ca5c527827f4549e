//! The device in user space from process to process: one that ends passes its descriptors and its
//! peers on, and the next one carries packets with them before its node has started.
//!
//! The kernel's own device stays in the kernel, and nothing is passed.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    sync::{Arc, Mutex},
};

use jaco_engine::cidr::Cidr;
use jaco_net::{
    handover::{Inherited, NamedSocket},
    wireguard::{Descriptors, PrivateKey},
};
use jaco_policy::network::mesh::{peer_list, plan::Peer};
use jaco_proto::{chain, config::WgBackend};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{device, slot::Held};
use crate::lock::lock;

/// Beginning of the names of the descriptors.
const PREFIX: &str = "mesh.";
/// Queues of the TUN interface.
const QUEUE: &str = "mesh.tun";
/// UDP sockets.
const SOCKET: &str = "mesh.udp";
/// File in memory with the peers.
const PEERS: &str = "mesh.peers";
/// Longest list of peers that is read, in bytes.
const MAX_LIST: usize = 8 << 20;

/// Names the descriptors of a device with these peers.
pub(super) fn named(descriptors: Descriptors, peers: &[Peer]) -> io::Result<Vec<NamedSocket>> {
    let mut list = File::from(memfd_create("jaco-mesh-peers", MemfdFlags::CLOEXEC)?);
    list.write_all(peer_list::encode(peers).as_bytes())?;
    let name = |name: &'static str| move |fd| (name.to_owned(), fd);
    let queues = descriptors.queues.into_iter().map(name(QUEUE));
    let sockets = descriptors.sockets.into_iter().map(name(SOCKET));
    let list = std::iter::once((PEERS.to_owned(), list.into()));
    Ok(queues.chain(sockets).chain(list).collect())
}

/// The device of an earlier process, which carries packets until the node's port takes it; clones
/// share it.
#[derive(Clone, Default)]
pub struct Resumed(Arc<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    held: Option<Held>,
    /// The list of peers that was passed with the last device: its file system and number.
    list: Option<(u64, u64)>,
}

impl std::fmt::Debug for Resumed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = lock(&self.0).held.is_some();
        f.debug_struct("Resumed").field("held", &held).finish()
    }
}

impl Resumed {
    /// Carries on with a device that an earlier process left, if it left one; descriptors that do not
    /// fit are closed, and the node opens another device. Waits for threads.
    ///
    /// The same device may be passed several times. One that another process passed later replaces it.
    pub(crate) fn resume(
        &self,
        inherited: &Inherited,
        key: &PrivateKey,
        port: u16,
        backend: WgBackend,
    ) {
        let (mut queues, mut sockets, mut list) = (Vec::new(), Vec::new(), None);
        for (name, fd) in inherited.take_prefixed(PREFIX) {
            match name.as_str() {
                QUEUE => queues.push(fd),
                SOCKET => sockets.push(fd),
                PEERS => list = Some(File::from(fd)),
                _ => {}
            }
        }
        let Some(list) = list.filter(|_| backend != WgBackend::Kernel) else {
            return;
        };
        let mut slot = lock(&self.0);
        let number = list.metadata().ok().map(|list| (list.dev(), list.ino()));
        if slot.list.is_some() && slot.list == number {
            return;
        }
        slot.list = number;
        drop(slot.held.take());
        match open(key, port, Descriptors { queues, sockets }, &list) {
            Ok(held) => {
                tracing::info!(subsystem = "wgmesh", "mesh device taken over");
                slot.held = Some(held);
            }
            Err(error) => {
                tracing::warn!(subsystem = "wgmesh", %error, "mesh device not taken over");
            }
        }
    }

    /// Takes the device.
    pub(super) fn take(&self) -> Option<Held> {
        lock(&self.0).held.take()
    }
}

fn open(
    key: &PrivateKey,
    port: u16,
    descriptors: Descriptors,
    list: &File,
) -> Result<Held, String> {
    let peers = read(list).map_err(|error| chain(&error))?;
    let peers = peer_list::decode(&peers).map_err(|error| chain(&error))?;
    let opened = device::resume(key, port, descriptors).map_err(|error| chain(&error))?;
    device::set_valid_peers(&*opened.device, &peers).map_err(|error| chain(&error))?;
    Ok(Held { opened, peers })
}

/// Reads from the beginning, wherever the process that wrote the file left off.
fn read(list: &File) -> io::Result<String> {
    let length = usize::try_from(list.metadata()?.len()).unwrap_or(usize::MAX);
    if length > MAX_LIST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    list.read_exact_at(&mut bytes, 0)?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Blocks that a device with these peers admits packets of.
pub(super) fn admitted(peers: &[Peer]) -> BTreeSet<Cidr> {
    let blocks = peers.iter().flat_map(|peer| &peer.allowed_ips);
    blocks.copied().collect()
}
