//! Containers of the cluster that no row on this host accounts for. Pure.

use std::collections::BTreeSet;

use jaco_engine::Found;

/// Containers whose replica is neither assigned to this host nor handled by an actor.
///
/// A container without a replica id was not created by the runtime and is left alone.
#[must_use]
pub fn orphans(found: Vec<Found>, managed: impl Fn(&str) -> bool) -> Vec<Found> {
    let orphaned = |container: &Found| {
        let replica = container.replica_id.as_deref();
        replica.is_some_and(|replica| !managed(replica))
    };
    found.into_iter().filter(orphaned).collect()
}

/// Replicas with more than one container; the surplus ones were not created by its actor.
#[must_use]
pub fn duplicates(found: &[Found]) -> BTreeSet<&str> {
    let mut met = BTreeSet::new();
    let replicas = found
        .iter()
        .filter_map(|container| container.replica_id.as_deref());
    replicas.filter(|replica| !met.insert(*replica)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jaco_engine::Status;

    fn container(id: &str, replica: Option<&str>) -> Found {
        Found {
            id: id.into(),
            replica_id: replica.map(str::to_owned),
            raft_index: None,
            status: Status::Running,
        }
    }

    #[test]
    fn replica_with_two_containers_is_detected() {
        let found = [
            container("a", Some("web-0")),
            container("b", None),
            container("c", Some("web-1")),
            container("d", None),
            container("e", Some("web-0")),
        ];
        assert_eq!(Vec::from_iter(duplicates(&found)), ["web-0"]);
    }

    #[test]
    fn only_labelled_containers_without_row_are_orphans() {
        let found = vec![
            container("wanted", Some("web-0")),
            container("orphan", Some("web-1")),
            container("foreign", None),
        ];
        let found = orphans(found, |id| id == "web-0");
        let ids: Vec<_> = found.into_iter().map(|container| container.id).collect();
        assert_eq!(ids, ["orphan"]);
    }
}
