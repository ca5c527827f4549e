use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use http::{StatusCode, Version};
use jaco_net::ingress::{Finished, Observe as _};
use jaco_proto::v1::{DroppedPackets, NodeNetwork};
use jaco_raftnode::{Applied, Observe as _, RaftHandle, RaftLimits, State};
use jaco_supervision::{ChildSpec, Handle, KillMode, Strategy, SupervisorSpec, Tree};
use prost_types::Timestamp;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{
    actor::Msg,
    metrics::{BUCKETS, Metrics},
    *,
};
use crate::{clock::Clock, network::reports::NetworkReports, testing::unique_loopback_address};

fn clock() -> Clock {
    Clock::from_fn(|| std::time::UNIX_EPOCH + Duration::from_secs(1000))
}

fn metrics() -> Metrics {
    Metrics::new("n1", clock())
}

fn applied(op: &'static str, accepted: bool) -> Applied {
    Applied {
        index: 7,
        op,
        ts: Some(Timestamp {
            seconds: 997,
            nanos: 0,
        }),
        accepted,
        took: Duration::from_micros(20),
    }
}

fn request(status: u16, version: Version) -> Finished {
    Finished {
        status: StatusCode::from_u16(status).unwrap(),
        version,
        took: (status != 101).then_some(Duration::from_millis(3)),
    }
}

/// Sample values by name and labels.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series, value.parse().unwrap())
        })
        .collect()
}

/// Types by family name.
fn families(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect()
}

#[tokio::test]
async fn families_have_their_names_types_and_labels() {
    let metrics = metrics();
    metrics.committed(Duration::from_millis(2));
    metrics.applied(&applied("batch", true));
    metrics.applied(&applied("token_revoke", false)); // rejected: no revocation
    metrics.applied(&applied("token_revoke", true));
    metrics.reconciled(Duration::from_millis(60));
    metrics.container_start("shop", "web", true);
    metrics.limited("shop", "web");
    metrics
        .meter(None, "")
        .finished(&request(404, Version::HTTP_11));
    metrics
        .meter(Some("a.example"), "web")
        .finished(&request(204, Version::HTTP_10));
    metrics.watch_raft(&RaftHandle::new(State::default(), RaftLimits::default()));
    let root = SupervisorSpec::new(Strategy::OneForOne);
    metrics.watch_tree(&Tree::start("node", root).await.unwrap());
    let (tree, _handle) = start(metrics.clone(), None).await;
    metrics.watch_tree(&tree); // ignored: a tree is set

    let text = metrics.render();

    assert_eq!(
        families(&text),
        BTreeMap::from([
            ("jaco_actor_mailbox_depth", "gauge"),
            ("jaco_apply_duration_seconds", "histogram"),
            ("jaco_ingress_duration_seconds", "histogram"),
            ("jaco_ingress_limited_total", "counter"),
            ("jaco_ingress_requests_total", "counter"),
            ("jaco_ipam_subnets_used", "gauge"),
            ("jaco_raft_applied_index", "gauge"),
            ("jaco_raft_commit_latency_seconds", "histogram"),
            ("jaco_raft_is_leader", "gauge"),
            ("jaco_raft_term", "gauge"),
            ("jaco_runtime_container_starts_total", "counter"),
            ("jaco_scheduler_reconcile_lag_seconds", "histogram"),
            ("jaco_token_revocation_propagation_seconds", "histogram"),
        ])
    );
    let samples = samples(&text);
    for (series, value) in [
        ("jaco_raft_commit_latency_seconds_count{node=\"n1\"}", 1.0),
        (
            "jaco_apply_duration_seconds_count{node=\"n1\",op=\"batch\"}",
            1.0,
        ),
        (
            "jaco_apply_duration_seconds_count{node=\"n1\",op=\"token_revoke\"}",
            2.0,
        ),
        (
            "jaco_scheduler_reconcile_lag_seconds_count{node=\"n1\"}",
            1.0,
        ),
        (
            "jaco_token_revocation_propagation_seconds_count{node=\"n1\"}",
            1.0,
        ),
        (
            "jaco_token_revocation_propagation_seconds_sum{node=\"n1\"}",
            3.0,
        ),
        (
            "jaco_ingress_requests_total{domain=\"_unknown\",service=\"\",code=\"4xx\",proto=\"http/1.1\"}",
            1.0,
        ),
        (
            "jaco_ingress_requests_total{domain=\"a.example\",service=\"web\",code=\"2xx\",proto=\"http/1.0\"}",
            1.0,
        ),
        (
            "jaco_ingress_duration_seconds_count{domain=\"a.example\",service=\"web\"}",
            1.0,
        ),
        (
            "jaco_ingress_limited_total{node=\"n1\",deployment=\"shop\",service=\"web\"}",
            1.0,
        ),
        (
            "jaco_runtime_container_starts_total{node=\"n1\",deployment=\"shop\",service=\"web\",result=\"ok\"}",
            1.0,
        ),
        (
            "jaco_runtime_container_starts_total{node=\"n1\",deployment=\"shop\",service=\"web\",result=\"failed\"}",
            0.0,
        ),
        ("jaco_raft_is_leader{node=\"n1\"}", 0.0),
        ("jaco_ipam_subnets_used", 0.0),
        (
            "jaco_actor_mailbox_depth{node=\"n1\",kind=\"Supervisor\"}",
            0.0,
        ),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series} in\n{text}");
    }
}

