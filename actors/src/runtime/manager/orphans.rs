//! Which containers of our cluster nobody wants. Pure.

use crate::runtime::engine::Found;

/// Ids of the containers whose replica is not tended on this host.
///
/// One without a replica id was not made by the runtime and is left alone.
pub(super) fn of(found: Vec<Found>, tended: impl Fn(&str) -> bool) -> Vec<String> {
    let orphaned = |container: &Found| {
        let replica = container.replica_id.as_deref();
        replica.is_some_and(|replica| !tended(replica))
    };
    found
        .into_iter()
        .filter(orphaned)
        .map(|container| container.id)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::engine::Status;

    #[test]
    fn only_labelled_containers_of_unwanted_replicas_are_orphans() {
        let container = |id: &str, replica: Option<&str>| Found {
            id: id.into(),
            replica_id: replica.map(str::to_owned),
            raft_index: None,
            status: Status::Running,
        };
        let found = vec![
            container("wanted", Some("web-0")),
            container("orphan", Some("web-1")),
            container("foreign", None),
        ];
        assert_eq!(of(found, |id| id == "web-0"), ["orphan"]);
    }
}
