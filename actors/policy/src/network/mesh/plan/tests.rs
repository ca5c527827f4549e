use proptest::prelude::*;

use super::*;
use crate::network::mesh::testing::{allocate, node, pool, state, wanted_of};

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Applies a step as the kernel does, which refuses to add what is there.
fn apply(observed: &mut Observed, step: Step) {
    let Observed {
        blackholes, device, ..
    } = observed;
    match step {
        Step::AddBlackhole(cidr) => assert!(blackholes.insert(cidr)),
        Step::RemoveBlackhole(cidr) => assert!(blackholes.remove(&cidr)),
        Step::OpenDevice => *device = Some(DeviceState::default()),
        step => {
            let device = device.as_mut().expect("no device");
            match step {
                Step::SetUp => device.up = true,
                Step::AddAddress(ip) => assert!(device.addresses.insert(ip)),
                Step::SetPeers(peers) => (device.peers, device.altered) = (peers, false),
                Step::RemoveRoute(route) => assert!(device.routes.remove(&route)),
                Step::AddRoute(route) => {
                    assert!(device.up, "{route:?} over a link that is down");
                    let source = route.source.unwrap();
                    assert!(device.addresses.contains(&source), "{route:?}");
                    let place = |other: &DeviceRoute| (other.to, other.metric);
                    let taken = device
                        .routes
                        .iter()
                        .any(|other| place(other) == place(&route));
                    assert!(!taken, "{route:?}");
                    device.routes.insert(route);
                }
                Step::ReplaceRoute(route) => {
                    let before = device.routes.len();
                    let place = |other: &DeviceRoute| (other.to, other.metric);
                    device.routes.retain(|other| place(other) != place(&route));
                    assert_eq!(device.routes.len() + 1, before, "{route:?}");
                    device.routes.insert(route);
                }
                Step::RemoveAddress(ip) => {
                    assert!(device.addresses.remove(&ip));
                    device.routes.retain(|route| route.source != Some(ip));
                }
                step => panic!("{step:?}"),
            }
        }
    }
}

fn wanted(hosts: &[(&str, &str)]) -> Wanted {
    let nodes: Vec<_> = hosts.iter().map(|(host, _)| node(host, 1)).collect();
    let mut state = state(&nodes);
    for (host, block) in hosts {
        allocate(&mut state, host, block);
    }
    wanted_of(&state, hosts[0].0, 51820).unwrap()
}

fn steps(wanted: &Wanted, observed: &Observed) -> Vec<Step> {
    plan(wanted, resolve_peers(wanted, &BTreeMap::new()).0, observed)
}

fn converge(wanted: &Wanted, mut observed: Observed) -> Observed {
    for step in steps(wanted, &observed) {
        apply(&mut observed, step);
    }
    assert_eq!(steps(wanted, &observed), []);
    observed
}

#[test]
fn new_mesh_is_built_in_order() {
    let wanted = wanted(&[("node-1", "10.244.0.0/24"), ("node-2", "10.244.1.0/24")]);
    let (peers, unresolved) = resolve_peers(&wanted, &BTreeMap::new());
    assert_eq!((peers.len(), unresolved.len()), (1, 0));
    let over = |to| DeviceRoute {
        to: cidr(to),
        source: Some(wanted.address),
        metric: 0,
    };
    let expected = [
        Step::AddBlackhole(cidr("10.99.0.0/24")),
        Step::AddBlackhole(cidr("10.244.0.0/16")),
        Step::OpenDevice,
        Step::SetUp,
        Step::AddAddress(wanted.address),
        Step::SetPeers(peers),
        Step::AddRoute(over("10.99.0.0/24")),
        Step::AddRoute(over("10.244.1.0/24")),
    ];
    assert_eq!(steps(&wanted, &Observed::default()), expected);
}

#[test]
fn only_the_difference_is_repaired() {
    let wanted = wanted(&[("node-1", "10.244.0.0/24"), ("node-2", "10.244.1.0/24")]);
    let whole = converge(&wanted, Observed::default());
    let route = *whole.device.as_ref().unwrap().routes.first().unwrap();

    let mut damaged = whole.clone();
    damaged.device.as_mut().unwrap().routes.remove(&route);
    assert_eq!(steps(&wanted, &damaged), [Step::AddRoute(route)]);

    let mut damaged = whole.clone();
    let strange = DeviceRoute {
        to: cidr("10.1.0.0/16"),
        source: None,
        metric: 7,
    };
    damaged.device.as_mut().unwrap().routes.insert(strange);
    // An address outside the mesh network is an operator's.
    let foreign = Ipv4Addr::new(192, 0, 2, 1);
    damaged.device.as_mut().unwrap().addresses.insert(foreign);
    assert_eq!(steps(&wanted, &damaged), [Step::RemoveRoute(strange)]);

    let mut damaged = whole.clone();
    let routes = &mut damaged.device.as_mut().unwrap().routes;
    routes.remove(&route);
    routes.insert(DeviceRoute {
        source: None,
        ..route
    });
    assert_eq!(steps(&wanted, &damaged), [Step::ReplaceRoute(route)]);

    let mut damaged = whole.clone();
    damaged.device.as_mut().unwrap().up = false;
    assert_eq!(steps(&wanted, &damaged), [Step::SetUp]);

    let mut damaged = whole.clone();
    damaged.device.as_mut().unwrap().altered = true;
    let peers = whole.device.as_ref().unwrap().peers.clone();
    assert_eq!(steps(&wanted, &damaged), [Step::SetPeers(peers)]);

    let mut damaged = whole.clone();
    damaged.device = None;
    assert_eq!(converge(&wanted, damaged), whole);
}

