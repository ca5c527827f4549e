//! Fuzzes the address of a client that proxies report.

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderValue};
use jaco_net::ingress::{TrustedProxies, client_address::ClientAddress};

/// Trusted proxy next to this one.
const NEAREST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// Client that the trusted proxy reports.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));

/// Input: fields of `X-Forwarded-For`, one per line.
///
/// An untrusted peer is the client whatever it writes. The client that a trusted proxy appends is
/// the client whatever stands left of it. No input yields a trusted proxy that is not the last one.
pub fn client_address(data: &[u8]) {
    let trusted = TrustedProxies::new([(NEAREST, 8)]);
    let mut headers = HeaderMap::new();
    for line in data.split(|&byte| byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append("x-forwarded-for", value);
        }
    }
    let direct = ClientAddress::find(CLIENT, &headers, &trusted);
    assert_eq!((direct.address, direct.proxies.len()), (CLIENT, 0));
    let found = ClientAddress::find(NEAREST, &headers, &trusted);
    assert!(found.proxies.len() <= 32);
    assert!(found.proxies.iter().all(|proxy| trusted.contains(*proxy)));
    assert_eq!(*found.proxies.last().unwrap_or(&found.address), NEAREST);
    headers.append("x-forwarded-for", HeaderValue::from_static("203.0.113.9"));
    let honest = ClientAddress::find(NEAREST, &headers, &trusted);
    assert_eq!((honest.address, honest.proxies), (CLIENT, vec![NEAREST]));
}
