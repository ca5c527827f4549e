//! Orders at pebble, the test server of Let's Encrypt, which refuses some nonces by default. It
//! validates over loopback: pebble-challtestsrv resolves every name to the address of the test.

#![expect(clippy::unwrap_used, reason = "the lab fails the test")]

#[path = "acme/front.rs"]
mod front;
#[path = "acme/lab.rs"]
mod lab;
#[path = "acme/tunnel.rs"]
mod tunnel;

use std::time::{Duration, SystemTime};

use front::{ASK_AGAIN, Front, Renewals};
use jaco_net::acme::{Account, Class, Directory, ProxySettings, inspect};
use jaco_proto::secret::SecretBytes;
use lab::{DIRECTORY_PORT, Pebble, Responder};
use tunnel::TunnelProxy;

#[tokio::test]
async fn orders_succeed_although_nonces_are_refused() {
    let pebble = Pebble::start(&[("PEBBLE_WFE_NONCEREJECT", "20")]).await;
    let directory = pebble.directory();
    let responder = Responder::start(&pebble).await;
    let (account, credentials) = Account::create(&directory, "ops@example.org")
        .await
        .unwrap();
    let first = account
        .order("a.example.org", None, responder.publish())
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
            .order("a.example.org", None, responder.publish())
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
        let issued = account
            .order(domain, None, responder.publish())
            .await
            .unwrap();
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
        .order("a.example.org", None, |_| async { Ok(()) })
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
    let error = account
        .order("a.example.org", None, wrong)
        .await
        .unwrap_err();
    assert_eq!(error.class, Class::Validation, "{error}");
    let key_auth = challenge.unwrap().key_auth;
    let thumbprint = key_auth.expose().rsplit('.').next().unwrap();
    assert!(!error.reason.contains(thumbprint), "{error}");
    // The response could not be published.
    let failing = |_| async { Err("no quorum".to_owned()) };
    let error = account
        .order("a.example.org", None, failing)
        .await
        .unwrap_err();
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
        .order("a.example.org", None, |_| async { Ok(()) })
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
        .order("a.example.org", None, responder.publish())
        .await
        .unwrap();
    let facts = inspect("a.example.org", &issued.chain_pem, &issued.key_pem).unwrap();
    let lifetime = facts.not_after.duration_since(facts.not_before).unwrap();
    assert!((80..=100).contains(&lifetime.as_secs()), "{lifetime:?}");
}

#[tokio::test]
async fn renewal_names_the_certificate_it_replaces() {
    let refused = Renewals::Refused("alreadyReplaced", 409);
    let unknown = Renewals::Refused("malformed", 404);
    let table = [
        (Renewals::Confirmed, 1),
        (Renewals::Ignored, 2),
        (refused, 2),
        (unknown, 2),
    ];
    for (renewals, expected) in table {
        let pebble = Pebble::start(&[("PEBBLE_WFE_NONCEREJECT", "0")]).await;
        let front = Front::start(&pebble, renewals).await;
        let responder = Responder::start(&pebble).await;
        let (account, _) = Account::create(front.directory(), "").await.unwrap();
        let first = account
            .order("a.example.org", None, responder.publish())
            .await
            .unwrap();
        assert_eq!(front.orders(), [None], "{renewals:?}");
        let chain = Some(first.chain_pem.as_str());
        let second = account
            .order("a.example.org", chain, responder.publish())
            .await
            .unwrap();
        assert_ne!(second.chain_pem, first.chain_pem);
        let orders = front.orders();
        assert_eq!(orders.len(), expected, "{renewals:?}: {orders:?}");
        let named = orders[0].as_deref().unwrap();
        assert_eq!(named.split('.').count(), 2, "key identifier and serial");
        assert!(orders[1..].iter().all(Option::is_none), "{orders:?}");
        let info = account.renewal_info(&first.chain_pem).await.unwrap();
        let info = info.unwrap();
        let length = info.end.duration_since(info.start).unwrap();
        assert_eq!(length, Duration::from_secs(24 * 3600));
        // The engine rounds the time that has passed.
        assert!(info.retry_after.as_secs().abs_diff(ASK_AGAIN) <= 1);
    }
}

