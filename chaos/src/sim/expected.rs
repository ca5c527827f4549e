//! Rows and voters expected at rest, computed from the documented rules without the scheduler or
//! the membership policy.
//!
//! Which of the permitted hosts holds a replica is not checked: a replica stays where an earlier
//! revision or membership placed it, even if two share a host of a service that lists its hosts by
//! now.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::v1::{
    self, DeploymentStatus, NodeStatus, ReplicaDesired, service_spec::PlacementMode,
};
use jaco_state::State;

use jaco_policy::scheduler::moves;

use super::{documents, rollouts};

/// Number of voters in a cluster of `members`.
pub(super) fn voters(members: usize) -> usize {
    match members {
        0..=2 => members.min(1),
        3..=4 => 3,
        5..=6 => 5,
        _ => 7,
    }
}

/// The rows of one service: each id, and the hosts it may be on.
type Wanted<'a> = BTreeMap<String, BTreeSet<&'a str>>;

/// The rows that `spec` asks for; `None` if the members cannot hold them.
fn wanted<'a>(
    deployment: &str,
    spec: &'a v1::ServiceSpec,
    ready: &BTreeSet<&'a str>,
    state: &State,
) -> Option<Wanted<'a>> {
    let ready: BTreeSet<&str> = ready
        .iter()
        .copied()
        .filter(|host| meets(state, host, spec))
        .collect();
    let replicas = usize::try_from(spec.replicas).unwrap_or(0);
    let hosts = match spec.placement() {
        PlacementMode::Global => {
            let row = |host: &&'a str| {
                let id = format!("{deployment}-{}-{host}", spec.name);
                (id, BTreeSet::from([*host]))
            };
            if ready.is_empty() {
                return None;
            }
            return Some(ready.iter().map(row).collect());
        }
        PlacementMode::Hosts => {
            let listed = spec.hosts.iter().map(String::as_str);
            let listed: BTreeSet<&str> = listed.filter(|host| ready.contains(host)).collect();
            if listed.len() < replicas {
                return None;
            }
            listed
        }
        PlacementMode::Unspecified | PlacementMode::Spread | PlacementMode::Pack => {
            let room = match usize::try_from(spec.max_replicas_per_node) {
                Ok(0) | Err(_) => usize::MAX,
                Ok(limit) => limit * ready.len(),
            };
            if ready.is_empty() || replicas > room {
                return None;
            }
            ready
        }
    };
    let id = |index| format!("{deployment}-{}-{index}", spec.name);
    let rows = (0..replicas).map(|index| (id(index), hosts.clone()));
    Some(rows.collect())
}

/// Whether a node meets what a service asks of it; the clients ask for a zone or a platform.
pub(super) fn meets(state: &State, host: &str, spec: &v1::ServiceSpec) -> bool {
    let traits = state.nodes.get(host).and_then(|node| node.traits.as_ref());
    let zone = traits.and_then(|traits| traits.labels.get("zone"));
    let mut constraints = spec.constraints.iter();
    constraints.all(|one| (zone == Some(&one.value)) != one.excludes)
        && (spec.platform.is_empty()
            || traits.is_none_or(|traits| traits.platforms.contains(&spec.platform)))
}

/// Whether a service of `row` asks for more than the members can hold, so that its rows stay as
/// they are.
pub(super) fn is_unsatisfiable(state: &State, row: &ReplicaDesired) -> bool {
    let ready = ready(state);
    let deployment = state.deployments.get(&row.deployment);
    deployment.is_some_and(|deployment| {
        deployment.services.iter().any(|spec| {
            spec.name == row.service && wanted(&deployment.name, spec, &ready, state).is_none()
        })
    })
}

