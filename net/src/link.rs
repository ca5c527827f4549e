//! Links, addresses and routes of the kernel, over rtnetlink(7).
//!
//! IPv4 only, and changes in the main routing table only. Everything is idempotent: adding what is there and removing
//! what is gone succeed. Routes carry [`PROTOCOL`] as their origin, which distinguishes them
//! from those of other programs; these are never changed.

mod error;
mod lookup;
mod route;
mod watch;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use futures::{StreamExt as _, TryStreamExt as _};
use rtnetlink::{
    LinkUnspec, LinkWireguard,
    packet_route::{
        AddressFamily,
        address::{AddressAttribute, AddressMessage},
        link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    },
    sys::AsyncSocket as _,
};
use tokio::task::AbortHandle;

pub use error::Error;
pub use lookup::{RoutingRule, SendingRoute};
pub use route::{PROTOCOL, Route, Target};
pub use watch::{Change, Watcher};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Number of the interface; a new one of the same name has another.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// Kind of a virtual interface as in ip-link(8), for example `wireguard`; empty for others.
    pub kind: String,
}

/// An IPv4 address of an interface and the length of its prefix in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The address.
    pub ip: Ipv4Addr,
    /// Length of the prefix, at most 32.
    pub prefix: u8,
}

/// A netlink socket; it stays in the namespace in which it was opened.
#[derive(Debug)]
pub struct Links {
    netlink: rtnetlink::Handle,
    driver: AbortHandle,
}

impl Drop for Links {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Links {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel refuses the socket.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open() -> Result<Self, Error> {
        let (mut connection, netlink, _) = rtnetlink::new_connection().map_err(Error::Open)?;
        // Kernels before 4.20 cannot filter lists; the answers are filtered again.
        let socket = connection.socket_mut().socket_mut();
        let _ = socket.set_netlink_get_strict_chk(true);
        let driver = tokio::spawn(connection).abort_handle();
        Ok(Self { netlink, driver })
    }

    /// Returns the link called `name`.
    ///
    /// # Errors
    /// When the kernel refuses to list links.
    pub async fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        let found = self.netlink.link().get().match_name(name).execute();
        let mut found = std::pin::pin!(found);
        match found.try_next().await {
            Ok(message) => Ok(message.as_ref().map(parse_link)),
            Err(error) => match Error::of("look up a link", error) {
                error if error.is_missing() => Ok(None),
                error => Err(error),
            },
        }
    }

    /// Lists the names of all links by their numbers.
    ///
    /// # Errors
    /// When the kernel refuses to list links.
    pub async fn names(&self) -> Result<BTreeMap<u32, String>, Error> {
        let mut found = self.netlink.link().get().execute().boxed();
        let mut all = BTreeMap::new();
        while let Some(message) = found.next().await {
            let message = message.map_err(|error| Error::of("list links", error))?;
            let link = parse_link(&message);
            all.insert(link.index, link.name);
        }
        Ok(all)
    }

    /// Adds a link that the WireGuard of the kernel serves; it is down and has no key.
    ///
    /// # Errors
    /// When its name is taken, or the kernel has no WireGuard ([`Error::is_unsupported`]).
    pub async fn add_wireguard(&self, name: &str) -> Result<(), Error> {
        let wanted = LinkWireguard::new(name).build();
        let done = self.netlink.link().add(wanted).execute().await;
        done.map_err(|error| Error::of("add a WireGuard link", error))
    }

    /// Sets a link up with an MTU in bytes.
    ///
    /// # Errors
    /// When the link is gone, or the MTU out of its range.
    pub async fn set_up(&self, index: u32, mtu: u32) -> Result<(), Error> {
        let wanted = LinkUnspec::new_with_index(index).mtu(mtu).up().build();
        let done = self.netlink.link().change(wanted).execute().await;
        done.map_err(|error| Error::of("set a link up", error))
    }

    /// Removes a link.
    ///
    /// # Errors
    /// When the kernel refuses, for example for the loopback interface.
    pub async fn remove_link(&self, index: u32) -> Result<(), Error> {
        let done = self.netlink.link().del(index).execute().await;
        Error::unless_missing("remove a link", done)
    }

    /// Lists the IPv4 addresses of a link in order.
    ///
    /// # Errors
    /// When the kernel refuses to list addresses.
    pub async fn addresses(&self, index: u32) -> Result<Vec<Address>, Error> {
        let mut all = Vec::new();
        for message in self.address_messages(index).await? {
            all.extend(parse_address(&message));
        }
        all.sort_unstable();
        Ok(all)
    }

    /// Adds an address to a link.
    ///
    /// # Errors
    /// When the link is gone.
    pub async fn add_address(&self, index: u32, address: Address) -> Result<(), Error> {
        let Address { ip, prefix } = address;
        let add = self.netlink.address().add(index, IpAddr::V4(ip), prefix);
        Error::unless_exists("add an address", add.execute().await)
    }

    /// Removes an address from a link.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn remove_address(&self, index: u32, address: Address) -> Result<(), Error> {
        for message in self.address_messages(index).await? {
            if parse_address(&message) == Some(address) {
                let done = self.netlink.address().del(message).execute().await;
                Error::unless_missing("remove an address", done)?;
            }
        }
        Ok(())
    }

    async fn address_messages(&self, index: u32) -> Result<Vec<AddressMessage>, Error> {
        let get = self.netlink.address().get().set_link_index_filter(index);
        let mut found = get.execute().boxed();
        let mut all = Vec::new();
        while let Some(message) = found.next().await {
            all.push(message.map_err(|error| Error::of("list addresses", error))?);
        }
        Ok(all)
    }

    fn netlink(&self) -> &rtnetlink::Handle {
        &self.netlink
    }
}

fn parse_link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        up: message.header.flags.contains(LinkFlags::Up),
        mtu: 0,
        kind: String::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::LinkInfo(infos) => link.kind = kind(infos).unwrap_or_default(),
            _ => {}
        }
    }
    link
}

fn kind(infos: &[LinkInfo]) -> Option<String> {
    infos.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind.to_string()),
        _ => None,
    })
}

fn parse_address(message: &AddressMessage) -> Option<Address> {
    if message.header.family != AddressFamily::Inet {
        return None;
    }
    // On a link between two points `Address` is that of the other end.
    let local = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Local(IpAddr::V4(ip)) => Some(*ip),
            _ => None,
        });
    let ip = local.or_else(|| {
        message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Address(IpAddr::V4(ip)) => Some(*ip),
                _ => None,
            })
    })?;
    Some(Address {
        ip,
        prefix: message.header.prefix_len,
    })
}

#[cfg(test)]
mod tests;
