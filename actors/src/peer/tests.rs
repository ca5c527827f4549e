//! Peer transport of several members in one process, over QUIC on loopback.

mod budget;
mod cluster;

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use jaco_net::quic::{Closed, ConnectError, Kind, Reason};
use jaco_policy::peer::{gossip::MembershipView, members::PeerInfo};
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::StateReader as _;
use jaco_supervision::KillMode;
use tokio::sync::Notify;
use tonic::{Status, body::Body};
use tower::service_fn;

use super::*;
use cluster::{TestCluster, until};

/// Returns a service that answers every call with an empty response.
fn silent(_: u64) -> Services {
    Services::new(service_fn(|_: Request<Body>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_replicate_and_exchange_heartbeats() {
    let cluster = TestCluster::start(3, silent).await;
    let committed = cluster.write("ci").await;
    for member in &cluster.members {
        until(|| {
            let state = member.raft.state();
            (state.applied_index >= committed.index && state.tokens.contains_key("ci"))
                .then_some(())
        })
        .await;
    }
    cluster.members[0].connected(&["node-2", "node-3"]).await;
    cluster.members[1].connected(&["node-1", "node-3"]).await;
    cluster.members[2].connected(&["node-1", "node-2"]).await;
    // A heartbeat names no sender; the connection does.
    for (at, member) in cluster.members.iter().enumerate() {
        until(|| {
            let received = member.recorder.received.lock().unwrap();
            let others = (1..=3).filter(|id| *id != at as u64 + 1);
            others
                .map(|id| {
                    received
                        .get(&cluster::name(id))
                        .map(|beat| beat.applied == id)
                })
                .all(|ok| ok == Some(true))
                .then_some(())
        })
        .await;
    }
    cluster.stop().await;
}

/// Returns a service by path: `/echo` returns the request body frame by frame; `/endless` sends one
/// frame, stays open and notifies `cancelled` when dropped; `/late` reads the whole request and
/// responds with it and trailers.
fn talkative(cancelled: &Arc<Notify>) -> impl Fn(u64) -> Services {
    let cancelled = cancelled.clone();
    move |_| {
        let cancelled = cancelled.clone();
        Services::new(service_fn(move |request: Request<Body>| {
            let cancelled = NotifyOnDrop(cancelled.clone());
            async move { Ok::<_, Infallible>(answer(request, cancelled).await) }
        }))
    }
}

/// Notifies when it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

async fn answer(request: Request<Body>, told: NotifyOnDrop) -> Response<Body> {
    let caller = request.extensions().get::<Sender>().cloned();
    let caller = caller.map_or(String::new(), |c| format!("{}/{}", c.hostname, c.raft_id));
    let mut headers = HeaderMap::new();
    headers.insert("caller", caller.parse().unwrap());
    let body = match request.uri().path() {
        "/echo" => request.into_body(),
        "/endless" => {
            let first = stream::iter([Ok::<_, Status>(Frame::data(Bytes::from("first")))]);
            let never = stream::once(async move {
                let _guard = told;
                std::future::pending().await
            });
            Body::new(StreamBody::new(futures::StreamExt::chain(first, never)))
        }
        "/hold" => {
            request.into_body().collect().await.unwrap();
            Body::new(StreamBody::new(stream::pending::<
                Result<Frame<Bytes>, Status>,
            >()))
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
async fn call_carries_body_trailers_and_caller() {
    let cluster = TestCluster::start(2, talkative(&Arc::default())).await;
    cluster.members[0].connected(&["node-2"]).await;
    let peers = cluster.members[0].transport.peers();
    // Larger than one frame and than the flow-control window.
    let body = vec![7; 5 << 20];
    let request = call("/late", Body::new(http_body_util::Full::from(body.clone())));
    let response = peers.call("node-2", request).await.unwrap();
    assert_eq!(response.headers()["caller"], "node-1/1");
    let answer = response.into_body().collect().await.unwrap();
    assert_eq!(answer.trailers().unwrap()["length"], (5 << 20).to_string());
    assert!(answer.to_bytes() == body);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_and_response_stream_at_once() {
    let cluster = TestCluster::start(2, talkative(&Arc::default())).await;
    cluster.members[0].connected(&["node-2"]).await;
    let peers = cluster.members[0].transport.peers();
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
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_response_cancels_call_on_server() {
    let cancelled = Arc::<Notify>::default();
    let cluster = TestCluster::start(2, talkative(&cancelled)).await;
    cluster.members[0].connected(&["node-2"]).await;
    let peers = cluster.members[0].transport.peers();
    let response = peers.call("node-2", call("/endless", Body::empty())).await;
    let mut body = response.unwrap().into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "first");
    drop(body);
    tokio::time::timeout(cluster::TEST_TIMEOUT, cancelled.notified())
        .await
        .unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_member_breaks_calls_until_it_returns() {
    let mut cluster = TestCluster::start(2, talkative(&Arc::default())).await;
    cluster.members[0].connected(&["node-2"]).await;
    let peers = cluster.members[0].transport.peers();
    let response = peers.call("node-2", call("/endless", Body::empty())).await;
    let mut body = response.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    let route = cluster.members[0].transport.route("node-2").unwrap();
    let stopped = route.connection().unwrap().incarnation();
    cluster.members[1].stop().await;
    let error = body.frame().await.unwrap().unwrap_err();
    assert_eq!(error.message(), "peer_unreachable");
    cluster.members[0].connected(&[]).await;
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
    // Calls work again after a restart of the member.
    cluster.members[1].run().await;
    // A member that stops may accept one more connection.
    until(|| {
        route
            .connection()
            .filter(|now| now.incarnation() != stopped)
    })
    .await;
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
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raft_message_with_forged_sender_is_dropped() {
    let cluster = TestCluster::start(2, silent).await;
    cluster.members[1].connected(&["node-1"]).await;
    cluster.write("before").await;
    let (one, two) = (&cluster.members[0], &cluster.members[1]);
    // MsgHeartbeat to member 1, in a term far ahead.
    let message = |from: u8, term: u8| vec![0x08, 8, 0x10, 1, 0x18, from, 0x20, term];
    let transport = two.transport.raft_transport();
    transport.send(1, message(3, 120));
    transport.send(1, message(2, 110));
    until(|| (one.raft.status().term >= 110).then_some(())).await;
    assert_eq!(one.raft.status().term, 110);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_member_is_disconnected_and_rejected() {
    let mut cluster = TestCluster::start(3, silent).await;
    cluster.members[2].connected(&["node-1", "node-2"]).await;
    cluster.members[0].connected(&["node-2", "node-3"]).await;
    let remove = Payload::NodeRemove(v1::NodeRemove {
        hostname: "node-3".to_owned(),
    });
    cluster.propose(cluster::about_members(remove)).await;
    cluster.members[0].connected(&["node-2"]).await;
    cluster.members[1].connected(&["node-1"]).await;
    let rejected_by = async |members: &[cluster::Member], hosts: &[&str]| {
        let mut rejections = members[2].transport.rejections();
        let found = rejections.wait_for(|found| found.hosts().eq(hosts.iter().copied()));
        let found = tokio::time::timeout(cluster::TEST_TIMEOUT, found).await;
        drop(found.unwrap().unwrap());
    };
    rejected_by(&cluster.members, &["node-1", "node-2"]).await;
    // The remaining members still commit.
    cluster.write("after").await;
    // A stopped member rejects nothing.
    cluster.members[0].stop().await;
    rejected_by(&cluster.members, &["node-2"]).await;
    cluster.stop().await;
}

/// Delivers a membership view to `listener` as if sent by member `host`: a higher applied index
/// than any, with these `members`.
fn inject_report(listener: &cluster::Member, host: &str, members: Vec<PeerInfo>) {
    let known = listener.transport.directory.members();
    let own = known.iter().find(|r| r.hostname == host).unwrap();
    let speaker = Sender::new(
        host,
        own.raft_id,
        [Fingerprint::from_bytes(own.fingerprint)],
    );
    let told = MembershipView {
        applied: u64::MAX,
        members,
    };
    listener.transport.record_report(host, &speaker, told);
}

fn nine() -> PeerInfo {
    PeerInfo::new("node-9", 9, "127.0.0.1:1", [9; 32])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_member_is_disconnected_despite_own_report() {
    let cluster = TestCluster::start(3, silent).await;
    let one = &cluster.members[0];
    one.connected(&["node-2", "node-3"]).await;
    let known = one.transport.directory.members();
    inject_report(one, "node-3", [known, vec![nine()]].concat());
    let remove = Payload::NodeRemove(v1::NodeRemove {
        hostname: "node-3".to_owned(),
    });
    cluster.propose(cluster::about_members(remove)).await;
    one.connected(&["node-2"]).await;
    for host in ["node-3", "node-9"] {
        until(|| one.transport.route(host).is_none().then_some(())).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn false_reports_never_disconnect_a_member() {
    let mut cluster = TestCluster::start(3, silent).await;
    cluster.write("before").await;
    // Without raft the applied index stays behind, so reports stay in use.
    cluster.members[0].stop().await;
    cluster.members[0].run_without_raft().await;
    let one = &cluster.members[0];
    one.connected(&["node-2", "node-3"]).await;
    let true_record = one.transport.directory.members();
    let connection = one.transport.route("node-2").unwrap().connection().unwrap();
    // The same member with another certificate, and the same hostname with another raft id.
    let false_record = PeerInfo::new("node-2", 2, "127.0.0.1:1", [7; 32]);
    let namesake = PeerInfo::new("node-2", 8, "127.0.0.1:1", [8; 32]);
    // Repeated, because real reports of the member replace this one.
    until(|| {
        let told = vec![false_record.clone(), namesake.clone(), nine()];
        inject_report(one, "node-3", told);
        let taken = ["node-9", "node-2~8"].map(|key| one.transport.route(key));
        taken.iter().all(Option::is_some).then_some(())
    })
    .await;
    assert_eq!(connection.close_reason(), None);
    // The member can also reconnect.
    cluster.members[1].stop().await;
    cluster.members[0].connected(&["node-3"]).await;
    cluster.members[1].run().await;
    cluster.members[0].connected(&["node-2", "node-3"]).await;
    let one = &cluster.members[0];
    let record = one.transport.route("node-2").unwrap().record();
    let identity = |record: &PeerInfo| {
        let PeerInfo {
            hostname,
            raft_id,
            address,
            fingerprint,
            ..
        } = record.clone();
        (hostname, raft_id, address, fingerprint)
    };
    assert_eq!(identity(&record), identity(&true_record[0]));
    let rejections = cluster.members[1].transport.rejections();
    assert_eq!(rejections.borrow().hosts().next(), None);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_read_discards_reports() {
    let cluster = TestCluster::start(3, silent).await;
    let one = &cluster.members[0];
    one.connected(&["node-2", "node-3"]).await;
    let connection = one.transport.route("node-3").unwrap().connection().unwrap();
    inject_report(one, "node-3", vec![nine()]);
    until(|| {
        one.transport
            .directory
            .last_report()
            .is_none()
            .then_some(())
    })
    .await;
    until(|| one.transport.route("node-9").is_none().then_some(())).await;
    assert_eq!(connection.close_reason(), None);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offline_member_learns_new_members_from_reports() {
    let mut cluster = TestCluster::start(3, silent).await;
    cluster.write("before").await;
    cluster.members[2].stop().await;
    let join = Payload::NodeJoin(v1::NodeJoin {
        hostname: "node-4".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        server_cert_fingerprint: vec![4; 32],
        raft_id: 4,
        ..Default::default()
    });
    cluster.propose(cluster::about_members(join)).await;
    let away = &mut cluster.members[2];
    away.run_without_raft().await;
    assert!(!away.raft.state().nodes.contains_key("node-4"));
    until(|| away.transport.route("node-4").map(drop)).await;
    let known = away.transport.directory.members();
    assert!(known.iter().any(|record| record.raft_id == 4));
    // Reports are dropped when their reporter disconnects.
    cluster.members[0].stop().await;
    cluster.members[1].stop().await;
    let away = &cluster.members[2];
    away.connected(&[]).await;
    let known = away.transport.directory.members();
    assert!(known.iter().all(|record| record.raft_id != 4));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_behind_compacted_log_receives_snapshot() {
    let limits = jaco_raftnode::RaftLimits {
        compact_entries: 8,
        ..Default::default()
    };
    let mut cluster = TestCluster::with(3, limits, silent).await;
    cluster.write("before").await;
    cluster.members[2].stop().await;
    let last = cluster.members[2].raft.status().applied;
    // Compaction keeps a longer log for a member that was active recently.
    until(|| {
        let missed = |member: &cluster::Member| {
            let status = member.raft.status();
            let away = status.progress.iter().find(|p| p.raft_id == 3);
            away.is_some_and(|away| !away.recent_active)
        };
        cluster.members[..2].iter().any(missed).then_some(())
    })
    .await;
    for entry in 0..100 {
        cluster.write(&format!("away-{entry}")).await;
    }
    cluster.members[2].run().await;
    until(|| {
        cluster.members[2]
            .raft
            .state()
            .tokens
            .contains_key("away-99")
            .then_some(())
    })
    .await;
    // The first log index shows that the missed entries came as a snapshot.
    assert!(cluster.members[2].log_start() > last);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_snapshot_is_answered_with_rejection() {
    let cluster = TestCluster::start(2, silent).await;
    cluster.members[0].connected(&["node-2"]).await;
    let connection = cluster.members[0]
        .transport
        .route("node-2")
        .unwrap()
        .connection();
    let connection = connection.unwrap();
    let (mut to, from) = connection.open_bi(Kind::Snapshot).await.unwrap();
    to.frame(b"no message of raft".to_vec()).await.unwrap();
    to.finish();
    assert_eq!(from.frames(1).next().await.unwrap().unwrap(), [0]);
    // A snapshot stream that ends early is no protocol violation.
    let (mut to, from) = connection.open_bi(Kind::Snapshot).await.unwrap();
    to.frame(b"no message of raft".to_vec()).await.unwrap();
    drop((to, from));
    cluster.write("after").await;
    assert_eq!(connection.close_reason(), None);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_connection_of_smaller_id_stays() {
    let cluster = TestCluster::start(2, silent).await;
    cluster.members[0].connected(&["node-2"]).await;
    cluster.members[1].connected(&["node-1"]).await;
    let dial = async |from: usize, to: usize| {
        let (here, there) = (&cluster.members[from], &cluster.members[to]);
        let endpoint = here.transport.endpoint().unwrap();
        endpoint.dial(&there.hostname, there.address).await
    };
    let used = cluster.members[0]
        .transport
        .route("node-2")
        .unwrap()
        .connection()
        .unwrap();
    assert_eq!(used.close_reason(), None);
    if used.is_outgoing() {
        // The refusal may come before the handshake has ended here.
        let closed = match dial(1, 0).await {
            Ok(second) => second.closed().await,
            Err(ConnectError::Handshake(closed)) => closed,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(closed, Closed::Remote(Reason::Duplicate));
        assert_eq!(used.close_reason(), None);
    }
    // A second dial of the same side means that it lost the first connection.
    let third = dial(0, 1).await.unwrap();
    assert_eq!(used.closed().await, Closed::Remote(Reason::Duplicate));
    drop(third);
    cluster.write("after").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protocol_violation_disconnects_member_until_it_redials() {
    let cluster = TestCluster::start(2, silent).await;
    cluster.members[0].connected(&["node-2"]).await;
    let connection = || {
        cluster.members[0]
            .transport
            .route("node-2")
            .unwrap()
            .connection()
    };
    let first = connection().unwrap();
    let violated = async {
        // The member's own sender may replace the stream before the receiver has read from it.
        while let Ok(mut stream) = first.open_uni(Kind::Raft).await {
            // The frame header announces 32 MiB, over the limit.
            let _ = stream.frame(vec![0; 32 << 20]).await;
        }
    };
    let violated = tokio::time::timeout(cluster::TEST_TIMEOUT, violated).await;
    violated.expect("the connection stays open");
    assert_eq!(first.closed().await, Closed::Remote(Reason::Protocol));
    until(|| connection().filter(|now| now.close_reason().is_none())).await;
    cluster.write("after").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_raft_stream_replaces_the_first() {
    let cluster = TestCluster::start(2, silent).await;
    cluster.members[0].connected(&["node-2"]).await;
    for kind in [Kind::Raft, Kind::Heartbeat] {
        let route = cluster.members[0].transport.route("node-2").unwrap();
        let live = || (route.connection()).filter(|now| now.close_reason().is_none());
        let connection = until(live).await;
        let first = connection.open_uni(kind).await.unwrap();
        let stopped = first.stopped();
        // Fails if the sender of the member's own stream has already closed the connection.
        let _second = connection.open_uni(kind).await;
        tokio::time::timeout(cluster::TEST_TIMEOUT, stopped)
            .await
            .unwrap();
    }
    cluster.write("after").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transport_recovers_from_death_of_every_actor() {
    let cluster = TestCluster::start(2, silent).await;
    cluster.members[0].connected(&["node-2"]).await;
    for actor in [
        "peers/peer:node-2",
        "peers/manager",
        "peers/endpoint",
        "raft",
    ] {
        for mode in [KillMode::Panic, KillMode::Kill] {
            let member = &cluster.members[0];
            let path = format!("{}/{actor}", member.hostname);
            let tree = member.tree.as_ref().unwrap();
            let kill = || tree.kill(&path, mode).ok();
            until(kill).await;
            cluster.write(&format!("{actor} {mode:?}")).await;
        }
    }
    cluster.members[0].connected(&["node-2"]).await;
    cluster.members[1].connected(&["node-1"]).await;
    cluster.stop().await;
}
