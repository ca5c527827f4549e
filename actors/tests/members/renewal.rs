//! Nodes whose addresses change get other certificates, whoever leads and whoever is away.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::{net::IpAddr, time::Duration};

use jaco_proto::v1;
use jaco_raftnode::State;

use super::lab::{Machine, PATIENCE};

/// Waits until `node` has a certificate for `address` that its cluster knows.
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
    let waited = tokio::time::timeout(PATIENCE, waits).await;
    waited.unwrap_or_else(|_| panic!("not seen in {PATIENCE:?}: {what}"));
}

/// Writes on `from` as soon as that is possible, and waits until `to` has it.
///
/// Members connect anew to one whose certificate changed, which may cost a call its answer.
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
    let issued = tokio::time::timeout(PATIENCE, issued).await;
    issued.expect("nothing can be written");
    let tokens = from.state().join_tokens.len();
    to.until("what was written", |state| {
        state.join_tokens.len() >= tokens
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_voter_of_two_gets_a_certificate_for_its_other_address() {
    let [first, second]: [IpAddr; 2] = [[10, 9, 9, 8].into(), [10, 9, 9, 9].into()];
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let a = a.restart_at(&[first]).await;
    renewed(&a, "a", first).await;
    reaches(&a, &b).await;
    // Through the leader, whom it has to know.
    reaches(&b, &a).await;
    // Whoever is away meanwhile comes back to a certificate that it never heard of.
    let b = b.stop().await;
    let a = a.restart_at(&[second]).await;
    renewed(&a, "a", second).await;
    let a = a.restart_at(&[first]).await;
    renewed(&a, "a", first).await;
    let b = b.start().await;
    reaches(&a, &b).await;
    reaches(&b, &a).await;
    // And again, with both of them.
    let (a, b) = (a.restart_at(&[first]).await, b.restart().await);
    reaches(&b, &a).await;
    for node in [b, a] {
        node.node.stop().await;
    }
}

/// Whatever a crash leaves of a renewal: the cluster knows the new certificate or does not, and
/// the disk has it in force, or waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_middle_of_a_renewal_of_the_only_voter_separates_nobody() {
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

    // Published and not put in force; the other member has applied it.
    let a = a.stop().await;
    a.leave_certificates(&before, Some(&after));
    let a = a.start_at(&[new]).await;
    reaches(&b, &a).await;
    renewed(&a, "a", new).await;
    assert_eq!(a.certificate(), after, "the one that waited");

    // The same, and the configuration is back to what it was.
    let a = a.stop().await;
    a.leave_certificates(&before, Some(&after));
    let a = a.start_at(&[old]).await;
    renewed(&a, "a", old).await;
    let before = a.certificate();
    reaches(&a, &b).await;

    // Neither published nor in force, while the other is away.
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
async fn a_leader_of_three_renews_its_certificate_while_another_is_away() {
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
    // Only the one whom it does not know yet is there.
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
async fn a_node_with_another_address_gets_a_certificate_for_it() {
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
