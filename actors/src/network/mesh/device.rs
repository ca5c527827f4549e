//! The WireGuard device: the kernel's own, or one in user space.
//!
//! Both have the name [`DEVICE`], so only one exists: that of the other implementation, left by
//! another configuration, is removed first. A device of the kernel outlives the process and is
//! adopted with its sessions.

use std::{io, net::SocketAddr};

use jaco_net::{
    link::{self, Link, Links},
    wireguard::{self, Config, Descriptors, Error, PeerStats, PrivateKey, PublicKey, kernel},
};
use jaco_policy::network::{
    mesh::{
        plan::{MTU, Peer},
        wanted::KEEPALIVE,
    },
    probe::drops::{DropReason, Drops},
};
use jaco_proto::{chain, config::WgBackend};
use tokio::task::spawn_blocking;

use super::{
    DEVICE, PortError,
    port::{Device, of},
};

/// Kind of the links that the kernel's WireGuard serves.
const WIREGUARD: &str = "wireguard";

impl Device for wireguard::Device {
    fn set_peers(&self, peers: Vec<wireguard::Peer>) -> Result<(), Error> {
        wireguard::Device::set_peers(self, peers)
    }

    fn stats(&self) -> Vec<PeerStats> {
        wireguard::Device::stats(self)
    }

    fn drops(&self) -> Drops {
        let wireguard::Drops {
            unroutable,
            no_endpoint,
            wrong_source,
            invalid,
            unknown_peer,
            refused,
        } = wireguard::Device::drops(self);
        [
            (DropReason::MeshUnroutable, unroutable),
            (DropReason::MeshNoEndpoint, no_endpoint),
            (DropReason::MeshWrongSource, wrong_source),
            (DropReason::MeshInvalid, invalid),
            (DropReason::MeshUnknownPeer, unknown_peer),
            (DropReason::MeshRefused, refused),
        ]
        .into()
    }

    fn descriptors(&self) -> io::Result<Option<Descriptors>> {
        wireguard::Device::descriptors(self).map(Some)
    }

    fn is_altered(&self) -> bool {
        false
    }

    fn failure(&self) -> Option<String> {
        wireguard::Device::failure(self)
    }
}

impl Device for kernel::Device {
    fn set_peers(&self, peers: Vec<wireguard::Peer>) -> Result<(), Error> {
        kernel::Device::set_peers(self, peers)
    }

    fn stats(&self) -> Vec<PeerStats> {
        kernel::Device::stats(self).unwrap_or_default()
    }

    /// The kernel's WireGuard counts no packets by reason.
    fn drops(&self) -> Drops {
        Drops::new()
    }

    fn descriptors(&self) -> io::Result<Option<Descriptors>> {
        Ok(None)
    }

    /// Also if the device cannot be read: the attempt to set the peers then tells why.
    fn is_altered(&self) -> bool {
        kernel::Device::is_altered(self).unwrap_or(true)
    }

    /// Its failures are those of its link.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// A device whose work another process carries on. It seems to work until this process ends, so that
/// nothing is opened in its place.
pub(super) struct Released;

impl Device for Released {
    fn set_peers(&self, _: Vec<wireguard::Peer>) -> Result<(), Error> {
        Ok(())
    }

    fn stats(&self) -> Vec<PeerStats> {
        Vec::new()
    }

    fn drops(&self) -> Drops {
        Drops::new()
    }

    fn descriptors(&self) -> io::Result<Option<Descriptors>> {
        Ok(None)
    }

