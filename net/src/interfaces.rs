//! The network interfaces of this machine.

use std::{collections::BTreeMap, io};

use jaco_proto::config::advertise::Interface;
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};

/// Lists the interfaces of this network namespace with their addresses, sorted by name.
///
/// # Errors
/// The error of `getifaddrs(3)`.
pub fn list() -> io::Result<Vec<Interface>> {
    let mut found = BTreeMap::<String, Interface>::new();
    for entry in getifaddrs()? {
        let interface = found
            .entry(entry.interface_name.clone())
            .or_insert_with(|| Interface {
                name: entry.interface_name,
                up: entry.flags.contains(InterfaceFlags::IFF_UP),
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                addresses: Vec::new(),
            });
        let Some(address) = entry.address else {
            continue;
        };
        if let Some(v4) = address.as_sockaddr_in() {
            interface.addresses.push(v4.ip().into());
        } else if let Some(v6) = address.as_sockaddr_in6() {
            interface.addresses.push(v6.ip().into());
        }
    }
    Ok(found.into_values().collect())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn loopback_is_listed_as_up_and_local() {
        let all = list().unwrap();
        let lo = all.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(lo.loopback && lo.up);
        assert!(lo.addresses.contains(&Ipv4Addr::LOCALHOST.into()));
    }
}
