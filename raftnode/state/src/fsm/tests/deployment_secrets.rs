use super::*;

fn deploy(revision: u64, secrets: &[&str]) -> Payload {
    Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "shop".into(),
        revision,
        services: vec![v1::ServiceSpec {
            name: "web".into(),
            secrets: secrets.iter().map(|&name| name.to_owned()).collect(),
            ..Default::default()
        }],
        ..Default::default()
    })
}

fn set(name: &str, version: u64, sealed: u8) -> Payload {
    Payload::SecretUpsert(v1::SecretUpsert {
        secret: Some(v1::Secret {
            deployment: "shop".into(),
            name: name.into(),
            version,
            sealed: vec![sealed],
            key_id: sealed.to_string(),
            ..Default::default()
        }),
    })
}

fn remove(name: &str) -> Payload {
    Payload::SecretRemove(v1::SecretRemove {
        deployment: "shop".into(),
        name: name.into(),
    })
}

fn stored(test: &TestState) -> Vec<(&str, u64, &[u8])> {
    let secrets = test.state.secrets_of("shop");
    secrets
        .map(|secret| (&*secret.name, secret.version, &*secret.sealed))
        .collect()
}

#[test]
fn newer_versions_replace_older_ones() {
    let mut test = TestState::new();
    test.ok(set("B", 1, 1));
    test.ok(set("A", 1, 2));
    test.ok(set("A", 2, 3));
    assert_eq!(stored(&test), [("A", 2, &[3][..]), ("B", 1, &[1])]);
    let error = test.rejected(set("A", 1, 9), ErrorCode::RaftApplyFailed);
    assert_eq!(error.details["reason"], "stale_version");
    for invalid in [set("A", 0, 1), set("", 1, 1)] {
        test.rejected(invalid, ErrorCode::ValidationFailed);
    }
}

#[test]
fn resealed_secret_keeps_version_and_author() {
    let mut test = TestState::new();
    test.ok(set("A", 1, 1));
    let before = test.state.secret("shop", "A").unwrap().clone();
    test.now += 60;
    let applied = test.ok(set("A", 1, 2));
    assert_eq!(kinds(&applied), [""; 0], "neither audited nor shown");
    let after = test.state.secret("shop", "A").unwrap();
    assert_eq!((&*after.sealed, &*after.key_id), (&[2][..], "2"));
    assert_eq!(after.updated_at, before.updated_at);
}

#[test]
fn apply_needs_a_value_for_each_secret() {
    let mut test = TestState::new();
    test.ok(set("A", 1, 1));
    let error = test.rejected(deploy(1, &["A", "B", "C"]), ErrorCode::SecretMissing);
    assert_eq!(error.details["names"], "B,C");
    test.ok(set("B", 1, 1));
    test.ok(deploy(1, &["A", "B"]));
}

#[test]
fn secrets_of_revisions_cannot_be_removed() {
    let mut test = TestState::new();
    test.rejected(remove("A"), ErrorCode::SecretNotFound);
    for name in ["A", "B"] {
        test.ok(set(name, 1, 1));
    }
    test.ok(deploy(1, &["A"]));
    test.ok(deploy(2, &["B"]));
    for name in ["A", "B"] {
        let error = test.rejected(remove(name), ErrorCode::ValidationFailed);
        assert_eq!(error.details["services"], "web");
    }
    test.ok(deploy(3, &["B"]));
    test.ok(remove("A"));
    test.ok(Payload::DeploymentDelete(v1::DeploymentDelete {
        deployment: "shop".into(),
    }));
    assert_eq!(stored(&test), []);
}

#[test]
fn deployment_has_a_limited_number_of_secrets() {
    let mut test = TestState::new();
    for number in 0..jaco_proto::manifest::MAX_SECRETS {
        test.ok(set(&format!("A{number}"), 1, 1));
    }
    test.ok(set("A7", 2, 1));
    let error = test.rejected(set("B", 1, 1), ErrorCode::ValidationFailed);
    assert_eq!(error.details["limit"], "200");
}

#[test]
fn digest_follows_the_versions_in_use() {
    let mut test = TestState::new();
    let service = |secrets: &[&str]| v1::ServiceSpec {
        secrets: secrets.iter().map(|&name| name.to_owned()).collect(),
        ..Default::default()
    };
    let digest = |test: &TestState, names: &[&str]| {
        let digest = test.state.secrets_version("shop", &service(names));
        assert_eq!(
            digest,
            test.state.clone().secrets_version("shop", &service(names))
        );
        digest
    };
    for name in ["A", "B"] {
        test.ok(set(name, 1, 1));
    }
    assert_eq!(digest(&test, &[]), 0);
    assert_eq!(digest(&test, &["A", "B"]), digest(&test, &["B", "A"]));
    let before = [&["A"][..], &["B"], &["A", "B"]].map(|names| digest(&test, names));
    test.ok(set("A", 2, 1));
    let after = [&["A"][..], &["B"], &["A", "B"]].map(|names| digest(&test, names));
    assert_ne!(before[0], after[0]);
    assert_eq!(before[1], after[1]);
    assert_ne!(before[2], after[2]);
    assert_ne!(after[0], after[2]);
    // Sealed anew it is the same; removed and set again it is another.
    test.now += 60;
    test.ok(set("B", 1, 9));
    assert_eq!(digest(&test, &["B"]), after[1]);
    test.ok(remove("B"));
    test.ok(set("B", 1, 1));
    assert_ne!(digest(&test, &["B"]), after[1]);
}
