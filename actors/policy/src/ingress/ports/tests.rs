//! Which ports are served by which replicas.

use std::sync::Arc;

use jaco_proto::v1::{ReplicaState, TcpRoute};
use proptest::prelude::*;

use super::{
    testing::{publish, put},
    *,
};
use crate::ingress::table::testing::{add_replica, change_observation, state_with_route};

const TCP: PortKey = PortKey {
    port: 9001,
    protocol: TransportProtocol::Tcp,
};
const UDP: PortKey = PortKey {
    port: 9001,
    protocol: TransportProtocol::Udp,
};

fn facts(mesh: bool) -> NodeFacts {
    NodeFacts {
        hostname: "here".to_owned(),
        https: false,
        mesh,
        unreached: Default::default(),
    }
}

fn state_with_ports() -> State {
    let mut state = state_with_route();
    publish(&mut state, 9001, TransportProtocol::Tcp);
    publish(&mut state, 9001, TransportProtocol::Udp);
    state
}

fn addrs(served: &BTreeMap<PortKey, ServedPort>, key: PortKey) -> Vec<String> {
    let upstreams = served.get(&key).map(|served| &served.upstreams);
    let upstreams = upstreams.into_iter().flatten();
    upstreams
        .map(|upstream| upstream.addr.to_string())
        .collect()
}

/// The served ports of a state with replica `web-0`, whose observation `change` modifies.
fn served_if(change: impl FnOnce(&mut v1::ReplicaObserved)) -> BTreeMap<PortKey, ServedPort> {
    let mut state = state_with_ports();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    change_observation(&mut state, "web-0", change);
    served_ports(&state, &facts(true), &BTreeSet::new())
}

#[test]
fn replicas_serve_on_the_container_port_by_id() {
    let mut state = state_with_ports();
    add_replica(&mut state, "web-1", "here", "fd00::2");
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    let served = served_ports(&state, &facts(false), &BTreeSet::new());
    let expected = ["10.1.0.2:5432", "[fd00::2]:5432"];
    assert_eq!(addrs(&served, TCP), expected);
    assert_eq!(addrs(&served, UDP), expected);
    assert_eq!(TCP.to_string(), "9001/tcp");
    assert_eq!(UDP.to_string(), "9001/udp");
}

#[test]
fn port_without_an_eligible_replica_is_not_served() {
    let state = state_with_ports();
    let served = served_ports(&state, &facts(true), &BTreeSet::new());
    assert!(served.is_empty());
    for number in 0..=7 {
        let state = ReplicaState::try_from(number).unwrap();
        let served = served_if(|observed| observed.set_state(state));
        assert_eq!(
            served.len(),
            if state == ReplicaState::Running { 2 } else { 0 }
        );
    }
    assert!(served_if(|observed| observed.details.clear()).is_empty());
}

#[test]
fn replica_without_a_row_does_not_serve() {
    let mut state = state_with_ports();
    add_replica(&mut state, "web-0", "here", "10.1.0.2");
    state.replicas_desired.remove("web-0");
    assert!(served_ports(&state, &facts(true), &BTreeSet::new()).is_empty());
}

#[test]
fn remote_replicas_serve_while_fresh_and_reachable() {
    let mut state = state_with_ports();
    add_replica(&mut state, "web-1", "there", "10.1.1.2");
    for (mesh, fresh, expected) in [
        (true, &["here", "there"][..], &["10.1.1.2:5432"][..]),
        (true, &["here"], &[]),
        (false, &["here", "there"], &[]),
    ] {
        let fresh = fresh.iter().map(|&host| host.to_owned()).collect();
        let served = served_ports(&state, &facts(mesh), &fresh);
        assert_eq!(addrs(&served, TCP), expected, "{mesh} {fresh:?}");
    }
}