    fn is_altered(&self) -> bool {
        false
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

/// An open device.
pub(super) struct Opened {
    pub(super) device: Box<dyn Device>,
    /// Number of its link, if another link of this name is not the device's.
    pub(super) index: Option<u32>,
    /// Implementation, as in the configuration.
    pub(super) backend: &'static str,
    /// Why it is not that of the kernel, if that was tried.
    pub(super) fallback: Option<String>,
}

/// Opens the device of a node with this key and UDP port.
///
/// # Errors
/// If the kernel has no WireGuard and `backend` demands it, the name or the port is taken, or
/// without `CAP_NET_ADMIN`.
pub(super) async fn open(
    links: &Links,
    backend: WgBackend,
    key: &PrivateKey,
    port: u16,
) -> Result<Opened, PortError> {
    match backend {
        WgBackend::Kernel => open_in_kernel(links, key, port).await,
        WgBackend::Userspace => open_in_user_space(links, key, port).await,
        WgBackend::Auto => match open_in_kernel(links, key, port).await {
            Ok(opened) => Ok(opened),
            Err(error) => Ok(Opened {
                fallback: Some(error.0),
                ..open_in_user_space(links, key, port).await?
            }),
        },
    }
}

async fn open_in_kernel(links: &Links, key: &PrivateKey, port: u16) -> Result<Opened, PortError> {
    match links.link(DEVICE).await.map_err(of)? {
        None => links.add_wireguard(DEVICE).await.map_err(absent)?,
        Some(Link { kind, .. }) if kind == WIREGUARD => {}
        Some(Link { kind, .. }) => {
            return Err(PortError(format!(
                "the link {DEVICE} exists and is not WireGuard's: {kind}"
            )));
        }
    }
    let key = key.clone();
    let configured = spawn_blocking(move || kernel::Device::configure(DEVICE, key, port)).await;
    let link = links.link(DEVICE).await.map_err(of)?;
    match configured.map_err(of)? {
        Ok(device) => Ok(Opened {
            device: Box::new(device),
            index: link.map(|link| link.index),
            backend: "kernel",
            fallback: None,
        }),
        Err(error) => {
            remove_link(links).await.map_err(of)?;
            Err(of(error))
        }
    }
}

async fn open_in_user_space(
    links: &Links,
    key: &PrivateKey,
    port: u16,
) -> Result<Opened, PortError> {
    remove_link(links).await.map_err(of)?;
    let config = config(key, port);
    let opened = spawn_blocking(move || wireguard::Device::open(config)).await;
    Ok(in_user_space(opened.map_err(of)?.map_err(of)?))
}

/// Carries on with a device in user space of another process; it has no peers.
///
/// # Errors
/// If the descriptors are not those of a device with this port.
pub(super) fn resume(
    key: &PrivateKey,
    port: u16,
    descriptors: Descriptors,
) -> Result<Opened, Error> {
    wireguard::Device::resume(&config(key, port), descriptors).map(in_user_space)
}

fn config(key: &PrivateKey, port: u16) -> Config {
    Config {
        name: DEVICE.to_owned(),
        mtu: MTU,
        private_key: key.clone(),
        port,
        workers: None,
    }
}

fn in_user_space(device: wireguard::Device) -> Opened {
    Opened {
        device: Box::new(device),
        index: None,
        backend: "userspace",
        fallback: None,
    }
}

/// Removes the link of the kernel's WireGuard; that of a device in user space ends with the device.
///
/// # Errors
/// When the kernel refuses.
pub(super) async fn remove_link(links: &Links) -> Result<(), link::Error> {
    match links.link(DEVICE).await? {
        Some(Link { kind, index, .. }) if kind == WIREGUARD => links.remove_link(index).await,
        Some(_) | None => Ok(()),
    }
}

fn absent(error: link::Error) -> PortError {
    if error.is_unsupported() {
        PortError("this kernel has no WireGuard, which wg_backend kernel requires".to_owned())
    } else {
        of(error)
    }
}

/// Sets the peers. One that the device refuses, such as one with an impossible key, is left out: a
/// single member must not stop the mesh.
pub(super) fn set_valid_peers(device: &dyn Device, peers: &[Peer]) -> Result<(), Error> {
    let mut left: Vec<&Peer> = peers.iter().collect();
    loop {
        let given = left.iter().map(|peer| wireguard::Peer {
            public_key: PublicKey(peer.public_key),
            endpoint: Some(SocketAddr::V4(peer.endpoint)),
            allowed_ips: peer
                .allowed_ips
                .iter()
                .map(|cidr| (cidr.network(), cidr.prefix()))
                .collect(),
            keepalive: Some(KEEPALIVE),
        });
        let Err(error) = device.set_peers(given.collect()) else {
            return Ok(());
        };
        let before = left.len();
        match &error {
            Error::InvalidPeer(key) => left.retain(|peer| peer.public_key != key.0),
            Error::InvalidEndpoint(endpoint) => {
                left.retain(|peer| SocketAddr::V4(peer.endpoint) != *endpoint);
            }
            _ => {}
        }
        if left.len() == before {
            return Err(error);
        }
        tracing::warn!(
            subsystem = "wgmesh",
            error = chain(&error),
            "member left out of the mesh"
        );
    }
}
