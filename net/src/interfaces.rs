//! The network interfaces of this machine, asked from the kernel by rtnetlink(7).
//!
//! Unlike `/sys` and `/proc`, a netlink socket always answers for the network namespace of the
//! thread that opens it.

mod message;

use std::{collections::BTreeMap, io};

use jaco_proto::config::advertise::Interface;
use rustix::{
    fd::OwnedFd,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with},
};

use self::message::{Content, Message};

/// Attempts at a dump that the kernel says was changed while it was read.
const MAX_ATTEMPTS: usize = 5;

/// What one dump may hold at most; the kernel fills less than this per datagram.
const BUFFER_BYTES: usize = 64 * 1024;

/// Why the interfaces are not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel did not answer, or refused.
    #[error("failed to ask the kernel for its interfaces")]
    Kernel(#[source] io::Error),
    /// The answer is not one.
    #[error("answer of the kernel is malformed")]
    Malformed,
    /// Interfaces kept changing.
    #[error("interfaces changed while they were read")]
    Unsettled,
}

/// Every interface in this thread's network namespace, by index, with all its addresses.
///
/// # Errors
/// [`Error`] if the kernel cannot be asked; never in part.
pub fn list() -> Result<Vec<Interface>, Error> {
    let mut interfaces = BTreeMap::new();
    for link in dump(&message::request_links())? {
        if let Message::Link {
            index,
            name,
            up,
            loopback,
        } = link
        {
            let interface = Interface {
                name,
                up,
                loopback,
                addresses: Vec::new(),
            };
            interfaces.insert(index, interface);
        }
    }
    for address in dump(&message::request_addresses())? {
        if let Message::Address { index, address } = address
            // One that appeared in between is seen the next time.
            && let Some(interface) = interfaces.get_mut(&index)
        {
            interface.addresses.push(address);
        }
    }
    Ok(interfaces.into_values().collect())
}

/// Sends one request for everything of a kind, and collects the answer.
fn dump(request: &[u8]) -> Result<Vec<Message>, Error> {
    for _ in 0..MAX_ATTEMPTS {
        if let Some(messages) = attempt(request)? {
            return Ok(messages);
        }
    }
    Err(Error::Unsettled)
}

/// `None` if the answer is inconsistent, because something changed meanwhile.
fn attempt(request: &[u8]) -> Result<Option<Vec<Message>>, Error> {
    let kernel = |why: rustix::io::Errno| Error::Kernel(why.into());
    // Without a protocol it is NETLINK_ROUTE.
    let socket: OwnedFd = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(kernel)?;
    send(&socket, request, SendFlags::empty()).map_err(kernel)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut messages, mut settled) = (Vec::new(), true);
    loop {
        let (length, _) =
            rustix::io::retry_on_intr(|| recv(&socket, buffer.as_mut_slice(), RecvFlags::empty()))
                .map_err(kernel)?;
        for answer in message::parse(&buffer[..length]) {
            let answer = answer.ok_or(Error::Malformed)?;
            settled &= !answer.interrupted;
            match answer.content {
                Content::Message(message) => messages.push(message),
                Content::Failed(errno) => {
                    return Err(Error::Kernel(io::Error::from_raw_os_error(errno)));
                }
                Content::Done => return Ok(settled.then_some(messages)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_loopback_interface_of_this_machine_is_found() {
        let all = list().unwrap();
        let lo = all.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(lo.loopback);
        assert!(all.iter().filter(|interface| interface.loopback).count() == 1);
        if lo.up {
            assert!(lo.addresses.contains(&Ipv4Addr::LOCALHOST.into()), "{lo:?}");
        }
    }
}
