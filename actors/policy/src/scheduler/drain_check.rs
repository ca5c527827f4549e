//! Replicas that a leaving host could not hand over, and those that it has not handed over yet.
//! Pure.

use std::{collections::BTreeMap, sync::Arc};

use jaco_proto::v1::{self, NodeStatus, service_spec::PlacementMode};
use jaco_state::State;

use super::{
    moves,
    placement::{Hosts, ReplicaCounts, ServiceToPlace, place},
    projects::Projects,
};
use crate::runtime::assignment;

/// Returns the ids, in order, of the replicas that still need the draining member `host`: those
/// assigned to it that have not finished, and those that it serves until they run on their new
/// hosts.
///
/// A replica that spent its restart budget on its new host needs the old one, which may be the only
/// one that serves it: the state does not tell while the old host is out of contact. An offline host
/// serves nothing, so only replicas assigned to it count, and of these not those of `global`
/// services, which end with the host.
#[must_use]
pub fn remaining<'a>(state: &'a State, host: &str) -> Vec<&'a str> {
    let node = state.nodes.get(host);
    let serves = node.is_some_and(|node| node.status() != NodeStatus::Offline);
    let needs_host = |row: &v1::ReplicaDesired| {
        if row.host == host {
            let finished = moves::finished(state, row).is_some();
            return !finished && (serves || !is_global(state, row));
        }
        serves && assignment::is_kept(state, host, row)
    };
    let rows = state.replicas_desired.iter();
    rows.filter(|(_, row)| needs_host(row))
        .map(|(id, _)| id.as_str())
        .collect()
}

fn is_global(state: &State, row: &v1::ReplicaDesired) -> bool {
    let deployment = state.deployments.get(&row.deployment);
    let services = deployment.iter().flat_map(|found| &found.services);
    services
        .filter(|spec| spec.name == row.service)
        .any(|spec| spec.placement() == PlacementMode::Global)
}

/// Whether `host` serves a replica whose new host was removed before it ran there. An offline host
/// may come back and take over.
fn serves_for_removed_host(state: &State, host: &str, row: &v1::ReplicaDesired) -> bool {
    !state.nodes.contains_key(&row.host) && assignment::is_kept(state, host, row)
}

/// Returns the ids of the replicas of `host` that no other host could take, those included that it
/// still serves because their new host was removed.
///
/// A stateful replica cannot leave the host that holds its data, so it counts as stranded. Replicas
/// of a `global` service end with their host and are not counted.
#[must_use]
pub fn stranded(state: &State, host: &str, projects: &mut Projects) -> Vec<String> {
    let mut without = state.clone();
    if let Some(node) = without.nodes.get_mut(host) {
        Arc::make_mut(node).draining = true;
    }
    let (hosts, mut load) = (Hosts::of(&without), ReplicaCounts::of(state));
    let mut stranded = Vec::new();
    for deployment in state.deployments.values() {
        let mut services: BTreeMap<&str, BTreeMap<&str, &v1::ReplicaDesired>> = BTreeMap::new();
        for (id, row) in &state.replicas_desired {
            if row.deployment == deployment.name {
                let rows = services.entry(&row.service).or_default();
                rows.insert(id, row);
            }
        }
        for spec in &deployment.services {
            let Some(rows) = services.get(spec.name.as_str()) else {
                continue;
            };
            let is_here = |row: &v1::ReplicaDesired| {
                row.host == host || serves_for_removed_host(state, host, row)
            };
            let mut here = rows.values().filter(|row| is_here(row)).peekable();
            if here.peek().is_none() || spec.placement() == PlacementMode::Global {
                continue;
            }
            let templates = projects.of(deployment);
            let template = templates.as_ref().as_ref().ok();
            let template = template.and_then(|templates| templates.get(&spec.name));
            let secrets_version = state.secrets_version(&deployment.name, spec);
            let finished = template.map(|template| template.finished(state, rows, secrets_version));
            let finished = finished.unwrap_or_default();
            let subject = ServiceToPlace {
                deployment: &deployment.name,
                spec,
                // Assume data if the document cannot be parsed.
                stateful: template.is_none_or(|template| template.stateful),
                finished: &finished,
            };
            match place(subject, rows, &hosts, &mut load) {
                Ok(placed) => {
                    let stays = placed
                        .replicas
                        .into_iter()
                        .filter(|placed| placed.host == host)
                        .filter(|placed| !finished.contains(placed.id.as_str()));
                    stranded.extend(stays.map(|placed| placed.id));
                }
                Err(_) => stranded.extend(here.map(|row| row.id.clone())),
            }
        }
    }
    stranded.sort_unstable();
    stranded
}

