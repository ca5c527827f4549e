//! Orders at pebble, the test server of Let's Encrypt, which refuses some nonces by default. It
//! validates over loopback: pebble-challtestsrv resolves every name to the address of the test.

#![expect(clippy::unwrap_used, reason = "the lab fails the test")]

#[path = "acme/lab.rs"]
mod lab;

use std::time::{Duration, SystemTime};

use jaco_net::acme::{Account, Class, Directory, inspect};
use jaco_proto::secret::SecretBytes;
use lab::{Pebble, Responder};

#[tokio::test]
async fn orders_succeed_although_nonces_are_refused() {
    let pebble = Pebble::start(&[("PEBBLE_WFE_NONCEREJECT", "20")]).await;
    let directory = pebble.directory();
    let responder = Responder::start(&pebble).await;
    let (account, credentials) = Account::create(&directory, "ops@example.org")
        .await
        .unwrap();
    let first = account
        .order("a.example.org", responder.publish())
        .await
        .unwrap();
    let facts = inspect("a.example.org", &first.chain_pem, &first.key_pem).unwrap();
    assert!(facts.covers);
    assert!(facts.not_after > SystemTime::now());
    assert!(
        first.chain_pem.matches("BEGIN CERTIFICATE").count() > 1,
        "with the issuer"
    );

    // The account is kept; each certificate has a key of its own.
    let reopened = Account::open(&directory, &credentials).await.unwrap();
    for _ in 0..3 {
        let again = reopened
            .order("a.example.org", responder.publish())
            .await
            .unwrap();
        assert_ne!(again.key_pem, first.key_pem);
    }
    let info = reopened.renewal_info(&first.chain_pem).await.unwrap();
    assert_eq!(info, None, "this pebble has no renewal information");
}

#[tokio::test]
async fn orders_succeed_with_default_settings() {
    let pebble = Pebble::start(&[]).await;
    let responder = Responder::start(&pebble).await;
    let (account, _) = Account::create(&pebble.directory(), "").await.unwrap();
    for domain in ["a.example.org", "b.example.org", "c.example.org"] {
        let issued = account.order(domain, responder.publish()).await.unwrap();
        let facts = inspect(domain, &issued.chain_pem, &issued.key_pem).unwrap();
        assert!(facts.covers, "{domain}");
    }
}

#[tokio::test]
async fn failed_validation_names_the_reason_without_secrets() {
    let pebble = Pebble::start(&[("PEBBLE_AUTHZREUSE", "0")]).await;
    let directory = pebble.directory();
    let (account, _) = Account::create(&directory, "").await.unwrap();
    // No program listens.
    let error = account
        .order("a.example.org", |_| async { Ok(()) })
        .await
        .unwrap_err();
    assert_eq!(error.class, Class::Validation, "{error}");
    // Another program answers.
    let responder = Responder::start(&pebble).await;
    let mut challenge = None;
    let wrong = |given: jaco_net::acme::Challenge| {
        responder.answer(&given.token, "something else");
        challenge = Some(given);
        async { Ok(()) }
    };
    let error = account.order("a.example.org", wrong).await.unwrap_err();
    assert_eq!(error.class, Class::Validation, "{error}");
    let key_auth = challenge.unwrap().key_auth;
    let thumbprint = key_auth.expose().rsplit('.').next().unwrap();
    assert!(!error.reason.contains(thumbprint), "{error}");
    // The response could not be published.
    let failing = |_| async { Err("no quorum".to_owned()) };
    let error = account.order("a.example.org", failing).await.unwrap_err();
    assert_eq!(error.class, Class::Transient);
    assert!(error.reason.contains("no quorum"));
}

#[tokio::test]
async fn absent_directory_is_a_transient_failure() {
    let pebble = Pebble::start(&[]).await;
    let directory = pebble.directory();
    let (_, credentials) = Account::create(&directory, "").await.unwrap();
    // A root that the directory's certificate does not verify under.
    let stranger = Directory::new(directory.url(), None);
    if let Ok(stranger) = stranger {
        let error = Account::create(&stranger, "").await.err().unwrap();
        assert_eq!(error.class, Class::Transient, "{error}");
    }
    let invalid = SecretBytes::new(b"{}".to_vec());
    let error = Account::open(&directory, &invalid).await.err().unwrap();
    assert!(error.account_lost);
    // A restarted pebble has forgotten its accounts.
    let pebble = pebble.restart().await;
    let account = Account::open(&directory, &credentials).await.unwrap();
    let error = account
        .order("a.example.org", |_| async { Ok(()) })
        .await
        .unwrap_err();
    assert!(error.account_lost, "{error}");
    drop(pebble);
    let error = Account::open(&directory, &credentials).await.err().unwrap();
    assert_eq!(error.class, Class::Transient, "{error}");
}

#[tokio::test]
async fn short_lived_certificate_has_its_lifetime() {
    let pebble = Pebble::start_with_validity(Duration::from_secs(90), &[]).await;
    let responder = Responder::start(&pebble).await;
    let (account, _) = Account::create(&pebble.directory(), "").await.unwrap();
    let issued = account
        .order("a.example.org", responder.publish())
        .await
        .unwrap();
    let facts = inspect("a.example.org", &issued.chain_pem, &issued.key_pem).unwrap();
    let lifetime = facts.not_after.duration_since(facts.not_before).unwrap();
    assert!((80..=100).contains(&lifetime.as_secs()), "{lifetime:?}");
}
