//! Conditions of eligibility, one by one.

use std::sync::Arc;

use super::{
    testing::{add_replica, change_observation, state_with_route},
    *,
};

fn facts() -> NodeFacts {
    NodeFacts {
        hostname: "here".to_owned(),
        https: false,
        mesh: false,
        unreached: Default::default(),
    }
}

/// Addresses of the upstreams of the only route.
fn served(state: &State) -> Vec<SocketAddr> {
    let routes = served_routes(state, &facts(), &BTreeSet::new());
    routes[0].upstreams.iter().map(|u| u.addr).collect()
}

/// Upstreams with the single replica `web-0`, whose observation `change` modifies.
fn served_if(change: impl FnOnce(&mut v1::ReplicaObserved)) -> Vec<SocketAddr> {
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    change_observation(&mut state, "web-0", change);
    served(&state)
}

#[test]
fn running_replicas_serve_on_the_routes_port() {
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    add_replica(&mut state, "web-1", "here", "fd00::2");
    let addrs: Vec<_> = served(&state).iter().map(SocketAddr::to_string).collect();
    assert_eq!(addrs, ["10.1.0.2:8080", "[fd00::2]:8080"]);
}

#[test]
fn only_running_replicas_serve() {
    for number in 0..=7 {
        let state = v1::ReplicaState::try_from(number).unwrap();
        let serves = !served_if(|observed| observed.set_state(state)).is_empty();
        assert_eq!(serves, state == v1::ReplicaState::Running, "{state:?}");
    }
}

#[test]
fn replica_without_row_or_observation_does_not_serve() {
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    let mut unseen = state.clone();
    unseen.replicas_observed.remove("web-0");
    assert_eq!(served(&unseen), []);
    state.replicas_desired.remove("web-0");
    assert_eq!(served(&state), []);
}

#[test]
fn replicas_of_other_services_do_not_serve() {
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    let mut desired = (**state.replicas_desired.get("web-0").unwrap()).clone();
    desired.service = "db".to_owned();
    state
        .replicas_desired
        .insert("web-0".to_owned(), Arc::new(desired));
    assert_eq!(served(&state), []);
}

#[test]
fn first_network_with_an_address_is_used() {
    let on = |details: &[(&str, &str)]| {
        let details: BTreeMap<_, _> = details
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        served_if(move |observed| observed.details = details)
            .first()
            .map(|addr| addr.ip().to_string())
    };
    let (front, default) = ("ip.jaco_shop_front", "ip.jaco_shop__default");
    assert_eq!(
        on(&[(default, "10.2.0.2"), (front, "10.1.0.2")]).unwrap(),
        "10.1.0.2"
    );
    assert_eq!(on(&[(default, "10.2.0.2")]).unwrap(), "10.2.0.2");
    assert_eq!(
        on(&[(default, "10.2.0.2"), (front, "")]).unwrap(),
        "10.2.0.2"
    );
    assert_eq!(
        on(&[("ip.jaco_shop_back", "10.3.0.2")]),
        None,
        "not a network of the service"
    );
    assert_eq!(on(&[]), None);
}

#[test]
fn service_without_networks_uses_default_network() {
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    let mut deployment = (**state.deployments.get("shop").unwrap()).clone();
    deployment.services[0].networks.clear();
    state
        .deployments
        .insert("shop".to_owned(), Arc::new(deployment));
    assert_eq!(served(&state), []);
    let mut observed = (**state.replicas_observed.get("web-0").unwrap()).clone();
    observed
        .details
        .insert("ip.jaco_shop__default".to_owned(), "10.2.0.2".to_owned());
    state
        .replicas_observed
        .insert("web-0".to_owned(), Arc::new(observed));
    assert_eq!(served(&state)[0].to_string(), "10.2.0.2:8080");
}