/// Describes the first difference between the rows of `state`, at rest, and what its deployments
/// ask for.
pub(super) fn wrong_rows(state: &State) -> Option<String> {
    let ready = ready(state);
    let mut rows: BTreeMap<(&str, &str), Vec<&ReplicaDesired>> = BTreeMap::new();
    for row in state.replicas_desired.values() {
        let owner = (row.deployment.as_str(), row.service.as_str());
        rows.entry(owner).or_default().push(row);
    }
    for deployment in state.deployments.values() {
        // Set when a service with too few listed hosts has all its replicas placed already, by an
        // earlier revision: either status is accepted then.
        let mut undecided = false;
        let mut blocked = false;
        let images = documents::read(&deployment.compose_yaml);
        for spec in &deployment.services {
            let owner = (deployment.name.as_str(), spec.name.as_str());
            let there = rows.remove(&owner).unwrap_or_default();
            let Some(wanted) = wanted(&deployment.name, spec, &ready, state) else {
                let placed = there.len() >= usize::try_from(spec.replicas).unwrap_or(0);
                blocked |= !placed;
                undecided |= placed;
                continue;
            };
            let image = images.get(spec.name.as_str()).copied().unwrap_or_default();
            let keeps = rollouts::may_be_outdated(state, deployment, &spec.name);
            if let Some(wrong) = compare(state, spec, (image, keeps), &wanted, &there) {
                return Some(wrong);
            }
            let secrets = state.secrets_version(&deployment.name, spec);
            let mut others = there.iter().filter(|row| row.secrets_version != secrets);
            if let Some(row) = others.next().filter(|_| !keeps) {
                return Some(format!(
                    "{} has former values of {:?}",
                    row.id, spec.secrets
                ));
            }
        }
        let status = match blocked {
            true => DeploymentStatus::Pending,
            false => DeploymentStatus::Active,
        };
        if deployment.status() != status && (blocked || !undecided) {
            let (name, is) = (&deployment.name, deployment.status());
            return Some(format!("{name} is {is:?} and not {status:?}"));
        }
    }
    let stray = rows.values().flatten().next();
    stray.map(|row| format!("no service asks for {}", row.id))
}

fn compare(
    state: &State,
    spec: &v1::ServiceSpec,
    (image, keeps): (&str, bool),
    wanted: &Wanted<'_>,
    there: &[&ReplicaDesired],
) -> Option<String> {
    let known: BTreeMap<&str, &ReplicaDesired> =
        there.iter().map(|row| (row.id.as_str(), *row)).collect();
    let missing = wanted.keys().find(|id| !known.contains_key(id.as_str()));
    if let Some(id) = missing {
        return Some(format!("{id} has no row, though {spec:?} asks for it"));
    }
    if let Some(id) = known.keys().find(|id| !wanted.contains_key(**id)) {
        return Some(format!(
            "{id} has a row, though {spec:?} does not ask for it"
        ));
    }
    if let Some(host) = crowded(spec, there) {
        return Some(format!("{host} has too many replicas of {spec:?}"));
    }
    for (id, hosts) in wanted {
        let row = known.get(id.as_str())?;
        if row.files != spec.files && !keeps {
            return Some(format!(
                "{id} is to mount {:?}, not {:?}",
                spec.files, row.files
            ));
        }
        let is_outdated = row.image != image && !keeps;
        let fits = hosts.contains(row.host.as_str()) || moves::finished(state, row).is_some();
        if is_outdated || !fits {
            let host = &row.host;
            return Some(format!(
                "{id} is to run {image} on one of {hosts:?}, not {} on {host}",
                row.image
            ));
        }
    }
    None
}

/// Host with more replicas than the service allows. Those with data stay where it is.
fn crowded<'a>(spec: &v1::ServiceSpec, there: &[&'a ReplicaDesired]) -> Option<&'a str> {
    let limit = usize::try_from(spec.max_replicas_per_node).unwrap_or(0);
    let is_free = limit == 0 || spec.name == documents::STATEFUL;
    if is_free || spec.placement() == PlacementMode::Hosts {
        return None;
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in there {
        *counts.entry(&row.host).or_default() += 1;
    }
    let mut counts = counts.into_iter();
    counts.find(|(_, n)| *n > limit).map(|(host, _)| host)
}

fn ready(state: &State) -> BTreeSet<&str> {
    let nodes = state.nodes.values();
    let ready = nodes.filter(|node| node.status() == NodeStatus::Ready && !node.draining);
    ready.map(|node| node.hostname.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(mode: PlacementMode, replicas: i32) -> v1::ServiceSpec {
        v1::ServiceSpec {
            name: "web".to_owned(),
            replicas,
            placement: mode.into(),
            hosts: vec!["n2".to_owned(), "n9".to_owned()],
            ..Default::default()
        }
    }

    #[test]
    fn each_placement_mode_yields_its_rows() {
        let ready = BTreeSet::from(["n1", "n2"]);
        for (mode, replicas, ids) in [
            (PlacementMode::Spread, 2, Some(vec!["a-web-0", "a-web-1"])),
            (PlacementMode::Pack, 1, Some(vec!["a-web-0"])),
            (PlacementMode::Hosts, 1, Some(vec!["a-web-0"])),
            (PlacementMode::Hosts, 2, None),
            (PlacementMode::Global, 9, Some(vec!["a-web-n1", "a-web-n2"])),
        ] {
            let spec = spec(mode, replicas);
            let rows = wanted("a", &spec, &ready, &State::default());
            let found = rows.as_ref().map(|rows| rows.keys().map(String::as_str));
            assert_eq!(found.map(Vec::from_iter), ids, "{mode:?} {replicas}");
        }
    }
}
