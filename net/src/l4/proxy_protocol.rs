//! The PROXY protocol header, version 2, which names the client of a forwarded TCP connection.
//!
//! Source: W. Tarreau, "The PROXY protocol", section 2.2, `doc/proxy-protocol.txt` of HAProxy.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// First bytes of every header of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY: the addresses are those of the client's connection.
const VERSION_AND_COMMAND: u8 = 0x21;
/// TCP over IPv4.
const TCP4: u8 = 0x11;
/// TCP over IPv6.
const TCP6: u8 = 0x21;

/// Returns the header of a connection that `client` opened to `local`, 28 or 52 bytes.
///
/// IPv4 addresses that are mapped into IPv6, as a socket for both families reports them, are sent as
/// IPv4. If the families still differ, both addresses are sent as IPv6.
#[must_use]
pub fn header_v2(client: SocketAddr, local: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.push(VERSION_AND_COMMAND);
    match (client.ip().to_canonical(), local.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header.extend([TCP4, 0, 12]);
            header.extend(from.octets());
            header.extend(to.octets());
        }
        (from, to) => {
            header.extend([TCP6, 0, 36]);
            header.extend(as_v6(from).octets());
            header.extend(as_v6(to).octets());
        }
    }
    header.extend(client.port().to_be_bytes());
    header.extend(local.port().to_be_bytes());
    header
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex_of(client: &str, local: &str) -> String {
        let header = header_v2(client.parse().unwrap(), local.parse().unwrap());
        hex::encode(&header[SIGNATURE.len()..])
    }

    #[test]
    fn header_begins_with_the_signature() {
        let addr = ([127, 0, 0, 1], 1).into();
        let header = header_v2(addr, addr);
        assert_eq!(hex::encode(&header[..12]), "0d0a0d0a000d0a515549540a");
    }

    #[test]
    fn addresses_are_encoded_by_family() {
        let v4 = "2111000c0a010203c0a800011f400050";
        assert_eq!(hex_of("10.1.2.3:8000", "192.168.0.1:80"), v4);
        let mapped = hex_of("[::ffff:10.1.2.3]:8000", "[::ffff:192.168.0.1]:80");
        assert_eq!(mapped, v4);
        assert_eq!(
            hex_of("[fd00::2]:8000", "[fd00::1]:80"),
            "21210024fd000000000000000000000000000002fd0000000000000000000000000000011f400050"
        );
        assert_eq!(
            hex_of("10.1.2.3:8000", "[fd00::1]:80"),
            "2121002400000000000000000000ffff0a010203fd0000000000000000000000000000011f400050"
        );
    }
}
