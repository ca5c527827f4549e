//! Nodes die and return, and their replicas are placed accordingly.

use std::collections::BTreeMap;

use jaco_proto::v1::NodeStatus;
use jaco_state::State;

use super::{idle_engine::idle_engine, lab::Machine};

fn is(state: &State, host: &str, status: NodeStatus) -> bool {
    let node = state.nodes.get(host);
    node.is_some_and(|node| node.status() == status)
}

/// Number of replicas by host.
fn placed(state: &State) -> BTreeMap<String, usize> {
    let mut hosts = BTreeMap::new();
    for row in state.replicas_desired.values() {
        *hosts.entry(row.host.clone()).or_default() += 1;
    }
    hosts
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_dead_node_move_and_stay() {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let c = Machine::joined("c", &a).await;
    for machine in [&a, &b, &c] {
        idle_engine(&machine.engine_socket());
    }
    for host in ["a", "b", "c"] {
        a.until("every node ready", |state| {
            is(state, host, NodeStatus::Ready)
        })
        .await;
    }
    a.votes(&["a", "b", "c"]).await;
    let compose = "services:\n  web:\n    image: web:1\n    deploy: {replicas: 6}\n  db:\n    \
                   image: db:1\n    volumes: ['data:/data']\nvolumes: {data: {}}\n";
    let jaco = "deployment: shop\nservices: [{name: db, placement: hosts, hosts: [c]}]\n";
    a.node.client().apply(jaco, compose).await.unwrap();
    let state = a.until("all placed", |state| state.replicas_desired.len() == 7);
    let state = state.await;
    assert_eq!(placed(&state)["c"], 3);

    let c = c.stop().await;
    for survivor in [&a, &b] {
        let state = survivor.until("its replicas elsewhere", |state| {
            is(state, "c", NodeStatus::Offline) && placed(state).get("c") == Some(&1)
        });
        let state = state.await;
        assert_eq!(placed(&state)["a"], 3);
        assert!(
            state
                .replicas_desired
                .values()
                .all(|row| row.previous_host.is_empty())
        );
    }
    let pending = a.until("the deployment waits for its data", |state| {
        !state.deployments["shop"].status_details.is_empty()
    });
    let details = &pending.await.deployments["shop"].status_details;
    assert_eq!(details["reason"], "node_offline");
    assert_eq!(
        (&*details["host"], &*details["replicas"]),
        ("c", "shop-db-0")
    );

    let before = placed(&a.state());
    let c = c.start().await;
    let back = a.until("it is back", |state| {
        is(state, "c", NodeStatus::Ready) && state.deployments["shop"].status_details.is_empty()
    });
    let back = back.await;
    assert_eq!(placed(&back), before, "nothing moves back");
    for machine in [c, b, a] {
        machine.node.stop().await;
    }
}
