//! Nodes embedded in this process and operated by it: no socket, no port.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::{
    net::{TcpListener, TcpStream},
    path::Path,
    time::Duration,
};

use jaco_actors::{Client, ConfigError, Node, NodeBuilder, StartError};
use jaco_net::handover::Inherited;
use jaco_proto::v1;
use jaco_supervision::KillMode;
use tokio::time::{sleep, timeout};

use super::lab::{TIMEOUT, state, until};

const WEB: &str = "services: {web: {image: nginx}}";

fn node(dir: &Path) -> NodeBuilder {
    Node::builder(dir.join("data")).docker_socket(dir.join("no-engine.sock"))
}

#[tokio::test]
async fn embedded_nodes_share_nothing() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut nodes = Vec::new();
    for (dir, name) in dirs.iter().zip(["first", "second"]) {
        let node = node(dir.path()).hostname(name).start().await.unwrap();
        node.client().init(name).await.unwrap();
        let applied = node
            .client()
            .apply(&format!("deployment: {name}"), WEB)
            .await;
        assert_eq!(applied.unwrap().applied_revision, 1);
        nodes.push(node);
    }
    for (node, name) in nodes.iter().zip(["first", "second"]) {
        let status = node.client().status().await.unwrap();
        assert_eq!(status.leader_hostname, name);
        let state = until(node, "a placed replica", |state| {
            !state.replicas_desired.is_empty()
        })
        .await;
        let names: Vec<_> = state.deployments.keys().collect();
        assert_eq!(names, [name]);
    }
    // Stopping one node does not affect the other.
    nodes[0].stop().await;
    nodes[1].client().delete("second").await.unwrap();
    until(&nodes[1], "an empty state", |state| {
        state.replicas_desired.is_empty()
    })
    .await;
    nodes[1].stop().await;
}

#[tokio::test]
async fn no_listener_is_opened_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path()).start().await.unwrap();
    node.client().init("").await.unwrap();
    let actors: Vec<_> = node.tree().describe().into_iter().map(|a| a.path).collect();
    for listener in ["node/api/unix", "node/api/tls", "node/ingress/proxy"] {
        assert!(!actors.iter().any(|path| path == listener), "{listener}");
    }
    node.stop().await;
}

#[tokio::test]
async fn node_without_cluster_passes_on_inherited_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    let inherited = Inherited::new([("ingress.http".to_owned(), socket.into())]);
    let node = node(dir.path()).inherited_ingress(inherited);
    let node = node.start().await.unwrap();
    let mut passed = node.listening_sockets().unwrap();
    let (name, socket) = passed.pop().unwrap();
    assert_eq!(name, "ingress.http");
    assert_eq!(TcpListener::from(socket).local_addr().unwrap(), addr);
    assert!(passed.is_empty());
    node.stop().await;
}

#[tokio::test]
async fn stop_closes_ports_of_a_failed_actor() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path()).http_port(0).start().await.unwrap();
    node.client().init("").await.unwrap();
    let manifest = "deployment: shop\nacme: \"off\"\n\
        routes: [{domain: a.example, service: web, port: 80, tls: \"off\"}]";
    node.client().apply(manifest, WEB).await.unwrap();
    let addr = timeout(TIMEOUT, async {
        loop {
            let sockets = node.listening_sockets().unwrap().into_iter();
            let mut http = sockets.filter(|(name, _)| name == "ingress.http");
            if let Some((_, socket)) = http.next() {
                break TcpListener::from(socket).local_addr().unwrap();
            }
            sleep(Duration::from_millis(10)).await;
        }
    });
    let port = addr.await.unwrap().port();
    TcpStream::connect(("127.0.0.1", port)).unwrap();
    // The stop finds an actor that has failed and was not started again.
    node.tree()
        .kill("node/ingress/proxy", KillMode::Kill)
        .unwrap();
    node.stop().await;
    TcpStream::connect(("127.0.0.1", port)).unwrap_err();
}

#[tokio::test]
async fn embedding_program_is_audited_as_local_operator() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path())
        .fault_injection(true)
        .start()
        .await
        .unwrap();
    let client = node.client();
    let refused = client.apply("deployment: a", WEB).await.unwrap_err();
    assert_eq!(refused.code, "cluster_uninitialized");
    client.init("one").await.unwrap();
    let again = client.init("two").await.unwrap_err();
    assert_eq!(again.code, "cluster_already_initialized");
    client.apply("deployment: a", WEB).await.unwrap();
    let query = v1::AuditQueryRequest {
        types: vec![v1::AuditEventType::Apply.into()],
        ..Default::default()
    };
    let mut trail = client.audit().query(query).await.unwrap().into_inner();
    assert_eq!(trail.message().await.unwrap().unwrap().identity, "local");
    // Allowed as on the unix socket, and not over TCP.
    let kill = v1::KillActorRequest {
        path: "node/scheduler/reconcile".to_owned(),
        ..Default::default()
    };
    client.cluster().kill_actor(kill).await.unwrap();
    node.stop().await;
}

/// Returns a stream that the program holds without reading it.
async fn watched(client: &Client) -> tonic::Streaming<v1::SubscribeEvent> {
    client.watch(v1::SubscribeRequest::default()).await.unwrap()
}

#[tokio::test]
async fn stop_ends_streams_without_waiting_for_readers() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path()).start().await.unwrap();
    let client = node.client();
    client.init("one").await.unwrap();
    let mut stream = watched(&client).await;
    // Clients of a listener have 10 s to receive the rest of their answers. Real time: the stop waits
    // for the threads of raft and its disk, which advance no clock.
    tokio::time::timeout(Duration::from_secs(10), node.stop())
        .await
        .expect("the stop waits for the stream of its own caller");
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended without an error"),
            Err(status) => {
                assert_eq!(status.message(), "raft_unavailable");
                break;
            }
        }
    }
    let refused = client.status().await.unwrap_err();
    assert_eq!(refused.code, "raft_unavailable");
}

#[tokio::test]
async fn client_does_not_keep_a_stopped_node_open() {
    let dir = tempfile::tempdir().unwrap();
    let first = node(dir.path()).start().await.unwrap();
    let (client, founded) = (first.client(), first.client().init("one").await.unwrap());
    let stream = watched(&client).await;
    first.stop().await;
    drop(first);
    let second = node(dir.path()).start().await.unwrap();
    let cluster = state(&second).cluster.clone().unwrap();
    assert_eq!(cluster.cluster_id, founded.cluster_id);
    assert_eq!(client.status().await.unwrap_err().code, "raft_unavailable");
    drop(stream);
    tokio::time::timeout(TIMEOUT, second.stop()).await.unwrap();
}

#[tokio::test]
async fn invalid_setting_fails_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let error = node(dir.path()).hostname("no spaces").start().await.err();
    let Some(StartError::Config(error)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(error, ConfigError::Hostname("no spaces".to_owned()));
    assert!(!dir.path().join("data").exists(), "nothing was touched");
}
