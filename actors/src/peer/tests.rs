//! Members of a cluster on loopback, over QUIC.

mod world;

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use jaco_raftnode::Propose as _;
use tokio::sync::Notify;
use tonic::{Status, body::Body};
use tower::service_fn;

use super::*;
use world::{World, until};

/// Answers nothing.
fn silent(_: u64) -> Services {
    Services::new(service_fn(|_: Request<Body>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_replicate_over_the_network() {
    let world = World::start(3, silent).await;
    let committed = world.write("ci").await;
    for member in &world.members {
        until(|| {
            let state = member.raft.state();
            (state.applied_index >= committed.index && state.tokens.contains_key("ci"))
                .then_some(())
        })
        .await;
    }
    world.members[0].connected(&["node-2", "node-3"]).await;
    world.members[1].connected(&["node-1", "node-3"]).await;
    world.members[2].connected(&["node-1", "node-2"]).await;
    // Heartbeats say whose they are by the connection.
    for (at, member) in world.members.iter().enumerate() {
        until(|| {
            let heard = member.ear.heard.lock().unwrap();
            let others = (1..=3).filter(|id| *id != at as u64 + 1);
            others
                .map(|id| heard.get(&world::name(id)).map(|beat| beat.applied == id))
                .all(|ok| ok == Some(true))
                .then_some(())
        })
        .await;
    }
    world.stop().await;
}

/// Answers by path: `/echo` with what it is sent, piece by piece; `/endless` with a piece and
/// then silence, and tells when it is cancelled; `/late` with trailers of its own.
fn talkative(cancelled: &Arc<Notify>) -> impl Fn(u64) -> Services {
    let cancelled = cancelled.clone();
    move |_| {
        let cancelled = cancelled.clone();
        Services::new(service_fn(move |request: Request<Body>| {
            let cancelled = Told(cancelled.clone());
            async move { Ok::<_, Infallible>(answer(request, cancelled).await) }
        }))
    }
}

/// Tells when it is dropped.
struct Told(Arc<Notify>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

async fn answer(request: Request<Body>, told: Told) -> Response<Body> {
    let caller = request.extensions().get::<Sender>().cloned();
    let caller = caller.map_or(String::new(), |c| format!("{}/{}", c.hostname, c.raft_id));
    let mut headers = HeaderMap::new();
    headers.insert("caller", caller.parse().unwrap());
    let body = match request.uri().path() {
        "/echo" => request.into_body(),
        "/endless" => {
            let first = stream::iter([Ok::<_, Status>(Frame::data(Bytes::from("first")))]);
            let never = stream::once(async move {
                let _told = told;
                std::future::pending().await
            });
            Body::new(StreamBody::new(futures::StreamExt::chain(first, never)))
        }
        "/late" => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut trailers = HeaderMap::new();
            trailers.insert("length", HeaderValue::from(body.len()));
            let frames = [
                Ok::<_, Status>(Frame::data(body)),
                Ok(Frame::trailers(trailers)),
            ];
            Body::new(StreamBody::new(stream::iter(frames)))
        }
        other => panic!("{other}"),
    };
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    response
}

fn call(path: &str, body: Body) -> Request<Body> {
    Request::post(path).body(body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_carries_body_trailers_and_who_calls() {
    let world = World::start(2, talkative(&Arc::default())).await;
    world.members[0].connected(&["node-2"]).await;
    let peers = world.members[0].network.peers();
    // Larger than a frame, a window and everything else.
    let body = vec![7; 5 << 20];
    let request = call("/late", Body::new(http_body_util::Full::from(body.clone())));
    let response = peers.call("node-2", request).await.unwrap();
    assert_eq!(response.headers()["caller"], "node-1/1");
    let answer = response.into_body().collect().await.unwrap();
    assert_eq!(answer.trailers().unwrap()["length"], (5 << 20).to_string());
    assert!(answer.to_bytes() == body);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_of_a_call_stream_at_once() {
    let world = World::start(2, talkative(&Arc::default())).await;
    world.members[0].connected(&["node-2"]).await;
    let peers = world.members[0].network.peers();
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<Result<Frame<Bytes>, Status>>();
    let body = tokio_stream::wrappers::UnboundedReceiverStream::new(receiver);
    let request = call("/echo", Body::new(StreamBody::new(body)));
    let mut echo = peers.call("node-2", request).await.unwrap().into_body();
    for byte in 0..3 {
        sender
            .send(Ok(Frame::data(Bytes::from(vec![byte]))))
            .unwrap();
        let frame = echo.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), [byte][..]);
    }
    drop(sender);
    assert!(echo.frame().await.is_none());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_dropped_ends_the_call_on_the_other_side() {
    let cancelled = Arc::<Notify>::default();
    let world = World::start(2, talkative(&cancelled)).await;
    world.members[0].connected(&["node-2"]).await;
    let peers = world.members[0].network.peers();
    let response = peers.call("node-2", call("/endless", Body::empty())).await;
    let mut body = response.unwrap().into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "first");
    drop(body);
    tokio::time::timeout(world::PATIENCE, cancelled.notified())
        .await
        .unwrap();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_on_a_member_that_dies_breaks_off_and_the_next_is_not_sent() {
    let mut world = World::start(2, talkative(&Arc::default())).await;
    world.members[0].connected(&["node-2"]).await;
    let peers = world.members[0].network.peers();
    let response = peers.call("node-2", call("/endless", Body::empty())).await;
    let mut body = response.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    world.members[1].tree.take().unwrap().stop().await;
    let error = body.frame().await.unwrap().unwrap_err();
    assert_eq!(error.message(), "peer_unreachable");
    world.members[0].connected(&[]).await;
    let error = peers
        .call("node-2", call("/late", Body::empty()))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::NotSent { .. }), "{error}");
    let error = peers
        .call("nobody", call("/late", Body::empty()))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::NotSent { .. }), "{error}");
    // It comes back, and so does everything else.
    world.members[1].run().await;
    world.members[0].connected(&["node-2"]).await;
    let response = peers
        .call("node-2", call("/late", Body::empty()))
        .await
        .unwrap();
    assert!(
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .is_empty()
    );
    world.stop().await;
}
