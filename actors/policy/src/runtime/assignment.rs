//! Derives from the replicated state what this host must do for one replica. Pure.

use std::collections::BTreeSet;

use jaco_engine::spec::{declares_healthcheck, image};
use jaco_proto::{
    manifest::compose::{Condition, PullPolicy, Restart, RestartCondition, Service},
    v1::{ReplicaDesired, ReplicaObserved, ReplicaState, TransportProtocol},
};
use jaco_state::State;

use super::{
    documents::Documents,
    replica::{
        core::{Assignment, DesiredReplica, StartGate},
        readiness::Readiness,
    },
};
use crate::{health::isolation, scheduler::moves};

/// Returns the assignment of replica `id` on `host`.
#[must_use]
pub fn of(state: &State, documents: &Documents, host: &str, id: &str) -> Assignment {
    let Some(row) = state.replicas_desired.get(id) else {
        return Assignment::Gone;
    };
    if row.host == host {
        return Assignment::Own(wanted(state, documents, host, row));
    }
    if is_kept(state, host, row) {
        let readiness = with_service(state, documents, row, |service| {
            readiness(state, row, service)
        });
        return Assignment::Kept {
            readiness: readiness.unwrap_or(Readiness::Unknown),
        };
    }
    Assignment::Gone
}

/// Replicas with an assignment on `host`: own rows, and kept containers of moved rows.
#[must_use]
pub fn here(state: &State, host: &str) -> BTreeSet<String> {
    let rows = state.replicas_desired.iter();
    rows.filter(|(_, row)| concerns(state, host, row))
        .map(|(id, _)| id.clone())
        .collect()
}

/// Whether replica `id` has an assignment on `host`.
#[must_use]
pub fn is_here(state: &State, host: &str, id: &str) -> bool {
    let row = state.replicas_desired.get(id);
    row.is_some_and(|row| concerns(state, host, row))
}

fn concerns(state: &State, host: &str, row: &ReplicaDesired) -> bool {
    row.host == host || is_kept(state, host, row)
}

/// Whether `host` still runs the container of a row that moved away: it does until the new host
/// reports the row as running, or as finished.
pub(crate) fn is_kept(state: &State, host: &str, row: &ReplicaDesired) -> bool {
    row.previous_host == host && row.host != host && !moves::has_arrived(state, row)
}

fn wanted(
    state: &State,
    documents: &Documents,
    host: &str,
    row: &ReplicaDesired,
) -> DesiredReplica {
    let wanted = |service: &Service, gate| DesiredReplica {
        raft_index: row.raft_index,
        deployment: row.deployment.clone(),
        image: image(row, service).to_owned(),
        pull: match service.pull_policy {
            PullPolicy::Always => true,
            PullPolicy::Never => false,
        },
        readiness: readiness(state, row, service),
        restart: service.restart.clone().unwrap_or_default(),
        has_post_start: !service.post_start.is_empty(),
        gate,
    };
    let known = with_service(state, documents, row, |service| {
        wanted(service, gate(state, host, row, service))
    });
    known.unwrap_or_else(|missing| DesiredReplica {
        readiness: Readiness::Unknown,
        // A job that has ended must not run again because its policy is unknown for a moment.
        restart: Restart {
            condition: RestartCondition::Never,
            ..Restart::default()
        },
        ..wanted(&Service::default(), StartGate::Deferred(missing))
    })
}

/// Evidence that a container of this row is ready: its health check, or else its TCP ports of
/// which the manifests tell.
fn readiness(state: &State, row: &ReplicaDesired, service: &Service) -> Readiness {
    if declares_healthcheck(service) {
        return Readiness::Healthcheck;
    }
    let mut ports = service.expose.clone();
    let published = service.ports.iter().filter(|port| port.protocol == "tcp");
    ports.extend(published.map(|port| port.target));
    let is_own = |deployment: &str, of: &str| deployment == row.deployment && of == row.service;
    let http = state.routes.values();
    let http = http.filter(|route| is_own(&route.deployment, &route.service));
    let listeners = state.tcp_routes.values();
    let listeners = listeners.filter(|route| {
        is_own(&route.deployment, &route.service) && route.protocol() == TransportProtocol::Tcp
    });
    let routed = http.map(|route| route.port);
    let routed = routed.chain(listeners.map(|route| route.container_port));
    ports.extend(routed.filter_map(|port| u16::try_from(port).ok()));
    Readiness::of_ports(ports)
}

