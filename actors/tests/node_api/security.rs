//! Access to a node: transports, credentials and limits.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::{io, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use jaco_net::{pki::Fingerprint, tls::Trust};
use jaco_proto::{
    error::DecodedError,
    v1::{self, internal_client::InternalClient},
};
use tokio::net::TcpStream;
use tonic::{Code, Status, body::Body};
use tower::ServiceExt as _;

use super::lab::{Client, Lab, TIMEOUT, fingerprint, state};

#[tokio::test]
async fn operator_token_works_with_every_pin() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    let print = fingerprint(&lab.ca());
    for trust in [
        Trust::Ca(lab.ca()),
        Trust::Fingerprint(print),
        Trust::CaAndFingerprint(lab.ca(), print),
    ] {
        let status = lab.remote(&trust, Some(&token)).status().await.unwrap();
        assert_eq!(status.nodes[0].hostname, "one");
        assert_eq!(status.leader_hostname, "one");
    }
    node.stop().await;
}

#[tokio::test]
async fn daemon_with_another_certificate_is_refused() {
    let (lab, other) = (Lab::new(), Lab::new());
    let (node, token) = lab.bootstrapped().await;
    let (anonymous, _) = other.bootstrapped().await;
    for trust in [
        Trust::Ca(other.ca()),
        Trust::Fingerprint(Fingerprint::of(b"another")),
    ] {
        let refused = lab.remote(&trust, Some(&token)).status().await.unwrap_err();
        assert_eq!(refused.grpc, Code::Unavailable, "{refused:?}");
    }
    node.stop().await;
    anonymous.stop().await;
}

#[tokio::test]
async fn anonymous_status_reveals_only_that_a_cluster_exists() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    let audit = state(&node).audit.clone();
    assert_eq!(audit.values().next().unwrap().identity, "bootstrap");
    let anonymous = lab.pinned(None);
    let status = anonymous.status().await.unwrap();
    let nothing_else = v1::ClusterStatusResponse {
        initialized: true,
        ..Default::default()
    };
    assert_eq!(status, nothing_else);
    for client in [
        anonymous,
        lab.pinned(Some("wrong")),
        lab.pinned(Some(&"0".repeat(64))),
    ] {
        let refused = client.issue("me", true).await.unwrap_err();
        assert_eq!(
            (refused.code.as_str(), refused.grpc),
            ("token_invalid", Code::Unauthenticated)
        );
    }
    assert_eq!(state(&node).tokens.len(), 1);
    node.stop().await;
}

#[tokio::test]
async fn remote_init_needs_the_setup_token() {
    let lab = Lab::new();
    let node = lab.start().await;
    let (setup, trust) = (lab.setup_token(), lab.setup_trust());
    let init = |token: Option<String>| {
        let client = lab.remote(&trust, token.as_deref());
        async move {
            let request = v1::ClusterInitRequest::default();
            let answer = client.cluster().init(request).await;
            answer
                .map(tonic::Response::into_inner)
                .map_err(DecodedError::from)
        }
    };
    assert!(!lab.remote(&trust, None).status().await.unwrap().initialized);
    for token in [None, Some("wrong".to_owned())] {
        assert_eq!(init(token).await.unwrap_err().code, "token_invalid");
    }
    assert!(!lab.data().join("raft").exists());
    let refused = lab
        .remote(&trust, Some(&setup))
        .issue("me", true)
        .await
        .unwrap_err();
    assert_eq!(refused.code, "cluster_uninitialized");

    let founded = init(Some(setup.clone())).await.unwrap();
    let audit = state(&node).audit.clone();
    assert_eq!(audit.values().next().unwrap().identity, "setup");
    // The daemon presents its new certificate at once, and the setup token is no longer valid.
    let old = lab.remote(&trust, Some(&setup)).status().await.unwrap_err();
    assert_eq!(old.grpc, Code::Unavailable);
    let setup = lab.pinned(Some(&setup)).status().await.unwrap_err();
    assert_eq!(setup.code, "token_invalid");
    let operator = lab.pinned(Some(&founded.operator_token));
    assert!(operator.status().await.unwrap().initialized);
    let request = v1::ClusterInitRequest::default();
    let refused = operator.cluster().init(request).await.unwrap_err();
    assert_eq!(refused.message(), "cluster_already_initialized");
    node.stop().await;
}

