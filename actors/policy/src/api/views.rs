//! Responses of the read calls: pure functions of the state.

use std::{collections::BTreeMap, net::SocketAddr};

use jaco_proto::{
    Error, ErrorCode,
    manifest::compose::Project,
    v1::{self, ReplicaState},
};
use jaco_state::State;
use prost_types::Timestamp;

use crate::{ingress::protection, runtime::assignment, settings::ClusterSettings};

/// A deployment for clients, without the content kept for a rollback.
#[must_use]
pub fn deployment(stored: &v1::Deployment) -> v1::Deployment {
    v1::Deployment {
        previous: None,
        ..stored.clone()
    }
}

/// Time of a host's last heartbeat, if it is fresh.
pub type LastHeartbeat<'a> = &'a dyn Fn(&str) -> Option<Timestamp>;

/// An observation for clients: an empty host is replaced by the scheduled one, and the health time
/// of a running replica on a live node is that of the node's last heartbeat.
#[must_use]
pub fn observed(
    state: &State,
    stored: &v1::ReplicaObserved,
    last_heartbeat: LastHeartbeat<'_>,
) -> v1::ReplicaObserved {
    let mut shown = stored.clone();
    if shown.host.is_empty()
        && let Some(desired) = state.replicas_desired.get(&stored.id)
    {
        shown.host.clone_from(&desired.host);
    }
    if stored.state() == ReplicaState::Running
        && let Some(at) = last_heartbeat(&shown.host)
    {
        shown.last_health_at = Some(at);
    }
    shown
}

/// Response of `Deploy.Status`.
#[must_use]
pub fn status(
    state: &State,
    request: &v1::DeployStatusRequest,
    last_heartbeat: LastHeartbeat<'_>,
) -> v1::DeployStatusResponse {
    let matches = |deployment: &str, service: &str| {
        filter(&request.deployment_filter, deployment) && filter(&request.service_filter, service)
    };
    let replicas = state
        .replicas_desired
        .values()
        .filter(|desired| matches(&desired.deployment, &desired.service))
        .map(|desired| match state.replicas_observed.get(&desired.id) {
            Some(stored) => observed(state, stored, last_heartbeat),
            None => v1::ReplicaObserved {
                id: desired.id.clone(),
                state: ReplicaState::Pending.into(),
                host: desired.host.clone(),
                ..Default::default()
            },
        })
        .collect();
    v1::DeployStatusResponse {
        deployments: state
            .deployments
            .values()
            .filter(|d| filter(&request.deployment_filter, &d.name))
            .map(|d| deployment(d))
            .collect(),
        replicas,
        routes: state
            .routes
            .values()
            .filter(|route| matches(&route.deployment, &route.service))
            .map(|route| v1::Route {
                tls_auto: state.is_tls_auto(route),
                ..v1::Route::clone(route)
            })
            .collect(),
        certs: Vec::new(),
        rollouts: state
            .rollout_plans
            .values()
            .filter(|plan| matches(&plan.deployment, &plan.service))
            .map(|plan| v1::RolloutPlan::clone(plan))
            .collect(),
        // Not part of the state: the handler adds them.
        network_faults: Vec::new(),
    }
}

/// Response of `Deploy.GetReplicas`.
#[must_use]
pub fn replicas(
    state: &State,
    request: &v1::GetReplicasRequest,
    last_heartbeat: LastHeartbeat<'_>,
) -> v1::GetReplicasResponse {
    let mut projects = BTreeMap::new();
    let replicas = state
        .replicas_desired
        .values()
        .filter(|desired| {
            filter(&request.deployment_filter, &desired.deployment)
                && filter(&request.service_filter, &desired.service)
                && filter(&request.replica_id, &desired.id)
        })
        .map(|desired| {
            let project = projects
                .entry(desired.deployment.clone())
                .or_insert_with(|| {
                    let stored = state.deployments.get(&desired.deployment)?;
                    Project::parse(&stored.compose_yaml).ok()
                });
            replica(state, desired, project.as_ref(), last_heartbeat)
        })
        .collect();
    v1::GetReplicasResponse { replicas }
}

