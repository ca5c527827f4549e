//! The few rtnetlink messages that list links and addresses; all numbers in host byte order.

use std::net::IpAddr;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;

const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;

const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;

/// One thing the kernel lists.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    Link {
        index: u32,
        name: String,
        up: bool,
        loopback: bool,
    },
    Address {
        index: u32,
        address: IpAddr,
    },
    /// Something nobody asked for.
    Other,
}

/// One message of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The list changed while it was read.
    pub(super) interrupted: bool,
    pub(super) content: Content,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    Message(Message),
    /// The request was refused with this error number.
    Failed(i32),
    /// Nothing follows.
    Done,
}

/// Asks for all links.
pub(super) fn request_links() -> Vec<u8> {
    request(RTM_GETLINK, LINK_HEADER)
}

/// Asks for all addresses of all families.
pub(super) fn request_addresses() -> Vec<u8> {
    request(RTM_GETADDR, ADDRESS_HEADER)
}

fn request(kind: u16, header: usize) -> Vec<u8> {
    let length = HEADER + header;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.resize(length, 0);
    bytes
}

/// The messages of one datagram; `None` where it is malformed, and nothing after that.
pub(super) fn parse(mut datagram: &[u8]) -> impl Iterator<Item = Option<Answer>> {
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let Some((kind, flags, body, rest)) = split(datagram) else {
            datagram = &[];
            return Some(None);
        };
        datagram = rest;
        let content = match kind {
            NLMSG_DONE => Some(Content::Done),
            NLMSG_ERROR => {
                number(body, 0).map(|code| Content::Failed(code.cast_signed().wrapping_neg()))
            }
            RTM_NEWLINK => link(body).map(Content::Message),
            RTM_NEWADDR => address(body).map(Content::Message),
            _ => Some(Content::Message(Message::Other)),
        };
        let interrupted = flags & NLM_F_DUMP_INTR != 0;
        Some(content.map(|content| Answer {
            interrupted,
            content,
        }))
    })
}

/// Kind, flags and body of the first message, and what follows it.
fn split(datagram: &[u8]) -> Option<(u16, u16, &[u8], &[u8])> {
    let length = usize::try_from(number(datagram, 0)?).ok()?;
    let body = datagram.get(HEADER..length)?;
    let rest = datagram.get(aligned(length)..).unwrap_or_default();
    Some((short(datagram, 4)?, short(datagram, 6)?, body, rest))
}

fn link(body: &[u8]) -> Option<Message> {
    let (index, flags) = (number(body, 4)?, number(body, 8)?);
    let name = attribute(body.get(LINK_HEADER..)?, IFLA_IFNAME)?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    Some(Message::Link {
        index,
        name: String::from_utf8_lossy(name).into_owned(),
        up: flags & IFF_UP != 0,
        loopback: flags & IFF_LOOPBACK != 0,
    })
}

fn address(body: &[u8]) -> Option<Message> {
    let index = number(body, 4)?;
    let attributes = body.get(ADDRESS_HEADER..)?;
    // On a point-to-point link the other one is the peer's.
    let bytes = attribute(attributes, IFA_LOCAL).or_else(|| attribute(attributes, IFA_ADDRESS));
    let ip = |bytes: &[u8]| {
        let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
        v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
            .ok()
    };
    Some(
        bytes
            .and_then(ip)
            .map_or(Message::Other, |address| Message::Address {
                index,
                address,
            }),
    )
}

/// The value of the first attribute of a kind.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (length, kind) = (usize::from(short(attributes, 0)?), short(attributes, 2)?);
        let value = attributes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(aligned(length)..)?;
    }
}

fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|bytes| u32::from_ne_bytes(*bytes))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|bytes| u16::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(HEADER + body.len())
            .unwrap()
            .to_ne_bytes()
            .to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(4 + value.len())
            .unwrap()
            .to_ne_bytes()
            .to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn link_body(index: u32, flags: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![0; 4];
        body.extend(index.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(attributes.concat());
        body
    }

    fn address_body(index: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![0; 4];
        body.extend(index.to_ne_bytes());
        body.extend(attributes.concat());
        body
    }

    fn contents(datagram: &[u8]) -> Vec<Option<Content>> {
        parse(datagram)
            .map(|answer| answer.map(|answer| answer.content))
            .collect()
    }

    #[test]
    fn links_and_addresses_are_read_from_one_datagram() {
        let (own, peer) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let name = [attribute(99, b"x"), attribute(IFLA_IFNAME, b"eth0\0")];
        let both = [attribute(IFA_ADDRESS, &peer), attribute(IFA_LOCAL, &own)];
        let datagram = [
            message(RTM_NEWLINK, 0, &link_body(7, IFF_UP, &name)),
            message(RTM_NEWADDR, 0, &address_body(7, &both)),
            message(
                RTM_NEWADDR,
                0,
                &address_body(7, &[attribute(IFA_ADDRESS, &[0; 16])]),
            ),
            message(NLMSG_DONE, 0, &[0; 4]),
        ]
        .concat();
        let link = Message::Link {
            index: 7,
            name: "eth0".to_owned(),
            up: true,
            loopback: false,
        };
        let at = |address| Message::Address { index: 7, address };
        assert_eq!(
            contents(&datagram),
            [
                Some(Content::Message(link)),
                Some(Content::Message(at(own.into()))),
                Some(Content::Message(at([0u8; 16].into()))),
                Some(Content::Done),
            ]
        );
    }

    #[test]
    fn refusals_carry_their_error_number() {
        let datagram = message(NLMSG_ERROR, 0, &(-13i32).to_ne_bytes());
        assert_eq!(contents(&datagram), [Some(Content::Failed(13))]);
    }

    #[test]
    fn interrupted_lists_say_so() {
        let datagram = message(NLMSG_DONE, NLM_F_DUMP_INTR, &[]);
        let answers: Vec<_> = parse(&datagram).collect();
        assert_eq!(
            answers,
            [Some(Answer {
                interrupted: true,
                content: Content::Done
            })]
        );
    }

    #[test]
    fn a_cut_message_is_malformed_and_ends_the_datagram() {
        let whole = message(
            RTM_NEWLINK,
            0,
            &link_body(7, 0, &[attribute(IFLA_IFNAME, b"lo")]),
        );
        assert_eq!(contents(&whole[..whole.len() - 8]), [None]);
        assert_eq!(contents(&[0; 16]), [None], "a length of zero cannot loop");
    }

    proptest! {
        #[test]
        fn no_datagram_makes_parsing_fail_or_loop(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse(&bytes).count() <= bytes.len());
        }
    }
}
