use std::sync::Arc;

use jaco_engine::fake::networks::{Event, FakeNetworks};

use super::*;

fn wanted(deployment: &str, network: &str, cidr: &str) -> DesiredNetwork {
    DesiredNetwork {
        id: NetworkId::new(deployment, network),
        cluster_id: "c1".into(),
        cidr: cidr.parse().unwrap(),
    }
}

/// Network `wanted` as an engine reports it after creation.
fn shown(wanted: &DesiredNetwork, id: &str) -> EngineNetwork {
    EngineNetwork {
        id: id.into(),
        name: wanted.id.engine_name(),
        labels: labels(wanted),
        subnets: vec![wanted.cidr.to_string()],
        bridge: Some(wanted.id.bridge_name()),
    }
}

fn replacing(plan: Result<Plan, Error>) -> (Vec<String>, NetworkSpec) {
    match plan.unwrap() {
        Plan::Replace { remove, create } => {
            (remove.into_iter().map(|old| old.id).collect(), create)
        }
        Plan::Reuse => panic!("reused"),
    }
}

#[test]
fn missing_network_is_created_with_wanted_settings() {
    let (remove, create) = replacing(plan(&wanted("web", "default", "10.244.3.0/24"), &[]));
    assert!(remove.is_empty());
    assert_eq!(create.name, "jaco_web__default");
    assert_eq!(create.bridge, "jaco-ca84-9e74");
    assert_eq!(create.mtu, 1420);
    assert_eq!(create.cidr.to_string(), "10.244.3.0/24");
    let labels: Vec<_> = create
        .labels
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        labels,
        [
            ("jaco.cluster_id", "c1"),
            ("jaco.deployment", "web"),
            ("jaco.network", "_default"),
            ("jaco.subnet", "10.244.3.0/24"),
        ]
    );
}

#[test]
fn matching_network_is_reused() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    assert_eq!(plan(&wanted, &[shown(&wanted, "n1")]), Ok(Plan::Reuse));
}

#[test]
fn network_without_own_labels_is_foreign() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    for missing in [LABEL_DEPLOYMENT, LABEL_NETWORK] {
        let mut found = shown(&wanted, "n1");
        found.labels.remove(missing);
        assert_eq!(
            plan(&wanted, &[found]),
            Err(Error::Foreign("jaco_web_front".into()))
        );
    }
}

#[test]
fn network_of_another_deployment_is_a_name_conflict() {
    let other = wanted("a_b", "c", "10.244.0.0/24");
    let error = plan(&wanted("a", "b_c", "10.244.0.0/24"), &[shown(&other, "n1")]).unwrap_err();
    assert_eq!(
        error,
        Error::NameConflict {
            name: "jaco_a_b_c".into(),
            owner: other.id
        }
    );
    assert!(error.to_string().contains("network_name_conflict"));
}

#[test]
fn live_subnet_decides_not_the_label() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    let mut moved = shown(&wanted, "n1");
    moved.subnets = vec!["10.244.9.0/24".into()];
    assert_eq!(replacing(plan(&wanted, &[moved])).0, ["n1"]);
    let mut unlabelled = shown(&wanted, "n1");
    unlabelled.labels.remove(LABEL_SUBNET);
    assert_eq!(plan(&wanted, &[unlabelled]), Ok(Plan::Reuse));
}

#[test]
fn network_of_another_cluster_is_replaced() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    let mut old = shown(&wanted, "n1");
    old.labels.insert(LABEL_CLUSTER.into(), "c0".into());
    assert_eq!(replacing(plan(&wanted, &[old])).0, ["n1"]);
}

#[test]
fn duplicate_networks_are_both_replaced() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    let twins = [shown(&wanted, "n1"), shown(&wanted, "n2")];
    assert_eq!(replacing(plan(&wanted, &twins)).0, ["n1", "n2"]);
}

#[test]
fn taken_bridge_name_falls_back_to_longer_hash() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    let mut taker = EngineNetwork {
        name: "something".into(),
        bridge: Some(wanted.id.bridge_name()),
        ..Default::default()
    };
    let create = replacing(plan(&wanted, std::slice::from_ref(&taker))).1;
    assert_eq!(create.bridge, wanted.id.fallback_bridge_name());
    let first = taker.clone();
    taker.bridge = Some(wanted.id.fallback_bridge_name());
    assert!(matches!(
        plan(&wanted, &[first, taker]),
        Err(Error::NoBridgeName(..))
    ));
}

#[tokio::test]
async fn replacing_network_removes_its_containers() {
    let fake = FakeNetworks::default();
    let wanted = wanted("web", "front", "10.244.0.0/24");
    let mut old = shown(&wanted, "old");
    old.subnets = vec!["10.244.9.0/24".into()];
    fake.put(old);
    fake.attach("jaco_web_front", "web-0");
    let engine: SharedEngine = Arc::new(fake.clone());

    let ready = ensure(&engine, &wanted).await.unwrap();
    assert_eq!(ready.engine_network, "jaco_web_front");
    assert_eq!(ready.gateway.to_string(), "10.244.0.1");
    let done = [
        Event::Evicted("web-0".into()),
        Event::Removed("old".into()),
        Event::Created("jaco_web_front".into()),
    ];
    assert_eq!(fake.events(), done);
    assert_eq!(ensure(&engine, &wanted).await, Ok(ready));
    assert_eq!(fake.events(), done, "ensuring is idempotent");
}

#[tokio::test]
async fn interrupted_replacement_is_resumed() {
    for calls in 0..5 {
        let fake = FakeNetworks::default();
        let wanted = wanted("web", "front", "10.244.0.0/24");
        let mut old = shown(&wanted, "old");
        old.subnets = vec!["10.244.9.0/24".into()];
        fake.put(old);
        fake.attach("jaco_web_front", "web-0");
        let engine: SharedEngine = Arc::new(fake.clone());
        fake.fail_after(calls);
        let error = ensure(&engine, &wanted).await.unwrap_err();
        assert!(matches!(error, Error::Engine(EngineError::Unreachable(_))));
        ensure(&engine, &wanted).await.unwrap();
        assert_eq!(fake.networks()[0].subnets, ["10.244.0.0/24"]);
    }
}

#[tokio::test]
async fn removal_spares_used_and_foreign_networks() {
    let fake = FakeNetworks::default();
    let engine: SharedEngine = Arc::new(fake.clone());
    let ours = wanted("web", "front", "10.244.0.0/24");
    let foreign = EngineNetwork {
        name: "jaco_web_back".into(),
        ..Default::default()
    };
    let mut other_cluster = shown(&wanted("api", "front", "10.244.1.0/24"), "n2");
    other_cluster
        .labels
        .insert(LABEL_CLUSTER.into(), "c0".into());
    fake.put(shown(&ours, "n1"));
    fake.put(foreign);
    fake.put(other_cluster);

    fake.attach("jaco_web_front", "web-0");
    assert_eq!(remove(&engine, "c1", &ours.id).await, Ok(Removal::InUse));
    fake.detach_all();
    assert_eq!(remove(&engine, "c1", &ours.id).await, Ok(Removal::Gone));
    for network in [
        NetworkId::new("web", "back"),
        NetworkId::new("api", "front"),
    ] {
        assert_eq!(remove(&engine, "c1", &network).await, Ok(Removal::Gone));
    }
    assert_eq!(fake.names(), ["jaco_web_back", "jaco_api_front"]);
}
