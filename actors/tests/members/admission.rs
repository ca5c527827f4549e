//! Admission of joining nodes.

use std::time::{Duration, SystemTime};

use jaco_actors::Node;
use jaco_net::pki::NodeCert;
use jaco_proto::{error::DecodedError, v1};

use super::lab::Machine;

fn code(result: Result<(), DecodedError>) -> String {
    match result {
        Ok(()) => "joined".to_owned(),
        Err(error) => error.code,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_admits_exactly_one_node() {
    let a = Machine::founder("a").await;
    let (b, c) = (Machine::new("b").await, Machine::new("c").await);
    let token = a.token().await;
    // Of two concurrent joins one succeeds.
    let (first, second) = tokio::join!(b.join(&a, &token), c.join(&a, &token));
    let mut codes = [code(first), code(second)];
    codes.sort_unstable();
    assert_eq!(codes, ["join_token_consumed", "joined"]);
    let state = a.state();
    assert_eq!(state.nodes.len(), 2);
    let loser = if state.nodes.contains_key("b") { c } else { b };
    assert_eq!(code(loser.join(&a, &token).await), "join_token_consumed");
    assert!(!loser.node.client().status().await.unwrap().initialized);
    // The rejected node can join with another token.
    let token = a.token().await;
    loser.join(&a, &token).await.unwrap();
    assert_eq!(
        code(loser.join(&a, &token).await),
        "cluster_already_initialized"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_or_foreign_token_is_rejected() {
    let (a, other) = (Machine::founder("a").await, Machine::founder("other").await);
    let b = Machine::new("b").await;
    let (good, foreign) = (a.token().await, other.token().await);
    let fields: Vec<&str> = good.split('.').collect();
    let unknown = format!("jaco1.{}.{}", "0".repeat(64), fields[2]);
    let foreign_ca = format!("jaco1.{}.{}", fields[1], foreign.split('.').nth(2).unwrap());
    for (token, expected) in [
        (fields[1], "join_token_invalid"), // format of older clients
        ("", "join_token_invalid"),
        (unknown.as_str(), "join_token_invalid"),
        (foreign.as_str(), "ca_digest_mismatch"),
        (foreign_ca.as_str(), "ca_digest_mismatch"),
    ] {
        assert_eq!(code(b.join(&a, token).await), expected, "{token:?}");
    }
    let nobody = b.join_at("127.0.0.1:1", &good).await;
    assert_eq!(code(nobody), "peer_unreachable");
    assert_eq!(
        code(b.join_at("nonsense", &good).await),
        "validation_failed"
    );
    assert_eq!(a.state().nodes.len(), 1);
    b.join(&a, &good).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn join_with_skewed_clock_keeps_the_token() {
    let a = Machine::founder("a").await;
    let ahead = super::lab::Shifted::default();
    ahead.advance(Duration::from_secs(3600));
    let b = Machine::with_clock("b", ahead.clock()).await;
    let token = a.token().await;
    let refused = b.join(&a, &token).await.unwrap_err();
    assert_eq!(refused.code, "clock_skew");
    for key in ["joiner_clock", "leader_clock"] {
        assert!(refused.message.contains(&refused.details[key]));
    }
    assert_eq!(a.state().nodes.len(), 1);
    let c = Machine::new("c").await;
    c.join(&a, &token).await.unwrap();
}

/// The leader's clock is an hour ahead, and a member with the right time joins through it.
#[tokio::test(flavor = "multi_thread")]
async fn certificate_of_leader_ahead_is_valid() {
    let clock = super::lab::Shifted::default();
    let a = Machine::with_clock("a", clock.clock()).await;
    a.node.client().init("lab").await.unwrap();
    clock.advance(Duration::from_secs(3600));
    let key = jaco_net::pki::NodeKey::generate().unwrap();
    let request = v1::NodeJoinRequest {
        name: "b".to_owned(),
        join_token: a.token().await,
        csr_pem: key.request("b", &[]).unwrap().into_bytes(),
        advertise_addr: "10.0.0.9:7001".to_owned(),
        ..Default::default()
    };
    let admitted = a.node.client().cluster().node_join(request).await;
    let admitted = admitted.unwrap().into_inner();
    let cert = NodeCert::from_pem(std::str::from_utf8(&admitted.signed_cert).unwrap()).unwrap();
    let ca = String::from_utf8(admitted.ca_cert).unwrap();
    jaco_net::tls::check_member(&ca, &cert, "b", SystemTime::now()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn taken_hostname_is_rejected_and_token_kept() {
    let a = Machine::founder("a").await;
    let twin = Machine::new("a").await;
    let token = a.token().await;
    assert_eq!(code(twin.join(&a, &token).await), "node_already_member");
    let b = Machine::new("b").await;
    b.join(&a, &token).await.unwrap();
}

/// A signing request may name only the joining node.
#[tokio::test(flavor = "multi_thread")]
async fn signing_request_for_other_host_is_rejected() {
    let a = Machine::founder("a").await;
    let key = jaco_net::pki::NodeKey::generate().unwrap();
    let ask = async |name: &str, csr: String| {
        let request = v1::NodeJoinRequest {
            name: name.to_owned(),
            join_token: a.token().await,
            csr_pem: csr.into_bytes(),
            advertise_addr: format!("10.0.0.9:{}", 7000 + u16::from(name.as_bytes()[0])),
            ..Default::default()
        };
        let answer = a.node.client().cluster().node_join(request).await;
        answer.map_err(|status| DecodedError::from_status(&status).code)
    };
    let csr = |name: &str| key.request(name, &[]).unwrap();
    assert_eq!(ask("b", csr("a")).await.unwrap_err(), "csr_invalid");
    assert_eq!(
        ask("b", "nonsense".into()).await.unwrap_err(),
        "csr_invalid"
    );
    assert_eq!(
        ask("b", String::new()).await.unwrap_err(),
        "validation_failed"
    );
    assert_eq!(ask("b_", csr("b")).await.unwrap_err(), "validation_failed");
    let local = key.request("b", &[[127, 0, 0, 1].into()]).unwrap();
    assert_eq!(ask("b", local).await.unwrap_err(), "csr_invalid");
    // Hostnames that differ in case only are equal in certificates.
    assert_eq!(ask("A", csr("A")).await.unwrap_err(), "node_already_member");
    let admitted = ask("b", csr("b")).await.unwrap().into_inner();
    assert_eq!((admitted.raft_id, admitted.members.len()), (2, 1));
    assert_eq!(a.state().nodes["b"].raft_id, 2);
    // An address belongs to its member whatever the port.
    let address = key.request("c", &[[10, 0, 0, 9].into()]).unwrap();
    assert_eq!(ask("c", address).await.unwrap_err(), "csr_invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_init_and_join_have_one_winner() {
    let a = Machine::founder("a").await;
    let b = Machine::new("b").await;
    let token = a.token().await;
    let (client, join) = (b.node.client(), b.join(&a, &token));
    let (init, join) = tokio::join!(client.init("own"), join);
    assert!(init.is_ok() != join.is_ok(), "{init:?} {join:?}");
}

/// Expiry depends on the leader's clock only.
#[tokio::test(flavor = "multi_thread")]
async fn expired_token_is_rejected() {
    let clock = super::lab::Shifted::default();
    let a = Machine::with_clock("a", clock.clock()).await;
    a.node.client().init("lab").await.unwrap();
    let token = a.token().await;
    clock.advance(Duration::from_secs(24 * 3600 + 1));
    let b = Machine::new("b").await;
    let refused = b.join(&a, &token).await.unwrap_err();
    assert_eq!(refused.code, "join_token_expired");
    assert!(refused.details.contains_key("expires_at"));
    let _: &Node = &b.node;
}
