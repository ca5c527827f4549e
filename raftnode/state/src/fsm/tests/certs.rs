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
    let mut world = World::new();
    world.ok(lock("x", "a", START + 300));
    let error = world.rejected(lock("x", "b", START + 300), ErrorCode::RaftApplyFailed);
    assert_eq!(
        error.details["reason"],
        super::super::reject::CERT_LOCK_HELD
    );
    assert_eq!(error.details["lessee"], "a");
    world.ok(lock("x", "a", START + 500));
    assert_eq!(world.state.certs["x"].lock_until, Some(at(START + 500)));

    world.now = START + 499;
    world.rejected(lock("x", "b", START + 900), ErrorCode::RaftApplyFailed);
    world.now = START + 500;
    let applied = world.ok(lock("x", "b", START + 900));
    assert_eq!(kinds(&applied), ["updated certs"]);
    assert_eq!(world.state.certs["x"].lessee, "b");

    world.ok(unlock("x"));
    let cert = world.state.certs["x"].clone();
    assert_eq!((cert.lessee.as_str(), cert.lock_until), ("", None));
    world.no_change(unlock("nothing"));
    world.ok(lock("x", "a", START + 900));
    world.rejected(lock("x", "", START + 900), ErrorCode::ValidationFailed);
    world.rejected(lock("", "a", START + 900), ErrorCode::ValidationFailed);
}

#[test]
fn locking_removes_unused_rows() {
    let mut world = World::new();
    for name in ["expired", "held", "released"] {
        world.ok(lock(name, "a", START + 300));
    }
    world.ok(lock("held", "a", START + 900));
    world.ok(unlock("released"));
    world.now = START + 301;
    world.ok(lock("new", "b", START + 600));
    assert!(world.state.certs.keys().eq(["held", "new"]));
}

#[test]
fn storing_a_challenge_removes_expired_ones() {
    let mut world = World::new();
    world.ok(challenge("one", START + 600));
    world.ok(challenge("two", START + 700));
    world.now = START + 600;
    world.ok(challenge("three", START + 1200));
    assert_eq!(world.state.challenge_tokens.len(), 3);
    world.now = START + 601;
    world.ok(challenge("four", START + 1200));
    assert!(
        world
            .state
            .challenge_tokens
            .keys()
            .eq(["four", "three", "two"])
    );
    world.rejected(
        Payload::ChallengeTokenStore(v1::ChallengeTokenStore { token: None }),
        ErrorCode::ValidationFailed,
    );
    world.rejected(challenge("", START), ErrorCode::ValidationFailed);
}

#[test]
fn stored_blobs_get_a_timestamp_and_need_key() {
    let mut world = World::new();
    let upsert = |key: &str, updated_at| {
        Payload::CertBlobUpsert(v1::CertBlobUpsert {
            blob: Some(v1::CertBlob {
                key: key.into(),
                value: b"pem".to_vec(),
                updated_at,
            }),
        })
    };
    let applied = world.ok(upsert("acme/key", None));
    assert_eq!(applied.events, [], "the store cannot be watched");
    assert_eq!(
        world.state.cert_blobs["acme/key"].updated_at,
        Some(at(START))
    );
    world.ok(upsert("acme/key", Some(at(5))));
    assert_eq!(world.state.cert_blobs["acme/key"].updated_at, Some(at(5)));
    world.no_change(upsert("", None));
    let missing = Payload::CertBlobUpsert(v1::CertBlobUpsert { blob: None });
    world.rejected(missing, ErrorCode::ValidationFailed);

    let remove = Payload::CertBlobRemove(v1::CertBlobRemove {
        key: "acme/key".into(),
    });
    world.ok(remove.clone());
    assert!(world.state.cert_blobs.is_empty());
    world.no_change(remove);
}
