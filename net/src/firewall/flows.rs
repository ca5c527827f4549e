//! Connections that the kernel tracks: established ones pass the table whatever its sets hold.
//!
//! Source: the kernel's `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.

use std::net::Ipv4Addr;

use rustix::io::Errno;

use super::{
    Error,
    message::{ACKNOWLEDGE, Attributes, CONNTRACK, IPV4, Message, Messages, Writer},
    socket::Socket,
};

const GET: u16 = 1;
const DELETE: u16 = 2;

const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;

/// A tracked connection.
struct Flow {
    /// Source before any translation of addresses.
    from: Ipv4Addr,
    /// Destination after it.
    to: Ipv4Addr,
    /// Attributes that name the connection in a request.
    key: Vec<u8>,
}

/// Ends the connections over IPv4 whose two ends, as the forward hook sees them, are `forbidden`;
/// returns their number. A later packet of one begins a new connection.
///
/// # Errors
/// [`Error::NoConntrack`] without ctnetlink; without the capability `CAP_NET_ADMIN`. Some of the
/// connections may have ended.
pub fn cut_flows(forbidden: impl Fn(Ipv4Addr, Ipv4Addr) -> bool) -> Result<usize, Error> {
    let mut socket = Socket::of_subsystem(CONNTRACK)?;
    let mut found = Vec::new();
    let listed = socket.dump((GET, IPV4), &[], |message| {
        let flow = flow(message)?;
        if forbidden(flow.from, flow.to) {
            found.push(flow);
        }
        Ok(())
    });
    match listed {
        // New connections do not concern it: those are subject to the rules.
        Ok(()) | Err(Error::Unstable) => {}
        Err(error) if is_absent(&error) => return Err(Error::NoConntrack),
        Err(error) => return Err(error),
    }
    let mut cut = 0;
    for Flow { key, .. } in found {
        cut += usize::from(socket.change((DELETE, IPV4), ACKNOWLEDGE, &key)?);
    }
    Ok(cut)
}

/// Whether the kernel knows no subsystem of netfilter with the number of a list.
///
/// Source: `nfnetlink_rcv_msg` of the kernel's `net/netfilter/nfnetlink.c`.
fn is_absent(error: &Error) -> bool {
    let of = |source: &std::io::Error| source.raw_os_error() == Some(Errno::INVAL.raw_os_error());
    matches!(error, Error::Refused(_, source) if of(source))
}

/// Parses a datagram with connections.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<(Ipv4Addr, Ipv4Addr)>, Error> {
    let flows = Messages(bytes).map(|message| flow(&message?));
    flows
        .map(|found| found.map(|flow| (flow.from, flow.to)))
        .collect()
}

fn flow(message: &Message<'_>) -> Result<Flow, Error> {
    let attributes = message.attributes();
    let from = source(&attributes, ORIGINAL)?;
    // Replies have the translated destination as their source.
    let to = source(&attributes, REPLY)?;
    let mut key = Writer::default();
    for (kind, nested) in [(ORIGINAL, true), (ID, false), (ZONE, false)] {
        let value = attributes.find(kind)?;
        match value {
            Some(value) if nested => key.nest(kind, |key| key.0.extend_from_slice(value)),
            Some(value) => key.put(kind, value),
            None => {}
        }
    }
    let key = key.0;
    Ok(Flow { from, to, key })
}

/// Source address of one direction.
fn source(attributes: &Attributes<'_>, direction: u16) -> Result<Ipv4Addr, Error> {
    const ADDRESSES: u16 = 1;
    const SOURCE: u16 = 1;
    let address = attributes.nested(direction)?.nested(ADDRESSES)?;
    let address = address.number(SOURCE)?;
    let address = address.ok_or(Error::Malformed("a connection without addresses"))?;
    Ok(Ipv4Addr::from(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_subsystem_is_recognised() {
        /// Number that no subsystem of netfilter has.
        const NONE: u16 = 200 << 8;
        let mut socket = Socket::of_subsystem(NONE).unwrap();
        let error = socket.dump((GET, IPV4), &[], |_| Ok(())).unwrap_err();
        assert!(is_absent(&error), "{error:?}");
        let mut socket = Socket::of_subsystem(CONNTRACK).unwrap();
        socket.dump((GET, IPV4), &[], |_| Ok(())).unwrap();
    }
}