/// Applies `read` to the service of a row, or returns which part of the document is missing.
pub fn with_service<T>(
    state: &State,
    documents: &Documents,
    row: &ReplicaDesired,
    read: impl FnOnce(&Service) -> T,
) -> Result<T, String> {
    let Some(deployment) = state.deployments.get(&row.deployment) else {
        return Err(format!("deployment `{}` is not there", row.deployment));
    };
    let project = documents.of(deployment);
    let project = project.as_ref().as_ref().map_err(Clone::clone)?;
    let service = project.services.get(&row.service);
    service
        .map(read)
        .ok_or_else(|| format!("service `{}` is not in the document", row.service))
}

fn gate(state: &State, host: &str, row: &ReplicaDesired, service: &Service) -> StartGate {
    let node = state.nodes.get(host);
    let isolated = node.is_none_or(|node| isolation::lost(node).is_none());
    let unmet = service.depends_on.iter().find(|(name, dependency)| {
        dependency.required && !satisfied(state, &row.deployment, name, dependency.condition)
    });
    match unmet {
        Some((name, dependency)) => StartGate::Deferred(match dependency.condition {
            Condition::ServiceStarted => format!("service `{name}` has not started"),
            Condition::ServiceHealthy => format!("service `{name}` is not healthy"),
            Condition::ServiceCompletedSuccessfully => {
                format!("service `{name}` has not completed")
            }
        }),
        None if !isolated => StartGate::IsolationMissing,
        None => StartGate::Open,
    }
}

/// Whether the replicas of the service, on any host, meet the condition.
pub(crate) fn satisfied(
    state: &State,
    deployment: &str,
    service: &str,
    condition: Condition,
) -> bool {
    if condition == Condition::ServiceCompletedSuccessfully {
        let mut rows = rows_of(state, deployment, service).peekable();
        let completed = |row: &ReplicaDesired| moves::finished(state, row) == Some(0);
        return rows.peek().is_some() && rows.all(completed);
    }
    replicas_of(state, deployment, service).any(|(_, seen)| match seen.state() {
        ReplicaState::Running => true,
        ReplicaState::Degraded => condition == Condition::ServiceStarted,
        ReplicaState::Stopped => {
            condition == Condition::ServiceStarted && seen.finished().is_some()
        }
        ReplicaState::Unspecified
        | ReplicaState::Pending
        | ReplicaState::Pulling
        | ReplicaState::Updating
        | ReplicaState::Failed => false,
    })
}

/// Replicas of a service that have both a row and an observation.
fn replicas_of<'a>(
    state: &'a State,
    deployment: &'a str,
    service: &'a str,
) -> impl Iterator<Item = (&'a ReplicaDesired, &'a ReplicaObserved)> {
    rows_of(state, deployment, service)
        .filter_map(|row| Some((row, state.replicas_observed.get(&row.id)?.as_ref())))
}

fn rows_of<'a>(
    state: &'a State,
    deployment: &'a str,
    service: &'a str,
) -> impl Iterator<Item = &'a ReplicaDesired> {
    // Ids start with deployment and service, but so may ids of other services (`db-x` and `db`).
    let prefix = format!("{deployment}-{service}-");
    state
        .replicas_desired
        .range(prefix.clone()..)
        .take_while(move |(id, _)| id.starts_with(&prefix))
        .map(|(_, row)| row.as_ref())
        .filter(move |row| row.deployment == deployment && row.service == service)
}

/// Whether the state leads clients to a container of replica `id` on `host`.
#[must_use]
pub fn is_routed(state: &State, host: &str, id: &str) -> bool {
    let seen = state.replicas_observed.get(id);
    state.replicas_desired.contains_key(id)
        && seen.is_some_and(|seen| seen.host == host && seen.state() == ReplicaState::Running)
}

