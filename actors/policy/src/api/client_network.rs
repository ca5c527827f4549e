//! Key by which clients are counted.

use std::net::{IpAddr, Ipv6Addr};

/// Returns the network that counts as one client: for IPv6 the /64 of `address`, in which one host
/// can have any number of addresses; for IPv4, also mapped into IPv6, the address itself.
pub(super) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_share_a_key() {
        for (one, other, same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("127.0.0.1", "127.0.0.1", true),
        ] {
            let network = |text: &str| client_network(text.parse().unwrap());
            assert_eq!(network(one) == network(other), same, "{one} {other}");
        }
    }
}