#[tokio::test]
async fn revocation_ends_new_calls_and_open_streams() {
    let lab = Lab::new();
    let (node, bootstrap) = lab.bootstrapped().await;
    let operator = lab.pinned(Some(&bootstrap));
    let ci = lab.pinned(Some(&operator.issue("ci", false).await.unwrap()));
    let mut watch = subscribe(&ci).await;
    let mut audit = ci
        .audit()
        .query(v1::AuditQueryRequest {
            follow: true,
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    let mut bystander = subscribe(&operator).await;
    operator.revoke("ci").await.unwrap();

    let ended = tokio::time::timeout(TIMEOUT, async {
        let watch = loop {
            if let Err(status) = watch.message().await {
                break status;
            }
        };
        let audit = loop {
            if let Err(status) = audit.message().await {
                break status;
            }
        };
        [watch, audit]
    });
    for status in ended.await.expect("a stream outlives its token") {
        let error = DecodedError::from(status);
        assert_eq!(error.code, "token_revoked");
        assert_eq!(error.details["identity"], "ci");
    }
    let refused = ci.status().await.unwrap_err();
    assert_eq!(
        (refused.code.as_str(), refused.grpc),
        ("token_revoked", Code::Unauthenticated)
    );
    assert!(
        bystander.message().await.unwrap().is_some(),
        "others are not affected"
    );
    node.stop().await;
}

#[tokio::test]
async fn new_secret_replaces_the_old_one_at_once() {
    let lab = Lab::new();
    let (node, bootstrap) = lab.bootstrapped().await;
    let operator = lab.pinned(Some(&bootstrap));
    let old = operator.issue("ci", false).await.unwrap();
    let new = operator.issue("ci", false).await.unwrap();
    assert_eq!(
        lab.pinned(Some(&old)).status().await.unwrap_err().code,
        "token_invalid"
    );
    assert!(lab.pinned(Some(&new)).status().await.is_ok());
    node.stop().await;
}

#[tokio::test]
async fn internal_calls_are_refused_to_clients() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    for client in [lab.local(), lab.pinned(Some(&token)), lab.pinned(None)] {
        let request = v1::SubmitRequest::default();
        let refused = InternalClient::new(client.service()).submit(request).await;
        let refused = refused.unwrap_err();
        assert_eq!(
            (refused.message(), refused.code()),
            ("peer_only", Code::PermissionDenied)
        );
    }
    node.stop().await;
}

#[tokio::test]
async fn only_local_callers_kill_actors_where_enabled() {
    for willing in [false, true] {
        let mut lab = Lab::new();
        lab.fault_injection = willing;
        let (node, token) = lab.bootstrapped().await;
        let kill = |client: Client, path: &str| {
            let request = v1::KillActorRequest {
                path: path.to_owned(),
                ..Default::default()
            };
            async move {
                client
                    .cluster()
                    .kill_actor(request)
                    .await
                    .map_err(DecodedError::from)
            }
        };
        let remote = kill(lab.pinned(Some(&token)), "node/raft/raft").await;
        assert_eq!(remote.unwrap_err().code, "privilege_denied");
        let local = kill(lab.local(), "node/raft/raft").await;
        if willing {
            local.unwrap();
            let unknown = kill(lab.local(), "node/nobody").await.unwrap_err();
            assert_eq!(unknown.code, "validation_failed");
            assert_eq!(unknown.details["value"], "node/nobody");
        } else {
            assert_eq!(local.unwrap_err().code, "privilege_denied");
        }
        node.stop().await;
    }
}

#[tokio::test]
async fn privileged_apply_needs_permission_and_is_audited() {
    let lab = Lab::new();
    let (node, bootstrap) = lab.bootstrapped().await;
    let compose = "services: {web: {image: nginx, privileged: true, \
                   labels: {jaco.io/allow-privileged: 'true'}}}";
    let operator = lab.pinned(Some(&bootstrap));
    let refused = operator.apply("deployment: d", compose).await.unwrap_err();
    assert_eq!(refused.code, "privilege_denied");
    assert_eq!(refused.details["identity"], "bootstrap");
    assert!(state(&node).deployments.is_empty());

    let root = lab.pinned(Some(&operator.issue("root", true).await.unwrap()));
    root.apply("deployment: d", compose).await.unwrap();
    let state = state(&node);
    let events: Vec<_> = state
        .audit
        .values()
        .filter(|event| event.payload.get("deployment").is_some_and(|d| d == "d"))
        .collect();
    let types: Vec<_> = events.iter().map(|event| event.r#type()).collect();
    let expected = [
        v1::AuditEventType::Apply,
        v1::AuditEventType::PrivilegedWorkloadAdmitted,
    ];
    assert_eq!(types, expected);
    assert_eq!(events[0].raft_index, events[1].raft_index);
    for event in events {
        assert_eq!(event.identity, "root");
    }
    node.stop().await;
}

#[tokio::test]
async fn oversized_request_gets_a_typed_error() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    let padded = |mib: usize| {
        let comment = "#".repeat(mib << 20);
        format!("services: {{web: {{image: nginx}}}}\n{comment}")
    };
    // An oversized manifest is refused as a manifest, an oversized message as a message.
    let manifest = lab.local().apply("deployment: d", &padded(6)).await;
    let manifest = manifest.unwrap_err();
    assert_eq!(manifest.code, "validation_failed");
    assert_eq!(manifest.details["file"], "compose.yaml", "{manifest:?}");
    let message = lab.local().apply("deployment: d", &padded(17)).await;
    let message = message.unwrap_err();
    assert_eq!(message.code, "validation_failed");
    assert_eq!(message.details["field"], "request", "{message:?}");
    assert!(lab.local().status().await.is_ok());
    node.stop().await;
}

/// Calls `path` with a body whose first `bytes` arrive at once and whose end never does.
async fn endless(client: &Client, path: &str, bytes: usize) -> DecodedError {
    let first = Ok::<_, Status>(Frame::data(Bytes::from(vec![0; bytes])));
    let body = stream::iter([first]).chain(stream::pending());
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(StreamBody::new(body)));
    let response = client.service().oneshot(request.unwrap()).await.unwrap();
    let status = Status::from_header_map(response.headers()).unwrap();
    DecodedError::from_status(&status)
}

