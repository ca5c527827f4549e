use super::*;

const DAY: i64 = 24 * 3600;

fn issue(identity: &str, hash: &[u8], allows_privileged: bool) -> Payload {
    Payload::TokenIssue(v1::TokenIssue {
        identity: identity.into(),
        hashed_secret: hash.to_vec(),
        allows_privileged,
    })
}

fn revoke(identity: &str) -> Payload {
    Payload::TokenRevoke(v1::TokenRevoke {
        identity: identity.into(),
    })
}

fn issue_join(hash: &[u8], expires_at: i64) -> Payload {
    Payload::JoinTokenIssue(v1::JoinTokenIssue {
        hashed_secret: hash.to_vec(),
        expires_at: Some(at(expires_at)),
    })
}

fn consume(hash: &[u8]) -> Payload {
    Payload::JoinTokenConsume(v1::JoinTokenConsume {
        hashed_secret: hash.to_vec(),
    })
}

fn credential(registry: &str, updated_at: Option<Timestamp>) -> Payload {
    Payload::RegistryCredentialUpsert(v1::RegistryCredentialUpsert {
        credential: Some(v1::RegistryCredential {
            registry: registry.into(),
            username: "me".into(),
            secret: b"secret".to_vec(),
            updated_at,
        }),
    })
}

fn forget(registry: &str) -> Payload {
    Payload::RegistryCredentialRemove(v1::RegistryCredentialRemove {
        registry: registry.into(),
    })
}

#[test]
fn token_is_issued_revoked_and_issued_again() {
    let mut test = TestState::new();
    let applied = test.ok(issue("ops", b"h1", true));
    let wanted = [("allows_privileged", "true"), ("identity", "ops")];
    assert_eq!(audits(&applied), audit(AuditEventType::TokenIssue, &wanted));
    test.now += 1;
    let applied = test.ok(revoke("ops"));
    assert_eq!(
        audits(&applied),
        audit(AuditEventType::TokenRevoke, &[("identity", "ops")])
    );
    assert_eq!(test.state.tokens["ops"].revoked_at, Some(at(START + 1)));

    test.ok(issue("ops", b"h2", false));
    let token = test.state.tokens["ops"].clone();
    assert_eq!(
        (token.hashed_secret.as_slice(), token.revoked_at),
        (&b"h2"[..], None)
    );
    assert!(!token.allows_privileged);

    let applied = test.ok(revoke("nobody"));
    assert_eq!(kinds(&applied), ["added audit"]);
}

#[test]
fn token_needs_identity_and_unique_hash() {
    let mut test = TestState::new();
    test.ok(issue("ops", b"h1", false));
    test.rejected(issue("dev", b"h1", false), ErrorCode::ValidationFailed);
    test.rejected(issue("dev", b"", false), ErrorCode::ValidationFailed);
    test.rejected(issue("", b"h2", false), ErrorCode::ValidationFailed);
}

#[test]
fn join_token_is_consumed_once() {
    let mut test = TestState::new();
    let applied = test.ok(issue_join(b"\x01\xab", START + DAY));
    assert_eq!(audits(&applied), []);
    assert!(test.state.join_tokens.contains_key("01ab"));
    test.rejected(
        issue_join(b"\x01\xab", START + DAY),
        ErrorCode::ValidationFailed,
    );
    test.rejected(issue_join(b"", START + DAY), ErrorCode::ValidationFailed);
    test.rejected(consume(b"other"), ErrorCode::JoinTokenInvalid);
    test.ok(consume(b"\x01\xab"));
    assert_eq!(test.state.join_tokens["01ab"].consumed_at, Some(at(START)));
    test.rejected(consume(b"\x01\xab"), ErrorCode::JoinTokenConsumed);
}

#[test]
fn join_token_expires_and_is_removed_after_week() {
    let mut test = TestState::new();
    test.ok(issue_join(b"old", START + 10));
    test.now = START + 10;
    let error = test.rejected(consume(b"old"), ErrorCode::JoinTokenExpired);
    assert_eq!(error.details["expires_at"], "1970-01-12T13:46:50Z");
    test.now = START + 10 + 7 * DAY;
    test.ok(issue_join(b"new", test.now + DAY));
    assert_eq!(test.state.join_tokens.len(), 2);
    test.now += 1;
    test.ok(issue_join(b"newer", test.now + DAY));
    assert!(
        !test
            .state
            .join_tokens
            .contains_key(&crate::state::join_token_key(b"old"))
    );
    assert_eq!(test.state.join_tokens.len(), 2);
}

#[test]
fn credentials_are_stored_by_canonical_key() {
    let mut test = TestState::new();
    let applied = test.ok(credential("https://Index.Docker.io/", None));
    let wanted = [("registry", "docker.io"), ("username", "me")];
    assert_eq!(
        audits(&applied),
        audit(AuditEventType::RegistryCredentialUpsert, &wanted)
    );
    assert_eq!(
        kinds(&applied),
        ["added audit"],
        "credentials cannot be watched"
    );
    assert_eq!(
        test.state.registry_credentials["docker.io"].updated_at,
        Some(at(START))
    );
    test.ok(credential("docker.io", Some(at(5))));
    assert_eq!(
        test.state.registry_credentials["docker.io"].updated_at,
        Some(at(5))
    );
    test.no_change(credential(" https:// ", None));

    for _ in 0..2 {
        let applied = test.ok(forget("registry-1.docker.io"));
        let wanted = audit(
            AuditEventType::RegistryCredentialRemove,
            &[("registry", "docker.io")],
        );
        assert_eq!(audits(&applied), wanted);
    }
    assert!(test.state.registry_credentials.is_empty());
}

#[test]
fn appended_audit_event_is_filled_from_its_command() {
    let mut test = TestState::new();
    let append = |event| Payload::AuditAppend(v1::AuditAppend { event });
    test.ok(append(Some(v1::AuditEvent {
        raft_index: 99,
        ordinal: 9,
        r#type: AuditEventType::BackupTaken.into(),
        ..Default::default()
    })));
    test.ok(append(Some(v1::AuditEvent {
        r#type: AuditEventType::UpgradeFailed.into(),
        identity: "system".into(),
        ts: Some(at(7)),
        payload: [("from".to_owned(), "1".to_owned())].into(),
        ..Default::default()
    })));
    let first = test.state.audit[&(1, 0)].clone();
    assert_eq!(
        (first.identity.as_str(), first.ts),
        ("tester", Some(at(START)))
    );
    let second = test.state.audit[&(2, 0)].clone();
    assert_eq!(
        (second.identity.as_str(), second.ts),
        ("system", Some(at(7)))
    );
    assert_eq!(second.payload["from"], "1");
    for kind in [0, 22, 999] {
        let event = v1::AuditEvent {
            r#type: kind,
            ..Default::default()
        };
        test.rejected(append(Some(event)), ErrorCode::ValidationFailed);
    }
    test.rejected(append(None), ErrorCode::ValidationFailed);
}
