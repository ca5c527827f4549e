//! Isolation of a member that is out of contact or leaves: another status replaces its own, so the
//! details of that one keep that deployments could not be isolated there. Pure.

use jaco_proto::v1::{Node, NodeStatus};

/// Key in the status details of an unhealthy, offline or leaving member: why it could not isolate
/// deployments; absent if it could.
pub(crate) const LOST: &str = "isolation_unavailable";

/// Returns the status detail to keep while `node` has another status, if it cannot isolate
/// deployments.
#[must_use]
pub fn kept_detail(node: &Node) -> Option<(String, String)> {
    lost(node).map(|reason| (LOST.to_owned(), reason.to_owned()))
}

/// Reason why `node` could not isolate deployments when it was last in contact; empty if unknown,
/// `None` if it could.
#[must_use]
pub fn lost(node: &Node) -> Option<&str> {
    match node.status() {
        NodeStatus::IsolationUnavailable => {
            let reason = node.status_details.get("reason");
            Some(reason.map_or("", String::as_str))
        }
        NodeStatus::Ready | NodeStatus::Unhealthy | NodeStatus::Offline => {
            node.status_details.get(LOST).map(String::as_str)
        }
        NodeStatus::Unspecified | NodeStatus::Joining | NodeStatus::DrainTimeout => None,
    }
}
