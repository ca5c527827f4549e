//! States with routes, for tests.

use std::sync::Arc;

use jaco_proto::v1;
use jaco_state::State;

/// State with the route `a.example` to service `web` of deployment `shop`.
#[must_use]
pub fn state_with_route() -> State {
    let mut state = State::default();
    let service = v1::ServiceSpec {
        name: "web".to_owned(),
        networks: vec!["front".to_owned(), "default".to_owned()],
        ..Default::default()
    };
    let deployment = v1::Deployment {
        name: "shop".to_owned(),
        services: vec![service],
        ..Default::default()
    };
    state
        .deployments
        .insert("shop".to_owned(), Arc::new(deployment));
    let route = v1::Route {
        domain: "a.example".to_owned(),
        deployment: "shop".to_owned(),
        service: "web".to_owned(),
        port: 8080,
        ..Default::default()
    };
    state
        .routes
        .insert(("a.example".to_owned(), String::new()), Arc::new(route));
    state
}

/// Adds a replica of `web` that is running on `host` with address `ip` on network `front`.
pub fn add_replica(state: &mut State, id: &str, host: &str, ip: &str) {
    let desired = v1::ReplicaDesired {
        id: id.to_owned(),
        deployment: "shop".to_owned(),
        service: "web".to_owned(),
        host: host.to_owned(),
        ..Default::default()
    };
    state
        .replicas_desired
        .insert(id.to_owned(), Arc::new(desired));
    let observed = v1::ReplicaObserved {
        id: id.to_owned(),
        state: v1::ReplicaState::Running.into(),
        host: host.to_owned(),
        details: [("ip.jaco_shop_front".to_owned(), ip.to_owned())].into(),
        ..Default::default()
    };
    state
        .replicas_observed
        .insert(id.to_owned(), Arc::new(observed));
}

/// Changes the observation of replica `id`.
///
/// # Panics
/// If it has none.
pub fn change_observation(
    state: &mut State,
    id: &str,
    change: impl FnOnce(&mut v1::ReplicaObserved),
) {
    let observed = state.replicas_observed.get_mut(id);
    assert!(observed.is_some(), "{id} is not observed");
    if let Some(observed) = observed {
        change(Arc::make_mut(observed));
    }
}
