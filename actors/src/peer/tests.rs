//! Members of a cluster on loopback, over QUIC.

mod world;

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use jaco_net::quic::{Closed, Kind, Reason};
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::Propose as _;
use jaco_supervision::KillMode;
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
    world.members[1].stop().await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_in_the_name_of_another_member_is_dropped() {
    let world = World::start(2, silent).await;
    world.members[1].connected(&["node-1"]).await;
    world.write("before").await;
    let (one, two) = (&world.members[0], &world.members[1]);
    // MsgHeartbeat to 1, in a term far ahead.
    let message = |from: u8, term: u8| vec![0x08, 8, 0x10, 1, 0x18, from, 0x20, term];
    let transport = two.network.transport();
    transport.send(1, message(3, 120));
    transport.send(1, message(2, 110));
    until(|| (one.raft.status().term >= 110).then_some(())).await;
    assert_eq!(one.raft.status().term, 110);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_is_cut_off_and_told_so() {
    let mut world = World::start(3, silent).await;
    world.members[2].connected(&["node-1", "node-2"]).await;
    world.members[0].connected(&["node-2", "node-3"]).await;
    let remove = Payload::NodeRemove(v1::NodeRemove {
        hostname: "node-3".to_owned(),
    });
    world.propose(world::about_members(remove)).await;
    world.members[0].connected(&["node-2"]).await;
    world.members[1].connected(&["node-1"]).await;
    let refused_by = async |members: &[world::Member], hosts: &[&str]| {
        let mut refusals = members[2].network.refusals();
        let found = refusals.wait_for(|found| found.hosts().eq(hosts.iter().copied()));
        let found = tokio::time::timeout(world::PATIENCE, found).await;
        drop(found.unwrap().unwrap());
    };
    refused_by(&world.members, &["node-1", "node-2"]).await;
    // The others go on without it.
    world.write("after").await;
    // Who is not there any more does not say that it refuses.
    world.members[0].stop().await;
    refused_by(&world.members, &["node-2"]).await;
    world.stop().await;
}

/// What `host` has to say to `listener`, as the member that it is: that it has applied more than
/// there is, and that these are the members.
fn hears(listener: &world::Member, host: &str, members: Vec<Record>) {
    let known = listener.network.roster.members();
    let own = known.iter().find(|r| r.member.hostname == host).unwrap();
    let speaker = Sender::new(host, own.member.raft_id, [own.fingerprint]);
    let told = hearsay::Told {
        applied: u64::MAX,
        members,
    };
    listener.network.hear(host, &speaker, told);
}

fn nine() -> Record {
    Record::new("node-9", 9, "127.0.0.1:1", [9; 32])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_vouched_for_itself_before_it_was_removed_is_cut_off() {
    let world = World::start(3, silent).await;
    let one = &world.members[0];
    one.connected(&["node-2", "node-3"]).await;
    let known = one.network.roster.members();
    hears(one, "node-3", [known, vec![nine()]].concat());
    let remove = Payload::NodeRemove(v1::NodeRemove {
        hostname: "node-3".to_owned(),
    });
    world.propose(world::about_members(remove)).await;
    one.connected(&["node-2"]).await;
    for host in ["node-3", "node-9"] {
        until(|| one.network.route(host).is_none().then_some(())).await;
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_cut_off_by_the_word_of_another() {
    let mut world = World::start(3, silent).await;
    world.write("before").await;
    // The state stays behind, so that what is heard counts for as long as it is said.
    world.members[0].stop().await;
    world.members[0].run_without_raft().await;
    let one = &world.members[0];
    one.connected(&["node-2", "node-3"]).await;
    let true_record = one.network.roster.members();
    let connection = one.network.route("node-2").unwrap().connection().unwrap();
    // Another certificate, and the name once more with another raft id.
    let false_record = Record::new("node-2", 2, "127.0.0.1:1", [7; 32]);
    let namesake = Record::new("node-2", 8, "127.0.0.1:1", [8; 32]);
    // Said until it is taken up: what the member itself says comes in between.
    until(|| {
        let told = vec![false_record.clone(), namesake.clone(), nine()];
        hears(one, "node-3", told);
        let taken = ["node-9", "node-2~8"].map(|key| one.network.route(key));
        taken.iter().all(Option::is_some).then_some(())
    })
    .await;
    assert_eq!(connection.close_reason(), None);
    // Its next connection is as welcome.
    world.members[1].stop().await;
    world.members[0].connected(&["node-3"]).await;
    world.members[1].run().await;
    world.members[0].connected(&["node-2", "node-3"]).await;
    let one = &world.members[0];
    let record = one.network.route("node-2").unwrap().record();
    assert_eq!(record.member, true_record[0].member);
    assert_eq!(record.fingerprint, true_record[0].fingerprint);
    let refusals = world.members[1].network.refusals();
    assert_eq!(refusals.borrow().hosts().next(), None);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_word_counts_until_the_leader_confirms_that_nothing_is_missing() {
    let world = World::start(3, silent).await;
    let one = &world.members[0];
    one.connected(&["node-2", "node-3"]).await;
    let connection = one.network.route("node-3").unwrap().connection().unwrap();
    hears(one, "node-3", vec![nine()]);
    until(|| one.network.roster.last_heard().is_none().then_some(())).await;
    until(|| one.network.route("node-9").is_none().then_some(())).await;
    assert_eq!(connection.close_reason(), None);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_away_hears_of_new_members_before_it_applies_them() {
    let mut world = World::start(3, silent).await;
    world.write("before").await;
    world.members[2].stop().await;
    let join = Payload::NodeJoin(v1::NodeJoin {
        hostname: "node-4".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        server_cert_fingerprint: vec![4; 32],
        raft_id: 4,
        ..Default::default()
    });
    world.propose(world::about_members(join)).await;
    let away = &mut world.members[2];
    away.run_without_raft().await;
    assert!(!away.raft.state().nodes.contains_key("node-4"));
    until(|| away.network.route("node-4").map(drop)).await;
    let known = away.network.roster.members();
    assert!(known.iter().any(|record| record.member.raft_id == 4));
    // It counts no longer than those who say it are there.
    world.members[0].stop().await;
    world.members[1].stop().await;
    let away = &world.members[2];
    away.connected(&[]).await;
    let known = away.network.roster.members();
    assert!(known.iter().all(|record| record.member.raft_id != 4));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_fell_behind_the_log_receives_a_snapshot() {
    let limits = jaco_raftnode::Limits {
        compact_entries: 8,
        ..Default::default()
    };
    let mut world = World::with(3, limits, silent).await;
    world.write("before").await;
    world.members[2].stop().await;
    let last = world.members[2].raft.status().applied;
    // The log is kept much longer for a member that has only just been heard.
    until(|| {
        let missed = |member: &world::Member| {
            let status = member.raft.status();
            let away = status.progress.iter().find(|p| p.raft_id == 3);
            away.is_some_and(|away| !away.recent_active)
        };
        world.members[..2].iter().any(missed).then_some(())
    })
    .await;
    for entry in 0..100 {
        world.write(&format!("away-{entry}")).await;
    }
    world.members[2].run().await;
    until(|| {
        world.members[2]
            .raft
            .state()
            .tokens
            .contains_key("away-99")
            .then_some(())
    })
    .await;
    // Entries that it never had are not in its log: they came as a whole.
    assert!(world.members[2].log_start() > last);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_nobody_wants_is_answered() {
    let world = World::start(2, silent).await;
    world.members[0].connected(&["node-2"]).await;
    let connection = world.members[0]
        .network
        .route("node-2")
        .unwrap()
        .connection();
    let connection = connection.unwrap();
    let (mut to, from) = connection.open_bi(Kind::Snapshot).await.unwrap();
    to.frame(b"no message of raft".to_vec()).await.unwrap();
    to.finish();
    assert_eq!(from.frames(1).next().await.unwrap().unwrap(), [0]);
    // One that breaks off is forgotten, and nothing is held against the connection.
    let (mut to, from) = connection.open_bi(Kind::Snapshot).await.unwrap();
    to.frame(b"no message of raft".to_vec()).await.unwrap();
    drop((to, from));
    world.write("after").await;
    assert_eq!(connection.close_reason(), None);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_connections_that_of_the_smaller_id_stays() {
    let world = World::start(2, silent).await;
    world.members[0].connected(&["node-2"]).await;
    world.members[1].connected(&["node-1"]).await;
    let dial = async |from: usize, to: usize| {
        let (here, there) = (&world.members[from], &world.members[to]);
        let endpoint = here.network.endpoint().unwrap();
        endpoint.dial(&there.hostname, there.address).await.unwrap()
    };
    let used = world.members[0]
        .network
        .route("node-2")
        .unwrap()
        .connection()
        .unwrap();
    assert_eq!(used.close_reason(), None);
    if used.dialled_here() {
        let second = dial(1, 0).await;
        assert_eq!(second.closed().await, Closed::There(Reason::Duplicate));
        assert_eq!(used.close_reason(), None);
    }
    // The side that dialled dials again: it must have lost the first.
    let third = dial(0, 1).await;
    assert_eq!(used.closed().await, Closed::There(Reason::Duplicate));
    drop(third);
    world.write("after").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_breaks_the_protocol_is_disconnected_and_may_come_back() {
    let world = World::start(2, silent).await;
    world.members[0].connected(&["node-2"]).await;
    let connection = || {
        world.members[0]
            .network
            .route("node-2")
            .unwrap()
            .connection()
    };
    let first = connection().unwrap();
    let mut stream = first.open_uni(Kind::Raft).await.unwrap();
    // A frame of 32 MiB, it says.
    let _ = stream.frame(vec![0; 32 << 20]).await;
    assert_eq!(first.closed().await, Closed::There(Reason::Protocol));
    until(|| connection().filter(|now| now.close_reason().is_none())).await;
    world.write("after").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_actor_may_die() {
    let world = World::start(2, silent).await;
    world.members[0].connected(&["node-2"]).await;
    for actor in [
        "peers/peer:node-2",
        "peers/manager",
        "peers/endpoint",
        "raft",
    ] {
        for mode in [KillMode::Panic, KillMode::Kill] {
            let member = &world.members[0];
            let path = format!("{}/{actor}", member.hostname);
            let tree = member.tree.as_ref().unwrap();
            let kill = || tree.kill(&path, mode).ok();
            until(kill).await;
            world.write(&format!("{actor} {mode:?}")).await;
        }
    }
    world.members[0].connected(&["node-2"]).await;
    world.members[1].connected(&["node-1"]).await;
    world.stop().await;
}