fn replica(
    state: &State,
    desired: &v1::ReplicaDesired,
    project: Option<&Project>,
    last_heartbeat: LastHeartbeat<'_>,
) -> v1::ReplicaDetail {
    let seen = state
        .replicas_observed
        .get(&desired.id)
        .map(|stored| observed(state, stored, last_heartbeat))
        .unwrap_or_else(|| v1::ReplicaObserved {
            state: ReplicaState::Pending.into(),
            host: desired.host.clone(),
            ..Default::default()
        });
    let counter = state.restart_counters.get(&desired.id);
    v1::ReplicaDetail {
        id: desired.id.clone(),
        deployment: desired.deployment.clone(),
        service: desired.service.clone(),
        index: desired.index,
        host: seen.host,
        container_id: seen.container_id,
        state: seen.state,
        image: desired.image.clone(),
        revision: desired.raft_index,
        restart_count: counter.map_or(0, |counter| counter.consecutive_failures),
        last_attempt_at: counter.and_then(|counter| counter.last_attempt_at),
        started_at: seen.started_at,
        last_health_at: seen.last_health_at,
        code: seen.code,
        message: seen.message,
        details: seen.details,
        depends_on: project
            .and_then(|project| project.services.get(&desired.service))
            .map(|service| dependencies(state, &desired.deployment, service))
            .unwrap_or_default(),
    }
}

fn dependencies(
    state: &State,
    deployment: &str,
    service: &jaco_proto::manifest::compose::Service,
) -> Vec<v1::DependencyState> {
    service
        .depends_on
        .iter()
        .map(|(name, dependency)| {
            let best = best_state(state, deployment, name);
            let condition = dependency.condition;
            let satisfied = assignment::satisfied(state, deployment, name, condition);
            v1::DependencyState {
                service: name.clone(),
                condition: condition.as_str().to_owned(),
                state: best.into(),
                satisfied: satisfied || !dependency.required,
            }
        })
        .collect()
}

/// The best state over the replicas of a service.
fn best_state(state: &State, deployment: &str, service: &str) -> ReplicaState {
    state
        .replicas_desired
        .values()
        .filter(|desired| desired.deployment == deployment && desired.service == service)
        .filter_map(|desired| state.replicas_observed.get(&desired.id))
        .map(|observed| observed.state())
        .max_by_key(|state| rank(*state))
        .unwrap_or(ReplicaState::Unspecified)
}

fn rank(state: ReplicaState) -> u8 {
    match state {
        ReplicaState::Running => 7,
        ReplicaState::Degraded => 6,
        ReplicaState::Updating => 5,
        ReplicaState::Pulling => 4,
        ReplicaState::Pending => 3,
        ReplicaState::Stopped => 2,
        ReplicaState::Failed => 1,
        ReplicaState::Unspecified => 0,
    }
}

/// Response of `Deploy.GetRoute`: longest path first, the catch-all last. `serves` is the host and the
/// address at which a replica serves a route, if it does.
///
/// # Errors
/// `route_not_found` if the domain has no route.
pub fn route(
    state: &State,
    domain: &str,
    serves: impl Fn(&v1::Route, &v1::ReplicaDesired) -> Option<(String, SocketAddr)>,
) -> Result<v1::GetRouteResponse, Error> {
    let mut routes: Vec<_> = state
        .routes
        .values()
        .filter(|r| r.domain == domain)
        .collect();
    if routes.is_empty() {
        return Err(Error::new(
            ErrorCode::RouteNotFound,
            format!("no routes for {domain:?}"),
        )
        .with("domain", domain));
    }
    routes.sort_by(|a, b| {
        b.path
            .len()
            .cmp(&a.path.len())
            .then_with(|| a.path.cmp(&b.path))
    });
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let default = protection::default_limits(&ClusterSettings::of(state));
    let routes = routes
        .into_iter()
        .map(|route| {
            let replicas: Vec<_> = state
                .replicas_desired
                .values()
                .filter(|d| d.deployment == route.deployment && d.service == route.service)
                .collect();
            let upstreams = replicas.iter().filter_map(|desired| {
                let (host, address) = serves(route, desired)?;
                Some(v1::RouteUpstream {
                    replica_id: desired.id.clone(),
                    host,
                    address: address.to_string(),
                })
            });
            let upstreams: Vec<_> = upstreams.collect();
            v1::RealizedRoute {
                path: route.path.clone(),
                catch_all: route.path.is_empty(),
                deployment: route.deployment.clone(),
                service: route.service.clone(),
                port: route.port,
                tls_auto: state.is_tls_auto(route),
                strip_path: route.strip_path,
                ready_replicas: count(upstreams.len()),
                total_replicas: count(replicas.len()),
                limits: protection::limits(route, default.as_ref()),
                affinity: protection::affinity(route).cloned(),
                upstreams,
                upstream_h2c: route.upstream_h2c,
            }
        })
        .collect();
    Ok(v1::GetRouteResponse {
        domain: domain.to_owned(),
        routes,
    })
}

