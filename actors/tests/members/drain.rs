//! A removed member stays until its replicas run elsewhere. The engines here run nothing, so no
//! replica ever does.

use std::{collections::BTreeSet, time::Duration};

use jaco_proto::{
    error::DecodedError,
    v1::{self, NodeStatus},
};
use tonic::Request;

use super::{idle_engine::idle_engine, lab::Machine};

const WEB: &str = "services:\n  web:\n    image: web:1\n    deploy: {replicas: 3}\n";
const WEB_AND_DB: &str = "services:\n  web:\n    image: web:1\n    deploy: {replicas: 3}\n  db:\n    \
                          image: db:1\n    volumes: ['data:/data']\nvolumes: {data: {}}\n";

/// Three ready voters, each with one replica of `web`.
async fn cluster() -> [Machine; 3] {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    let c = Machine::joined("c", &a).await;
    for machine in [&a, &b, &c] {
        idle_engine(&machine.engine_socket());
    }
    a.until("every node ready", |state| {
        let ready = |node: &v1::Node| node.status() == NodeStatus::Ready;
        state.nodes.len() == 3 && state.nodes.values().all(|node| ready(node))
    })
    .await;
    for machine in [&a, &b, &c] {
        machine.votes(&["a", "b", "c"]).await;
    }
    let client = a.node.client();
    let applied = client.apply("deployment: shop\n", WEB).await;
    applied.expect("the manifest is valid");
    a.until("a replica on each node", |state| {
        let rows = state.replicas_desired.values();
        let hosts: BTreeSet<&str> = rows.map(|row| row.host.as_str()).collect();
        hosts.len() == 3
    })
    .await;
    [a, b, c]
}

/// Removes `hostname` through `machine`, and waits for this time at most.
async fn remove(
    machine: &Machine,
    hostname: &str,
    force: bool,
    limit: Duration,
) -> Result<(), DecodedError> {
    let mut request = Request::new(v1::NodeRemoveRequest {
        hostname: hostname.to_owned(),
        force,
    });
    request.set_timeout(limit);
    let client = machine.node.client();
    client.cluster().node_remove(request).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_waits_for_replicas_unless_forced() {
    let [a, b, c] = cluster().await;
    let db = "deployment: shop\nservices: [{name: db, placement: hosts, hosts: [c]}]\n";
    a.node.client().apply(db, WEB_AND_DB).await.unwrap();
    a.until("its data is on c", |state| {
        state.replicas_desired.contains_key("shop-db-0")
    })
    .await;
    let short = Duration::from_secs(3);
    let refused = remove(&b, "c", false, short).await.unwrap_err();
    assert_eq!(refused.code, "drain_no_placement");
    assert!(refused.message.contains("shop/db"), "{refused}");
    assert_eq!(refused.details["replicas"], "shop-db-0");
    assert!(!a.state().nodes["c"].draining);

    let client = a.node.client();
    client.apply("deployment: shop\n", WEB).await.unwrap();
    a.until("its data is given up", |state| {
        !state.replicas_desired.contains_key("shop-db-0")
    })
    .await;
    // Through another node than the leader, and through the leader.
    for through in [&b, &a] {
        let unfinished = remove(through, "c", false, short).await.unwrap_err();
        assert_eq!(unfinished.code, "drain_cancelled", "{unfinished}");
        assert_eq!(unfinished.details["hostname"], "c");
        assert!(unfinished.details["replicas"].starts_with("shop-web-"));
    }
    let state = a.state();
    assert!(state.nodes["c"].draining);
    let rows: Vec<_> = state.replicas_desired.values().collect();
    assert!(rows.iter().all(|row| row.host != "c"), "{rows:?}");
    assert!(rows.iter().any(|row| row.previous_host == "c"), "{rows:?}");
    a.votes(&["a", "b", "c"]).await;

    b.remove("c", true).await.unwrap();
    a.until("c is gone", |state| !state.nodes.contains_key("c"))
        .await;
    for machine in [c, b, a] {
        machine.node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_survives_the_loss_of_its_leader() {
    let [a, b, c] = cluster().await;
    let waits = async { b.remove("c", false).await };
    let rest = async {
        b.until("c drains", |state| state.nodes["c"].draining).await;
        let stopped = a.stop().await;
        b.raft_until("a new leader", |status| {
            status.leader_id.is_some_and(|leader| leader != 1)
        })
        .await;
        assert!(b.state().nodes.contains_key("c"));
        // Without this voter, the two that remain would be no majority.
        let a = stopped.start().await;
        b.remove("c", true).await.unwrap();
        a
    };
    let (waited, a) = tokio::join!(waits, rest);
    waited.unwrap();
    assert!(!b.state().nodes.contains_key("c"));
    for machine in [c, b, a] {
        machine.node.stop().await;
    }
}