#[test]
fn tcp_ports_get_the_requested_header() {
    for (protocol, version, expected) in [
        (TransportProtocol::Tcp, 0, false),
        (TransportProtocol::Tcp, 1, false),
        (TransportProtocol::Tcp, 2, true),
        (TransportProtocol::Udp, 2, false),
    ] {
        let mut state = state_with_route();
        publish(&mut state, 9001, protocol);
        let key = (9001, protocol.into());
        let mut route = (**state.tcp_routes.get(&key).unwrap()).clone();
        route.proxy_protocol = version;
        put(&mut state, route);
        add_replica(&mut state, "web-0", "here", "10.1.0.2");
        let served = served_ports(&state, &facts(true), &BTreeSet::new());
        let served: Vec<bool> = served.values().map(|served| served.proxy_v2).collect();
        assert_eq!(served, [expected], "{protocol:?} {version}");
    }
}

#[test]
fn invalid_rows_are_not_served() {
    for (published_port, container_port, protocol) in [
        (0, 1, 0),
        (65_536, 1, 0),
        (1, 0, 0),
        (1, 65_536, 0),
        (1, 1, 2),
    ] {
        let mut state = state_with_route();
        add_replica(&mut state, "web-0", "here", "10.1.0.2");
        let route = TcpRoute {
            published_port,
            container_port,
            protocol,
            deployment: "shop".to_owned(),
            service: "web".to_owned(),
            proxy_protocol: 0,
        };
        put(&mut state, route.clone());
        let served = served_ports(&state, &facts(true), &BTreeSet::new());
        assert!(served.is_empty(), "{route:?}");
    }
}

#[test]
fn unrelated_state_changes_are_not_input() {
    let mut state = state_with_route();
    let mut other = state.clone();
    add_replica(&mut other, "web-0", "here", "10.1.0.2");
    assert!(same_input(&state, &other), "no port, nothing to serve");
    publish(&mut state, 9001, TransportProtocol::Tcp);
    assert!(!same_input(&state, &other));
    let mut other = state.clone();
    other.applied_index += 1;
    other.tokens.insert("ann".to_owned(), Arc::default());
    assert!(same_input(&state, &other));
    add_replica(&mut other, "web-0", "here", "10.1.0.2");
    assert!(!same_input(&state, &other));
}

proptest! {
    /// Compares the eligibility of every replica with its definition.
    #[test]
    fn upstreams_are_exactly_the_eligible_replicas(
        replicas in prop::collection::vec((0..8_i32, 0..3_usize, any::<bool>()), 0..6),
        fresh in prop::collection::vec(any::<bool>(), 3),
        mesh in any::<bool>(),
    ) {
        let hosts = ["here", "there", "yonder"];
        let fresh: BTreeSet<String> = hosts
            .iter()
            .zip(&fresh)
            .filter(|(_, fresh)| **fresh)
            .map(|(host, _)| (*host).to_owned())
            .collect();
        let mut state = state_with_ports();
        let mut expected = Vec::new();
        for (n, (number, host, has_address)) in replicas.iter().enumerate() {
            let (id, host) = (format!("web-{n}"), hosts[*host]);
            let ip = if *has_address { format!("10.1.0.{n}") } else { String::new() };
            add_replica(&mut state, &id, host, &ip);
            let mut observed = (**state.replicas_observed.get(&id).unwrap()).clone();
            observed.state = *number;
            state.replicas_observed.insert(id.clone(), Arc::new(observed));
            let local = host == "here";
            let running = *number == i32::from(ReplicaState::Running);
            if running && *has_address && (local || (mesh && fresh.contains(host))) {
                expected.push(id);
            }
        }
        let served = served_ports(&state, &facts(mesh), &fresh);
        prop_assert_eq!(served.len(), if expected.is_empty() { 0 } else { 2 });
        for served in served.values() {
            let ids: Vec<_> = served.upstreams.iter().map(|u| u.replica.clone()).collect();
            prop_assert_eq!(&ids, &expected);
        }
    }
}
