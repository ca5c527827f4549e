//! Selects the machine's address that peers use.
//!
//! The control plane is never bound to all interfaces: an unspecified host in the configuration is
//! replaced by one address of the machine, private networks first, overlays second. Container
//! bridges and public addresses are never selected.

use std::net::{IpAddr, Ipv4Addr};

use super::HostPort;

/// A network interface as the system reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name, such as `eth0`.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// All addresses of the interface.
    pub addresses: Vec<IpAddr>,
}

/// Kind of network of an address, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A private network of the site.
    Private,
    /// A VPN between the machines.
    Overlay,
}

/// An address that peers may be able to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Kind of its network.
    pub class: Class,
    /// Interface with the address.
    pub interface: String,
    /// The address.
    pub address: Ipv4Addr,
}

/// Address to listen on and to advertise to peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host and port to bind and to advertise; the host is never unspecified.
    pub addr: HostPort,
    /// The selected address, if the configured host is unspecified.
    pub picked: Option<Candidate>,
}

/// No interface has an address that peers could use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "auto-detect advertise IP: no routable IPv4 interface address found; \
     set listen_addr/cluster_addr in /etc/jaco/jacod.yaml to a routable host:port"
)]
pub struct NoAddress;

/// Returns `configured` unchanged, unless its host is unspecified.
///
/// # Errors
/// [`NoAddress`] if the host is unspecified and there is no [candidate](candidates).
pub fn resolve(configured: &HostPort, interfaces: &[Interface]) -> Result<Endpoint, NoAddress> {
    if !configured.is_unspecified() {
        return Ok(Endpoint {
            addr: configured.clone(),
            picked: None,
        });
    }
    let best = candidates(interfaces).into_iter().next().ok_or(NoAddress)?;
    Ok(Endpoint {
        addr: HostPort {
            host: best.address.to_string(),
            port: configured.port,
        },
        picked: Some(best),
    })
}

/// Returns all usable addresses, best first: by class, then interface name, then address as text.
pub fn candidates(interfaces: &[Interface]) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = interfaces
        .iter()
        .filter(|interface| interface.up && !interface.loopback)
        .flat_map(|interface| {
            interface.addresses.iter().filter_map(|address| {
                let IpAddr::V4(address) = *address else {
                    return None;
                };
                Some(Candidate {
                    class: classify(&interface.name, address)?,
                    interface: interface.name.clone(),
                    address,
                })
            })
        })
        .collect();
    found.sort_by_cached_key(|candidate| {
        (
            candidate.class,
            candidate.interface.clone(),
            candidate.address.to_string(),
        )
    });
    found
}

fn classify(interface: &str, address: Ipv4Addr) -> Option<Class> {
    let shared = shared_range(address);
    if is_container_interface(interface) || !(address.is_private() || shared) {
        return None;
    }
    if shared || is_overlay_interface(interface) {
        Some(Class::Overlay)
    } else {
        Some(Class::Private)
    }
}

