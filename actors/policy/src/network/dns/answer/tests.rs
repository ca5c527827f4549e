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
    for (deployment, network, cidr) in [
        ("shop", "front", "10.244.0.0/24"),
        ("blog", "_default", "10.244.9.0/24"),
    ] {
        let row = v1::Subnet {
            deployment: deployment.to_owned(),
            network: network.to_owned(),
            host: "here".to_owned(),
            cidr: cidr.to_owned(),
            ..Default::default()
        };
        let key = (
            row.deployment.clone(),
            row.network.clone(),
            row.host.clone(),
        );
        state.subnets.insert(key, Arc::new(row));
    }
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
        ("back", RecordType::A, "here", Decision::Elsewhere),
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
        ("www.example", RecordType::AXFR, "here", Decision::Refused),
    ] {
        assert_eq!(
            decided(name, kind, here, "10.244.0.9"),
            expected,
            "{name} {kind}"
        );
    }
}

#[test]
fn clients_of_other_networks_are_refused() {
    for (client, refused) in [
        ("10.244.9.7", true),
        ("::ffff:10.244.9.7", true),
        ("10.244.0.7", false),
        ("192.0.2.1", false),
        ("fd00::7", false),
    ] {
        for name in ["web", "www.example"] {
            let decision = decided(name, RecordType::A, "here", client);
            assert_eq!(decision == Decision::Refused, refused, "{client}");
        }
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