#[cfg(test)]
mod tests {
    use jaco_proto::{
        replica_code::{CONTAINER_EXITED, EXIT_CODE, RESTART_EXHAUSTED},
        v1::NodeStatus,
    };

    use super::*;
    use crate::scheduler::projects::{Template, Templates};

    fn templates(deployment: &v1::Deployment) -> Templates {
        let names = deployment.services.iter().map(|spec| spec.name.clone());
        let template = |name: String| {
            let stateful = name == "db";
            let template = Template {
                image: "i".into(),
                stateful,
                ..Template::default()
            };
            (name, template)
        };
        Ok(names.map(template).collect())
    }

    /// State with ready hosts, and with one replica of each service on each of its hosts.
    fn state(hosts: &[&str], services: &[(&str, PlacementMode, &[&str])]) -> State {
        let mut state = State::default();
        for host in hosts {
            let node = v1::Node {
                hostname: (*host).to_owned(),
                status: NodeStatus::Ready.into(),
                ..Default::default()
            };
            state.nodes.insert((*host).to_owned(), Arc::new(node));
        }
        let mut deployment = v1::Deployment {
            name: "app".to_owned(),
            ..Default::default()
        };
        for (service, mode, on) in services {
            deployment.services.push(v1::ServiceSpec {
                name: (*service).to_owned(),
                replicas: i32::try_from(on.len()).unwrap(),
                placement: (*mode).into(),
                hosts: on.iter().map(|host| (*host).to_owned()).collect(),
                ..Default::default()
            });
            for (index, host) in on.iter().enumerate() {
                let row = v1::ReplicaDesired {
                    id: format!("app-{service}-{index}"),
                    deployment: "app".to_owned(),
                    service: (*service).to_owned(),
                    host: (*host).to_owned(),
                    ..Default::default()
                };
                state.replicas_desired.insert(row.id.clone(), Arc::new(row));
            }
        }
        let deployments = &mut state.deployments;
        deployments.insert("app".to_owned(), Arc::new(deployment));
        state
    }

    /// Adds what `host` last reported about replica `id`, whose row then has index 7.
    fn observe(state: &mut State, id: &str, host: &str, index: u64, code: &str) {
        let seen = match code {
            "" => v1::ReplicaState::Running,
            "pending" => v1::ReplicaState::Pending,
            CONTAINER_EXITED => v1::ReplicaState::Stopped,
            _ => v1::ReplicaState::Failed,
        };
        let observed = v1::ReplicaObserved {
            id: id.to_owned(),
            host: host.to_owned(),
            state: seen.into(),
            code: code.to_owned(),
            details: [(EXIT_CODE.to_owned(), "3".to_owned())].into(),
            desired_raft_index: index,
            ..Default::default()
        };
        let observed = Arc::new(observed);
        state.replicas_observed.insert(id.to_owned(), observed);
    }

