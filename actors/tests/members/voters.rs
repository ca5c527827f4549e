//! Nodes come and go; who votes follows.

use super::lab::Machine;

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_grows_to_three_voters() {
    let a = Machine::founder("a").await;
    let b = Machine::joined("b", &a).await;
    assert_eq!(b.voters(), ["a"]);
    let c = Machine::joined("c", &a).await;
    for node in [&a, &b, &c] {
        node.votes(&["a", "b", "c"]).await;
    }
    for node in [c, b, a] {
        node.node.stop().await;
    }
}
