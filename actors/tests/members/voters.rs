//! Nodes join and leave, and the number of voters follows.

use jaco_proto::{
    error::DecodedError,
    mark,
    v1::{self, AuditEventType, command::Payload},
};
use tonic::{Status, Streaming};

use super::lab::{Machine, TEST_TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
async fn cluster_grows_to_three_voters_and_shrinks() {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    b.votes(&["a"]).await;
    let c = Machine::joined("c", &a).await;
    for node in [&a, &b, &c] {
        node.votes(&["a", "b", "c"]).await;
    }

    // Requested on a follower.
    b.remove("c", false).await.unwrap();
    for node in [&a, &b] {
        node.until("c is gone", |state| !state.nodes.contains_key("c"))
            .await;
        node.votes(&["a"]).await;
    }
    let unknown = b.remove("c", true).await.unwrap_err();
    assert_eq!(unknown.code, "node_not_found");

    // The leader itself leaves, and the other node takes over.
    b.remove("a", true).await.unwrap();
    b.votes(&["b"]).await;
    let state = b
        .until("a is gone", |state| !state.nodes.contains_key("a"))
        .await;
    let removals: Vec<_> = state
        .audit
        .values()
        .filter(|event| event.r#type() == AuditEventType::NodeRemove)
        .map(|event| (event.payload["hostname"].as_str(), event.identity.as_str()))
        .collect();
    assert_eq!(removals.len(), 2, "{removals:?}");
    assert_eq!(removals[0], ("c", "local"));
    assert_eq!(removals[1].0, "a");

    let last = b.remove("b", true).await.unwrap_err();
    assert_eq!(last.code, "raft_remove_failed");
    for node in [c, b, a] {
        node.node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_unable_to_leave_blocks_no_removal() {
    let a = Machine::founder("a").await;
    // Row of an interrupted join.
    let ghost = v1::NodeJoin {
        hostname: "ghost".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        server_cert_fingerprint: vec![9; 32],
        raft_id: 2,
        ..Default::default()
    };
    a.write(Payload::NodeJoin(ghost)).await;
    let refused = a.remove("a", true).await.unwrap_err();
    assert_eq!(refused.code, "raft_remove_failed");
    assert_eq!(refused.details["reason"], "no other member can lead");
    assert!(!a.state().nodes["a"].draining);
    // A mark from an earlier request.
    let mark = v1::NodeStatusUpdate {
        hostname: "a".to_owned(),
        drain_mark: mark::SET,
        ..Default::default()
    };
    a.write(Payload::NodeStatusUpdate(mark)).await;
    // Both removals would leave no member.
    let both = a.remove("ghost", true).await.unwrap_err();
    assert_eq!(both.code, "raft_remove_failed");
    a.until("the mark is gone", |state| !state.nodes["a"].draining)
        .await;
    a.remove("ghost", true).await.unwrap();
    assert_eq!(a.state().nodes.len(), 1);
    a.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_node_serves_nothing_and_stays_removed() {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    b.until("itself", |state| state.nodes.contains_key("b"))
        .await;
    let follow = v1::AuditQueryRequest {
        follow: true,
        ..Default::default()
    };
    let client = b.node.client();
    let trail = client.audit().query(follow).await.unwrap().into_inner();
    let watched = v1::SubscribeRequest::default();
    let events = client.watcher().subscribe(watched).await.unwrap();
    a.remove("b", true).await.unwrap();
    a.until("b is gone", |state| !state.nodes.contains_key("b"))
        .await;
    b.locked_out().await;
    for status in [end(trail).await, end(events.into_inner()).await] {
        let error = DecodedError::from_status(&status);
        assert_eq!(error.code, "cluster_uninitialized");
        assert_eq!(error.details["reason"], "removed");
    }
    let b = b.restart().await;
    b.locked_out().await;
    assert!(b.node.client().status().await.unwrap().initialized);
    a.votes(&["a"]).await;
    for node in [b, a] {
        node.node.stop().await;
    }
}

/// Waits for the error that ends a stream.
async fn end<T>(mut stream: Streaming<T>) -> Status {
    let end = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(status) => return status,
            }
        }
    };
    let end = tokio::time::timeout(TEST_TIMEOUT, end).await;
    end.expect("the stream does not end")
}

#[tokio::test(flavor = "multi_thread")]
async fn members_reconnect_after_a_restart() {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let c = Machine::joined("c", &a).await;
    a.votes(&["a", "b", "c"]).await;
    let (a, b, c) = (a.restart().await, b.restart().await, c.restart().await);
    c.raft_until("a leader", |status| status.leader_id.is_some())
        .await;
    let token = c.token().await;
    assert!(token.starts_with("jaco1."));
    for node in [a, b, c] {
        node.node.stop().await;
    }
}
