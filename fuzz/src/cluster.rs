//! A cluster without restrictions.

use jaco_proto::{manifest::ClusterView, v1::TransportProtocol};

/// Has every host as a member and no owners, and permits everything.
pub(crate) struct Permissive;

impl ClusterView for Permissive {
    fn has_host(&self, _: &str) -> bool {
        true
    }

    fn port_owner(&self, _: u16, _: TransportProtocol) -> Option<String> {
        None
    }

    fn route_owner(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    fn identity(&self) -> &str {
        "fuzz"
    }

    fn allows_privileged(&self) -> bool {
        true
    }
}
