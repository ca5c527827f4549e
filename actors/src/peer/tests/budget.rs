//! Budgets of what the requests of a member occupy.

use super::{super::receive::LEAST_FRAME, *};

/// Bytes of its sender's budget that a request holds while it is served.
async fn held_while_served(body: Body) -> usize {
    let cluster = TestCluster::start(2, talkative(&Arc::default())).await;
    cluster.members[0].connected(&["node-2"]).await;
    cluster.members[1].connected(&["node-1"]).await;
    let route = cluster.members[1].transport.route("node-1").unwrap();
    let budget = route.receive().calls();
    let all = budget.available();
    let peers = cluster.members[0].transport.peers();
    let response = peers.call("node-2", call("/hold", body)).await;
    // The service has received the request and does not end.
    let response = response.unwrap();
    let held = all - budget.available();
    drop(response);
    until(|| (budget.available() == all).then_some(())).await;
    cluster.stop().await;
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn served_request_counts_against_its_senders_budget() {
    let body = http_body_util::Full::from(vec![7; 3 << 20]);
    assert!(held_while_served(Body::new(body)).await >= 3 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_short_frame_is_charged_its_memory() {
    const FRAMES: usize = 10_000;
    let bytes = (0..FRAMES).map(|_| Ok::<_, Status>(Frame::data(Bytes::from_static(b"x"))));
    let body = Body::new(StreamBody::new(stream::iter(bytes)));
    assert!(held_while_served(body).await >= FRAMES * LEAST_FRAME);
}
