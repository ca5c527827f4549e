//! The upstream servers of the host.

use std::net::{IpAddr, Ipv4Addr};

use crate::network::ipam::Pool;

/// Returns the servers of a `resolv.conf`, in order and without those that would send queries back
/// to this node; values that are no literal address are skipped.
///
/// Source: resolv.conf(5).
#[must_use]
pub fn of_resolv_conf(text: &str, pool: Pool) -> Vec<IpAddr> {
    let server = |line: &str| {
        let line = line.split(['#', ';']).next()?;
        let mut words = line.split_whitespace();
        let value = words.next().filter(|key| *key == "nameserver");
        value.and(words.next())?.parse().ok()
    };
    let mut servers: Vec<IpAddr> = Vec::new();
    for address in text.lines().filter_map(server) {
        if !loops_back(address, pool) && !servers.contains(&address) {
            servers.push(address);
        }
    }
    servers
}

/// Whether a query to `address` could come back to a responder of this cluster: the resolver of the
/// container engine (127.0.0.11) forwards to them, and they serve at the gateways of the pool.
#[must_use]
pub fn loops_back(address: IpAddr, pool: Pool) -> bool {
    let IpAddr::V4(address) = address.to_canonical() else {
        return false;
    };
    let [a, b, _, d] = address.octets();
    let engine_resolver = address.is_loopback() && d == 11;
    let default_gateway = a == 10 && b == 244 && d == 1;
    engine_resolver || default_gateway || is_gateway(address, pool)
}

/// Whether the pool can hand out a block or a /24 whose gateway is `address`.
fn is_gateway(address: Ipv4Addr, pool: Pool) -> bool {
    let [.., d] = address.octets();
    pool.gateway_of(address)
        .is_some_and(|gateway| d == 1 || gateway == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(text: &str, block: u8) -> Pool {
        Pool::new(text.parse().unwrap(), block).unwrap()
    }

    #[test]
    fn servers_keep_their_order_without_loops() {
        let text = "# nameserver 1.1.1.1\n\
            ; nameserver 2.2.2.2\n\
            search example.com\n\
            nameserver 127.0.0.11\n\
            nameserver\t9.9.9.9 # the first\n\
            nameserver 10.244.7.1\n\
            nameserver dns.example\n\
            nameserver fd00::53\n\
            nameserver fe80::1%eth0\n\
            nameservers 3.3.3.3\n\
            nameserver 127.0.0.53\n\
            nameserver 9.9.9.9\n\
            nameserver\n";
        let found: Vec<_> = of_resolv_conf(text, Pool::default())
            .iter()
            .map(IpAddr::to_string)
            .collect();
        assert_eq!(found, ["9.9.9.9", "fd00::53", "127.0.0.53"]);
    }

    #[test]
    fn gateways_of_the_pool_loop_back() {
        let pool = pool("10.8.0.0/16", 26);
        for (address, expected) in [
            ("127.0.0.11", true),
            ("127.9.9.11", true),
            ("::ffff:127.0.0.11", true),
            ("127.0.0.53", false),
            ("10.244.0.1", true),
            ("10.244.9.2", false),
            ("10.8.3.1", true),
            ("10.8.3.65", true),
            ("10.8.3.66", false),
            ("10.9.3.1", false),
            ("192.0.2.11", false),
            ("fd00::1", false),
        ] {
            assert_eq!(
                loops_back(address.parse().unwrap(), pool),
                expected,
                "{address}"
            );
        }
    }
}
