use super::*;

fn set(key_id: &str, replaces: &str) -> Payload {
    Payload::SecretsKeySet(v1::SecretsKeySet {
        key_id: key_id.into(),
        replaces: replaces.into(),
    })
}

fn event(action: &str, key_id: &str) -> Vec<Audit> {
    let payload = [("action", action), ("key_id", key_id)];
    audit(AuditEventType::SecretsKey, &payload)
}

#[test]
fn first_key_is_named_once() {
    let mut test = TestState::new();
    test.rejected(set("k1", ""), ErrorCode::ValidationFailed);
    test.cluster();
    let applied = test.ok(set("k1", ""));
    assert_eq!(audits(&applied), event("made", "k1"));
    let error = test.rejected(set("k2", ""), ErrorCode::RaftApplyFailed);
    assert_eq!(error.details["reason"], reject::SECRETS_KEY_CHANGED);
    assert_eq!(error.details["key_id"], "k1");
    test.no_change(set("k1", ""));
    let cluster = test.state.cluster.as_ref().unwrap();
    assert_eq!(cluster.secrets_key_id, "k1");
    assert_eq!(cluster.cluster_id, "c-1");
}

#[test]
fn only_the_expected_key_is_replaced() {
    let mut test = TestState::new();
    test.cluster();
    test.ok(set("k1", ""));
    test.rejected(set("k3", "k2"), ErrorCode::RaftApplyFailed);
    let applied = test.ok(set("k2", "k1"));
    assert_eq!(audits(&applied), event("rotated", "k2"));
    test.rejected(set("k3", "k1"), ErrorCode::RaftApplyFailed);
    test.rejected(set("", "k2"), ErrorCode::ValidationFailed);
}