#[tokio::test]
async fn anonymous_requests_have_small_limits() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    let anonymous = lab.pinned(None);
    for (path, bytes, limit) in [
        ("/jaco.v1.Cluster/Status", 2 << 10, "1024"),
        ("/jaco.v1.Cluster/NodeJoin", 128 << 10, "65536"),
    ] {
        let error = endless(&anonymous, path, bytes).await;
        assert_eq!(error.code, "validation_failed", "{path}");
        assert_eq!(error.details["limit"], limit, "{path}");
    }
    assert!(anonymous.status().await.unwrap().initialized);
    node.stop().await;
}

#[tokio::test]
async fn idle_connections_do_not_block_other_addresses() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    // More than one address may have, whatever the limit of descriptors is.
    let mut idle = Vec::new();
    for _ in 0..140 {
        idle.push(TcpStream::connect(lab.address()).await.unwrap());
    }
    // This connection comes after the idle ones, so the listener has handled all of them before.
    let trust = Trust::Ca(lab.ca());
    let elsewhere = lab.remote_from([127, 0, 0, 2].into(), &trust, Some(&token));
    assert!(elsewhere.status().await.unwrap().initialized);
    let idle: Vec<_> = idle.into_iter().map(|s| s.into_std().unwrap()).collect();
    let closed = idle.iter().filter(|stream| {
        let peeked = stream.peek(&mut [0]).map_err(|error| error.kind());
        peeked != Err(io::ErrorKind::WouldBlock)
    });
    let closed = closed.count();
    assert!((1..140).contains(&closed), "{closed} were closed");
    drop(idle);
    let again = async { while lab.pinned(Some(&token)).status().await.is_err() {} };
    let again = tokio::time::timeout(TIMEOUT, again).await;
    again.expect("connections are accepted again");
    node.stop().await;
}

#[tokio::test]
async fn repeated_invalid_tokens_are_delayed() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    let (guesser, started) = (lab.pinned(Some("guess")), std::time::Instant::now());
    for _ in 0..11 {
        guesser.status().await.unwrap_err();
    }
    // On a busy machine the first ten may have taken more than a second.
    let slowed = started.elapsed() >= Duration::from_secs(1);
    assert!(slowed, "eleven guesses in {:?}", started.elapsed());
    assert!(lab.pinned(Some(&token)).status().await.is_ok());
    node.stop().await;
}

async fn subscribe(client: &Client) -> tonic::Streaming<v1::SubscribeEvent> {
    let request = v1::SubscribeRequest::default();
    client
        .watch()
        .subscribe(request)
        .await
        .unwrap()
        .into_inner()
}
