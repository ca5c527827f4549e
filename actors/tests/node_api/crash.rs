//! Actors killed during requests: no acknowledged change is lost, and the node continues.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jaco_actors::{
    Node,
    supervision::{ActorInfo, ActorState, KillMode},
};
use jaco_proto::error::DecodedError;

use super::lab::{Client, Lab, TIMEOUT, state};

const WEB: &str = "services: {web: {image: nginx}}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_survives_the_death_of_its_actor() {
    for delay in [0, 3, 10, 25] {
        let lab = Lab::new();
        let node = lab.start().await;
        let (init, kills) = tokio::join!(lab.init(), async {
            let mut kills = 0;
            for mode in [KillMode::Kill, KillMode::Panic] {
                tokio::time::sleep(Duration::from_millis(delay)).await;
                kills += usize::from(node.tree().kill("node/lifecycle", mode).is_ok());
            }
            kills
        });
        let founded = init.unwrap_or_else(|error| panic!("after {delay} ms: {error:?}"));
        assert!(kills > 0);
        // The returned token is valid, and the node accepts writes.
        let operator = lab.pinned(Some(&founded.operator_token));
        assert!(operator.status().await.unwrap().initialized);
        written(&operator, "deployment: d", WEB).await;
        for vertical in ["raft", "network", "runtime", "scheduler", "ingress"] {
            running(&node, &format!("node/{vertical}")).await;
        }
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_lifecycle_does_not_disturb_a_member() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    running(&node, "node/raft/raft").await;
    let before = uptimes(&node);
    for mode in [KillMode::Kill, KillMode::Panic] {
        restart(&node, "node/lifecycle", mode).await;
        written(&lab.local(), "deployment: d", WEB).await;
    }
    for (path, uptime) in before.iter().filter(|(path, _)| *path != "node/lifecycle") {
        assert!(uptimes(&node)[path] >= *uptime, "{path} was restarted");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_when_actors_die() {
    let lab = Lab::new();
    let (node, token) = lab.bootstrapped().await;
    let victims = [
        "node/raft/raft",
        "node/api/unix",
        "node/lifecycle",
        "node/api/tls",
        "node/api",
    ];
    let clients = [lab.local(), lab.pinned(Some(&token))];
    let (finished, over) = tokio::sync::watch::channel(false);
    let writers = clients.into_iter().enumerate().map(|(writer, client)| {
        let over = over.clone();
        tokio::spawn(async move {
            let (mut acknowledged, mut failed) = (BTreeMap::new(), Vec::new());
            for i in 0_u32.. {
                let (name, image) = (format!("d{writer}-{}", i % 7), format!("image:{i}"));
                let compose = WEB.replace("nginx", &format!("'{image}'"));
                match client.apply(&format!("deployment: {name}"), &compose).await {
                    Ok(applied) => {
                        acknowledged.insert(name, (applied.applied_revision, image));
                    }
                    Err(error) => failed.push(error),
                }
                if *over.borrow() {
                    break;
                }
            }
            (acknowledged, failed)
        })
    });
    let writers: Vec<_> = writers.collect();
    for victim in victims {
        for mode in [KillMode::Kill, KillMode::Panic] {
            tokio::time::sleep(Duration::from_millis(60)).await; // some writes in between
            if mode == KillMode::Panic && victim == "node/api" {
                continue; // its children have been killed already
            }
            restart(&node, victim, mode).await;
        }
    }
    finished.send_replace(true);
    let mut all = BTreeMap::new();
    for writer in writers {
        let (acknowledged, failed) = writer.await.unwrap();
        assert!(
            !acknowledged.is_empty(),
            "nothing was acknowledged: {failed:?}"
        );
        for error in failed {
            assert_retryable(&error);
        }
        all.extend(acknowledged);
    }
    written(&lab.local(), "deployment: after", WEB).await;
    check(&node, &all);
    node.stop().await;
    drop(node);
    let node = lab.start().await; // the disk holds the same
    check(&node, &all);
    node.stop().await;
}

/// Checks that every acknowledged revision is there, or a newer one whose answer was lost.
fn check(node: &Node, acknowledged: &BTreeMap<String, (u64, String)>) {
    let state = state(node);
    for (name, (revision, image)) in acknowledged {
        let stored = &state.deployments[name];
        assert!(
            stored.applied_revision >= *revision,
            "{name} lost revision {revision}"
        );
        if stored.applied_revision == *revision {
            let compose = String::from_utf8_lossy(&stored.compose_yaml);
            assert!(
                compose.contains(image),
                "{name} revision {revision}: {compose}"
            );
        }
    }
}

/// Checks that a failure during an actor's death is retryable or has an unknown outcome.
fn assert_retryable(error: &DecodedError) {
    let unknown = error
        .details
        .get("outcome")
        .is_some_and(|outcome| outcome == "unknown");
    let known = [
        "raft_unavailable",
        "state_unavailable",
        "no_leader",
        "unavailable",
    ]
    .contains(&error.code.as_str());
    // Codes of the client library for a broken connection.
    let broken = ["cancelled", "unknown"].contains(&error.code.as_str())
        || error.message.starts_with("h2 protocol error");
    assert!(unknown || known || broken, "{error:?}");
}

/// Retries an apply until it is acknowledged.
async fn written(client: &Client, jaco: &str, compose: &str) {
    let attempts = async {
        while let Err(error) = client.apply(jaco, compose).await {
            assert_retryable(&error);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, attempts)
        .await
        .expect("the node does not write");
}

/// Kills the actor at `path` and waits for its next instance.
async fn restart(node: &Node, path: &str, mode: KillMode) {
    let killed = Instant::now();
    node.tree().kill(path, mode).unwrap();
    until(node, path, |actor| {
        actor.uptime.is_some_and(|uptime| uptime < killed.elapsed())
    })
    .await;
}

/// Waits until the actor at `path` runs.
async fn running(node: &Node, path: &str) {
    until(node, path, |_| true).await;
}

/// Waits until the actor at `path` runs and satisfies `check`.
async fn until(node: &Node, path: &str, check: impl Fn(&ActorInfo) -> bool) {
    let up =
        async {
            while !node.tree().describe().iter().any(|actor| {
                actor.path == path && actor.state == ActorState::Running && check(actor)
            }) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
    if tokio::time::timeout(TIMEOUT, up).await.is_err() {
        panic!("{path} does not run: {:#?}", node.tree().describe());
    }
}

fn uptimes(node: &Node) -> BTreeMap<String, Duration> {
    let actors = node.tree().describe().into_iter();
    actors
        .filter_map(|actor| Some((actor.path, actor.uptime?)))
        .collect()
}