#[tokio::test]
async fn rate_limit_of_a_renewal_is_final() {
    let pebble = Pebble::start(&[("PEBBLE_WFE_NONCEREJECT", "0")]).await;
    let front = Front::start(&pebble, Renewals::Refused("rateLimited", 429)).await;
    let responder = Responder::start(&pebble).await;
    let (account, _) = Account::create(front.directory(), "").await.unwrap();
    let first = account
        .order("a.example.org", None, responder.publish())
        .await
        .unwrap();
    front.orders();
    let chain = Some(first.chain_pem.as_str());
    let error = account
        .order("a.example.org", chain, responder.publish())
        .await
        .unwrap_err();
    assert_eq!(error.class, Class::RateLimit, "{error}");
    assert_eq!(front.orders().len(), 1);
}

#[tokio::test]
async fn directory_without_renewal_information_gets_plain_orders() {
    let pebble = Pebble::start(&[]).await;
    let responder = Responder::start(&pebble).await;
    let (account, _) = Account::create(&pebble.directory(), "").await.unwrap();
    let mut chain = None;
    for _ in 0..2 {
        let replaces: Option<&str> = chain.as_deref();
        let issued = account
            .order("a.example.org", replaces, responder.publish())
            .await
            .unwrap();
        chain = Some(issued.chain_pem);
    }
    // Nor does a chain that does not parse hold up an order.
    account
        .order("a.example.org", Some("chain"), responder.publish())
        .await
        .unwrap();
}

/// Settings with a proxy, and the hosts that are reached without it.
fn proxied(proxy: &str, direct: &str) -> ProxySettings {
    let settings = ProxySettings::from_lookup(|name| match name {
        "HTTPS_PROXY" => Some(proxy.to_owned()),
        "NO_PROXY" => Some(direct.to_owned()),
        _ => None,
    });
    settings.unwrap()
}

#[tokio::test]
async fn directory_is_reached_through_the_proxy() {
    let pebble = Pebble::start(&[]).await;
    let responder = Responder::start(&pebble).await;
    let proxy = TunnelProxy::start("200 Connection established").await;
    let address = format!("http://user:p%61ss@{}", proxy.address);
    let directory = pebble.directory().with_proxies(proxied(&address, ""));
    let (account, _) = Account::create(&directory, "").await.unwrap();
    account
        .order("a.example.org", None, responder.publish())
        .await
        .unwrap();
    let heads = proxy.heads();
    assert!(!heads.is_empty());
    let target = format!("{}:{DIRECTORY_PORT}", pebble.address);
    for head in &heads {
        assert!(
            head.starts_with(&format!("CONNECT {target} HTTP/1.1\r\n")),
            "{head}"
        );
        let head = head.to_lowercase();
        assert!(head.contains(&format!("\r\nhost: {target}\r\n")), "{head}");
        // user:pass
        let user = "proxy-authorization: basic dxnlcjpwyxnz\r\n";
        assert!(head.contains(user), "{head}");
    }

    // An exception is reached without it.
    let direct = proxied(&address, &pebble.address.to_string());
    let directory = pebble.directory().with_proxies(direct);
    Account::create(&directory, "").await.unwrap();
    assert_eq!(proxy.heads().len(), heads.len());
}

#[tokio::test]
async fn proxy_that_refuses_is_a_transient_failure() {
    let pebble = Pebble::start(&[]).await;
    let proxy = TunnelProxy::start("407 Proxy Authentication Required").await;
    let settings = proxied(&format!("http://user:secret@{}", proxy.address), "");
    let directory = pebble.directory().with_proxies(settings);
    let error = Account::create(&directory, "").await.err().unwrap();
    assert_eq!(error.class, Class::Transient);
    assert!(error.reason.contains("407"), "{error}");
    assert!(!error.reason.contains("secret"), "{error}");
}
