use std::{collections::BTreeSet, sync::Arc};

use hickory_proto::rr::RecordType;
use jaco_proto::v1;
use jaco_state::State;

use super::*;
use crate::{
    ingress::table::testing::{add_replica, state_with_route},
    network::dns::{
        message::Transport,
        testing::{query, request},
    },
};

fn state() -> State {
    let mut state = state_with_route();
    let mut shop = v1::Deployment::clone(&state.deployments["shop"]);
    for (name, network) in [("api", "front"), ("back", "back")] {
        shop.services.push(v1::ServiceSpec {
            name: name.to_owned(),
            networks: vec![network.to_owned()],
            ..Default::default()
        });
    }
    state.deployments.insert("shop".to_owned(), Arc::new(shop));
    add_replica(&mut state, "shop-web-0", "here", "10.244.0.2");
    add_replica(&mut state, "shop-web-1", "there", "10.244.1.2");
    state
}

fn decided(name: &str, kind: RecordType, here: &str, client: &str) -> Decision {
    let records = Records::of(&state());
    let scope = NetworkId::new("shop", "front");
    let request = request(&query(name, kind), Transport::Udp);
    decide(
        &records,
        &scope,
        here,
        |_| true,
        client.parse().unwrap(),
        &request,
    )
}

#[test]
fn internal_networks_resolve_only_their_names() {
    let mut state = state();
    let shop = Arc::make_mut(state.deployments.get_mut("shop").unwrap());
    shop.networks.push(v1::NetworkSpec {
        name: "front".to_owned(),
        internal: true,
    });
    let mut records = Records::of(&State::default());
    records.update(&State::default(), &state);
    let client = "10.244.0.9".parse().unwrap();
    let decided = |records: &Records, network: &str, name: &str| {
        let scope = NetworkId::new("shop", network);
        let request = request(&query(name, RecordType::A), Transport::Udp);
        decide(records, &scope, "here", |_| true, client, &request)
    };
    assert_eq!(decided(&records, "front", "example.org"), Decision::Refused);
    assert_eq!(decided(&records, "back", "example.org"), Decision::Forward);
    assert!(matches!(
        decided(&records, "front", "web"),
        Decision::Addresses(_)
    ));
    let mut open = state.clone();
    Arc::make_mut(open.deployments.get_mut("shop").unwrap())
        .networks
        .clear();
    records.update(&state, &open);
    assert_eq!(decided(&records, "front", "example.org"), Decision::Forward);
}

#[test]
fn names_are_answered_by_scope_and_type() {
    let addresses = |last: &[[u8; 4]]| {
        Decision::Addresses(last.iter().map(|octets| Ipv4Addr::from(*octets)).collect())
    };
    for (name, kind, here, expected) in [
        ("web", RecordType::A, "here", addresses(&[[10, 244, 0, 2]])),
        (
            "WEB.shop",
            RecordType::A,
            "elsewhere",
            addresses(&[[10, 244, 0, 2], [10, 244, 1, 2]]),
        ),
        ("web", RecordType::AAAA, "here", Decision::NoData),
        ("web", RecordType::Unknown(65_000), "here", Decision::NoData),
        ("db", RecordType::A, "here", Decision::NxDomain),
        ("api", RecordType::A, "here", Decision::NxDomain),
        ("back", RecordType::A, "here", Decision::NxDomain),
        (
            "db.jaco.internal",
            RecordType::AAAA,
            "here",
            Decision::NxDomain,
        ),
        (
            "web.blog.jaco.internal",
            RecordType::A,
            "here",
            Decision::NxDomain,
        ),
        ("web.blog", RecordType::A, "here", Decision::Forward),
        ("www.example", RecordType::MX, "here", Decision::Forward),
        ("example", RecordType::A, "here", Decision::NxDomain),
        ("example.shop", RecordType::A, "here", Decision::Forward),
        ("www.example", RecordType::AXFR, "here", Decision::Refused),
    ] {
        assert_eq!(
            decided(name, kind, here, "10.244.0.9"),
            expected,
            "{name} {kind}"
        );
    }
}

