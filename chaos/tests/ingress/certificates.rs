//! Issuance and renewal without faults of the cluster.

use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use jaco_chaos::{size, time_limits, until};
use jaco_net::acme::{Issued, inspect};
use jaco_policy::ingress::certificate::NEW_LEADER;
use jaco_proto::{
    secret::SecretString,
    v1::AuditEventType::{CertificateFailed, CertificateIssued, CertificateRenewed},
};

use crate::{
    authority::Mode,
    client::{self, Connection},
    fixture::{DOMAIN, LIMIT, NODES, Running, SERVED_WITHIN, Settings},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn staging_precedes_production_on_every_node() {
    let running = Running::start(Settings {
        config: "acme_email: ops@example.org\n",
        ..Settings::default()
    })
    .await;
    running.deploy().await;
    for node in 1..=NODES {
        let staged = || running.leaf(node, &running.staging);
        until("the staging certificate is served", LIMIT, staged)
            .await
            .unwrap();
    }
    let promoted = || running.leaf(1, &running.production);
    until("the first node serves the other", LIMIT, promoted)
        .await
        .unwrap();
    let first = Instant::now();
    running.promoted().await;
    let took = first.elapsed();
    time_limits::time("every node serves what one serves", took, SERVED_WITHIN).unwrap();

    let issued = |environment: &str| (CertificateIssued, environment.to_owned());
    assert_eq!(running.history().await, [issued("staging"), issued("prod")]);
    let counts = *running.authority.counts().borrow();
    assert_eq!((counts.staging, counts.production), (1, 1), "{counts:?}");
    let served = running.balancer.served();
    println!("validations by node: {served:?}");
    assert!(served.iter().all(|count| *count > 0), "{served:?}");

    let hub = running.lab.network().namespace();
    for node in running.lab.nodes() {
        let address = node.address();
        let plain = |path| client::get_plain(hub, address, DOMAIN, path);
        let redirect = plain("/a?b=c").await.unwrap();
        assert!(redirect.starts_with("HTTP/1.1 308"), "{redirect}");
        let location = format!("https://{DOMAIN}/a?b=c");
        assert!(redirect.contains(&location), "{redirect}");
        let challenge = plain("/.well-known/acme-challenge/unknown").await.unwrap();
        assert!(challenge.starts_with("HTTP/1.1 404"), "{challenge}");
        // No replica runs.
        let connection = Connection::open(hub, address, DOMAIN, &running.production).await;
        let answer = connection.unwrap().get(DOMAIN).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        let other = Connection::open(hub, address, "other.example.org", &running.production);
        let refused = other.await.err().unwrap();
        assert!(refused.contains("UnrecognisedName"), "{refused}");
        let status = node.api().deployments().await.unwrap();
        let rows = status.certs.iter();
        let rows: Vec<_> = rows.map(|row| (&*row.domain, &*row.environment)).collect();
        assert_eq!(rows, [(DOMAIN, "prod")]);
    }

    // Without a route nothing is served and nothing is kept.
    running.lab.node(1).api().delete("shop").await.unwrap();
    for node in 1..=NODES {
        until("the certificate is withdrawn", LIMIT, || async {
            let leaf = running.leaf(node, &running.production).await;
            leaf.err().map(drop).ok_or("it is served")
        })
        .await
        .unwrap();
        let cache = running.lab.node(node).path("data/ingress/cache");
        let is_empty = || async {
            let left = std::fs::read_dir(&cache).unwrap().count();
            (left == 0).then_some(()).ok_or(format!("{left} files"))
        };
        until("the copies are deleted", LIMIT, is_empty)
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_replaces_the_certificate_and_keeps_connections() {
    // Real time: pebble has no other clock. A renewal has a third of it.
    let validity = Duration::from_secs(75);
    let mut running = Running::start(Settings {
        config: "acme_skip_staging: true\n",
        validity,
        ..Settings::default()
    })
    .await;
    running.deploy().await;
    let first = running.promoted().await;
    // A leader spends one attempt in its first five minutes.
    let leader = running.lab.leader().await.unwrap();
    running.lab.node_mut(leader).kill().unwrap();
    running.lab.node_mut(leader).start().await.unwrap();
    running.lab.wait_members(NODES.into()).await.unwrap();
    assert_eq!(running.promoted().await, first);
    let hub = running.lab.network().namespace();
    let mut connections = Vec::new();
    for node in running.lab.nodes() {
        let open = Connection::open(hub, node.address(), DOMAIN, &running.production);
        let mut connection = open.await.unwrap();
        assert_eq!(connection.leaf(), first);
        connection.get(DOMAIN).await.unwrap();
        connections.push(connection);
    }
    let renewed = until("the certificate is renewed", LIMIT, || async {
        // A handshake that fails at any time fails the test: the old one is served until then.
        let mut leaves = Vec::new();
        for node in 1..=NODES {
            leaves.push(running.leaf(node, &running.production).await.unwrap());
        }
        let fresh = leaves.iter().all(|leaf| *leaf != first);
        let fresh = fresh.then(|| leaves.remove(0));
        fresh.ok_or("a node serves the first one")
    })
    .await
    .unwrap();
    let facts = |der: &[u8]| {
        let pem = to_pem(der);
        let key_pem = SecretString::new(String::new());
        let issued = Issued {
            chain_pem: pem,
            key_pem,
        };
        inspect(DOMAIN, &issued.chain_pem, &issued.key_pem).unwrap()
    };
    let (before, after) = (facts(&first), facts(&renewed));
    assert!(after.not_after > before.not_after);
    let left = before.not_after.duration_since(after.not_before).unwrap();
    println!("renewed with {left:?} of {validity:?} left");
    // A tick of the authority's clock is one second.
    assert!(left <= validity / 3 + Duration::from_secs(1), "{left:?}");
    assert!(left > Duration::ZERO);
    for connection in &mut connections {
        let answer = connection.get(DOMAIN).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert_eq!(connection.leaf(), first);
    }
    running
        .audited(CertificateRenewed, &[("acme_environment", "prod")])
        .await;
    let history = running.history().await;
    let prod = "prod".to_owned();
    assert_eq!(history[0], (CertificateIssued, prod.clone()));
    assert!(
        history[1..]
            .iter()
            .all(|event| *event == (CertificateRenewed, prod.clone()))
    );
    let counts = *running.authority.counts().borrow();
    assert_eq!(counts.staging, 0, "{counts:?}");
    assert!(
        counts.production <= history.len() + 1,
        "{counts:?} {history:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_is_repeated_after_an_outage() {
    let mut running = Running::start(Settings::default()).await;
    running.set_mode(Mode::Down);
    running.deploy().await;
    let failed = [
        ("acme_environment", "staging"),
        ("stage_failed_at", "staging"),
        ("failure_class", "transient"),
    ];
    running.audited(CertificateFailed, &failed).await;
    running.set_mode(Mode::Up);
    let outage = Instant::now();
    if size("JACO_STEPS", 2) <= 2 {
        // The waits are memory of the leader.
        let leader = running.lab.leader().await.unwrap();
        running.lab.node_mut(leader).kill().unwrap();
        running.lab.node_mut(leader).start().await.unwrap();
    }
    // Otherwise a leader waits a minute, and spends one attempt in its first five.
    running.promoted_within(LIMIT + NEW_LEADER).await;
    println!("issued {:?} after the outage", outage.elapsed());
    let history = running.history().await;
    let issued = |environment: &str| (CertificateIssued, environment.to_owned());
    let failures = history
        .iter()
        .filter(|(kind, _)| *kind == CertificateFailed);
    assert_eq!(failures.count(), 1, "{history:?}");
    assert_eq!(history[1..], [issued("staging"), issued("prod")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_order_waits_for_the_limit() {
    let running = Running::start(Settings {
        config: "acme_skip_staging: true\n",
        ..Settings::default()
    })
    .await;
    running.set_mode(Mode::RateLimited);
    running.deploy().await;
    let failed = [
        ("acme_environment", "prod"),
        ("failure_class", "rate_limit"),
        ("retry_after", "1h0m0s"),
    ];
    running.audited(CertificateFailed, &failed).await;
    running.set_mode(Mode::Up);
    let counts = running.authority.counts();
    let before = counts.borrow().requests;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        counts.borrow().requests,
        before,
        "no attempt before its time"
    );
    assert_eq!(running.history().await.len(), 1);
}

/// A certificate in PEM.
fn to_pem(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}
