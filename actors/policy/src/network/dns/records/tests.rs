use jaco_proto::v1;
use proptest::prelude::*;

use super::*;

const SERVICES: [&str; 5] = ["web", "Web", "side", "tail", "db"];
const NETWORKS: [&str; 2] = ["front", "default"];
const HOSTS: [&str; 2] = ["n1", "n2"];

/// A client that is no known container.
const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);

/// `side` shares the addresses of `web`, and `tail` those of `side`.
const COMPOSE: &str = "networks: {front: {}, default: {}}\nservices:\n  \
    web: {image: i, networks: [front]}\n  \
    Web: {image: i}\n  \
    side: {image: i, network_mode: 'service:web'}\n  \
    tail: {image: i, network_mode: 'service:side'}\n  \
    db: {image: i, networks: [front, default]}\n";

fn deployment(state: &mut State, name: &str, networks: &[(&str, &[&str])]) {
    let services = networks.iter().map(|(service, networks)| v1::ServiceSpec {
        name: (*service).to_owned(),
        networks: networks.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    });
    let row = v1::Deployment {
        name: name.to_owned(),
        compose_yaml: COMPOSE.into(),
        services: services.collect(),
        ..Default::default()
    };
    state.deployments.insert(name.to_owned(), Arc::new(row));
}

fn replica(state: &mut State, id: &str, service: &str, host: &str, ips: &[(&str, &str)]) {
    let row = ReplicaDesired {
        id: id.to_owned(),
        deployment: "shop".to_owned(),
        service: service.to_owned(),
        host: host.to_owned(),
        index: i32::from(id.as_bytes()[id.len() - 1]),
        ..Default::default()
    };
    state.replicas_desired.insert(id.to_owned(), Arc::new(row));
    let details = ips
        .iter()
        .map(|(network, ip)| (format!("ip.jaco_shop_{network}"), (*ip).to_owned()));
    let seen = ReplicaObserved {
        id: id.to_owned(),
        state: ReplicaState::Running.into(),
        host: host.to_owned(),
        details: details.collect(),
        ..Default::default()
    };
    state
        .replicas_observed
        .insert(id.to_owned(), Arc::new(seen));
}

fn here_of(found: Found) -> Vec<Ipv4Addr> {
    match found {
        Found::Here(addresses) => addresses,
        Found::Elsewhere | Found::Nowhere => Vec::new(),
    }
}

fn lookup(state: &State, network: &str, service: &str, here: &str, fresh: &[&str]) -> Vec<String> {
    let records = Records::of(state);
    let network = NetworkId::new("shop", network);
    let view = records.view(&network, NOBODY);
    let found = view.resolve(Asked::Name(service), here, |host| fresh.contains(&host));
    here_of(found).iter().map(Ipv4Addr::to_string).collect()
}

fn shop() -> State {
    let mut state = State::default();
    deployment(
        &mut state,
        "shop",
        &[
            ("web", &["front"]),
            ("side", &[]),
            ("tail", &[]),
            ("db", &["front", "default"]),
        ],
    );
    replica(&mut state, "web-0", "web", "n1", &[("front", "10.1.0.2")]);
    replica(&mut state, "web-1", "web", "n2", &[("front", "10.2.0.2")]);
    state
}

#[test]
fn local_replicas_are_preferred() {
    let state = shop();
    let both = ["n1", "n2", "n3"];
    assert_eq!(lookup(&state, "front", "web", "n1", &both), ["10.1.0.2"]);
    assert_eq!(
        lookup(&state, "front", "web", "n3", &both),
        ["10.1.0.2", "10.2.0.2"]
    );
    assert_eq!(lookup(&state, "front", "web", "n1", &["n2"]), ["10.2.0.2"]);
    assert_eq!(lookup(&state, "front", "web", "n1", &[]), [""; 0]);
}

#[test]
fn records_exist_on_the_services_networks_only() {
    let mut state = shop();
    let ips = [
        ("front", "10.1.0.3"),
        ("_default", "10.3.0.3"),
        ("back", "10.4.0.3"),
    ];
    replica(&mut state, "db-0", "db", "n1", &ips);
    for (network, expected) in [
        ("front", Some("10.1.0.3")),
        ("default", Some("10.3.0.3")),
        ("back", None),
    ] {
        let found = lookup(&state, network, "db", "n1", &["n1"]);
        assert_eq!(found.first().map(String::as_str), expected, "{network}");
    }
    assert!(lookup(&state, "_default", "web", "n1", &["n1"]).is_empty());
}

#[test]
fn only_running_replicas_with_rows_count() {
    let mut state = shop();
    state.replicas_desired.remove("web-0");
    let mut seen = ReplicaObserved::clone(&state.replicas_observed["web-1"]);
    for state_of in [
        ReplicaState::Degraded,
        ReplicaState::Stopped,
        ReplicaState::Updating,
    ] {
        seen.set_state(state_of);
        state
            .replicas_observed
            .insert("web-1".to_owned(), Arc::new(seen.clone()));
        assert!(lookup(&state, "front", "web", "n3", &["n1", "n2"]).is_empty());
    }
}

