//! Encoding of probes.

/// Length of a nonce in bytes.
pub(super) const NONCE: usize = 16;
/// Length of every message in bytes.
pub(super) const LENGTH: usize = MAGIC.len() + 1 + NONCE;
const MAGIC: &[u8] = b"jaco-probe/1";
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;

/// A probe or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A probe.
    Request([u8; NONCE]),
    /// The answer, with the nonce of the probe.
    Answer([u8; NONCE]),
}

impl Message {
    /// Encodes the message.
    pub(super) fn encode(self) -> [u8; LENGTH] {
        let (kind, nonce) = match self {
            Self::Request(nonce) => (REQUEST, nonce),
            Self::Answer(nonce) => (ANSWER, nonce),
        };
        let mut bytes = [0; LENGTH];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        bytes[MAGIC.len()] = kind;
        bytes[MAGIC.len() + 1..].copy_from_slice(&nonce);
        bytes
    }

    /// Decodes a datagram; `None` if it is no such message.
    pub(super) fn decode(datagram: &[u8]) -> Option<Self> {
        let (kind, nonce) = datagram.strip_prefix(MAGIC)?.split_first()?;
        let nonce = nonce.try_into().ok()?;
        match *kind {
            REQUEST => Some(Self::Request(nonce)),
            ANSWER => Some(Self::Answer(nonce)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_round_trip(nonce in any::<[u8; NONCE]>()) {
            for message in [Message::Request(nonce), Message::Answer(nonce)] {
                let mut bytes = message.encode().to_vec();
                prop_assert_eq!(Message::decode(&bytes), Some(message));
                bytes.push(0);
                prop_assert_eq!(Message::decode(&bytes), None);
                prop_assert_eq!(Message::decode(&bytes[..LENGTH - 1]), None);
            }
        }

        #[test]
        fn other_datagrams_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(Message::decode(&bytes), None);
        }
    }
}