#[test]
fn remote_replicas_serve_while_fresh_and_reachable() {
    let mut state = state_with_route();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    add_replica(&mut state, "web-1", "there", "10.1.1.2");
    for (mesh, fresh, expected) in [
        (true, &["here", "there"][..], &["web-0", "web-1"][..]),
        (true, &["here"], &["web-0"]),
        (true, &[], &["web-0"]),
        (false, &["here", "there"], &["web-0"]),
    ] {
        let fresh_hosts = fresh.iter().map(|&host| host.to_owned()).collect();
        let routes = served_routes(&state, &NodeFacts { mesh, ..facts() }, &fresh_hosts);
        let served: Vec<&str> = routes[0].upstreams.iter().map(|u| u.replica).collect();
        assert_eq!(served, expected, "{mesh} {fresh:?}");
    }
}

#[test]
fn ready_ignores_reachability() {
    let mut state = state_with_route();
    add_replica(&mut state, "web-1", "there", "10.1.1.2");
    let key = ("a.example".to_owned(), String::new());
    let route = state.routes.get(&key).unwrap();
    assert!(replica_addr(&state, |host| host == "there", route, "web-1").is_some());
    assert!(replica_addr(&state, |_| false, route, "web-1").is_none());
}

#[test]
fn invalid_port_yields_no_upstream() {
    for port in [0, -1, 65_536] {
        let mut state = state_with_route();
        add_replica(&mut state, "web-0", "here", "10.1.0.2");
        let key = ("a.example".to_owned(), String::new());
        let mut route = (**state.routes.get(&key).unwrap()).clone();
        route.port = port;
        state.routes.insert(key, Arc::new(route));
        assert_eq!(served(&state), [], "{port}");
    }
}

#[test]
fn redirect_needs_route_setting_and_https() {
    for (tls_auto, https) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut state = state_with_route();
        let key = ("a.example".to_owned(), String::new());
        let mut route = (**state.routes.get(&key).unwrap()).clone();
        route.tls_auto = tls_auto;
        state.routes.insert(key, Arc::new(route));
        let routes = served_routes(&state, &NodeFacts { https, ..facts() }, &BTreeSet::new());
        assert_eq!(routes[0].redirect_to_https, tls_auto && https);
    }
}

#[test]
fn unrelated_state_changes_are_not_input() {
    let state = state_with_route();
    let mut other = state.clone();
    other.applied_index += 1;
    other.tokens.insert("ann".to_owned(), Arc::default());
    assert!(same_input(&state, &other));
    add_replica(&mut other, "web-0", "here", "10.1.0.2");
    assert!(!same_input(&state, &other));
    let mut other = state.clone();
    let row = v1::ClusterConfig::default();
    other.cluster_config.insert("any".to_owned(), row.into());
    assert!(!same_input(&state, &other));
}

#[test]
fn routes_are_settled_once_their_hosts_are_known() {
    let mut state = state_with_route();
    let none = BTreeSet::new();
    assert!(is_settled(&state, &facts(), &none), "no replica at all");
    add_replica(&mut state, "web-1", "there", "10.1.1.2");
    let meshed = NodeFacts {
        mesh: true,
        ..facts()
    };
    let there = BTreeSet::from(["there".to_owned()]);
    for (facts, fresh, settled) in [
        (facts(), &none, false),
        (facts(), &there, false),
        (meshed.clone(), &none, false),
        (meshed, &there, true),
    ] {
        assert_eq!(is_settled(&state, &facts, fresh), settled, "{facts:?}");
    }
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    assert!(is_settled(&state, &facts(), &none), "one is enough");
    change_observation(&mut state, "web-0", |seen| {
        seen.set_state(v1::ReplicaState::Failed);
    });
    change_observation(&mut state, "web-1", |seen| {
        seen.set_state(v1::ReplicaState::Failed);
    });
    assert!(is_settled(&state, &facts(), &none), "none can serve");
}

/// Changes the row of replica `web-0`.
fn change_row(state: &mut State, change: impl FnOnce(&mut v1::ReplicaDesired)) {
    change(Arc::make_mut(
        state.replicas_desired.get_mut("web-0").unwrap(),
    ));
}

fn drain(state: &mut State, hostname: &str) {
    let node = v1::Node {
        hostname: hostname.to_owned(),
        draining: true,
        ..Default::default()
    };
    state.nodes.insert(hostname.to_owned(), Arc::new(node));
}

