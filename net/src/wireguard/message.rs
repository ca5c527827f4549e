//! Kinds of WireGuard messages.

/// Length of a handshake initiation, in bytes.
pub(super) const INITIATION_LEN: usize = 148;
/// Length of a handshake response, in bytes.
const RESPONSE_LEN: usize = 92;
/// Length of a cookie reply, in bytes.
const COOKIE_LEN: usize = 64;
/// Bytes that a data message is longer than its packet.
pub(super) const DATA_OVERHEAD: usize = 32;

/// A message by its type and length; its content is not authenticated yet.
///
/// `receiver` is the index that this node gave to a handshake or session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Initiation,
    Response { receiver: u32 },
    Cookie { receiver: u32 },
    Data { receiver: u32 },
}

/// Classifies a datagram; `None` if it is no message.
///
/// Source: the WireGuard paper, section 5.4.
pub(super) fn classify(datagram: &[u8]) -> Option<Message> {
    let word = |at: usize| {
        let bytes = datagram.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    // The type is one byte; the three reserved bytes behind it are zero.
    match (word(0)?, datagram.len()) {
        (1, INITIATION_LEN) => Some(Message::Initiation),
        (2, RESPONSE_LEN) => Some(Message::Response { receiver: word(8)? }),
        (3, COOKIE_LEN) => Some(Message::Cookie { receiver: word(4)? }),
        (4, DATA_OVERHEAD..) => Some(Message::Data { receiver: word(4)? }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use boringtun::noise::{Packet, Tunn};
    use proptest::prelude::*;

    use super::*;

    fn datagram(kind: u8, len: usize) -> Vec<u8> {
        let mut datagram: Vec<u8> = (0..len).map(|at| u8::try_from(at).unwrap_or(9)).collect();
        let head = [kind, 0, 0, 0];
        let known = len.min(4);
        datagram[..known].copy_from_slice(&head[..known]);
        datagram
    }

    #[test]
    fn type_and_length_make_a_message() {
        let (fourth, eighth) = (0x0706_0504, 0x0b0a_0908);
        for (kind, len, expected) in [
            (1, 148, Some(Message::Initiation)),
            (1, 147, None),
            (1, 149, None),
            (2, 92, Some(Message::Response { receiver: eighth })),
            (2, 93, None),
            (3, 64, Some(Message::Cookie { receiver: fourth })),
            (3, 63, None),
            (4, 32, Some(Message::Data { receiver: fourth })),
            (4, 1452, Some(Message::Data { receiver: fourth })),
            (4, 31, None),
            (4, 3, None),
            (0, 148, None),
            (5, 148, None),
            (1, 0, None),
        ] {
            assert_eq!(
                classify(&datagram(kind, len)),
                expected,
                "{kind} of {len} bytes"
            );
        }
        let mut reserved = datagram(4, 32);
        reserved[2] = 1;
        assert_eq!(classify(&reserved), None);
    }

    proptest! {
        #[test]
        fn messages_are_those_of_the_protocol_core(
            kind in 0..6_u8,
            len in prop::sample::select(vec![0, 3, 4, 31, 32, 33, 64, 91, 92, 147, 148, 149, 1500]),
            noise in any::<[u8; 12]>(),
        ) {
            let mut datagram = datagram(kind, len);
            for (byte, noise) in datagram.iter_mut().skip(3).zip(noise) {
                *byte = noise;
            }
            let expected = match Tunn::parse_incoming_packet(&datagram) {
                Ok(Packet::HandshakeInit(_)) => Some(Message::Initiation),
                Ok(Packet::HandshakeResponse(p)) => Some(Message::Response { receiver: p.receiver_idx }),
                Ok(Packet::PacketCookieReply(p)) => Some(Message::Cookie { receiver: p.receiver_idx }),
                Ok(Packet::PacketData(p)) => Some(Message::Data { receiver: p.receiver_idx }),
                Err(_) => None,
            };
            prop_assert_eq!(classify(&datagram), expected);
        }
    }
}