fn is_container_interface(name: &str) -> bool {
    matches!(name, "docker0" | "docker_gwbridge" | "jaco0")
        || ["br-", "veth", "virbr", "jaco-", "podman", "cni"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

fn is_overlay_interface(name: &str) -> bool {
    ["tailscale", "tun", "tap", "wg", "jaco"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Whether the address is in 100.64.0.0/10, which overlays assign (RFC 6598).
fn shared_range(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    first == 100 && second & 0xc0 == 64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, addresses: &[&str]) -> Interface {
        Interface {
            name: name.to_owned(),
            up: true,
            loopback: false,
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        }
    }

    fn picked(interfaces: &[Interface]) -> Option<String> {
        let open = HostPort {
            host: "0.0.0.0".to_owned(),
            port: 7000,
        };
        resolve(&open, interfaces)
            .ok()
            .map(|endpoint| endpoint.addr.to_string())
    }

    #[test]
    fn addresses_are_classified_by_interface_and_range() {
        use Class::{Overlay, Private};
        for (name, address, class) in [
            ("eth0", "10.0.0.1", Some(Private)),
            ("eth0", "172.16.0.1", Some(Private)),
            ("eth0", "172.31.255.254", Some(Private)),
            ("eth0", "192.168.1.1", Some(Private)),
            ("eth0", "100.64.0.1", Some(Overlay)),
            ("eth0", "100.127.255.254", Some(Overlay)),
            ("eth0", "100.63.0.1", None),
            ("eth0", "100.128.0.1", None),
            ("eth0", "172.32.0.1", None),
            ("eth0", "8.8.8.8", None),
            ("eth0", "169.254.1.1", None),
            ("eth0", "127.0.0.1", None),
            ("eth0", "224.0.0.1", None),
            ("eth0", "0.0.0.0", None),
            ("eth0", "fd00::1", None),
            ("wg0", "10.0.0.1", Some(Overlay)),
            ("tun1", "192.168.7.1", Some(Overlay)),
            ("tap1", "192.168.7.1", Some(Overlay)),
            ("tailscale0", "100.100.1.1", Some(Overlay)),
            ("jaconet", "10.0.0.1", Some(Overlay)),
            ("wg0", "8.8.8.8", None),
            ("jaco0", "10.99.0.5", None),
            ("jaco-ca84-9ecc", "10.244.0.1", None),
            ("docker0", "172.17.0.1", None),
            ("docker_gwbridge", "172.18.0.1", None),
            ("docker1", "172.17.0.1", Some(Private)),
            ("br-1234", "172.18.0.1", None),
            ("br0", "192.168.1.1", Some(Private)),
            ("veth12", "10.0.0.1", None),
            ("virbr0", "192.168.122.1", None),
            ("podman1", "10.88.0.1", None),
            ("cni0", "10.1.0.1", None),
        ] {
            let found = candidates(&[interface(name, &[address])]);
            let found = found.first().map(|candidate| candidate.class);
            assert_eq!(found, class, "{name} {address}");
        }
    }

    #[test]
    fn private_networks_come_before_overlays() {
        let interfaces = [
            interface("aaa", &["100.64.0.1"]),
            interface("wg0", &["10.9.0.1"]),
            interface("zzz", &["8.8.8.8", "192.168.1.1"]),
        ];
        assert_eq!(picked(&interfaces), Some("192.168.1.1:7000".to_owned()));
        assert_eq!(picked(&interfaces[..2]), Some("100.64.0.1:7000".to_owned()));
    }

    #[test]
    fn ties_are_broken_by_name_then_address_text() {
        let interfaces = [
            interface("eth1", &["10.0.0.1"]),
            interface("eth0", &["10.0.0.9", "10.0.0.10"]),
        ];
        assert_eq!(picked(&interfaces), Some("10.0.0.10:7000".to_owned()));
    }

    #[test]
    fn down_and_loopback_interfaces_are_ignored() {
        let mut down = interface("eth0", &["10.0.0.1"]);
        down.up = false;
        let mut loopback = interface("lo", &["10.0.0.2"]);
        loopback.loopback = true;

        assert_eq!(picked(&[down, loopback]), None);
        assert!(NoAddress.to_string().starts_with(
            "auto-detect advertise IP: no routable IPv4 interface address found; set listen_addr"
        ));
    }

    #[test]
    fn configured_hosts_are_kept() {
        for host in ["127.0.0.1", "8.8.8.8", "node-1.example", "fe80::1"] {
            let configured = HostPort {
                host: host.to_owned(),
                port: 1,
            };
            let endpoint = resolve(&configured, &[interface("eth0", &["10.0.0.1"])]).unwrap();
            assert_eq!((endpoint.addr, endpoint.picked), (configured, None));
        }
    }

    #[test]
    fn every_unspecified_host_is_replaced() {
        for host in ["0.0.0.0", "::", "0:0::0", ""] {
            let configured = HostPort {
                host: host.to_owned(),
                port: 7001,
            };
            let endpoint = resolve(&configured, &[interface("eth0", &["10.0.0.1"])]).unwrap();
            assert_eq!(endpoint.addr.to_string(), "10.0.0.1:7001");
            assert_eq!(endpoint.picked.unwrap().interface, "eth0");
        }
    }
}