    #[test]
    fn replica_needs_its_host_until_replacement_runs() {
        use NodeStatus::{Offline, Ready, Unhealthy};
        type Report = (&'static str, u64, &'static str);
        type Row = (&'static str, NodeStatus, Option<Report>, bool);
        let table: &[Row] = &[
            // New host of the replica, status of `a`, last report, whether `a` is needed.
            ("a", Ready, Some(("a", 7, "")), true),
            ("a", Offline, Some(("a", 7, "")), true),
            ("b", Ready, None, true),
            ("b", Unhealthy, None, true),
            ("b", Ready, Some(("a", 3, "")), true),
            ("b", Ready, Some(("b", 6, "")), true),
            ("b", Ready, Some(("b", 7, "pending")), true),
            ("b", Ready, Some(("b", 7, "image_pull_failed")), true),
            ("b", Ready, Some(("b", 7, "")), false),
            ("b", Ready, Some(("b", 8, "")), false),
            ("b", Ready, Some(("b", 7, RESTART_EXHAUSTED)), true),
            ("b", Unhealthy, Some(("b", 7, RESTART_EXHAUSTED)), true),
            ("b", Ready, Some(("b", 6, RESTART_EXHAUSTED)), true),
            ("b", Offline, Some(("b", 7, RESTART_EXHAUSTED)), false),
            ("b", Offline, None, false),
            ("a", Ready, Some(("a", 7, CONTAINER_EXITED)), false),
            ("a", Ready, Some(("a", 6, CONTAINER_EXITED)), true),
            ("b", Ready, Some(("b", 7, CONTAINER_EXITED)), false),
        ];
        for (to, status, report, needed) in table {
            let web = ("web", PlacementMode::Spread, ["a"].as_slice());
            let mut state = state(&["a", "b"], &[web]);
            let row = state.replicas_desired.get_mut("app-web-0").unwrap();
            let row = Arc::make_mut(row);
            row.host = (*to).to_owned();
            row.raft_index = 7;
            if *to != "a" {
                row.previous_host = "a".to_owned();
            }
            let node = state.nodes.get_mut("a").unwrap();
            Arc::make_mut(node).set_status(*status);
            if let Some((host, index, code)) = report {
                observe(&mut state, "app-web-0", host, *index, code);
            }
            let found = !remaining(&state, "a").is_empty();
            assert_eq!(found, *needed, "{to} {status:?} {report:?}");
        }
    }

    #[test]
    fn global_replicas_end_with_an_offline_host() {
        let agent = ("web", PlacementMode::Global, ["a", "b"].as_slice());
        let mut state = state(&["a", "b"], &[agent]);
        assert_eq!(remaining(&state, "a"), ["app-web-0"]);
        let node = state.nodes.get_mut("a").unwrap();
        Arc::make_mut(node).set_status(NodeStatus::Offline);
        assert_eq!(remaining(&state, "a"), [""; 0]);
    }

    #[test]
    fn only_unplaceable_replicas_are_stranded() {
        use PlacementMode::{Global, Hosts, Pack, Spread};
        type Row = (
            &'static [&'static str],
            (&'static str, PlacementMode, &'static [&'static str]),
            &'static [&'static str],
        );
        let table: &[Row] = &[
            (&["a", "b"], ("web", Spread, &["a", "b"]), &[]),
            (&["a", "b"], ("web", Pack, &["a", "a"]), &[]),
            (
                &["a"],
                ("web", Spread, &["a", "a"]),
                &["app-web-0", "app-web-1"],
            ),
            (&["a", "b"], ("web", Global, &["a", "b"]), &[]),
            (&["a", "b"], ("db", Spread, &["a", "b"]), &["app-db-0"]),
            (&["a", "b"], ("db", Spread, &["b"]), &[]),
            (&["a", "b"], ("web", Hosts, &["a"]), &["app-web-0"]),
        ];
        for (hosts, service, expected) in table {
            let state = state(hosts, std::slice::from_ref(service));
            let mut projects = Projects::reading_with(templates);
            let found = stranded(&state, "a", &mut projects);
            assert_eq!(found, *expected, "{hosts:?} {service:?}");
        }
    }

    #[test]
    fn replica_of_removed_host_is_stranded() {
        use NodeStatus::{Offline, Ready};
        let stranded_on_a = ["app-web-0"].as_slice();
        for (members, status, listed, expected) in [
            (
                ["a", "b"].as_slice(),
                Ready,
                ["c"].as_slice(),
                stranded_on_a,
            ),
            (&["a", "b"], Ready, &["b", "c"], &[]),
            (&["a", "b", "c"], Ready, &["c"], &[]),
            (&["a", "b", "c"], Offline, &["c"], &[]),
        ] {
            let service = ("web", PlacementMode::Hosts, ["c"].as_slice());
            let mut state = state(members, &[service]);
            if let Some(node) = state.nodes.get_mut("c") {
                Arc::make_mut(node).set_status(status);
            }
            let deployment = Arc::make_mut(state.deployments.get_mut("app").unwrap());
            deployment.services[0].hosts = listed.iter().map(|&host| host.to_owned()).collect();
            let row = Arc::make_mut(state.replicas_desired.get_mut("app-web-0").unwrap());
            row.raft_index = 7;
            row.previous_host = "a".to_owned();
            let mut projects = Projects::reading_with(templates);
            let found = stranded(&state, "a", &mut projects);
            assert_eq!(found, *expected, "{members:?} {status:?} {listed:?}");
            // It runs on its new host: the old one is free to go, whatever becomes of the new one.
            observe(&mut state, "app-web-0", "c", 7, "");
            let found = stranded(&state, "a", &mut projects);
            assert_eq!(found, [""; 0], "{members:?} {status:?} {listed:?}");
        }
    }
}
