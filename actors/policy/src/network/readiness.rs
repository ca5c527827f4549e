//! Network conditions under which a node may become `ready`. Pure.

use std::{collections::BTreeSet, fmt, net::Ipv4Addr};

use jaco_engine::cidr::Cidr;

/// Key in the status details of a node that does not isolate deployments.
pub const ISOLATION: &str = "isolation";
/// Key in the status details of a node without a mesh device.
pub const MESH: &str = "mesh";

/// Key in the status details of a node whose engine writes rules that JACO makes no exemption from.
pub const COEXISTENCE: &str = "coexistence";
/// Key in the status details of a node whose kernel lists no connections: those that a repaired or changed
/// ruleset forbids last until they end.
pub const FLOW_LIST: &str = "flow_list";
/// Key in the status details of a node on which routes of other programs take packets of the container
/// networks.
pub const FOREIGN_ROUTES: &str = "foreign_routes";

/// Value of the detail [`ISOLATION`].
const OFF: &str = "off";

/// State of the isolation ruleset of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IsolationStatus {
    /// Waived by the configuration.
    #[default]
    Off,
    /// No ruleset was tested yet.
    Pending,
    /// The kernel holds the expected ruleset.
    Enforced,
    /// The ruleset could not be loaded or failed its test, for this reason.
    Unavailable(String),
}

/// State of the mesh device of this node and its routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MeshStatus {
    /// Waived by the configuration.
    #[default]
    Off,
    /// The device is up with its routes.
    Up,
    /// There is no device yet, or none can be made, for this reason. Packets to containers of other
    /// hosts are discarded.
    Unavailable(String),
    /// Like [`MeshStatus::Unavailable`], but packets to containers of other hosts may leave this
    /// one unencrypted: the routes that discard them are missing, too.
    Unprotected(String),
    /// The device is up, except that some blocks of other hosts have no route over it.
    Partial {
        /// Why the last pass failed.
        reason: String,
        /// The blocks without a route.
        unreached: BTreeSet<Cidr>,
    },
    /// The device is up as far as possible, but routes of other programs take packets to containers of
    /// other hosts.
    ForeignRoutes {
        /// The routes.
        routes: String,
        /// Blocks of other hosts that are out of reach.
        unreached: BTreeSet<Cidr>,
    },
    /// The mesh is not set up, as it would cut this node off from the others.
    Overlaps(Overlap),
}

impl MeshStatus {
    /// Why the mesh does not work, for an operator; `None` if it does, or is waived.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        match self {
            Self::Off | Self::Up => None,
            Self::Unavailable(reason)
            | Self::Unprotected(reason)
            | Self::Partial { reason, .. } => Some(reason.clone()),
            Self::ForeignRoutes { routes, .. } => Some(format!(
                "routes of other programs take packets of the container networks: {routes}"
            )),
            Self::Overlaps(overlap) => Some(overlap.to_string()),
        }
    }

    /// Blocks of other hosts that are out of reach from this one; `None` if all are.
    #[must_use]
    pub fn unreached(&self) -> Option<BTreeSet<Cidr>> {
        match self {
            Self::Up => Some(BTreeSet::new()),
            Self::Partial { unreached, .. } | Self::ForeignRoutes { unreached, .. } => {
                Some(unreached.clone())
            }
            Self::Off | Self::Unavailable(_) | Self::Unprotected(_) | Self::Overlaps(_) => None,
        }
    }

    /// Whether packets to containers of other hosts are discarded unless they are encrypted.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        match self {
            Self::Off | Self::Up | Self::Partial { .. } | Self::Unavailable(_) => true,
            Self::Unprotected(_) | Self::ForeignRoutes { .. } | Self::Overlaps(_) => false,
        }
    }
}

/// An address that nodes are reached by lies among those of the containers or of the mesh, whose
/// packets must never leave a node unencrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Address of this node.
    pub address: Ipv4Addr,
    /// Addresses of the containers or of the mesh.
    pub network: Cidr,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, network } = self;
        write!(
            f,
            "the address {address} of this node lies in {network}, which belongs to the container \
             networks and the mesh"
        )
    }
}

/// Verdict on the network of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The node may become `ready` with these status details.
    Ready(Vec<(&'static str, &'static str)>),
    /// The node keeps its status for now, for this reason.
    Waits(String),
    /// The node cannot isolate deployments, for this reason.
    Unisolated(String),
}

impl Readiness {
    /// Whether the configuration waives the isolation.
    #[must_use]
    pub fn waives_isolation(&self) -> bool {
        matches!(self, Self::Ready(details) if details.contains(&(ISOLATION, OFF)))
    }
}

