//! Probe endpoints: a network namespace on a bridge.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd as _,
    sync::Arc,
};

use futures::TryStreamExt as _;
use rtnetlink::{
    Handle, LinkUnspec, RouteMessageBuilder,
    packet_route::link::{
        InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    },
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use tokio::task::{AbortHandle, spawn_blocking};

use super::Binder;
use crate::netns::Namespace;

/// Prefix of the names of the endpoints' links.
pub const PREFIX: &str = "jacop-";
/// Name of the link inside the namespace.
const INNER: &str = "eth0";

/// Returns the name of the link of an endpoint: [`PREFIX`] and nine hex digits of the hash of `label`.
#[must_use]
pub fn link_name(label: &str) -> String {
    let digest = hex::encode(Sha256::digest(label));
    format!("{PREFIX}{digest:.9}")
}

/// An endpoint to set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Name of the cluster, the host and the network, at most 255 bytes. Kept as the alias of the
    /// link, so that the link can be recognised, and hashed for its name.
    pub label: String,
    /// Bridge to attach to.
    pub bridge: String,
    /// Address of the endpoint.
    pub address: Ipv4Addr,
    /// Prefix length of the block in bits.
    pub prefix: u8,
    /// Address of the bridge.
    pub gateway: Ipv4Addr,
    /// MTU in bytes.
    pub mtu: u32,
}

/// Reason why an endpoint cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no bridge of that name.
    #[error("there is no bridge {0}")]
    NoBridge(String),
    /// Another program has a link of that name.
    #[error("link {0} exists and is foreign")]
    Foreign(String),
    /// The link of the endpoint is gone.
    #[error("link {0} is gone")]
    Gone(String),
    /// A socket or a namespace cannot be made.
    #[error("failed to {0}")]
    Io(&'static str, #[source] io::Error),
    /// The kernel refused a request.
    #[error("failed to {0}: {1}")]
    Netlink(&'static str, String),
}

/// A namespace that is attached to a bridge; it ends when this is dropped.
#[derive(Clone, Debug)]
pub struct Endpoint {
    spec: Spec,
    namespace: Arc<Namespace>,
    binder: Binder,
}

impl Endpoint {
    /// Creates the namespace and its link in the network namespace of the calling thread. A link
    /// that is left of an earlier endpoint with the same label is replaced. `binder` makes its sockets.
    ///
    /// # Errors
    /// [`Error::NoBridge`], [`Error::Foreign`]; others without `CAP_NET_ADMIN` and `CAP_SYS_ADMIN`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(spec: Spec, binder: Binder) -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        let bridge = netlink.index(&spec.bridge).await?;
        let bridge = bridge.ok_or_else(|| Error::NoBridge(spec.bridge.clone()))?;
        let name = link_name(&spec.label);
        if let Some(link) = netlink.link(&name).await? {
            if alias(&link) != Some(spec.label.as_str()) {
                return Err(Error::Foreign(name));
            }
            netlink.remove(link.header.index).await?;
        }
        let created = spawn_blocking(Namespace::create).await;
        let namespace = created
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|error| Error::Io("create a network namespace", error))?;
        let endpoint = Self {
            spec,
            namespace: Arc::new(namespace),
            binder,
        };
        netlink.add_veth(&name, &endpoint.namespace).await?;
        let host_end = netlink.index(&name).await?;
        let host_end = host_end.ok_or(Error::Netlink("find the new link", name))?;
        endpoint.configure().await?;
        netlink.attach(host_end, bridge, &endpoint.spec).await?;
        Ok(endpoint)
    }

    /// Settings the endpoint was opened with.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Attaches the link to its bridge again if another program detached it, or replaced the bridge.
    /// Returns whether something was repaired.
    ///
    /// # Errors
    /// [`Error::NoBridge`]; [`Error::Gone`], after which the endpoint must be opened anew.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn repair(&self) -> Result<bool, Error> {
        let netlink = Netlink::open()?;
        let bridge = netlink.index(&self.spec.bridge).await?;
        let bridge = bridge.ok_or_else(|| Error::NoBridge(self.spec.bridge.clone()))?;
        let name = link_name(&self.spec.label);
        let link = netlink.link(&name).await?;
        let link = link.filter(|link| alias(link) == Some(self.spec.label.as_str()));
        let link = link.ok_or(Error::Gone(name))?;
        let attached = link.attributes.contains(&LinkAttribute::Controller(bridge));
        if attached && link.header.flags.contains(LinkFlags::Up) {
            return Ok(false);
        }
        netlink
            .attach(link.header.index, bridge, &self.spec)
            .await?;
        Ok(true)
    }

    /// Binds a UDP socket to the address of the endpoint and a port; 0 lets the kernel choose, which
    /// gives each probe a connection of its own in the kernel's tables.
    ///
    /// # Errors
    /// If the port is taken.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn bind(&self, port: u16) -> io::Result<tokio::net::UdpSocket> {
        let address = SocketAddrV4::new(self.spec.address, port);
        self.binder.bind(Arc::clone(&self.namespace), address).await
    }

    /// Sets address and route inside the namespace.
    async fn configure(&self) -> Result<(), Error> {
        let runtime = tokio::runtime::Handle::current();
        let namespace = Arc::clone(&self.namespace);
        let opened = spawn_blocking(move || {
            namespace.within(|| {
                let _entered = runtime.enter();
                Netlink::open()
            })
        });
        let entered = opened
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        let netlink = entered.map_err(|error| Error::Io("enter a network namespace", error))??;
        let Spec {
            address,
            prefix,
            gateway,
            mtu,
            ..
        } = self.spec;
        let index = netlink.index(INNER).await?;
        let index = index.ok_or(Error::Netlink("find the new link", INNER.to_owned()))?;
        let add = netlink.handle.address().add(index, address.into(), prefix);
        refused("add an address", add.execute().await)?;
        let up = LinkUnspec::new_with_index(index).mtu(mtu).up().build();
        let up = netlink.handle.link().change(up).execute().await;
        refused("set a link up", up)?;
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway);
        let route = netlink.handle.route().add(route.build()).execute().await;
        refused("add a route", route)
    }
}

