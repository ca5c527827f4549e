//! Finds replicas that could not be placed elsewhere if a host left. Pure.

use std::{collections::BTreeMap, sync::Arc};

use jaco_proto::v1::{self, service_spec::PlacementMode};
use jaco_state::State;

use super::{
    placement::{Hosts, ReplicaCounts, ServiceToPlace, place},
    projects::Projects,
};

/// Returns the ids of the replicas of `host` that no other host could take.
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
            let mut here = rows.values().filter(|row| row.host == host).peekable();
            if here.peek().is_none() || spec.placement() == PlacementMode::Global {
                continue;
            }
            let templates = projects.of(deployment);
            let template = templates.as_ref().as_ref().ok();
            let template = template.and_then(|templates| templates.get(&spec.name));
            let subject = ServiceToPlace {
                deployment: &deployment.name,
                spec,
                // Assume data if the document cannot be parsed.
                stateful: template.is_none_or(|template| template.stateful),
            };
            match place(subject, rows, &hosts, &mut load) {
                Ok(placed) => {
                    let stays = placed.into_iter().filter(|placed| placed.host == host);
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
    use jaco_proto::v1::NodeStatus;

    use super::*;
    use crate::scheduler::projects::{Template, Templates};

    fn templates(deployment: &v1::Deployment) -> Templates {
        let names = deployment.services.iter().map(|spec| spec.name.clone());
        let template = |name: String| {
            let stateful = name == "db";
            let template = Template {
                image: "i".into(),
                spec_hash: Vec::new(),
                stateful,
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
}