#[test]
fn shared_namespace_follows_the_joined_container() {
    let mut state = shop();
    replica(&mut state, "web-2", "web", "n1", &[("front", "10.1.0.4")]);
    // The engine shows a container's addresses as those of the one that joined it.
    replica(&mut state, "side-0", "side", "n1", &[("front", "10.1.0.4")]);
    replica(&mut state, "tail-0", "tail", "n2", &[("front", "10.2.0.2")]);
    assert_eq!(lookup(&state, "front", "side", "n1", &["n1"]), ["10.1.0.4"]);
    assert_eq!(lookup(&state, "front", "tail", "n2", &["n2"]), ["10.2.0.2"]);
    let mut records = Records::of(&state);
    let before = state.clone();
    state.replicas_observed.remove("web-1");
    records.update(&before, &state);
    let front = NetworkId::new("shop", "front");
    let view = records.view(&front, NOBODY);
    let found = view.resolve(Asked::Name("tail"), "n2", |_| true);
    assert_eq!(
        found,
        Found::Nowhere,
        "the container that has the address ended"
    );
}

#[test]
fn reused_address_of_a_lender_is_not_lent() {
    let mut state = shop();
    let observe = |state: &mut State, id: &str, container: &str, lender: Option<&str>| {
        let mut seen = ReplicaObserved::clone(&state.replicas_observed[id]);
        seen.container_id = container.to_owned();
        seen.details.remove(LENDER);
        let lender = lender.map(|lender| (LENDER.to_owned(), lender.to_owned()));
        seen.details.extend(lender);
        state.replicas_observed.insert(id.to_owned(), seen.into());
    };
    replica(&mut state, "side-0", "side", "n1", &[("front", "10.1.0.2")]);
    for (container, lender, is_lent) in [
        ("c1", Some("c1"), true),
        ("c2", Some("c1"), false),
        ("c2", Some("c2"), true),
        // An older member does not tell the container.
        ("c2", None, true),
    ] {
        observe(&mut state, "web-0", container, None);
        observe(&mut state, "side-0", "s1", lender);
        let found = lookup(&state, "front", "side", "n1", &["n1"]);
        assert_eq!(found == ["10.1.0.2"], is_lent, "{container} {lender:?}");
    }
}

#[test]
fn services_differing_in_case_share_records() {
    let mut state = shop();
    deployment(
        &mut state,
        "shop",
        &[("web", &["front"]), ("Web", &["front"])],
    );
    replica(&mut state, "web-3", "Web", "n1", &[("front", "10.1.0.7")]);
    assert_eq!(
        lookup(&state, "front", "web", "n1", &["n1"]),
        ["10.1.0.2", "10.1.0.7"]
    );
}

