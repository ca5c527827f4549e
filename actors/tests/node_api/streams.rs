//! Streams: replay, then live events.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use jaco_proto::{
    error::DecodedError,
    v1::{self, AuditEventType, EventKind, subscribe_event::Payload},
};
use tonic::Streaming;

use super::lab::{Lab, TIMEOUT, state};

const WEB: &str = "services: {web: {image: nginx}}";

/// Returns the next message; fails the test if there is none in time.
async fn next<T>(stream: &mut Streaming<T>) -> T {
    let message = tokio::time::timeout(TIMEOUT, stream.message());
    message
        .await
        .expect("the stream is silent")
        .unwrap()
        .expect("the stream ended")
}

#[tokio::test]
async fn watch_replays_missed_events_then_continues_live() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    let local = lab.local();
    local.apply("deployment: a", WEB).await.unwrap();
    let seen = state(&node).applied_index;
    local.apply("deployment: b", WEB).await.unwrap();
    let request = v1::SubscribeRequest {
        entity_types: vec!["deployments".to_owned()],
        since_revision: seen,
        ..Default::default()
    };
    for client in [local.clone(), lab.pinned(Some(&token))] {
        let response = client.watch().subscribe(request.clone()).await.unwrap();
        assert!(index(&response) > seen);
        let mut stream = response.into_inner();
        let missed = deployment(next(&mut stream).await);
        assert_eq!((missed.kind(), name(&missed)), (EventKind::Added, "b"));
        assert!(missed.raft_index > seen);
        local.apply("deployment: b", WEB).await.unwrap();
        loop {
            let live = deployment(next(&mut stream).await);
            let after = live.after.clone().unwrap();
            assert_eq!((live.kind(), name(&live)), (EventKind::Updated, "b"));
            assert_eq!(
                after.previous, None,
                "the content kept for a rollback got out"
            );
            if after.applied_revision == state(&node).deployments["b"].applied_revision {
                break;
            }
        }
    }
    node.stop().await;
}

/// Log index from which a stream starts.
fn index<T>(response: &tonic::Response<T>) -> u64 {
    let index = response.metadata().get("jaco-applied-index").unwrap();
    index.to_str().unwrap().parse().unwrap()
}

fn deployment(event: v1::SubscribeEvent) -> v1::DeploymentEvent {
    match event.payload {
        Some(Payload::Deployment(event)) => event,
        other => panic!("{other:?}"),
    }
}

fn name(event: &v1::DeploymentEvent) -> &str {
    &event.after.as_ref().unwrap().name
}

#[tokio::test]
async fn watch_of_an_unknown_entity_is_refused() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    let request = v1::SubscribeRequest {
        entity_types: vec!["ghosts".to_owned()],
        ..Default::default()
    };
    let refused = lab.local().watch().subscribe(request).await.unwrap_err();
    let refused = DecodedError::from(refused);
    assert_eq!(refused.code, "validation_failed");
    assert_eq!(refused.details["value"], "ghosts");
    node.stop().await;
}

#[tokio::test]
async fn audit_trail_names_identities_and_follows() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    // The secrets key of the cluster is made at any time after its foundation.
    let types = [
        AuditEventType::NodeJoin,
        AuditEventType::Apply,
        AuditEventType::TokenIssue,
    ];
    let query = v1::AuditQueryRequest {
        follow: true,
        types: types.map(i32::from).to_vec(),
        ..Default::default()
    };
    // The node may be publishing its version meanwhile.
    let before = state(&node).applied_index;
    let response = lab.local().audit().query(query).await.unwrap();
    let after = state(&node).applied_index;
    assert!((before..=after).contains(&index(&response)));
    let mut stream = response.into_inner();
    let founded = next(&mut stream).await;
    assert_eq!(
        (founded.r#type(), founded.identity.as_str()),
        (AuditEventType::NodeJoin, "bootstrap")
    );

    let operator = lab.pinned(Some(&token));
    operator.apply("deployment: d", WEB).await.unwrap();
    lab.local().issue("ci", false).await.unwrap();
    let apply = next(&mut stream).await;
    assert_eq!(
        (apply.r#type(), apply.identity.as_str()),
        (AuditEventType::Apply, "bootstrap")
    );
    assert_eq!(apply.payload["deployment"], "d");
    let issue = next(&mut stream).await;
    assert_eq!(
        (issue.r#type(), issue.identity.as_str()),
        (AuditEventType::TokenIssue, "local")
    );
    assert!(issue.raft_index > apply.raft_index);

    let history = v1::AuditQueryRequest {
        types: vec![AuditEventType::TokenIssue.into()],
        ..Default::default()
    };
    let mut history = operator.audit().query(history).await.unwrap().into_inner();
    assert_eq!(next(&mut history).await, issue);
    assert_eq!(
        history.message().await.unwrap(),
        None,
        "a query that does not follow ends"
    );
    node.stop().await;
}
