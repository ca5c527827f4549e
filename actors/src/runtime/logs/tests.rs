//! Log tails on an in-memory engine.

use std::{sync::Arc, time::Duration};

use jaco_engine::{
    LogStream,
    fake::{FakeEngine, Output},
    labels::{LABEL_CLUSTER, LABEL_REPLICA},
    spec::Attachment,
};
use jaco_proto::v1;
use jaco_raftnode::{State, testing::MemoryRaft};

use super::*;
use crate::{
    clock::Clock,
    runtime::{Deps, FileMounts, NetworkError, Networks},
    telemetry::Metrics,
};

const CLUSTER: &str = "cl-1";

struct NoNetworks;

#[async_trait::async_trait]
impl Networks for NoNetworks {
    async fn ensure(&self, _: &str, network: &str) -> Result<Attachment, NetworkError> {
        Err(NetworkError::Unavailable(network.to_owned()))
    }
}

/// Creates a host with one container per output, for replicas `web-0`, `web-1` and so on.
fn host(engine: &FakeEngine, outputs: Vec<Output>) -> Arc<RuntimeContext> {
    let mut state = State {
        cluster: Some(Arc::new(v1::ClusterMeta {
            cluster_id: CLUSTER.into(),
            ..Default::default()
        })),
        ..Default::default()
    };
    for (index, output) in outputs.into_iter().enumerate() {
        let id = format!("web-{index}");
        let container = format!("c{index}");
        let labels = [(LABEL_CLUSTER, CLUSTER), (LABEL_REPLICA, id.as_str())];
        engine.insert_container(&container, &labels);
        engine.set_output(&container, output);
        let row = v1::ReplicaDesired {
            id: id.clone(),
            deployment: "shop".into(),
            host: "n1".into(),
            ..Default::default()
        };
        state.replicas_desired.insert(id, Arc::new(row));
    }
    let deps = Deps {
        host: "n1".into(),
        engine: Arc::new(engine.clone()),
        networks: Arc::new(NoNetworks),
        raft: Arc::new(MemoryRaft::new(state)),
        clock: Clock::system(),
        contact: crate::health::ContactSwitch::new(true).contact(),
        metrics: Metrics::new("n1", Clock::system()),
        routing: Arc::new(crate::serving::Everywhere),
        files: FileMounts::in_directory("unused", tokio::sync::watch::channel(None).1),
        reports: Default::default(),
    };
    Arc::new(RuntimeContext::new(deps))
}

fn query(follow: bool) -> Query {
    Query {
        deployment: "shop".into(),
        follow,
        ..Default::default()
    }
}

async fn lines(tail: &mut Tail) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some(line) = tail.next().await {
        lines.push(format!("{} {}", line.replica_id, line.line));
    }
    lines.sort();
    lines
}

fn text(text: &str) -> Output {
    Output::default().with_output(LogStream::Stdout, text)
}

#[tokio::test(start_paused = true)]
async fn failed_source_ends_alone_and_is_reported_last() {
    let engine = FakeEngine::new();
    let broken = EngineError::Api {
        status: 500,
        message: "disk on fire".into(),
    };
    let outputs = vec![text("a\n"), text("b\n").fails(broken.clone()), text("c\n")];
    let shared = host(&engine, outputs);
    let mut tail = tail(&shared, &query(false));
    assert_eq!(lines(&mut tail).await, ["web-0 a", "web-1 b", "web-2 c"]);
    let error = tail.finish().await.unwrap_err();
    assert_eq!((error.replica_id.as_str(), error.source), ("web-1", broken));
}

#[tokio::test(start_paused = true)]
async fn other_sources_continue_after_a_failure() {
    let engine = FakeEngine::new();
    let broken = EngineError::Unreachable("gone".into());
    let shared = host(&engine, vec![text("a\n"), text("").fails(broken)]);
    let mut tail = tail(&shared, &query(true));
    assert_eq!(tail.next().await.unwrap().line, "a");
    tokio::time::sleep(Duration::from_secs(60)).await;
    engine.write_output("c0", LogStream::Stdout, "later\n");
    assert_eq!(tail.next().await.unwrap().line, "later");
}

#[tokio::test(start_paused = true)]
async fn dropped_tail_closes_all_reads() {
    let engine = FakeEngine::new();
    let endless: Vec<_> = (0..5).map(|_| text(&"x\n".repeat(500))).collect();
    let shared = host(&engine, endless);
    let mut tail = tail(&shared, &query(true));
    tail.next().await.unwrap();
    assert_eq!(engine.open_reads(), 5);
    let holders = Arc::strong_count(&shared);
    assert!(holders > 1);
    drop(tail);
    while engine.open_reads() > 0 || Arc::strong_count(&shared) > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn idle_reader_stops_reading_from_engine() {
    let engine = FakeEngine::new();
    let shared = host(&engine, vec![text("line\n").repeats()]);
    let mut tail = tail(&shared, &query(true));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let taken = engine.frames_read();
    assert!(taken < 80, "{taken} lines are buffered without a reader");
    for _ in 0..1_000 {
        tail.next().await.unwrap();
    }
    assert!(engine.frames_read() > 1_000);
}

#[tokio::test(start_paused = true)]
async fn noisy_replica_does_not_starve_others() {
    let engine = FakeEngine::new();
    let shared = host(&engine, vec![text("noise\n").repeats(), text("word\n")]);
    let mut tail = tail(&shared, &query(true));
    while tail.next().await.unwrap().line != "word" {}
}

#[tokio::test(start_paused = true)]
async fn removed_row_ends_tail_after_last_line() {
    let engine = FakeEngine::new();
    let shared = host(&engine, vec![text("a\nlast words")]);
    let mut tail = tail(&shared, &query(true));
    assert_eq!(tail.next().await.unwrap().line, "a");
    let remove = v1::ReplicaDesiredRemove { id: "web-0".into() };
    let command = v1::Command {
        cluster_id: CLUSTER.into(),
        ts: Some(Default::default()),
        payload: Some(v1::command::Payload::ReplicaDesiredRemove(remove)),
        ..Default::default()
    };
    shared.deps.raft.submit(command).await.unwrap();
    engine.die("c0");
    assert_eq!(lines(&mut tail).await, ["web-0 last words"]);
    tail.finish().await.unwrap();
}
