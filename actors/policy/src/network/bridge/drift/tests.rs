use std::sync::Arc;

use jaco_proto::{
    manifest::compose::{NetworkMode, Project, Service},
    v1::{Deployment, ReplicaDesired, ReplicaObserved, ServiceSpec},
};
use jaco_state::State;

use super::*;
use crate::{network::bridge::members::members, runtime::documents::Documents};

fn project(_: &[u8]) -> Result<Project, String> {
    let attached = |networks: &[&str]| Service {
        networks: networks.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    };
    let mode = |mode| Service {
        network_mode: Some(mode),
        ..Default::default()
    };
    let services = [
        ("web", attached(&["front", "back"])),
        ("plain", attached(&[])),
        ("moved", attached(&["back"])),
        ("alone", mode(NetworkMode::None)),
        ("guest", mode(NetworkMode::Service("web".into()))),
    ];
    Ok(Project {
        services: services
            .map(|(name, service)| (name.to_owned(), service))
            .into(),
        ..Default::default()
    })
}

fn row(service: &str, host: &str) -> ReplicaDesired {
    ReplicaDesired {
        id: format!("app-{service}-0"),
        deployment: "app".into(),
        service: service.into(),
        host: host.into(),
        raft_index: 7,
        ..Default::default()
    }
}

fn state(rows: Vec<ReplicaDesired>) -> State {
    let mut state = State::default();
    let overridden = ServiceSpec {
        name: "moved".into(),
        networks: vec!["front".into()],
        ..Default::default()
    };
    let deployment = Deployment {
        name: "app".into(),
        services: vec![overridden],
        ..Default::default()
    };
    state.deployments.insert("app".into(), Arc::new(deployment));
    for row in rows {
        state.replicas_desired.insert(row.id.clone(), Arc::new(row));
    }
    state
}

fn observe(state: &mut State, id: &str, container: &str, address: &str) {
    let row = ReplicaObserved {
        id: id.into(),
        host: "n1".into(),
        container_id: container.into(),
        details: [("ip.jaco_app_front".to_owned(), address.to_owned())].into(),
        ..Default::default()
    };
    state.replicas_observed.insert(id.into(), Arc::new(row));
}

fn wanted() -> DesiredNetwork {
    DesiredNetwork {
        id: NetworkId::new("app", "front"),
        cluster_id: "c1".into(),
        cidr: "10.244.0.0/24".parse().unwrap(),
    }
}

fn container(id: &str, service: &str, networks: &[&str]) -> NetworkedContainer {
    let networks = networks.iter().map(|name| ((*name).to_owned(), None));
    NetworkedContainer {
        id: id.into(),
        replica_id: Some(format!("app-{service}-0")),
        raft_index: Some(7),
        running: true,
        networks: networks.collect(),
    }
}

fn front(state: &State) -> Vec<Member> {
    let documents = Documents::reading_with(project);
    let mut members = members(state, &documents, "n1");
    members.remove(&wanted().id).unwrap_or_default()
}

#[test]
fn members_follow_the_revision_of_their_rows() {
    let services = ["web", "plain", "moved", "alone", "guest", "unknown"];
    let mut rows: Vec<_> = services.map(|service| row(service, "n1")).into();
    rows.push(ReplicaDesired {
        id: "app-web-1".into(),
        ..row("web", "n2")
    });
    let documents = Documents::reading_with(project);
    let members = members(&state(rows), &documents, "n1");
    let ids = |network: &str| -> Vec<&str> {
        let members = &members[&NetworkId::new("app", network)];
        members
            .iter()
            .map(|member| member.replica_id.as_str())
            .collect()
    };
    assert_eq!(members.len(), 3);
    assert_eq!(ids("front"), ["app-moved-0", "app-web-0"]);
    assert_eq!(ids("back"), ["app-web-0"]);
    assert_eq!(ids("default"), ["app-plain-0"]);
    let web = &members[&NetworkId::new("app", "front")][1];
    assert_eq!(
        web.config.aliases,
        ["web", "web.app", "web.app.jaco.internal"]
    );
}

#[test]
fn detached_container_is_attached_under_its_address() {
    let mut state = state(vec![row("web", "n1")]);
    let attach = |state: &State, container: NetworkedContainer| {
        let (members, containers) = (front(state), [container]);
        let known = KnownAddresses::default();
        known.handle_listing(&wanted().id, &members, &containers);
        let found = detached(&wanted(), &members, &containers, &known);
        found
            .into_iter()
            .next()
            .map(|(_, endpoint)| endpoint.address)
    };
    let lost = || container("c1", "web", &["jaco_app_back"]);
    assert_eq!(attach(&state, lost()), Some(None), "no address is known");
    for (reported_by, address, expected) in [
        ("c1", "10.244.0.9", Some([10, 244, 0, 9].into())),
        ("c0", "10.244.0.9", None),
        ("c1", "10.244.1.9", None),
        ("c1", "10.244.0.0", None),
        ("c1", "10.244.0.1", None),
        ("c1", "10.244.0.255", None),
        ("c1", "nonsense", None),
    ] {
        observe(&mut state, "app-web-0", reported_by, address);
        assert_eq!(
            attach(&state, lost()),
            Some(expected),
            "{reported_by} {address}"
        );
    }
}