fn filter(filter: &str, value: &str) -> bool {
    filter.is_empty() || filter == value
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn world() -> State {
        let mut state = State::default();
        state.deployments.insert(
            "app".to_owned(),
            Arc::new(v1::Deployment {
                name: "app".to_owned(),
                compose_yaml: b"services:\n  db: {image: d}\n  web: {image: w, depends_on: [db]}\n"
                    .to_vec(),
                previous: Some(v1::DeploymentRevision::default()),
                ..Default::default()
            }),
        );
        for (id, service, seen) in [
            ("app-db-0", "db", Some(ReplicaState::Degraded)),
            ("app-db-1", "db", Some(ReplicaState::Failed)),
            ("app-web-0", "web", Some(ReplicaState::Running)),
            ("app-web-1", "web", None),
        ] {
            state.replicas_desired.insert(
                id.to_owned(),
                Arc::new(v1::ReplicaDesired {
                    id: id.to_owned(),
                    deployment: "app".to_owned(),
                    service: service.to_owned(),
                    host: "one".to_owned(),
                    raft_index: 7,
                    ..Default::default()
                }),
            );
            if let Some(seen) = seen {
                state.replicas_observed.insert(
                    id.to_owned(),
                    Arc::new(v1::ReplicaObserved {
                        id: id.to_owned(),
                        state: seen.into(),
                        host: "one".to_owned(),
                        ..Default::default()
                    }),
                );
            }
        }
        for path in ["", "/api", "/api/v2", "/b"] {
            state.routes.insert(
                ("a.io".to_owned(), path.to_owned()),
                Arc::new(v1::Route {
                    domain: "a.io".to_owned(),
                    path: path.to_owned(),
                    deployment: "app".to_owned(),
                    service: "web".to_owned(),
                    ..Default::default()
                }),
            );
        }
        state
    }

    const NOW: Timestamp = Timestamp {
        seconds: 100,
        nanos: 0,
    };

    fn one(host: &str) -> Option<Timestamp> {
        (host == "one").then_some(NOW)
    }

    #[test]
    fn unobserved_replica_is_pending_on_its_host() {
        let status = status(&world(), &v1::DeployStatusRequest::default(), &one);
        let shown = status
            .replicas
            .iter()
            .find(|r| r.id == "app-web-1")
            .unwrap();
        assert_eq!(
            (shown.state(), shown.host.as_str()),
            (ReplicaState::Pending, "one")
        );
    }

    #[test]
    fn rollback_content_is_never_shown() {
        let status = status(&world(), &v1::DeployStatusRequest::default(), &one);
        assert_eq!(status.deployments[0].previous, None);
    }

    #[test]
    fn only_running_replicas_get_the_nodes_heartbeat() {
        let state = world();
        let stored = &state.replicas_observed["app-web-0"];
        assert_eq!(observed(&state, stored, &one).last_health_at, Some(NOW));
        assert_eq!(observed(&state, stored, &|_| None).last_health_at, None);
        let failed = &state.replicas_observed["app-db-1"];
        assert_eq!(observed(&state, failed, &one).last_health_at, None);
    }

    #[test]
    fn dependency_shows_its_best_replica() {
        let request = v1::GetReplicasRequest {
            service_filter: "web".into(),
            ..Default::default()
        };
        let response = replicas(&world(), &request, &one);
        let dependency = &response.replicas[0].depends_on[0];
        assert_eq!(dependency.service, "db");
        assert_eq!(dependency.state(), ReplicaState::Degraded);
        assert!(dependency.satisfied);
    }

    #[test]
    fn routes_come_in_the_order_of_evaluation() {
        let address = SocketAddr::from(([10, 0, 0, 2], 80));
        let serves = |_: &v1::Route, desired: &v1::ReplicaDesired| {
            (desired.id == "app-web-0").then(|| ("one".to_owned(), address))
        };
        let response = route(&world(), "a.io", serves).unwrap();
        let paths: Vec<_> = response.routes.iter().map(|r| r.path.as_str()).collect();
        assert_eq!(paths, ["/api/v2", "/api", "/b", ""]);
        assert_eq!(
            (
                response.routes[0].ready_replicas,
                response.routes[0].total_replicas
            ),
            (1, 2)
        );
        let upstream = v1::RouteUpstream {
            replica_id: "app-web-0".to_owned(),
            host: "one".to_owned(),
            address: "10.0.0.2:80".to_owned(),
        };
        assert_eq!(response.routes[0].upstreams, [upstream]);
        assert!(response.routes[3].catch_all);
        assert_eq!(
            route(&world(), "b.io", serves).unwrap_err().code,
            ErrorCode::RouteNotFound
        );
    }
}
