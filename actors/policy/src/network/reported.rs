//! Addresses of containers in the reports of their replicas.

use std::net::Ipv4Addr;

use jaco_proto::v1::{ReplicaObserved, ReplicaState};

/// Names of the engine networks of a replica's container, with its address on each; none if it has no
/// container.
pub(super) fn addresses(row: &ReplicaObserved) -> impl Iterator<Item = (&str, Ipv4Addr)> {
    let details = row.details.iter().filter(|_| is_alive(row));
    details.filter_map(|(key, value)| Some((key.strip_prefix("ip.")?, value.parse().ok()?)))
}

/// Whether the replica may have a container with addresses, which may send before it is healthy.
pub(super) fn is_alive(row: &ReplicaObserved) -> bool {
    match row.state() {
        ReplicaState::Pending
        | ReplicaState::Pulling
        | ReplicaState::Running
        | ReplicaState::Degraded
        | ReplicaState::Updating => true,
        ReplicaState::Unspecified | ReplicaState::Failed | ReplicaState::Stopped => false,
    }
}
