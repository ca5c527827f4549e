//! An orchestrator embedded in a program: `cargo run -p jaco-actors --example embed [IMAGE]`.
//!
//! Needs a container engine (`JACO_DOCKER_SOCKET`, or the usual socket) and an image with a shell,
//! `jaco-example/hello:1` by default, which `examples/hello/build-image.sh` builds. Opens no port
//! and leaves nothing behind; two instances can run at once.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, path::PathBuf};

use jaco_actors::{Client, Node};
use jaco_proto::v1::{self, ReplicaState, subscribe_event::Payload};

const DEPLOYMENT: &str = "embedded";
const REPLICAS: usize = 2;

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args().nth(1);
    let image = image.unwrap_or_else(|| "jaco-example/hello:1".to_owned());
    let engine = std::env::var_os("JACO_DOCKER_SOCKET");
    let engine = engine.map_or_else(|| "/var/run/docker.sock".into(), PathBuf::from);
    run(engine, &image).await
}

/// Bootstraps a single-node cluster, runs a deployment on it, and removes everything again.
pub(crate) async fn run(engine: PathBuf, image: &str) -> Result<(), Box<dyn Error>> {
    // A real program would keep its directory, which holds the cluster.
    let dir = tempfile::tempdir()?;
    let node = Node::builder(dir.path().join("data"))
        .docker_socket(engine)
        .start()
        .await?;
    let result = use_it(&node, image).await;
    node.stop().await; // containers would keep running, if any were left
    result
}

async fn use_it(node: &Node, image: &str) -> Result<(), Box<dyn Error>> {
    let client = node.client();
    let founded = client.init("example").await?;
    println!("cluster {} has one node", founded.cluster_id);

    // Subscribes before the apply, so that no change is missed.
    let request = v1::SubscribeRequest {
        entity_types: vec!["replicas_observed".to_owned()],
        deployment_filter: DEPLOYMENT.to_owned(),
        ..Default::default()
    };
    let mut changes = client.watch(request).await?;
    let applied = client.apply(&jaco_yaml(), &compose_yaml(image)).await?;
    println!("revision {} is applied", applied.applied_revision);
    let outcome = async {
        until_running(&mut changes).await?;
        show(node, &client).await
    };
    let outcome = outcome.await;

    client.delete(DEPLOYMENT).await?;
    // The record of a container is removed once the container is.
    while !client.replicas(DEPLOYMENT).await?.is_empty() || has_containers(node) {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    println!("everything is gone");
    outcome
}

fn jaco_yaml() -> String {
    format!("deployment: {DEPLOYMENT}\nservices:\n  - name: web\n    replicas: {REPLICAS}\n")
}

fn compose_yaml(image: &str) -> String {
    format!(
        r#"
services:
  web:
    image: {image}
    pull_policy: never
    network_mode: none # it needs no network
    command: ["sh", "-c", "echo hello from inside; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
"#
    )
}

/// Prints the states of the replicas until all of them run.
async fn until_running(
    changes: &mut tonic::Streaming<v1::SubscribeEvent>,
) -> Result<(), Box<dyn Error>> {
    let mut running = std::collections::BTreeSet::new();
    while running.len() < REPLICAS {
        let event = changes.message().await?.ok_or("the watch ended")?;
        let Some(Payload::ReplicaObserved(event)) = event.payload else {
            continue;
        };
        let Some(seen) = event.after else { continue };
        println!("  {} is {:?} {}", seen.id, seen.state(), seen.code);
        if seen.state() == ReplicaState::Running {
            running.insert(seen.id);
        }
    }
    Ok(())
}

async fn show(node: &Node, client: &Client) -> Result<(), Box<dyn Error>> {
    println!("output of the replicas:");
    let request = v1::LogsRequest {
        deployment: DEPLOYMENT.to_owned(),
        ..Default::default()
    };
    let mut lines = client.logs(request).await?;
    while let Some(line) = lines.message().await? {
        println!("  [{}] {}", line.replica_id, line.line);
    }
    println!("the supervision tree:");
    for actor in node.tree().describe() {
        let depth = actor.path.matches('/').count();
        let name = actor.path.rsplit('/').next().unwrap_or_default();
        println!(
            "  {:indent$}{name} ({})",
            "",
            actor.kind,
            indent = 2 * depth
        );
    }
    Ok(())
}

/// Whether a container still has its actor, which ends once the container is removed.
fn has_containers(node: &Node) -> bool {
    let mut actors = node.tree().describe().into_iter();
    actors.any(|actor| actor.kind == "ReplicaActor")
}
