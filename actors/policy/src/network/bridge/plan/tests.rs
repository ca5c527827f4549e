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

fn interface(name: &str, address: [u8; 4]) -> Interface {
    Interface {
        name: name.into(),
        up: true,
        loopback: false,
        addresses: vec![address.into()],
    }
}

fn created(plan: Result<Plan, Error>) -> NetworkSpec {
    match plan.unwrap() {
        Plan::Create(spec) => spec,
        other => panic!("expected to create, not {other:?}"),
    }
}

fn removed(plan: Result<Plan, Error>) -> Vec<String> {
    match plan.unwrap() {
        Plan::Remove(old) => old.into_iter().map(|network| network.id).collect(),
        other => panic!("expected to remove, not {other:?}"),
    }
}

#[test]
fn missing_network_is_created_with_wanted_settings() {
    let create = created(plan(&wanted("web", "default", "10.244.3.0/24"), &[], &[]));
    assert_eq!(create.name, "jaco_web__default");
    assert_eq!(create.bridge, "jaco-ca84-9e74");
    assert_eq!(create.mtu, 1420);
    assert_eq!(create.cidr.to_string(), "10.244.3.0/24");
    let labels = create.labels.iter();
    let labels: Vec<_> = labels.map(|(k, v)| (k.as_str(), v.as_str())).collect();
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
    let found = shown(&wanted, "n1");
    let own_bridge = interface(&wanted.id.bridge_name(), [10, 244, 0, 1]);
    let plan = plan(&wanted, std::slice::from_ref(&found), &[own_bridge]);
    assert_eq!(plan, Ok(Plan::Reuse(found)));
}

#[test]
fn network_without_own_labels_is_foreign() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    for missing in [LABEL_DEPLOYMENT, LABEL_NETWORK] {
        let mut found = shown(&wanted, "n1");
        found.labels.remove(missing);
        let foreign = Err(Error::Foreign("jaco_web_front".into()));
        assert_eq!(plan(&wanted, &[found], &[]), foreign);
    }
}

#[test]
fn network_of_another_deployment_is_a_name_conflict() {
    let other = wanted("a_b", "c", "10.244.0.0/24");
    let mine = wanted("a", "b_c", "10.244.0.0/24");
    let error = plan(&mine, &[shown(&other, "n1")], &[]).unwrap_err();
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
    assert_eq!(removed(plan(&wanted, &[moved], &[])), ["n1"]);
    let mut unlabelled = shown(&wanted, "n1");
    unlabelled.labels.remove(LABEL_SUBNET);
    let reused = plan(&wanted, std::slice::from_ref(&unlabelled), &[]);
    assert_eq!(reused, Ok(Plan::Reuse(unlabelled)));
}

#[test]
fn networks_of_another_cluster_and_duplicates_are_removed() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    let mut old = shown(&wanted, "n1");
    old.labels.insert(LABEL_CLUSTER.into(), "c0".into());
    assert_eq!(removed(plan(&wanted, &[old], &[])), ["n1"]);
    let twins = [shown(&wanted, "n1"), shown(&wanted, "n2")];
    assert_eq!(removed(plan(&wanted, &twins, &[])), ["n1", "n2"]);
}

#[test]
fn bridge_name_of_network_or_interface_is_taken() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    let network = |bridge: String| EngineNetwork {
        name: "something".into(),
        bridge: Some(bridge),
        ..Default::default()
    };
    let (short, fallback) = (wanted.id.bridge_name(), wanted.id.fallback_bridge_name());
    let by_network = [network(short.clone())];
    let by_interface = [interface(&short, [192, 0, 2, 1])];
    for (networks, interfaces) in [(by_network.as_slice(), [].as_slice()), (&[], &by_interface)] {
        let create = created(plan(&wanted, networks, interfaces));
        assert_eq!(create.bridge, fallback);
        let both = [networks, &[network(fallback.clone())]].concat();
        let none_left = Err(Error::NoBridgeName(short.clone(), fallback.clone()));
        assert_eq!(plan(&wanted, &both, interfaces), none_left);
    }
}

#[test]
fn block_with_address_of_host_is_refused() {
    let wanted = wanted("web", "front", "10.244.0.0/24");
    let near = [
        interface("eth0", [10, 244, 1, 0]),
        interface("eth1", [10, 243, 255, 255]),
    ];
    created(plan(&wanted, &[], &near));
    let vpn = interface("vpn0", [10, 244, 0, 255]);
    let error = plan(&wanted, &[], &[vpn]).unwrap_err();
    assert!(error.to_string().contains("vpn0"), "{error}");
}