/// A shop with service `both` on networks `front` and `back`, `web` on `front`, `db` on `back`,
/// and `far` on network `far`.
fn two_networks() -> State {
    let mut state = state();
    let mut shop = v1::Deployment::clone(&state.deployments["shop"]);
    for (name, networks) in [
        ("both", &["front", "back"][..]),
        ("db", &["back"]),
        ("far", &["far"]),
    ] {
        shop.services.push(v1::ServiceSpec {
            name: name.to_owned(),
            networks: networks.iter().map(|name| (*name).to_owned()).collect(),
            ..Default::default()
        });
    }
    state.deployments.insert("shop".to_owned(), Arc::new(shop));
    for (id, service, addresses) in [
        (
            "both-0",
            "both",
            &[("front", "10.1.0.4"), ("back", "10.2.0.4")][..],
        ),
        ("db-0", "db", &[("back", "10.2.0.5")]),
        ("far-0", "far", &[("far", "10.3.0.6")]),
        ("web-9", "web", &[("front", "10.1.0.7")]),
    ] {
        add_replica(&mut state, id, "here", "");
        let mut row = v1::ReplicaDesired::clone(&state.replicas_desired[id]);
        row.service = service.to_owned();
        state.replicas_desired.insert(id.to_owned(), Arc::new(row));
        let mut seen = v1::ReplicaObserved::clone(&state.replicas_observed[id]);
        let detail =
            |(network, ip): &(&str, &str)| (format!("ip.jaco_shop_{network}"), (*ip).to_owned());
        seen.details = addresses.iter().map(detail).collect();
        state
            .replicas_observed
            .insert(id.to_owned(), Arc::new(seen));
    }
    state
}

/// Decision of the responders of a client's networks in turn, as a resolver asks them: that of the
/// first one that does not refuse.
fn resolved(state: &State, client: &[(&str, &str)], name: &str) -> Decision {
    let records = Records::of(state);
    let request = request(&query(name, RecordType::A), Transport::Udp);
    let mut last = Decision::Refused;
    for (network, address) in client {
        let scope = NetworkId::new("shop", *network);
        let client = address.parse().unwrap();
        last = decide(&records, &scope, "here", |_| true, client, &request);
        if last != Decision::Refused {
            break;
        }
    }
    last
}

#[test]
fn names_of_both_networks_of_a_container_resolve() {
    let state = two_networks();
    let both = [("front", "10.1.0.4"), ("back", "10.2.0.4")];
    let swapped = [both[1], both[0]];
    for client in [both, swapped] {
        let found = |name: &str| resolved(&state, &client, name);
        assert_eq!(found("db"), Decision::Addresses(vec![[10, 2, 0, 5].into()]));
        assert!(matches!(found("web.shop"), Decision::Addresses(_)));
        assert_eq!(found("far"), Decision::NxDomain);
        assert_eq!(found("nothing"), Decision::NxDomain);
    }
}

#[test]
fn names_of_other_networks_are_denied() {
    let state = two_networks();
    for name in ["db", "far", "db.shop.jaco.internal"] {
        let found = resolved(&state, &[("front", "10.1.0.7")], name);
        assert_eq!(found, Decision::NxDomain, "{name}");
    }
    let mut stopped = two_networks();
    let mut seen = v1::ReplicaObserved::clone(&stopped.replicas_observed["both-0"]);
    seen.details
        .insert("ip.jaco_shop_front".to_owned(), "10.1.0.7".to_owned());
    seen.set_state(v1::ReplicaState::Stopped);
    stopped
        .replicas_observed
        .insert("both-0".to_owned(), Arc::new(seen));
    let found = resolved(&stopped, &[("front", "10.1.0.7")], "db");
    assert_eq!(
        found,
        Decision::NxDomain,
        "an address of a stopped container"
    );
}

#[test]
fn unobserved_container_is_sent_on() {
    let state = two_networks();
    for (name, expected) in [
        ("db", Decision::Refused),
        ("far", Decision::NxDomain),
        ("nothing", Decision::NxDomain),
    ] {
        let found = resolved(&state, &[("front", "10.1.0.99")], name);
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn clients_are_in_the_block_or_local() {
    let block = "10.244.0.16/28".parse().unwrap();
    for (source, expected) in [
        ("10.244.0.17", true),
        ("10.244.0.31", true),
        ("::ffff:10.244.0.18", true),
        ("127.0.0.1", true),
        ("10.244.0.32", false),
        ("10.244.0.15", false),
        ("10.99.0.7", false),
        ("192.0.2.1", false),
        ("fd00::7", false),
        ("::1", false),
    ] {
        let client = is_client(block, source.parse().unwrap());
        assert_eq!(client.is_some(), expected, "{source}");
    }
}

#[test]
fn shuffled_addresses_are_the_same_set() {
    let all: Vec<_> = (0..7).map(|n| Ipv4Addr::new(10, 0, 0, n)).collect();
    let mut firsts = BTreeSet::new();
    for seed in 0..500 {
        let mut shuffled = all.clone();
        shuffle(&mut shuffled, seed);
        firsts.insert(shuffled[0]);
        shuffled.sort();
        assert_eq!(shuffled, all);
    }
    assert_eq!(
        firsts.len(),
        all.len(),
        "every address comes first sometimes"
    );
}
