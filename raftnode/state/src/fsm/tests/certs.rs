use super::*;

fn lock(name: &str, lessee: &str, until: i64) -> Payload {
    Payload::CertLock(v1::CertLock {
        name: name.into(),
        lessee: lessee.into(),
        until: Some(at(until)),
    })
}

fn unlock(name: &str) -> Payload {
    Payload::CertUnlock(v1::CertUnlock { name: name.into() })
}

fn challenge(token: &str, expires_at: i64) -> Payload {
    Payload::ChallengeTokenStore(v1::ChallengeTokenStore {
        token: Some(v1::ChallengeToken {
            token: token.into(),
            domain: "a.example".into(),
            key_auth: "secret".into(),
            expires_at: Some(at(expires_at)),
        }),
    })
}

#[test]
fn lock_has_one_holder_until_expiry_or_release() {
    let mut test = TestState::new();
    test.ok(lock("x", "a", START + 300));
    let error = test.rejected(lock("x", "b", START + 300), ErrorCode::RaftApplyFailed);
    assert_eq!(
        error.details["reason"],
        super::super::reject::CERT_LOCK_HELD
    );
    assert_eq!(error.details["lessee"], "a");
    test.ok(lock("x", "a", START + 500));
    assert_eq!(test.state.certs["x"].lock_until, Some(at(START + 500)));

    test.now = START + 499;
    test.rejected(lock("x", "b", START + 900), ErrorCode::RaftApplyFailed);
    test.now = START + 500;
    let applied = test.ok(lock("x", "b", START + 900));
    assert_eq!(kinds(&applied), ["updated certs"]);
    assert_eq!(test.state.certs["x"].lessee, "b");

    test.ok(unlock("x"));
    let cert = test.state.certs["x"].clone();
    assert_eq!((cert.lessee.as_str(), cert.lock_until), ("", None));
    test.no_change(unlock("nothing"));
    test.ok(lock("x", "a", START + 900));
    test.rejected(lock("x", "", START + 900), ErrorCode::ValidationFailed);
    test.rejected(lock("", "a", START + 900), ErrorCode::ValidationFailed);
}

#[test]
fn locking_removes_unused_rows() {
    let mut test = TestState::new();
    for name in ["expired", "held", "released"] {
        test.ok(lock(name, "a", START + 300));
    }
    test.ok(lock("held", "a", START + 900));
    test.ok(unlock("released"));
    test.now = START + 301;
    test.ok(lock("new", "b", START + 600));
    assert!(test.state.certs.keys().eq(["held", "new"]));
}

#[test]
fn storing_a_challenge_removes_expired_ones() {
    let mut test = TestState::new();
    test.ok(challenge("one", START + 600));
    test.ok(challenge("two", START + 700));
    test.now = START + 600;
    test.ok(challenge("three", START + 1200));
    assert_eq!(test.state.challenge_tokens.len(), 3);
    test.now = START + 601;
    test.ok(challenge("four", START + 1200));
    assert!(
        test.state
            .challenge_tokens
            .keys()
            .eq(["four", "three", "two"])
    );
    test.rejected(
        Payload::ChallengeTokenStore(v1::ChallengeTokenStore { token: None }),
        ErrorCode::ValidationFailed,
    );
    test.rejected(challenge("", START), ErrorCode::ValidationFailed);
}

#[test]
fn stored_blobs_get_a_timestamp_and_need_key() {
    let mut test = TestState::new();
    let upsert = |key: &str, updated_at| {
        Payload::CertBlobUpsert(v1::CertBlobUpsert {
            blob: Some(v1::CertBlob {
                key: key.into(),
                value: b"pem".to_vec(),
                updated_at,
            }),
        })
    };
    let applied = test.ok(upsert("acme/key", None));
    assert_eq!(applied.events, [], "the store cannot be watched");
    assert_eq!(
        test.state.cert_blobs["acme/key"].updated_at,
        Some(at(START))
    );
    test.ok(upsert("acme/key", Some(at(5))));
    assert_eq!(test.state.cert_blobs["acme/key"].updated_at, Some(at(5)));
    test.no_change(upsert("", None));
    let missing = Payload::CertBlobUpsert(v1::CertBlobUpsert { blob: None });
    test.rejected(missing, ErrorCode::ValidationFailed);

    let remove = Payload::CertBlobRemove(v1::CertBlobRemove {
        key: "acme/key".into(),
    });
    test.ok(remove.clone());
    assert!(test.state.cert_blobs.is_empty());
    test.no_change(remove);
}