#[test]
fn container_to_be_withdrawn_begins_no_session() {
    let meshed = NodeFacts {
        mesh: true,
        ..facts()
    };
    type Change = fn(&mut State);
    let table: [(Change, bool); 6] = [
        (|_| {}, false),
        // Another container is being started for the new generation of the row.
        (|state| change_row(state, |row| row.raft_index = 9), true),
        (
            |state| change_row(state, |row| row.host = "there".to_owned()),
            true,
        ),
        (|state| drain(state, "here"), true),
        (|state| drain(state, "there"), false),
        (
            |state| {
                change_row(state, |row| row.raft_index = 9);
                change_observation(state, "web-0", |seen| seen.desired_raft_index = 9);
            },
            false,
        ),
    ];
    for (at, (change, expected)) in table.into_iter().enumerate() {
        let mut state = state_with_route();
        add_replica(&mut state, "web-0", "here", "10.1.0.2");
        let leaving = |state: &State| {
            let routes = served_routes(state, &meshed, &BTreeSet::new());
            let upstreams: Vec<_> = routes[0].upstreams.iter().map(|u| u.leaving).collect();
            upstreams
        };
        change(&mut state);
        assert_eq!(leaving(&state), [false], "{at}: without sticky sessions");
        let key = ("a.example".to_owned(), String::new());
        let route = Arc::make_mut(state.routes.get_mut(&key).unwrap());
        route.affinity = Some(v1::RouteAffinity {
            cookie: "route".to_owned(),
            ttl_s: 60,
            same_site: String::new(),
        });
        assert_eq!(leaving(&state), [expected], "{at}");
    }
}

#[test]
fn drain_is_input_and_pressure_is_not() {
    let mut state = state_with_route();
    let node = v1::Node {
        hostname: "here".to_owned(),
        ..Default::default()
    };
    state.nodes.insert("here".to_owned(), Arc::new(node));
    let mut other = state.clone();
    Arc::make_mut(other.nodes.get_mut("here").unwrap()).cpu_pressure = 0.5;
    assert!(same_input(&state, &other));
    Arc::make_mut(other.nodes.get_mut("here").unwrap()).draining = true;
    assert!(!same_input(&state, &other));
}

/// State whose service has the network of its nodes.
fn state_on_nodes() -> State {
    let mut state = state_with_route();
    let deployment = Arc::make_mut(state.deployments.get_mut("shop").unwrap());
    deployment.services[0].host_network = true;
    deployment.services[0].networks.clear();
    for (host, address) in [("here", "192.0.2.1:7001"), ("there", "[2001:db8::2]:7001")] {
        let node = v1::Node {
            hostname: host.to_owned(),
            address: address.to_owned(),
            ..Default::default()
        };
        state.nodes.insert(host.to_owned(), Arc::new(node));
        let id = format!("web-{host}");
        add_replica(&mut state, &id, host, "unused");
        change_observation(&mut state, &id, |seen| seen.details.clear());
    }
    state
}

#[test]
fn host_network_is_reached_on_node_addresses() {
    let state = state_on_nodes();
    let fresh = BTreeSet::from(["there".to_owned()]);
    for mesh in [false, true] {
        let facts = NodeFacts { mesh, ..facts() };
        let routes = served_routes(&state, &facts, &fresh);
        let addrs = routes[0].upstreams.iter().map(|one| one.addr.to_string());
        let addrs: Vec<_> = addrs.collect();
        assert_eq!(addrs, ["192.0.2.1:8080", "[2001:db8::2]:8080"], "{mesh}");
    }
    assert_eq!(served(&state).len(), 1, "the other host is not fresh");
}

#[test]
fn moved_node_changes_the_routes() {
    let before = state_on_nodes();
    let mut after = before.clone();
    let node = Arc::make_mut(after.nodes.get_mut("there").unwrap());
    node.cpu_pressure = 0.5;
    assert!(same_input(&before, &after));
    let node = Arc::make_mut(after.nodes.get_mut("there").unwrap());
    node.address = "192.0.2.3:7001".to_owned();
    assert!(!same_input(&before, &after));
}
