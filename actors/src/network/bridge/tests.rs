use std::sync::Arc;

use jaco_engine::{
    fake::networks::{Event, FakeNetworks},
    labels::LABEL_CLUSTER,
};

use super::*;

async fn ensure(engine: &SharedEngine, wanted: &DesiredNetwork) -> Result<BridgeReady, Error> {
    super::ensure(engine, &|| Ok(Vec::new()), wanted).await
}

fn wanted(deployment: &str, network: &str, cidr: &str) -> DesiredNetwork {
    DesiredNetwork {
        id: NetworkId::new(deployment, network),
        cluster_id: "c1".into(),
        cidr: cidr.parse().unwrap(),
    }
}

/// Network `wanted` as an engine reports it after creation.
fn shown(wanted: &DesiredNetwork, id: &str) -> EngineNetwork {
    let Ok(Plan::Create(spec)) = plan(wanted, &[], &[]) else {
        panic!("nothing is in the way");
    };
    EngineNetwork {
        id: id.into(),
        name: spec.name,
        labels: spec.labels,
        subnets: vec![spec.cidr.to_string()],
        bridge: Some(spec.bridge),
    }
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
    for calls in 0..6 {
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
