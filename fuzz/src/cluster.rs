//! A cluster that allows everything.

use jaco_proto::manifest::ClusterView;

/// Every host is a member, nothing is taken, and the caller may do anything.
pub(crate) struct Permissive;

impl ClusterView for Permissive {
    fn has_host(&self, _: &str) -> bool {
        true
    }

    fn port_owner(&self, _: u16) -> Option<String> {
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