#[test]
fn every_histogram_has_the_same_buckets() {
    let metrics = metrics();
    metrics.applied(&applied("token_revoke", true));
    metrics
        .meter(None, "")
        .finished(&request(200, Version::HTTP_2));
    metrics.committed(Duration::ZERO);
    metrics.reconciled(Duration::ZERO);
    let text = metrics.render();
    let mut found = BTreeMap::<&str, Vec<f64>>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels)) = line.split_once("_bucket{") else {
            continue;
        };
        let (_, bound) = labels.split_once("le=\"").unwrap();
        let bound = bound.split('"').next().unwrap();
        found.entry(name).or_default().push(bound.parse().unwrap());
    }
    assert_eq!(found.len(), 5, "{text}");
    for (name, bounds) in found {
        let (last, finite) = bounds.split_last().unwrap();
        assert_eq!(finite, BUCKETS, "{name}");
        assert!(last.is_infinite(), "{name}");
    }
}

#[test]
fn requests_are_counted_by_status_class_and_protocol() {
    let metrics = metrics();
    let meter = metrics.meter(Some("a"), "s");
    for (status, version) in [
        (101, Version::HTTP_11),
        (308, Version::HTTP_2),
        (599, Version::HTTP_3),
        (999, Version::HTTP_11),
    ] {
        meter.finished(&request(status, version));
    }
    let text = metrics.render();
    for (code, proto, count) in [
        ("1xx", "http/1.1", 1),
        ("3xx", "http/2", 1),
        ("5xx", "http/3", 1),
        ("5xx", "http/1.1", 1),
    ] {
        let line = format!(
            "jaco_ingress_requests_total{{domain=\"a\",service=\"s\",code=\"{code}\",proto=\"{proto}\"}} {count}\n"
        );
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert_eq!(
        samples(&text)["jaco_ingress_duration_seconds_count{domain=\"a\",service=\"s\"}"],
        3.0
    );
}

#[test]
fn nodes_of_one_process_have_separate_metrics() {
    let (one, two) = (metrics(), Metrics::new("n2", clock()));
    one.committed(Duration::ZERO);
    assert!(
        one.render()
            .contains("latency_seconds_count{node=\"n1\"} 1\n")
    );
    assert!(
        two.render()
            .contains("latency_seconds_count{node=\"n2\"} 0\n")
    );
}

async fn start(metrics: Metrics, addr: Option<SocketAddr>) -> (Tree, Handle<Msg>) {
    let args = TelemetryArgs { metrics, addr };
    let (spec, handle) = ChildSpec::worker::<TelemetryActor>("telemetry", args);
    let root = SupervisorSpec::new(Strategy::OneForOne).child(spec);
    let tree = Tree::start("node", root).await.unwrap();
    handle.running().await;
    (tree, handle)
}

async fn listening(handle: &Handle<Msg>) -> Option<SocketAddr> {
    let patience = Duration::from_secs(60);
    handle.call(patience, Msg::ListenAddr).await.unwrap()
}

/// Sends one request and returns the whole response.
async fn ask(addr: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A free port of an address that no other test has.
fn any() -> SocketAddr {
    (unique_loopback_address(), 0).into()
}

#[tokio::test]
async fn metrics_are_served_over_http() {
    let metrics = metrics();
    metrics.committed(Duration::ZERO);
    let (tree, handle) = start(metrics, Some(any())).await;
    let addr = listening(&handle).await.unwrap();

    let answer = ask(addr, "GET /metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{answer}"
    );
    assert!(answer.contains("\njaco_raft_commit_latency_seconds_count{node=\"n1\"} 1\n"));
    for (line, status) in [
        ("HEAD /metrics", 200),
        ("GET /metrics?name=x", 200),
        ("GET /", 404),
        ("GET /metrics/", 404),
        ("POST /metrics", 405),
    ] {
        let answer = ask(addr, line).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{line}: {answer}"
        );
    }
    tree.stop().await;
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn listener_is_reopened_after_actor_restart() {
    let held = TcpListener::bind(any()).await.unwrap();
    let addr = held.local_addr().unwrap();
    drop(held);
    let (tree, handle) = start(metrics(), Some(addr)).await;
    let mut open = TcpStream::connect(addr).await.unwrap();
    for mode in [KillMode::Kill, KillMode::Panic] {
        tree.kill("node/telemetry", mode).unwrap();
        while handle.is_running() {
            tokio::task::yield_now().await;
        }
        handle.running().await;
        assert_eq!(listening(&handle).await, Some(addr));
    }
    assert_eq!(
        open.read(&mut [0]).await.unwrap_or_default(),
        0,
        "of a dead instance"
    );
    assert!(ask(addr, "GET /metrics").await.starts_with("HTTP/1.1 200"));
    tree.stop().await;
}

#[tokio::test(start_paused = true)]
async fn port_in_use_is_retried() {
    let held = TcpListener::bind(any()).await.unwrap();
    let addr = held.local_addr().unwrap();
    let (tree, handle) = start(metrics(), Some(addr)).await;
    assert_eq!(listening(&handle).await, None);
    drop(held);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(listening(&handle).await, Some(addr));
    tree.stop().await;
}

#[tokio::test(start_paused = true)]
async fn series_of_removed_objects_are_dropped() {
    let metrics = metrics();
    metrics.watch_raft(&RaftHandle::new(State::default(), RaftLimits::default()));
    let (tree, _handle) = start(metrics.clone(), None).await;
    metrics.container_start("gone", "web", true);
    metrics
        .meter(Some("gone.example"), "web")
        .finished(&request(200, Version::HTTP_11));
    metrics
        .meter(None, "")
        .finished(&request(404, Version::HTTP_11));
    assert!(metrics.render().contains("gone"));
    tokio::time::sleep(Duration::from_secs(299)).await;
    let text = metrics.render();
    assert!(!text.contains("gone"), "{text}");
    assert!(text.contains("_unknown"), "{text}");
    tree.stop().await;
}

#[tokio::test]
async fn connections_of_published_ports_are_exported() {
    use jaco_net::l4::{Backends, Port, Ports, Protocol, Settings};
    let ports = Ports::new(Settings::default(), std::sync::Arc::new(|_: &str| true));
    let metrics = metrics();
    metrics.watch_ports(&ports);
    let port = Port {
        number: 0,
        protocol: Protocol::Tcp,
    };
    ports.open(port, Backends::default()).await.unwrap();
    let text = metrics.render();
    let name = "jaco_ingress_tcp_connections";
    assert_eq!(families(&text)[name], "gauge");
    let series = format!("{name}{{node=\"n1\",port=\"0\"}}");
    assert_eq!(samples(&text)[series.as_str()], 0.0);
}

#[test]
fn lines_missing_in_the_access_log_are_exported() {
    let metrics = metrics();
    let log = jaco_net::ingress::AccessLog::start(std::io::sink()).unwrap();
    metrics.watch_access_log(&log);
    let text = metrics.render();
    let name = "jaco_ingress_access_log_dropped_total";
    assert_eq!(families(&text)[name], "counter");
    let series = format!("{name}{{node=\"n1\"}}");
    assert_eq!(samples(&text)[series.as_str()], 0.0);
}

#[test]
fn dropped_packets_are_exported_by_reason() {
    let metrics = metrics();
    let reports = NetworkReports::default();
    metrics.watch_network("n1", &reports);
    let drops = vec![DroppedPackets {
        reason: "forged_source".to_owned(),
        packets: 7,
    }];
    let report = NodeNetwork {
        drops,
        ..Default::default()
    };
    reports.put("n1", report).unwrap();
    reports.put("n2", NodeNetwork::default()).unwrap();
    let text = metrics.render();
    let name = "jaco_network_dropped_packets_total";
    assert_eq!(families(&text)[name], "counter");
    let series = format!("{name}{{node=\"n1\",reason=\"forged_source\"}}");
    assert_eq!(samples(&text)[series.as_str()], 7.0);
}

#[test]
fn certificates_are_counted_with_their_ends() {
    let metrics = metrics();
    assert!(!metrics.render().contains("cert"), "none without a domain");
    metrics.certificate("A.example", "staging", true);
    metrics.certificate("a.example", "prod", false);
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
    metrics.watch_certificates(move || vec![("a.example".to_owned(), end)]);

    let text = metrics.render();

    let families = families(&text);
    assert_eq!(families["jaco_cert_renewals_total"], "counter");
    assert_eq!(families["jaco_cert_expiry_timestamp_seconds"], "gauge");
    let samples = samples(&text);
    let renewals = "jaco_cert_renewals_total{domain=\"a.example\",environment=";
    for (series, value) in [
        (format!("{renewals}\"staging\",result=\"ok\"}}"), 1.0),
        (format!("{renewals}\"staging\",result=\"failed\"}}"), 0.0),
        (format!("{renewals}\"prod\",result=\"failed\"}}"), 1.0),
        (
            "jaco_cert_expiry_timestamp_seconds{domain=\"a.example\"}".to_owned(),
            1_900_000_000.0,
        ),
    ] {
        assert_eq!(
            samples.get(series.as_str()),
            Some(&value),
            "{series} in\n{text}"
        );
    }
    for _ in 0..2 {
        metrics.sweep(&State::default());
    }
    assert!(
        !metrics.render().contains("cert_renewals"),
        "the domain is gone"
    );
}