/// Container of the first running replica of a service on `host`, lowest index first.
#[must_use]
pub fn running_here(state: &State, host: &str, deployment: &str, service: &str) -> Option<String> {
    replicas_of(state, deployment, service)
        .filter(|(row, seen)| {
            row.host == host
                && seen.host == host
                && seen.state() == ReplicaState::Running
                && !seen.container_id.is_empty()
        })
        .min_by_key(|(row, _)| row.index)
        .map(|(_, seen)| seen.container_id.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jaco_proto::{
        manifest::compose::{Dependency, Project},
        replica_code::{CONTAINER_EXITED, EXIT_CODE},
        v1::{Deployment, Node, NodeStatus},
    };

    use super::*;

    fn project(_: &[u8]) -> Result<Project, String> {
        let depends = |condition, required| Service {
            depends_on: [(
                "db".to_owned(),
                Dependency {
                    condition,
                    required,
                },
            )]
            .into(),
            ..Default::default()
        };
        Ok(Project {
            services: [
                ("db".to_owned(), Service::default()),
                (
                    "started".to_owned(),
                    depends(Condition::ServiceStarted, true),
                ),
                (
                    "healthy".to_owned(),
                    depends(Condition::ServiceHealthy, true),
                ),
                (
                    "after".to_owned(),
                    depends(Condition::ServiceCompletedSuccessfully, true),
                ),
                (
                    "optional".to_owned(),
                    depends(Condition::ServiceHealthy, false),
                ),
            ]
            .into(),
            ..Default::default()
        })
    }

    fn row(service: &str, host: &str) -> ReplicaDesired {
        ReplicaDesired {
            id: format!("shop-{service}-0"),
            deployment: "shop".into(),
            service: service.into(),
            host: host.into(),
            image: "i".into(),
            raft_index: 7,
            ..Default::default()
        }
    }

    fn state(rows: Vec<ReplicaDesired>) -> State {
        let mut state = State::default();
        let deployment = Deployment {
            name: "shop".into(),
            ..Default::default()
        };
        state
            .deployments
            .insert("shop".into(), Arc::new(deployment));
        for row in rows {
            state.replicas_desired.insert(row.id.clone(), Arc::new(row));
        }
        state
    }

    fn observe(state: &mut State, id: &str, host: &str, seen: ReplicaState, raft_index: u64) {
        let row = ReplicaObserved {
            id: id.into(),
            state: seen.into(),
            host: host.into(),
            container_id: format!("c-{id}"),
            desired_raft_index: raft_index,
            ..Default::default()
        };
        state.replicas_observed.insert(id.into(), Arc::new(row));
    }

    fn gate_of(state: &State, id: &str) -> StartGate {
        let documents = Documents::reading_with(project);
        match of(state, &documents, "n1", id) {
            Assignment::Own(wanted) => wanted.gate,
            other => panic!("expected an own row, not {other:?}"),
        }
    }

    #[test]
    fn dependency_condition_decides_whether_start_may_begin() {
        use ReplicaState::{Degraded, Pending, Pulling, Running};
        for (service, seen, open) in [
            ("started", Some(Running), true),
            ("started", Some(Degraded), true),
            ("started", Some(Pulling), false),
            ("started", None, false),
            ("healthy", Some(Running), true),
            ("healthy", Some(Degraded), false),
            ("healthy", Some(Pending), false),
            ("optional", None, true),
        ] {
            let mut state = state(vec![row("db", "n2"), row(service, "n1")]);
            if let Some(seen) = seen {
                observe(&mut state, "shop-db-0", "n2", seen, 7);
            }
            let gate = gate_of(&state, &format!("shop-{service}-0"));
            assert_eq!(gate == StartGate::Open, open, "{service} {seen:?} {gate:?}");
        }
    }

    #[test]
    fn observations_without_row_satisfy_no_dependency() {
        let mut state = state(vec![row("started", "n1")]);
        observe(&mut state, "shop-db-0", "n2", ReplicaState::Running, 7);
        assert!(matches!(
            gate_of(&state, "shop-started-0"),
            StartGate::Deferred(_)
        ));
    }

    fn finish(state: &mut State, id: &str, exit_code: i64, raft_index: u64) {
        observe(state, id, "n2", ReplicaState::Stopped, raft_index);
        let seen = Arc::make_mut(state.replicas_observed.get_mut(id).unwrap());
        seen.code = CONTAINER_EXITED.to_owned();
        seen.details = [(EXIT_CODE.to_owned(), exit_code.to_string())].into();
    }

    #[test]
    fn ends_satisfy_conditions_by_their_exit_codes() {
        for (service, exit_code, raft_index, open) in [
            ("started", 0, 7, true),
            ("started", 3, 7, true),
            ("healthy", 0, 7, false),
            ("after", 0, 7, true),
            ("after", 3, 7, false),
            ("after", 0, 6, false),
        ] {
            let mut state = state(vec![row(service, "n1"), row("db", "n2")]);
            finish(&mut state, "shop-db-0", exit_code, raft_index);
            let gate = gate_of(&state, &format!("shop-{service}-0"));
            let what = format!("{service} after {exit_code}: {gate:?}");
            assert_eq!(gate == StartGate::Open, open, "{what}");
        }
        let second = ReplicaDesired {
            id: "shop-db-1".into(),
            ..row("db", "n2")
        };
        let mut state = state(vec![row("after", "n1"), row("db", "n2"), second]);
        finish(&mut state, "shop-db-0", 0, 7);
        let gate = gate_of(&state, "shop-after-0");
        assert!(matches!(gate, StartGate::Deferred(_)), "{gate:?}");
        finish(&mut state, "shop-db-1", 0, 7);
        assert_eq!(gate_of(&state, "shop-after-0"), StartGate::Open);
    }

    #[test]
    fn services_with_common_id_prefix_are_distinguished() {
        let mut state = state(vec![row("started", "n1")]);
        // Replica `db-0` of service `x`, next to a replica of service `db-x`, and another
        // deployment.
        for (id, deployment, service) in [
            ("shop-db-x-0", "shop", "db-x"),
            ("shop-db-0", "shop-db", "0"),
        ] {
            let row = ReplicaDesired {
                id: id.into(),
                deployment: deployment.into(),
                ..row(service, "n2")
            };
            state.replicas_desired.insert(id.into(), Arc::new(row));
            observe(&mut state, id, "n2", ReplicaState::Running, 7);
        }
        let gate = gate_of(&state, "shop-started-0");
        assert!(matches!(gate, StartGate::Deferred(_)), "{gate:?}");
        let row = ReplicaDesired {
            id: "shop-db-9".into(),
            ..row("db", "n2")
        };
        state.replicas_desired.insert(row.id.clone(), Arc::new(row));
        observe(&mut state, "shop-db-9", "n2", ReplicaState::Running, 7);
        assert_eq!(gate_of(&state, "shop-started-0"), StartGate::Open);
    }

    #[test]
    fn missing_deployment_or_service_defers_start() {
        let mut with_unknown = state(vec![row("nope", "n1")]);
        assert!(matches!(
            gate_of(&with_unknown, "shop-nope-0"),
            StartGate::Deferred(_)
        ));
        with_unknown.deployments.clear();
        assert!(matches!(
            gate_of(&with_unknown, "shop-nope-0"),
            StartGate::Deferred(_)
        ));
    }

    #[test]
    fn node_without_isolation_starts_nothing() {
        let mut state = state(vec![row("db", "n1")]);
        let node = Node {
            status: NodeStatus::IsolationUnavailable.into(),
            ..Default::default()
        };
        state.nodes.insert("n1".into(), Arc::new(node));
        assert_eq!(gate_of(&state, "shop-db-0"), StartGate::IsolationMissing);
    }

    #[test]
    fn moved_row_is_kept_until_new_host_runs() {
        let documents = Documents::reading_with(project);
        let moved = ReplicaDesired {
            previous_host: "n1".into(),
            ..row("db", "n2")
        };
        let mut state = state(vec![moved]);
        let assignment = |state: &State| of(state, &documents, "n1", "shop-db-0");
        let kept = Assignment::Kept {
            readiness: Readiness::Uptime,
        };
        assert_eq!(assignment(&state), kept);
        assert_eq!(here(&state, "n1").len(), 1);
        observe(&mut state, "shop-db-0", "n2", ReplicaState::Pending, 7);
        assert_eq!(assignment(&state), kept);
        observe(&mut state, "shop-db-0", "n2", ReplicaState::Running, 6);
        assert_eq!(
            assignment(&state),
            kept,
            "an older container does not count"
        );
        let mut done = state.clone();
        finish(&mut done, "shop-db-0", 0, 7);
        assert_eq!(assignment(&done), Assignment::Gone, "it finished there");
        observe(&mut state, "shop-db-0", "n1", ReplicaState::Running, 7);
        assert_eq!(assignment(&state), kept, "nor does our own report");
        observe(&mut state, "shop-db-0", "n2", ReplicaState::Running, 7);
        assert_eq!(assignment(&state), Assignment::Gone);
        assert!(here(&state, "n1").is_empty());
    }

    #[test]
    fn namespace_lender_is_lowest_running_local_index() {
        let mut rows: Vec<_> = (0..3).map(|_| row("db", "n1")).collect();
        for (index, row) in rows.iter_mut().enumerate() {
            row.id = format!("shop-db-{index}");
            row.index = i32::try_from(index).unwrap();
        }
        rows[0].host = "n2".into();
        let mut state = state(rows);
        assert_eq!(running_here(&state, "n1", "shop", "db"), None);
        for (id, host) in [
            ("shop-db-0", "n2"),
            ("shop-db-2", "n1"),
            ("shop-db-1", "n1"),
        ] {
            observe(&mut state, id, host, ReplicaState::Running, 7);
        }
        assert_eq!(
            running_here(&state, "n1", "shop", "db").as_deref(),
            Some("c-shop-db-1")
        );
    }
}