#[test]
fn freed_block_stays_covered_by_blackholes() {
    let before = wanted(&[("node-1", "10.244.0.0/24"), ("node-2", "10.244.1.0/24")]);
    let observed = converge(&before, Observed::default());
    let after = wanted(&[("node-1", "10.244.1.0/24"), ("node-2", "10.244.2.0/24")]);
    for step in steps(&after, &observed) {
        let blackhole = matches!(step, Step::AddBlackhole(_) | Step::RemoveBlackhole(_));
        assert!(!blackhole, "{step:?}");
    }
    let mesh = cidr("10.99.0.0/24");
    assert_eq!(converge(&after, observed).blackholes, [mesh, pool()].into());
}

#[test]
fn blackholes_of_another_pool_are_removed_last() {
    let wanted = wanted(&[("node-1", "10.244.0.0/24")]);
    let mut observed = converge(&wanted, Observed::default());
    observed.blackholes = [cidr("10.128.0.0/12")].into();
    let steps = steps(&wanted, &observed);
    let expected = [
        Step::AddBlackhole(cidr("10.99.0.0/24")),
        Step::AddBlackhole(pool()),
        Step::RemoveBlackhole(cidr("10.128.0.0/12")),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn teardown_leaves_an_empty_device() {
    let wanted = wanted(&[("node-1", "10.244.0.0/24"), ("node-2", "10.244.1.0/24")]);
    let mut observed = converge(&wanted, Observed::default());
    for step in teardown(&observed) {
        apply(&mut observed, step);
    }
    let device = DeviceState {
        up: true,
        ..DeviceState::default()
    };
    let expected = Observed {
        device: Some(device),
        ..Observed::default()
    };
    assert_eq!(observed, expected);
    assert_eq!(teardown(&observed), []);
}

#[test]
fn named_peer_waits_for_its_address() {
    let mut named = node("node-2", 2);
    named.address = "two.example:7001".to_owned();
    let state = state(&[node("node-1", 1), named]);
    let wanted = wanted_of(&state, "node-1", 51820).unwrap();
    let (peers, unresolved) = resolve_peers(&wanted, &BTreeMap::new());
    assert_eq!((peers, unresolved), (Vec::new(), vec!["two.example"]));
    let resolved = BTreeMap::from([("two.example".to_owned(), Ipv4Addr::new(192, 0, 2, 2))]);
    let (peers, unresolved) = resolve_peers(&wanted, &resolved);
    assert_eq!(peers[0].endpoint, "192.0.2.2:51820".parse().unwrap());
    assert!(unresolved.is_empty());
}

/// Any mesh of up to six hosts, of which the first is this node.
fn meshes() -> impl Strategy<Value = Wanted> {
    prop::collection::btree_map("[a-f]", 0..8_u8, 0..6).prop_map(|hosts| {
        let mut nodes = vec![node("self", 3)];
        let mut blocks = Vec::new();
        for (at, (host, third)) in hosts.iter().enumerate() {
            nodes.push(node(host, i64::try_from(at).unwrap()));
            blocks.push((host.as_str(), format!("10.244.{third}.0/24")));
        }
        let mut state = state(&nodes);
        for (host, block) in &blocks {
            allocate(&mut state, host, block);
        }
        wanted_of(&state, "self", 51820).unwrap()
    })
}

fn worlds() -> impl Strategy<Value = Observed> {
    let routes = prop::collection::btree_map((0..8_u8, 0..2_u32), prop::option::of(0..9_u8), 0..6);
    let addresses = prop::collection::btree_set(0..9_u8, 0..3);
    let device = (any::<bool>(), addresses, routes).prop_map(|(up, addresses, routes)| {
        let mesh = |octet| Ipv4Addr::new(10, 99, 0, octet);
        DeviceState {
            up,
            addresses: addresses.into_iter().map(mesh).collect(),
            routes: routes
                .into_iter()
                .map(|((third, metric), source)| DeviceRoute {
                    to: Cidr::aligned(u32::from_be_bytes([10, 244, third, 0]), 24),
                    source: source.map(mesh),
                    metric,
                })
                .collect(),
            peers: Vec::new(),
            altered: up,
        }
    });
    let blackholes = prop::collection::btree_set(0..8_u8, 0..6);
    (blackholes, prop::option::of(device)).prop_map(|(blackholes, device)| Observed {
        foreign: BTreeSet::new(),
        blackholes: blackholes
            .into_iter()
            .map(|third| Cidr::aligned(u32::from_be_bytes([10, 244, third, 0]), 24))
            .collect(),
        device,
    })
}

proptest! {
    #[test]
    fn plan_leads_from_anything_to_the_wanted_mesh(
        meshes in prop::collection::vec(meshes(), 1..4),
        world in worlds(),
    ) {
        let mut observed = world;
        for wanted in &meshes {
            observed = converge(wanted, observed);
            let device = observed.device.as_ref().unwrap();
            prop_assert!(device.up && device.addresses.contains(&wanted.address));
            let routes: BTreeSet<Cidr> = device.routes.iter().map(|route| route.to).collect();
            prop_assert_eq!(routes, wanted.routes());
            prop_assert_eq!(&observed.blackholes, &wanted.blackholes);
            prop_assert_eq!(device.peers.len(), wanted.peers.len());
        }
    }

    #[test]
    fn no_step_opens_a_way_around_the_device(wanted in meshes(), world in worlds()) {
        let mut observed = world;
        let mut covered = false;
        for step in steps(&wanted, &observed) {
            covered |= !matches!(step, Step::AddBlackhole(_));
            apply(&mut observed, step);
            // From the first other step on the blocks and nodes are covered.
            prop_assert!(!covered || observed.blackholes.is_superset(&wanted.blackholes));
        }
    }
}
