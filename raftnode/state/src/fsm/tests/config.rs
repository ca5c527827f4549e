use super::*;

fn set(key: &str, value: &str) -> Payload {
    Payload::ClusterConfigSet(v1::ClusterConfigSet {
        key: key.into(),
        value: value.into(),
        unset: false,
    })
}

fn unset(key: &str) -> Payload {
    Payload::ClusterConfigSet(v1::ClusterConfigSet {
        key: key.into(),
        value: "ignored".into(),
        unset: true,
    })
}

fn changed(old: &str, new: &str) -> Vec<Audit> {
    let payload = [("key", "ingress.limits"), ("new", new), ("old", old)];
    audit(AuditEventType::ConfigChanged, &payload)
}

#[test]
fn key_is_set_changed_and_unset() {
    let mut test = TestState::new();
    let applied = test.ok(set("ingress.limits", "20,5,20"));
    assert_eq!(kinds(&applied), ["added cluster_config", "added audit"]);
    assert_eq!(audits(&applied), changed("", "20,5,20"));
    let row = v1::ClusterConfig {
        key: "ingress.limits".into(),
        value: "20,5,20".into(),
        updated_at: Some(at(START)),
        updated_by: "tester".into(),
    };
    assert_eq!(*test.state.cluster_config["ingress.limits"], row);

    test.now += 1;
    let applied = test.ok(set("ingress.limits", "off"));
    assert_eq!(audits(&applied), changed("20,5,20", "off"));
    let row = &test.state.cluster_config["ingress.limits"];
    assert_eq!(row.updated_at, Some(at(START + 1)));

    let applied = test.ok(unset("ingress.limits"));
    assert_eq!(kinds(&applied), ["removed cluster_config", "added audit"]);
    assert_eq!(audits(&applied), changed("off", ""));
    assert!(test.state.cluster_config.is_empty());
}

#[test]
fn setting_the_same_value_changes_nothing() {
    let mut test = TestState::new();
    test.no_change(unset("ingress.limits"));
    test.ok(set("ingress.limits", "off"));
    test.now += 1;
    test.no_change(set("ingress.limits", "off"));
}

#[test]
fn empty_value_is_not_the_default() {
    let mut test = TestState::new();
    test.ok(set("ingress.trusted_proxies", ""));
    assert_eq!(
        test.state.cluster_config["ingress.trusted_proxies"].value,
        ""
    );
}

#[test]
fn key_must_be_storable() {
    let mut test = TestState::new();
    test.rejected(set("", "x"), ErrorCode::ValidationFailed);
    test.rejected(unset(""), ErrorCode::ValidationFailed);
    test.rejected(set("a\0b", "x"), ErrorCode::ValidationFailed);
}
