//! Reachability of the container networks: the probed paths and the verdicts about them.
//!
//! Each network of a host has a probe endpoint, an address at the end of its block that behaves like
//! that of a container. From there the host probes paths that must work, to the endpoints of the same
//! network on other hosts, and paths that must not, to the endpoints of other networks.
//!
//! - [`paths`]: the paths that can be probed.
//! - [`core`]: the next probe, the verdicts, and the breaches.
//! - [`link_quality`]: loss and round-trip time between hosts, computed from the probes.
//! - [`throughput`]: rates computed from byte counters.
//! - [`faults`]: faults of the cluster, computed from the reports of its nodes.
//! - [`drops`]: packets that the host dropped.
//! - [`report`]: the report of a node to the others.

pub mod core;
pub mod drops;
pub mod faults;
pub mod link_quality;
pub mod paths;
pub mod report;
pub mod throughput;

use std::net::Ipv4Addr;

use jaco_engine::cidr::Cidr;

/// UDP port of the probe responders, on the probe endpoints and on the gateways of the bridges.
pub const PORT: u16 = 7002;
/// Time limit of an answer to a probe.
pub const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// Address of the probe endpoint in a block: the last one before the broadcast address, which the
/// engine must not give to a container. The engine assigns addresses from the low end, where the
/// gateway is.
#[must_use]
pub fn endpoint(block: Cidr) -> Ipv4Addr {
    let last = block.last().saturating_sub(1).max(block.first());
    u32::try_from(last).unwrap_or(u32::MAX).into()
}

/// Whether the isolation rules allow a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expectation {
    /// Both ends are in one network.
    Allowed,
    /// The ends are in different networks.
    Forbidden,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_the_last_usable_address() {
        for (block, expected) in [
            ("10.244.3.0/24", "10.244.3.254"),
            ("10.244.3.16/28", "10.244.3.30"),
            ("10.0.0.1/32", "10.0.0.1"),
        ] {
            assert_eq!(endpoint(block.parse().unwrap()).to_string(), expected);
        }
    }
}
