//! Certificate renewal; a crash at any step must not lock a node out.

use std::time::Duration;

use jaco_actors::supervision::KillMode;
use jaco_net::pki::NodeCert;

use super::lab::{Machine, TEST_TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
async fn address_change_renews_the_certificate() {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let before = b.certificate();
    let address = [10, 9, 9, 9].into();
    let b = b.restart_at(&[address]).await;
    let old = before.fingerprint().as_bytes().to_vec();
    a.until("b has another certificate", |state| {
        state.nodes["b"].server_cert_fingerprint != old
    })
    .await;
    in_force(&b, |cert| cert.fingerprint() != before.fingerprint()).await;
    let tokens = a.state().join_tokens.len() + 1;
    let _ = a.token().await;
    b.until("the write made meanwhile", |state| {
        state.join_tokens.len() == tokens
    })
    .await;
    let renewed = b.certificate();
    assert_eq!(renewed.ips().unwrap(), [address]);
    let state = b.state();
    let print = renewed.fingerprint();
    assert_eq!(state.nodes["b"].server_cert_fingerprint, print.as_bytes());
    for node in [b, a] {
        node.node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_lifecycle_keeps_certificate_in_force() {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let old = b.certificate();
    let b = b.restart_at(&[[10, 9, 9, 9].into()]).await;
    a.until("b has another certificate", |state| {
        state.nodes["b"].server_cert_fingerprint != old.fingerprint().as_bytes()
    })
    .await;
    in_force(&b, |cert| cert.fingerprint() != old.fingerprint()).await;
    let renewed = b.certificate();
    // An older version, so that the next announcement is visible.
    a.publish("b", &renewed).await;
    b.until("the older version", |state| {
        state.nodes["b"].version == "0.0.0-older"
    })
    .await;
    b.node
        .tree()
        .kill("node/lifecycle", KillMode::Kill)
        .unwrap();
    let state = a.announced("b").await;
    let row = &state.nodes["b"];
    assert_eq!(
        row.server_cert_fingerprint,
        renewed.fingerprint().as_bytes()
    );
    for node in [b, a] {
        node.node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn published_certificate_is_in_force_after_crash() {
    let a = Machine::founder("a").await;
    let next = a.leave_certificate();
    a.publish("a", &next).await;
    let a = a.restart().await;
    assert_eq!(a.certificate().fingerprint(), next.fingerprint());
    let state = a.announced("a").await;
    let row = &state.nodes["a"];
    assert_eq!(row.server_cert_fingerprint, next.fingerprint().as_bytes());
    // A joining node is shown the new certificate.
    let b = Machine::joined("b", &a).await;
    b.until("the cluster", |state| state.nodes.contains_key("b"))
        .await;
    for node in [b, a] {
        node.node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_offline_during_renewal_reconnects() {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let next = b.leave_certificate();
    let b = b.stop().await;
    a.publish("b", &next).await;
    // The state of `b` does not contain the new fingerprint yet.
    let b = b.start().await;
    let tokens = a.state().join_tokens.len() + 1;
    let _ = a.token().await;
    let state = b
        .until("the write made meanwhile", |state| {
            state.join_tokens.len() == tokens
        })
        .await;
    let print = next.fingerprint();
    assert_eq!(state.nodes["b"].server_cert_fingerprint, print.as_bytes());
    // The certificate is in force after the next start.
    let b = b.restart().await;
    assert_eq!(b.certificate().fingerprint(), print);
    for node in [b, a] {
        node.node.stop().await;
    }
}

/// Waits until the certificate on disk satisfies `check`.
async fn in_force(machine: &Machine, check: impl Fn(&NodeCert) -> bool) {
    let found = async {
        while !check(&machine.certificate()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(TEST_TIMEOUT, found).await;
    found.expect("the certificate was not replaced");
}