/// A random change of the state.
#[derive(Clone, Debug)]
enum Step {
    Deploy(Vec<(usize, bool, bool)>),
    Delete,
    Place(u8, usize, usize),
    Remove(u8),
    Observe(u8, usize, bool, bool),
    Forget(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (id, service, host) = (b'0'..b'6', 0..SERVICES.len(), 0..HOSTS.len());
    prop_oneof![
        1 => prop::collection::vec((service.clone(), any::<bool>(), any::<bool>()), 0..6)
            .prop_map(Step::Deploy),
        1 => Just(Step::Delete),
        5 => (id.clone(), service, host.clone()).prop_map(|(id, s, h)| Step::Place(id, s, h)),
        1 => id.clone().prop_map(Step::Remove),
        6 => (id.clone(), host, any::<bool>(), any::<bool>())
            .prop_map(|(id, h, running, front)| Step::Observe(id, h, running, front)),
        1 => id.prop_map(Step::Forget),
    ]
}

fn apply(state: &mut State, step: Step) {
    let name = |id: u8| format!("r-{}", char::from(id));
    match step {
        Step::Deploy(specs) => {
            let listed: Vec<_> = specs
                .iter()
                .map(|(service, front, default)| {
                    let wanted = [*front, *default];
                    let networks = NETWORKS.iter().zip(wanted).filter(|(_, wanted)| *wanted);
                    (
                        SERVICES[*service],
                        networks.map(|(name, _)| *name).collect::<Vec<_>>(),
                    )
                })
                .collect();
            let specs: Vec<_> = listed
                .iter()
                .map(|(name, list)| (*name, list.as_slice()))
                .collect();
            deployment(state, "shop", &specs);
        }
        Step::Delete => drop(state.deployments.remove("shop")),
        Step::Place(id, service, host) => {
            let seen = state.replicas_observed.get(&name(id)).cloned();
            replica(state, &name(id), SERVICES[service], HOSTS[host], &[]);
            match seen {
                Some(seen) => state.replicas_observed.insert(name(id), seen),
                None => state.replicas_observed.remove(&name(id)),
            };
        }
        Step::Remove(id) => drop(state.replicas_desired.remove(&name(id))),
        Step::Observe(id, host, running, front) => {
            let ip = format!("10.{host}.0.{id}");
            let network = if front { "front" } else { "_default" };
            let mut seen = ReplicaObserved {
                id: name(id),
                host: HOSTS[host].to_owned(),
                details: [(format!("ip.jaco_shop_{network}"), ip)].into(),
                ..Default::default()
            };
            if running {
                seen.set_state(ReplicaState::Running);
            }
            state.replicas_observed.insert(name(id), Arc::new(seen));
        }
        Step::Forget(id) => drop(state.replicas_observed.remove(&name(id))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn updated_index_equals_a_new_one(steps in prop::collection::vec(step(), 1..40)) {
        let mut state = State::default();
        let mut records = Records::default();
        for step in steps {
            let before = state.clone();
            apply(&mut state, step);
            records.update(&before, &state);
            let new = Records::of(&state);
            prop_assert_eq!(&records.networks, &new.networks);
            prop_assert_eq!(&records.replicas, &new.replicas);
            prop_assert_eq!(&records.clients, &new.clients);
            prop_assert_eq!(&records.owners, &new.owners);
            prop_assert_eq!(&records.sharing, &new.sharing);
            let front = NetworkId::new("shop", "front");
            let (old, new) = (records.view(&front, NOBODY), new.view(&front, NOBODY));
            for service in ["web", "side", "tail", "db"] {
                prop_assert_eq!(old.declares("shop", service), new.declares("shop", service));
            }
        }
    }
}

/// `web` has a container name and an alias on one network, and `app` calls `db` by a name of its own.
const NAMED: &str = "networks: {front: {}, back: {}}\nservices:\n  \
    web: {image: i, container_name: Site, networks: {front: {aliases: [www, both]}, back: }}\n  \
    app: {image: i, links: ['db:web', 'db:data'], networks: [front]}\n  \
    db: {image: i, networks: {front: {aliases: [both]}}}\n";

fn named() -> State {
    let mut state = State::default();
    let networks: [(&str, &[&str]); 3] = [
        ("web", &["front", "back"]),
        ("app", &["front"]),
        ("db", &["front"]),
    ];
    deployment(&mut state, "shop", &networks);
    let mut row = v1::Deployment::clone(&state.deployments["shop"]);
    row.compose_yaml = NAMED.into();
    state.deployments.insert("shop".to_owned(), Arc::new(row));
    let ips = [("front", "10.1.0.2"), ("back", "10.2.0.2")];
    replica(&mut state, "web-0", "web", "n1", &ips);
    replica(&mut state, "app-0", "app", "n1", &[("front", "10.1.0.3")]);
    replica(&mut state, "db-0", "db", "n1", &[("front", "10.1.0.4")]);
    state
}

#[test]
fn services_have_their_further_names() {
    let state = named();
    for (network, name, expected) in [
        ("front", "web", &["10.1.0.2"][..]),
        ("front", "site", &["10.1.0.2"]),
        ("back", "site", &["10.2.0.2"]),
        ("front", "www", &["10.1.0.2"]),
        ("back", "www", &[]),
        ("front", "both", &["10.1.0.2", "10.1.0.4"]),
        ("front", "other", &[]),
    ] {
        let found = lookup(&state, network, name, "n1", &["n1"]);
        assert_eq!(found, expected, "{name} on {network}");
    }
    let records = Records::of(&state);
    let front = NetworkId::new("shop", "front");
    let view = records.view(&front, NOBODY);
    assert!(view.declares("shop", "site") && view.declares("shop", "www"));
    assert!(!view.declares("shop", "other"));
}

#[test]
fn links_are_names_of_their_service_alone() {
    let state = named();
    let records = Records::of(&state);
    let front = NetworkId::new("shop", "front");
    for (client, name, expected) in [
        ("10.1.0.3", "web", &["10.1.0.4"][..]),
        ("10.1.0.3", "data", &["10.1.0.4"]),
        ("10.1.0.4", "web", &["10.1.0.2"]),
        ("10.1.0.4", "data", &[]),
        // A container that was not observed yet may be one of `app`.
        ("10.1.0.9", "web", &["10.1.0.2"]),
        ("10.1.0.9", "data", &["10.1.0.4"]),
    ] {
        let client = client.parse().unwrap();
        let view = records.view(&front, client);
        let found = here_of(view.resolve(Asked::Name(name), "n1", |_| true));
        let found: Vec<String> = found.iter().map(Ipv4Addr::to_string).collect();
        assert_eq!(found, expected, "{name} for {client}");
    }
}

#[test]
fn alias_on_another_own_network_is_elsewhere() {
    let state = named();
    let records = Records::of(&state);
    let back = NetworkId::new("shop", "back");
    let is_elsewhere = |client: [u8; 4], name: &str| {
        let view = records.view(&back, Ipv4Addr::from(client));
        view.resolve(Asked::Name(name), "n1", |_| true) == Found::Elsewhere
    };
    assert!(is_elsewhere([10, 2, 0, 2], "both"));
    assert!(is_elsewhere([10, 2, 0, 2], "www"));
    assert!(!is_elsewhere([10, 2, 0, 2], "other"));
}
