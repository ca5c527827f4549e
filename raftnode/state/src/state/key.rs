//! Row keys: encodes the typed keys of the maps as bytes with the same order.

use jaco_proto::v1;

/// Separator between the parts of a row key; names must not contain it.
pub(crate) const SEPARATOR: char = '\0';

/// A typed key of one of the maps.
///
/// The encoded bytes sort as the keys do, so rows in byte order are entities in map order.
pub(crate) trait Key: Ord + Clone + Send + Sync + 'static {
    /// Whether every part can be stored and found again.
    fn is_storable(&self) -> bool;

    /// Appends the encoded key.
    fn encode(&self, out: &mut Vec<u8>);
}

fn storable(name: &str) -> bool {
    !name.contains(SEPARATOR)
}

impl Key for String {
    fn is_storable(&self) -> bool {
        !self.is_empty() && storable(self)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
}

impl Key for (String, String) {
    /// The second part may be empty: a route without a path matches all paths.
    fn is_storable(&self) -> bool {
        self.0.is_storable() && storable(&self.1)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        out.push(SEPARATOR as u8);
        self.1.encode(out);
    }
}

impl Key for (String, String, String) {
    fn is_storable(&self) -> bool {
        self.0.is_storable() && self.1.is_storable() && self.2.is_storable()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        out.push(SEPARATOR as u8);
        self.1.encode(out);
        out.push(SEPARATOR as u8);
        self.2.encode(out);
    }
}

/// A published port and the number of its transport protocol.
impl Key for (i32, i32) {
    fn is_storable(&self) -> bool {
        let (port, protocol) = *self;
        (1..=i32::from(u16::MAX)).contains(&port)
            && v1::TransportProtocol::try_from(protocol).is_ok()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let (port, protocol) = *self;
        // Storable ports are positive, so unsigned order equals signed order.
        out.extend_from_slice(&port.to_be_bytes());
        // TCP, which is number 0, adds nothing: the key of a table that has only TCP ports.
        out.extend(u8::try_from(protocol).ok().filter(|number| *number != 0));
    }
}

/// A log index and an ordinal within it.
impl Key for (u64, u32) {
    fn is_storable(&self) -> bool {
        true
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_be_bytes());
        out.extend_from_slice(&self.1.to_be_bytes());
    }
}
