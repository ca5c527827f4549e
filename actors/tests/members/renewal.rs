//! Certificate renewal after an address change, with any node as leader and with nodes offline.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::{net::IpAddr, time::Duration};

use jaco_proto::v1;
use jaco_state::State;

use super::lab::{Machine, TEST_TIMEOUT};

/// Waits until `node` has a certificate for `address` that its state lists.
async fn renewed(node: &Machine, name: &str, address: IpAddr) {
    let what = format!("a certificate of {name} for {address}");
    let named = |state: &State| {
        let cert = node.certificate();
        cert.ips().unwrap() == [address]
            && state.nodes[name].server_cert_fingerprint == cert.fingerprint().as_bytes()
    };
    let waits = async {
        while !named(&node.state()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(TEST_TIMEOUT, waits).await;
    waited.unwrap_or_else(|_| panic!("missing after {TEST_TIMEOUT:?}: {what}"));
}

/// Writes through `from`, with retries, and waits until `to` has applied the write.
///
/// Members reconnect to a member with a new certificate, which can fail a call.
async fn reaches(from: &Machine, to: &Machine) {
    let issued = async {
        loop {
            let mut cluster = from.node.client().cluster();
            match cluster.issue_join_token(v1::IssueJoinTokenRequest {}).await {
                Ok(_) => return,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let issued = tokio::time::timeout(TEST_TIMEOUT, issued).await;
    issued.expect("no write succeeds");
    let tokens = from.state().join_tokens.len();
    to.until("the write of the other node", |state| {
        state.join_tokens.len() >= tokens
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_voter_of_two_renews_for_new_address() {
    let [first, second]: [IpAddr; 2] = [[10, 9, 9, 8].into(), [10, 9, 9, 9].into()];
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let a = a.restart_at(&[first]).await;
    renewed(&a, "a", first).await;
    reaches(&a, &b).await;
    // Through the leader, so `b` must be connected to it.
    reaches(&b, &a).await;
    // A member that is offline meanwhile reconnects to a certificate missing from its state.
    let b = b.stop().await;
    let a = a.restart_at(&[second]).await;
    renewed(&a, "a", second).await;
    let a = a.restart_at(&[first]).await;
    renewed(&a, "a", first).await;
    let b = b.start().await;
    reaches(&a, &b).await;
    reaches(&b, &a).await;
    // The same after a restart of both.
    let (a, b) = (a.restart_at(&[first]).await, b.restart().await);
    reaches(&b, &a).await;
    for node in [b, a] {
        node.node.stop().await;
    }
}

/// Covers every state a crash can leave in a renewal: the cluster lists the new certificate or not,
/// and on disk it is in force or waiting.
#[tokio::test(flavor = "multi_thread")]
async fn crash_during_renewal_keeps_members_connected() {
    let [old, new]: [IpAddr; 2] = [[10, 9, 9, 8].into(), [10, 9, 9, 9].into()];
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let a = a.restart_at(&[old]).await;
    renewed(&a, "a", old).await;
    reaches(&a, &b).await;
    let before = a.certificate();
    let a = a.restart_at(&[new]).await;
    renewed(&a, "a", new).await;
    let after = a.certificate();
    reaches(&a, &b).await;

    // Published but not in force; the other member has applied it.
    let a = a.stop().await;
    a.leave_certificates(&before, Some(&after));
    let a = a.start_at(&[new]).await;
    reaches(&b, &a).await;
    renewed(&a, "a", new).await;
    assert_eq!(a.certificate(), after, "the waiting certificate");

    // The same, but the address is back to the old one.
    let a = a.stop().await;
    a.leave_certificates(&before, Some(&after));
    let a = a.start_at(&[old]).await;
    renewed(&a, "a", old).await;
    let before = a.certificate();
    reaches(&a, &b).await;

    // The waiting certificate is neither published nor in force, and the other member is offline.
    let (a, b) = (a.stop().await, b.stop().await);
    a.leave_certificates(&before, Some(&after));
    let a = a.start_at(&[new]).await;
    renewed(&a, "a", new).await;
    let b = b.start().await;
    reaches(&b, &a).await;
    for node in [b, a] {
        node.node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_of_three_renews_with_one_offline() {
    let address: IpAddr = [10, 9, 9, 9].into();
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let c = Machine::joined("c", &a).await;
    a.votes(&["a", "b", "c"]).await;
    let c = c.stop().await;
    let a = a.restart_at(&[address]).await;
    renewed(&a, "a", address).await;
    b.until("the new certificate", |state| {
        state.nodes["a"].server_cert_fingerprint == a.certificate().fingerprint().as_bytes()
    })
    .await;
    let b = b.stop().await;
    // Only the member without the new fingerprint in its state is online.
    let c = c.start().await;
    reaches(&a, &c).await;
    reaches(&c, &a).await;
    let b = b.start().await;
    reaches(&b, &c).await;
    for node in [a, b, c] {
        node.node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_follower_stays_reachable() {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let address = [10, 9, 9, 9].into();
    let b = b.restart_at(&[address]).await;
    renewed(&b, "b", address).await;
    reaches(&a, &b).await;
    let print = b.certificate().fingerprint();
    assert_eq!(
        a.state().nodes["b"].server_cert_fingerprint,
        print.as_bytes()
    );
    for node in [b, a] {
        node.node.stop().await;
    }
}