impl Default for Readiness {
    /// The verdict on a node whose configuration waives isolation and mesh.
    fn default() -> Self {
        assess(&IsolationStatus::Off, &MeshStatus::Off, 1)
    }
}

/// Judges the network of a node in a cluster of `members` nodes.
///
/// A single node has no peers, so it needs no mesh, except for the routes that keep packets of its
/// containers from leaving unencrypted.
#[must_use]
pub fn assess(isolation: &IsolationStatus, mesh: &MeshStatus, members: usize) -> Readiness {
    let mut details = Vec::new();
    match isolation {
        IsolationStatus::Off => details.push((ISOLATION, OFF)),
        IsolationStatus::Pending => {
            return Readiness::Waits("the isolation ruleset is not tested yet".to_owned());
        }
        IsolationStatus::Enforced => {}
        IsolationStatus::Unavailable(reason) => {
            return Readiness::Unisolated(reason.clone());
        }
    }
    match mesh {
        // Without isolation a missing mesh is waived too.
        MeshStatus::Unavailable(reason) if *isolation != IsolationStatus::Off => {
            if members > 1 {
                return Readiness::Waits(format!("the mesh device is not up: {reason}"));
            }
            details.push((MESH, "unavailable"));
        }
        MeshStatus::Unprotected(reason) if *isolation != IsolationStatus::Off => {
            return Readiness::Waits(format!("the routes of the mesh are not set: {reason}"));
        }
        MeshStatus::ForeignRoutes { .. } if *isolation != IsolationStatus::Off => {
            return Readiness::Waits(mesh.fault().unwrap_or_default());
        }
        MeshStatus::Overlaps(overlap) if *isolation != IsolationStatus::Off => {
            return Readiness::Waits(format!("the mesh is not set up: {overlap}"));
        }
        MeshStatus::Off
        | MeshStatus::Up
        | MeshStatus::Unavailable(_)
        | MeshStatus::Unprotected(_)
        | MeshStatus::Partial { .. }
        | MeshStatus::ForeignRoutes { .. }
        | MeshStatus::Overlaps(_) => {}
    }
    Readiness::Ready(details)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_depends_on_isolation_and_mesh() {
        use IsolationStatus::{Enforced, Off, Pending};
        let broken = MeshStatus::Unavailable("no /dev/net/tun".to_owned());
        let open = MeshStatus::Unprotected("no CAP_NET_ADMIN".to_owned());
        let overlaps = MeshStatus::Overlaps(Overlap {
            address: [10, 0, 0, 7].into(),
            network: Cidr::aligned(u32::from_be_bytes([10, 0, 0, 0]), 8),
        });
        let lost = IsolationStatus::Unavailable("no CAP_NET_ADMIN".to_owned());
        let ready = |details: &[(&'static str, &'static str)]| Some(details.to_vec());
        for (isolation, mesh, members, expected) in [
            (Off, &MeshStatus::Off, 3, ready(&[("isolation", "off")])),
            (Off, &broken, 3, ready(&[("isolation", "off")])),
            (Pending, &MeshStatus::Up, 1, None),
            (Enforced, &MeshStatus::Up, 3, ready(&[])),
            (Enforced, &MeshStatus::Off, 3, ready(&[])),
            (Enforced, &broken, 1, ready(&[("mesh", "unavailable")])),
            (Enforced, &broken, 2, None),
            (Enforced, &open, 1, None),
            (Enforced, &open, 2, None),
            (Off, &open, 2, ready(&[("isolation", "off")])),
            (Enforced, &overlaps, 1, None),
            (Enforced, &overlaps, 2, None),
            (Off, &overlaps, 3, ready(&[("isolation", "off")])),
            (lost, &MeshStatus::Up, 1, None),
        ] {
            let found = match assess(&isolation, mesh, members) {
                Readiness::Ready(details) => Some(details),
                Readiness::Waits(_) | Readiness::Unisolated(_) => None,
            };
            assert_eq!(found, expected, "{isolation:?} {mesh:?} {members}");
        }
    }

    #[test]
    fn waiting_names_the_missing_facility() {
        let mesh = MeshStatus::Unavailable("no /dev/net/tun".to_owned());
        let Readiness::Waits(reason) = assess(&IsolationStatus::Enforced, &mesh, 2) else {
            panic!("the node is ready without a mesh");
        };
        assert_eq!(reason, "the mesh device is not up: no /dev/net/tun");
    }
}