/// A netlink socket in the namespace where it was opened.
struct Netlink {
    handle: Handle,
    driver: AbortHandle,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Netlink {
    fn open() -> Result<Self, Error> {
        let opened = rtnetlink::new_connection();
        let opened = opened.map_err(|error| Error::Io("open a netlink socket", error));
        let (connection, handle, _) = opened?;
        let driver = tokio::spawn(connection).abort_handle();
        Ok(Self { handle, driver })
    }

    async fn link(&self, name: &str) -> Result<Option<LinkMessage>, Error> {
        let get = self.handle.link().get().match_name(name.to_owned());
        let mut found = std::pin::pin!(get.execute());
        match found.try_next().await {
            Ok(link) => Ok(link),
            Err(error) if is(&error, Errno::NODEV) => Ok(None),
            Err(error) => Err(Error::Netlink("look up a link", error.to_string())),
        }
    }

    async fn index(&self, name: &str) -> Result<Option<u32>, Error> {
        let link = self.link(name).await?;
        Ok(link.map(|link| link.header.index))
    }

    async fn remove(&self, index: u32) -> Result<(), Error> {
        match self.handle.link().del(index).execute().await {
            // The kernel removed it at the end of its namespace.
            Err(error) if is(&error, Errno::NODEV) => Ok(()),
            done => refused("remove a link", done),
        }
    }

    /// Creates a pair of links, one called `name` here and one in `namespace`.
    async fn add_veth(&self, name: &str, namespace: &Namespace) -> Result<(), Error> {
        let fd = namespace.file().as_raw_fd();
        let mut inner = LinkMessage::default();
        inner.attributes = vec![
            LinkAttribute::IfName(INNER.to_owned()),
            LinkAttribute::NetNsFd(fd),
        ];
        let mut pair = LinkMessage::default();
        pair.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(inner))),
            ]),
        ];
        let done = self.handle.link().add(pair).execute().await;
        refused("create a pair of links", done)
    }

    /// Labels a link, attaches it to a bridge and sets it up.
    async fn attach(&self, index: u32, bridge: u32, spec: &Spec) -> Result<(), Error> {
        let attached = LinkUnspec::new_with_index(index)
            .alias(&spec.label)
            .controller(bridge)
            .mtu(spec.mtu)
            .up();
        let done = self.handle.link().change(attached.build()).execute().await;
        refused("attach a link to its bridge", done)
    }
}

fn alias(link: &LinkMessage) -> Option<&str> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfAlias(alias) => Some(alias.as_str()),
            _ => None,
        })
}

fn refused(action: &'static str, done: Result<(), rtnetlink::Error>) -> Result<(), Error> {
    done.map_err(|error| Error::Netlink(action, error.to_string()))
}

fn is(error: &rtnetlink::Error, errno: Errno) -> bool {
    match error {
        rtnetlink::Error::NetlinkError(message) => {
            Errno::from_io_error(&message.to_io()) == Some(errno)
        }
        _ => false,
    }
}