#[test]
fn address_is_known_after_its_report_is_lost() {
    let mut state = state(vec![row("web", "n1")]);
    let known = KnownAddresses::default();
    let listing = |state: &State, container: NetworkedContainer| {
        let (members, containers) = (front(state), [container]);
        known.handle_listing(&wanted().id, &members, &containers);
        let found = detached(&wanted(), &members, &containers, &known);
        found
            .into_iter()
            .next()
            .and_then(|(_, endpoint)| endpoint.address)
    };
    let address = |last: u8| Some(Ipv4Addr::from([10, 244, 0, last]));
    observe(&mut state, "app-web-0", "c1", "10.244.0.9");
    assert_eq!(listing(&state, container("c1", "web", &[])), address(9));
    state.replicas_observed.clear();
    assert_eq!(listing(&state, container("c1", "web", &[])), address(9));
    // A present address counts more than an older one.
    let mut attached = container("c1", "web", &["jaco_app_front"]);
    attached
        .networks
        .insert("jaco_app_front".into(), address(5));
    listing(&state, attached);
    assert_eq!(listing(&state, container("c1", "web", &[])), address(5));
    // Its container is gone, and another has its id no more.
    listing(&state, container("c2", "web", &[]));
    assert_eq!(listing(&state, container("c1", "web", &[])), None);
}

#[test]
fn only_running_containers_of_the_row_are_attached() {
    let state = state(vec![row("web", "n1"), row("guest", "n1")]);
    let lost = || container("c1", "web", &[]);
    let cases = [
        container("c1", "web", &["jaco_app_front"]),
        container("c1", "guest", &[]),
        NetworkedContainer {
            running: false,
            ..lost()
        },
        NetworkedContainer {
            raft_index: Some(6),
            ..lost()
        },
        NetworkedContainer {
            raft_index: None,
            ..lost()
        },
        NetworkedContainer {
            replica_id: None,
            ..lost()
        },
    ];
    for container in cases {
        let known = KnownAddresses::default();
        let containers = std::slice::from_ref(&container);
        let found = detached(&wanted(), &front(&state), containers, &known);
        assert_eq!(found, [], "{container:?}");
    }
}

#[test]
fn every_difference_is_found() {
    let members = front(&state(vec![row("web", "n1")]));
    let spec = match plan(&wanted(), &[], &[]).unwrap() {
        Plan::Create(spec) => spec,
        other => panic!("{other:?}"),
    };
    let network = EngineNetwork {
        id: "n".into(),
        name: spec.name,
        labels: spec.labels,
        subnets: vec![spec.cidr.to_string()],
        bridge: Some(spec.bridge.clone()),
    };
    let interface = |name: &str| Interface {
        name: name.into(),
        up: true,
        loopback: false,
        addresses: vec![[10, 244, 0, 1].into()],
    };
    let intact = HostNetworks {
        networks: vec![network],
        containers: vec![container("c1", "web", &["jaco_app_front"])],
        interfaces: vec![interface(&spec.bridge)],
    };
    let sight = BridgeSight::default();
    sight.handle_listing(&intact.networks, &intact.interfaces);
    let drift = |change: &dyn Fn(&mut HostNetworks)| {
        let mut seen = intact.clone();
        change(&mut seen);
        let drift = compare(&wanted(), &members, &seen, &sight);
        let drift: Vec<_> = drift.iter().map(ToString::to_string).collect();
        drift.join(",")
    };
    assert_eq!(drift(&|_| {}), "");
    assert_eq!(drift(&|seen| seen.networks.clear()), "missing:network");
    let moved = |seen: &mut HostNetworks| seen.networks[0].subnets = vec!["10.244.9.0/24".into()];
    assert_eq!(drift(&moved), "differs:network");
    assert_eq!(
        drift(&|seen| seen.interfaces.clear()),
        format!("missing:bridge:{}", spec.bridge)
    );
    let down = |seen: &mut HostNetworks| seen.interfaces[0].up = false;
    assert_eq!(drift(&down), format!("down:bridge:{}", spec.bridge));
    let flushed = |seen: &mut HostNetworks| seen.interfaces[0].addresses.clear();
    assert_eq!(drift(&flushed), format!("missing:gateway:{}", spec.bridge));
    let detached = |seen: &mut HostNetworks| seen.containers[0].networks.clear();
    assert_eq!(drift(&detached), "detached:app-web-0");
}

#[test]
fn audit_event_names_the_repaired_differences() {
    let detached = |n: usize| Drift::Detached(format!("app-web-{n}"));
    let repaired = [Drift::NetworkMissing, detached(0)];
    let event = audit_event("n1", &wanted().id, &repaired).unwrap();
    assert_eq!(event.payload["node"], "n1");
    assert_eq!(event.payload["deployment"], "app");
    assert_eq!(event.payload["network"], "front");
    assert_eq!(
        event.payload["summary"],
        "missing:network,detached:app-web-0"
    );
    assert_eq!(
        audit_event("n1", &wanted().id, &[Drift::NetworkDiffers]),
        None
    );
    assert_eq!(audit_event("n1", &wanted().id, &[]), None);
    let many: Vec<_> = (0..18).map(detached).collect();
    assert!(summary(&many).ends_with("app-web-15,and 2 more"));
}
