//! Announcements of changes by the kernel.

use std::net::Ipv4Addr;

use futures::StreamExt as _;
use rtnetlink::{
    MulticastGroup, new_multicast_connection,
    packet_core::NetlinkPayload,
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkMessage},
    },
};
use tokio::{sync::watch, task::AbortHandle};

use super::{Error, route};

/// A change of links, IPv4 addresses, routes or their rules, made by any program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A link was added, changed or removed.
    Link {
        /// Its number.
        index: u32,
        /// Its name.
        name: String,
    },
    /// An address of the link with this number was added or removed.
    Address(u32),
    /// A route was added or removed.
    Route {
        /// The link it goes over.
        link: Option<u32>,
        /// Whether it is one of JACO's.
        ours: bool,
        /// First address of its destinations, and the length of their prefix.
        to: (Ipv4Addr, u8),
    },
    /// A rule of the routing tables was added or removed.
    Rule,
    /// The kernel dropped announcements because they were not read in time.
    Lost,
}

/// Watches the network namespace in which it was opened.
#[derive(Debug)]
pub struct Watcher {
    changes: watch::Receiver<u64>,
    tasks: [AbortHandle; 2],
}

impl Drop for Watcher {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Watcher {
    /// Watches the namespace of the calling thread for changes that are `relevant`.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel refuses the socket.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(mut relevant: impl FnMut(&Change) -> bool + Send + 'static) -> Result<Self, Error> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv4Rule,
        ];
        let opened = new_multicast_connection(&groups);
        let (connection, _, mut announced) = opened.map_err(Error::Open)?;
        let (counter, changes) = watch::channel(0);
        let driver = tokio::spawn(connection).abort_handle();
        let reader = tokio::spawn(async move {
            while let Some((message, _)) = announced.next().await {
                let change = match &message.payload {
                    NetlinkPayload::InnerMessage(message) => parse(message),
                    NetlinkPayload::Overrun(_) => Some(Change::Lost),
                    _ => None,
                };
                if change.is_some_and(|change| relevant(&change)) {
                    counter.send_modify(|count| *count += 1);
                }
            }
        });
        Ok(Self {
            changes,
            tasks: [driver, reader.abort_handle()],
        })
    }

    /// Number of relevant changes so far; the channel closes when the socket fails.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }
}

fn parse(message: &RouteNetlinkMessage) -> Option<Change> {
    use RouteNetlinkMessage as M;
    match message {
        M::NewLink(link) | M::DelLink(link) => Some(Change::Link {
            index: link.header.index,
            name: name(link),
        }),
        M::NewAddress(address) | M::DelAddress(address) => {
            Some(Change::Address(address.header.index))
        }
        M::NewRoute(route) | M::DelRoute(route) => Some(Change::Route {
            link: route::link_of(route),
            ours: route::is_ours(route),
            to: route::destination(route),
        }),
        M::NewRule(_) | M::DelRule(_) => Some(Change::Rule),
        _ => None,
    }
}

fn name(link: &LinkMessage) -> String {
    let name = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
    name.unwrap_or_default()
}
