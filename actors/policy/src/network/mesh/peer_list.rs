//! The peers of a device as text, for the process that takes the device over.
//!
//! The first line names the format; then each peer is a line of its name, its key in hexadecimal, its
//! endpoint, and its networks, which are separated by commas, or `-`.

use std::{collections::BTreeSet, fmt::Write as _};

use super::plan::Peer;

/// First line.
const FORMAT: &str = "jaco-mesh-peers 1";
/// Stands for no networks.
const NONE: &str = "-";

/// A list that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first line is another one.
    #[error("the list of peers has another format")]
    Format,
    /// A line is no peer.
    #[error("line {0} of the list of peers is no peer")]
    Line(usize),
}

/// Writes a list.
#[must_use]
pub fn encode(peers: &[Peer]) -> String {
    let mut text = format!("{FORMAT}\n");
    for peer in peers {
        let networks: Vec<String> = peer.allowed_ips.iter().map(ToString::to_string).collect();
        let networks = match networks.as_slice() {
            [] => NONE.to_owned(),
            some => some.join(","),
        };
        let key = hex::encode(peer.public_key);
        let (name, endpoint) = (&peer.hostname, peer.endpoint);
        let _ = writeln!(text, "{name} {key} {endpoint} {networks}"); // never fails on a string
    }
    text
}

/// Reads a list; never panics.
///
/// # Errors
/// [`Malformed`].
pub fn decode(text: &str) -> Result<Vec<Peer>, Malformed> {
    let mut lines = text.lines().zip(1..);
    if lines.next().is_none_or(|(first, _)| first != FORMAT) {
        return Err(Malformed::Format);
    }
    lines
        .map(|(line, number)| peer(line).ok_or(Malformed::Line(number)))
        .collect()
}

fn peer(line: &str) -> Option<Peer> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [hostname, key, endpoint, networks] = fields.as_slice() else {
        return None;
    };
    let mut public_key = [0; 32];
    hex::decode_to_slice(key, &mut public_key).ok()?;
    let networks = match *networks {
        NONE => Ok(BTreeSet::new()),
        some => some.split(',').map(str::parse).collect(),
    };
    Some(Peer {
        hostname: (*hostname).to_owned(),
        public_key,
        endpoint: endpoint.parse().ok()?,
        allowed_ips: networks.ok()?,
    })
}

#[cfg(test)]
mod tests {
    use jaco_engine::cidr::Cidr;
    use proptest::prelude::*;

    use super::*;

    fn any_peer() -> impl Strategy<Value = Peer> {
        let networks = prop::collection::btree_set((any::<u32>(), 0_u8..=32), 0..4);
        let parts = (
            "[a-z0-9.-]{1,20}",
            any::<[u8; 32]>(),
            any::<(u32, u16)>(),
            networks,
        );
        parts.prop_map(|(hostname, public_key, (ip, port), networks)| Peer {
            hostname,
            public_key,
            endpoint: std::net::SocketAddrV4::new(ip.into(), port),
            allowed_ips: networks
                .into_iter()
                .map(|(address, prefix)| {
                    let mask = u32::MAX.checked_shl((32 - prefix).into()).unwrap_or(0);
                    Cidr::aligned(address & mask, prefix)
                })
                .collect(),
        })
    }

    proptest! {
        #[test]
        fn written_list_is_read_alike(peers in prop::collection::vec(any_peer(), 0..5)) {
            prop_assert_eq!(decode(&encode(&peers)), Ok(peers));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in ".*", line in "[a-f0-9.:/, -]*") {
            let _ = decode(&text);
            let _ = decode(&format!("{FORMAT}\n{line}"));
        }
    }

    #[test]
    fn malformed_lists_are_refused() {
        let key = "07".repeat(32);
        let good = format!("n2 {key} 10.0.0.2:51820 10.99.0.2/32,10.244.1.0/24");
        assert_eq!(decode(&format!("{FORMAT}\n{good}\n")).unwrap().len(), 1);
        for (text, error) in [
            (String::new(), Malformed::Format),
            ("jaco-mesh-peers 2\n".to_owned(), Malformed::Format),
            (format!("{FORMAT}\n\n"), Malformed::Line(2)),
            (format!("{FORMAT}\n{good}\n{good} more"), Malformed::Line(3)),
            (
                format!("{FORMAT}\nn2 07 10.0.0.2:51820 -"),
                Malformed::Line(2),
            ),
            (format!("{FORMAT}\nn2 {key} n2:51820 -"), Malformed::Line(2)),
            (
                format!("{FORMAT}\nn2 {key} 10.0.0.2:51820 10.99.0.2/33"),
                Malformed::Line(2),
            ),
            (
                format!("{FORMAT}\nn2 {key} 10.0.0.2:51820 10.99.0.2/32,"),
                Malformed::Line(2),
            ),
        ] {
            assert_eq!(decode(&text), Err(error), "{text}");
        }
    }
}
