//! A node that cannot load its ruleset.

use std::{
    io::Write as _,
    process::{Child, Stdio},
};

use jaco_chaos::{lab::Node, test_permits, until};
use jaco_proto::v1::NodeStatus;

use crate::{
    fixture::{self, LIMIT, connected, hosts},
    traffic::Traffic,
};

/// Takes the table: no other process can change it as long as this one runs
/// (nft(8), flag `owner`).
fn seize_table(node: &Node) -> Child {
    let mut process = node
        .command("nft")
        .arg("-i")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let line = b"delete table inet jaco; add table inet jaco { flags owner; }\n";
    process.stdin.as_mut().unwrap().write_all(line).unwrap();
    process
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_isolation_takes_no_replicas() {
    let _permits = test_permits::exclusive().await;
    let lab = fixture::cluster(2).await;
    let mut owner = seize_table(lab.node(2));
    let status = async |wanted: NodeStatus| {
        until("the status of n2", LIMIT, || async {
            let seen = lab.node(1).api().status().await;
            let seen = seen.map_err(|error| error.to_string())?;
            let node = seen.nodes.into_iter().find(|node| node.hostname == "n2");
            match node {
                Some(node) if node.status() == wanted => Ok(node),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap()
    };
    let unavailable = status(NodeStatus::IsolationUnavailable).await;
    let reason = unavailable.status_details.get("reason");
    assert!(
        reason.is_some_and(|reason| !reason.is_empty()),
        "{unavailable:?}"
    );

    let wanted = [("alpha", [2, 2])].into();
    let mut traffic = Traffic::default();
    fixture::apply_all(&lab, &wanted, 0).await;
    let found = connected(&lab, &mut traffic, &wanted).await;
    assert_eq!(hosts(&found), [1].into());

    owner.kill().unwrap();
    owner.wait().unwrap();
    status(NodeStatus::Ready).await;
}
