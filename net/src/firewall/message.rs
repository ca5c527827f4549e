//! Encoding of netlink messages and attributes.
//!
//! Source: the kernel's `Documentation/userspace-api/netlink/intro.rst` and
//! `include/uapi/linux/netfilter/nf_tables.h`.

use super::Error;

/// Request flag: the message is a request.
pub(super) const REQUEST: u16 = 0x01;
/// Request flag: acknowledge.
pub(super) const ACKNOWLEDGE: u16 = 0x04;
/// Request flag: list all objects.
pub(super) const DUMP: u16 = 0x300;
/// Request flag: create the object.
pub(super) const CREATE: u16 = 0x400;
/// Request flag: append, not prepend.
pub(super) const APPEND: u16 = 0x800;
/// Flag of an answer to [`DUMP`]: the objects changed meanwhile.
pub(super) const INTERRUPTED: u16 = 0x10;

/// Message type of an error or an acknowledgement.
pub(super) const ERROR: u16 = 2;
/// Message type at the end of a list.
pub(super) const DONE: u16 = 3;
/// Subsystem of nf_tables in the upper byte of a message type.
pub(super) const NF_TABLES: u16 = 10 << 8;

/// Subsystem of connection tracking in the upper byte of a message type.
pub(super) const CONNTRACK: u16 = 1 << 8;

/// Family of tables for IPv4 and IPv6.
pub(super) const INET: u8 = 1;
/// Family of tables for IPv4.
pub(super) const IPV4: u8 = 2;

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of `struct nfgenmsg`.
const NF_HEADER: usize = 4;
/// Flags in the type of an attribute: nested, network byte order.
const ATTRIBUTE_FLAGS: u16 = 0xc000;

/// A message of the kernel.
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Errno of an error message; 0 acknowledges.
    pub(super) fn errno(&self) -> Result<i32, Error> {
        let code = self.payload.first_chunk();
        let code = code.ok_or(Error::Malformed("an error without a code"))?;
        Ok(i32::from_ne_bytes(*code).saturating_neg())
    }

    /// Attributes of an nf_tables message.
    pub(super) fn attributes(&self) -> Attributes<'a> {
        Attributes(self.payload.get(NF_HEADER..).unwrap_or_default())
    }

    /// Family of an nf_tables message.
    pub(super) fn family(&self) -> u8 {
        self.payload.first().copied().unwrap_or_default()
    }
}

/// Iterator over the messages of a datagram.
pub(super) struct Messages<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let message = split_message(self.0);
        let (message, rest) = message.unwrap_or((Err(Error::Malformed("a cut message")), &[]));
        self.0 = rest;
        Some(message)
    }
}

fn split_message(bytes: &[u8]) -> Option<(Result<Message<'_>, Error>, &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?);
    let length = usize::try_from(length).ok()?;
    let payload = bytes.get(HEADER..length)?;
    let half = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let message = Message {
        kind: half(4)?,
        flags: half(6)?,
        sequence: u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
        payload,
    };
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((Ok(message), rest))
}

/// Iterator over attributes: type and value.
#[derive(Clone)]
pub(super) struct Attributes<'a>(pub(super) &'a [u8]);

impl<'a> Attributes<'a> {
    /// Value of the attribute of type `kind`; empty if there is none.
    pub(super) fn find(&self, kind: u16) -> Result<Option<&'a [u8]>, Error> {
        for attribute in self.clone() {
            let (found, value) = attribute?;
            if found == kind {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Text of the attribute of type `kind`; empty if there is none.
    pub(super) fn text(&self, kind: u16) -> Result<String, Error> {
        let value = self.find(kind)?.unwrap_or_default();
        let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Number of the attribute of type `kind`, in network byte order.
    pub(super) fn number(&self, kind: u16) -> Result<Option<u32>, Error> {
        let value = self.find(kind)?;
        value.map(number).transpose()
    }

    /// Number of eight bytes of the attribute of type `kind`, in network byte order.
    pub(super) fn long_number(&self, kind: u16) -> Result<Option<u64>, Error> {
        const LENGTH: Error = Error::Malformed("a number not of eight bytes");
        let value = self.find(kind)?;
        let number = value.map(|value| value.try_into().map(u64::from_be_bytes));
        number.transpose().map_err(|_| LENGTH)
    }

    /// Attributes nested in the attribute of type `kind`; none if there is none.
    pub(super) fn nested(&self, kind: u16) -> Result<Attributes<'a>, Error> {
        Ok(Attributes(self.find(kind)?.unwrap_or_default()))
    }
}

/// A number of four bytes in network byte order.
fn number(value: &[u8]) -> Result<u32, Error> {
    let bytes = value.try_into();
    let bytes = bytes.map_err(|_| Error::Malformed("a number not of four bytes"))?;
    Ok(u32::from_be_bytes(bytes))
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8]), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let split = split_attribute(self.0);
        self.0 = split.map_or(&[], |(_, _, rest)| rest);
        let attribute = split.map(|(kind, value, _)| (kind, value));
        Some(attribute.ok_or(Error::Malformed("a cut attribute")))
    }
}

fn split_attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
    let value = bytes.get(4..length)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind & !ATTRIBUTE_FLAGS, value, rest))
}

/// Writer of attributes.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    /// Appends an attribute; `value` has to be shorter than 64 KiB.
    pub(super) fn put(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Appends a text with its final zero.
    pub(super) fn put_text(&mut self, kind: u16, text: &str) {
        self.put(kind, &[text.as_bytes(), &[0]].concat());
    }

    /// Appends a number in network byte order.
    pub(super) fn put_number(&mut self, kind: u16, number: u32) {
        self.put(kind, &number.to_be_bytes());
    }

    /// Appends an attribute that consists of those that `fill` appends.
    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        const NESTED: u16 = 0x8000;
        let start = self.0.len();
        self.put(kind | NESTED, &[]);
        fill(self);
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }
}

/// Builds an nf_tables message.
pub(super) fn request(kind: u16, flags: u16, family: u8, sequence: u32, body: &[u8]) -> Vec<u8> {
    request_of(NF_TABLES | kind, flags, family, sequence, body)
}

/// Builds a message of any subsystem.
pub(super) fn request_of(kind: u16, flags: u16, family: u8, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = HEADER + NF_HEADER + body.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(flags | REQUEST).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    // `struct nfgenmsg`: family, version 0, resource 0.
    bytes.extend_from_slice(&[family, 0, 0, 0]);
    bytes.extend_from_slice(body);
    bytes
}
