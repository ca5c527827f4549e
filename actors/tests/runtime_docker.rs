//! The runtime against a real Docker engine (`JACO_DOCKER_SOCKET`, or the usual place).
//!
//! Every test has its own cluster id, image and deployment, and removes them.

#[path = "runtime_docker/hooks.rs"]
mod hooks;
#[path = "runtime_docker/lab.rs"]
mod lab;
#[path = "runtime_docker/log_tail.rs"]
mod log_tail;

use std::time::Duration;

use jaco_actors::{
    runtime::logs,
    supervision::{ActorState, KillMode},
};
use jaco_proto::v1::ReplicaState;
use lab::Lab;

const FOREVER: &str = "trap 'exit 0' TERM; while true; do busybox sleep 0.1; done";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_actor_adopts_its_running_container() {
    let lab = Lab::new("adopt").await;
    lab.apply(&lab.service(FOREVER, ""), 1).await;
    let before = lab.running().await;
    let started = lab.docker(&[
        "inspect",
        "-f",
        "{{.State.StartedAt}}",
        &before.container_id,
    ]);
    let written = lab.raft.committed().len();
    for mode in [KillMode::Kill, KillMode::Panic] {
        let restarts = lab.replica_actor().expect("an actor").restarts_in_window;
        lab.tree.kill(&lab.actor_path(), mode).expect("killed");
        lab.until("the actor is back", || {
            lab.replica_actor().is_some_and(|info| {
                info.restarts_in_window > restarts && info.state == ActorState::Running
            })
        })
        .await;
    }
    // The new instance is proven to run once it answers a death with a restart.
    assert_eq!(lab.containers().len(), 1);
    assert_eq!(
        lab.docker(&[
            "inspect",
            "-f",
            "{{.State.StartedAt}}",
            &before.container_id
        ]),
        started
    );
    assert_eq!(lab.raft.committed().len(), written, "nothing was reported");
    lab.docker(&["kill", &before.container_id]);
    let died = std::time::Instant::now();
    lab.observed("its death is seen", |seen| seen.code == "container_exited")
        .await;
    let took = died.elapsed();
    // Real time: the engine's events have no other clock. Without events, a poll comes after 5 s.
    assert!(took < Duration::from_secs(5), "polled, no event: {took:?}");
    let after = lab
        .observed("another container runs", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != before.container_id
        })
        .await;
    assert_eq!(lab.containers(), [after.container_id]);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_container_is_restarted_at_most_three_times() {
    let lab = Lab::new("budget").await;
    lab.apply(&lab.service("exit 3", ""), 1).await;
    let seen = lab
        .observed("the budget is spent", |seen| {
            seen.code == "restart_exhausted"
        })
        .await;
    assert_eq!(seen.details["consecutive_failures"], "4");
    assert_eq!(seen.details["cause"], "container");
    assert_eq!(seen.details["exit_code"], "3");
    assert_eq!(seen.desired_raft_index, lab.row().raft_index);
    assert_eq!(
        lab.containers(),
        [seen.container_id.as_str()],
        "left as it is"
    );
    let failures = lab.reports().into_iter();
    let exited = failures
        .filter(|seen| seen.code == "container_exited")
        .count();
    assert_eq!(exited, 3);

    lab.apply(&lab.service(FOREVER, ""), 2).await;
    let seen = lab.running().await;
    assert_eq!(seen.desired_raft_index, lab.row().raft_index);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_uses_the_containers_stop_signal() {
    let lab = Lab::new("stop").await;
    let folder = tempfile::tempdir().expect("a folder");
    let script = "trap 'echo got > /out/marker; exit 0' USR1; trap '' TERM; \
                  echo > /out/ready; while true; do busybox sleep 0.1; done";
    let extra = format!(
        "    stop_signal: SIGUSR1\n    stop_grace_period: 20s\n    volumes: [\"{}:/out\"]\n",
        folder.path().display()
    );
    lab.apply(&lab.service(script, &extra), 1).await;
    lab.running().await;
    lab.until("the container has set its traps", || {
        folder.path().join("ready").exists()
    })
    .await;
    lab.remove().await;
    lab.until("the container is gone", || lab.containers().is_empty())
        .await;
    let marker = std::fs::read_to_string(folder.path().join("marker")).expect("a marker");
    assert_eq!(marker.trim(), "got");
    lab.until("the actor is gone", || lab.replica_actor().is_none())
        .await;
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_ignoring_its_signal_is_killed() {
    let lab = Lab::new("grace").await;
    let script = "trap '' TERM; echo ready; while true; do busybox sleep 0.1; done";
    lab.apply(&lab.service(script, "    stop_grace_period: 2s\n"), 1)
        .await;
    let container = lab.running().await.container_id;
    lab.until("the container has set its trap", || {
        lab.logged(&container) == 1
    })
    .await;
    let asked = std::time::Instant::now();
    lab.remove().await;
    lab.until("the container is gone", || lab.containers().is_empty())
        .await;
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(2), "killed too early: {took:?}");
    // Real time: the engine waits. The default grace is 10 s.
    assert!(
        took < Duration::from_secs(10),
        "not its own grace: {took:?}"
    );
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_are_removed_only_after_catching_up() {
    let lab = Lab::prepare("orphans", false).await;
    let cluster = format!("jaco.cluster_id={}", lab.cluster_id);
    let orphan = lab.run_container(&[&cluster, "jaco.replica_id=left-over-0"]);
    let foreign = lab.run_container(&[&cluster]);
    let elsewhere = format!("jaco.cluster_id={}-other", lab.cluster_id);
    let other = lab.run_container(&[&elsewhere, "jaco.replica_id=left-over-0"]);
    lab.apply(&lab.service(FOREVER, ""), 1).await;
    assert!(lab.exists(&orphan), "swept before the state was known");
    lab.catch_up();
    let wanted = lab.running().await.container_id;
    lab.until("the orphan is gone", || !lab.exists(&orphan))
        .await;
    for kept in [&foreign, &other, &wanted] {
        assert!(lab.exists(kept));
    }
    lab.docker(&["rm", "-fv", &foreign, &other]);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_deletes_anonymous_volumes_and_keeps_named() {
    let lab = Lab::new("volumes").await;
    let named = format!("jaco_{}_keep", lab.deployment);
    let service = lab.service(FOREVER, "    volumes: [\"/scratch\", \"keep:/keep\"]\n");
    lab.apply(&format!("{service}volumes:\n  keep:\n"), 1).await;
    let container = lab.running().await.container_id;
    let mounts = lab.docker(&[
        "inspect",
        "-f",
        "{{range .Mounts}}{{.Name}} {{end}}",
        &container,
    ]);
    let anonymous: Vec<&str> = mounts
        .split_whitespace()
        .filter(|name| *name != named)
        .collect();
    assert_eq!((mounts.split_whitespace().count(), anonymous.len()), (2, 1));
    lab.remove().await;
    lab.until("the container is gone", || lab.containers().is_empty())
        .await;
    // The engine removes the volume after it has forgotten the container.
    let volumes = || lab.docker(&["volume", "ls", "-q"]);
    lab.until("its volume is gone", || !volumes().contains(anonymous[0]))
        .await;
    assert!(volumes().contains(&named));
    lab.docker(&["volume", "rm", &named]);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_tail_splits_lines_of_both_streams() {
    let lab = Lab::new("logs").await;
    let script = "echo to-out; echo; echo to-err >&2; \
                  trap 'exit 0' TERM; while true; do busybox sleep 0.1; done";
    lab.apply(&lab.service(script, ""), 1).await;
    let container = lab.running().await.container_id;
    lab.until("everything is written", || lab.logged(&container) == 3)
        .await;
    let mut query = logs::Query {
        deployment: lab.deployment.clone(),
        ..Default::default()
    };
    let mut tail = lab.runtime.logs(&query);
    let mut lines = Vec::new();
    while let Some(line) = lab.soon(tail.next()).await {
        assert_eq!(
            (line.host.as_str(), line.replica_id.as_str()),
            (lab::HOST, lab.id.as_str())
        );
        assert!(line.ts.is_some());
        lines.push((line.stream, line.line));
    }
    lab.soon(tail.finish())
        .await
        .expect("every source was read");
    lines.sort();
    let expected = [("stderr", "to-err"), ("stdout", ""), ("stdout", "to-out")];
    assert_eq!(lines, expected.map(|(s, l)| (s.to_owned(), l.to_owned())));

    query.service = "nothing".into();
    let mut none = lab.runtime.logs(&query);
    assert_eq!(lab.soon(none.next()).await, None);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashing_actor_is_reported_until_a_new_row() {
    let lab = Lab::new("actor").await;
    lab.apply(&lab.service(FOREVER, ""), 1).await;
    let container = lab.running().await.container_id;
    for crash in 1..=4usize {
        lab.until("the actor runs", || {
            lab.replica_actor().is_some_and(|info| {
                info.state == ActorState::Running && info.restarts_in_window + 1 == crash
            })
        })
        .await;
        lab.tree
            .kill(&lab.actor_path(), KillMode::Panic)
            .expect("killed");
    }
    let seen = lab
        .observed("the actor gave up", |seen| seen.code == "restart_exhausted")
        .await;
    assert_eq!(seen.details["cause"], "actor");
    assert_eq!(lab.containers(), [container.as_str()], "left alone");
    assert!(lab.is_up(&container));
    lab.apply(&lab.service(FOREVER, ""), 2).await;
    let seen = lab.running().await;
    assert_ne!(seen.container_id, container);
    assert_eq!(lab.containers(), [seen.container_id]);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_image_is_retried() {
    let lab = Lab::new("pull").await;
    let service = lab
        .service(FOREVER, "")
        .replace(&lab.image, "localhost:1/nothing/here:1")
        .replace("pull_policy: never", "pull_policy: always");
    lab.apply(&service, 1).await;
    let seen = lab
        .observed("a pull failed twice", |seen| {
            seen.details
                .get("attempt")
                .is_some_and(|attempt| attempt == "2")
        })
        .await;
    assert_eq!(seen.state(), ReplicaState::Pending);
    assert_eq!(seen.code, "image_pull_failed");
    assert!(seen.details["reason"].starts_with("localhost:1/nothing/here:1: "));
    assert!(lab.containers().is_empty());
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_joins_networks_and_reports_addresses() {
    let lab = Lab::new("nets").await;
    let networks = ["_default", "back"].map(|name| format!("jaco_{}_{name}", lab.deployment));
    for network in &networks {
        lab.docker(&["network", "create", network]);
    }
    let service = lab
        .service(FOREVER, "    networks: [default, back]\n")
        .replace("    network_mode: none\n", "");
    lab.apply(&format!("{service}networks:\n  default:\n  back:\n"), 1)
        .await;
    let seen = lab.running().await;
    for network in &networks {
        let address = &seen.details[&format!("ip.{network}")];
        assert!(address.parse::<std::net::Ipv4Addr>().is_ok(), "{address}");
    }
    lab.remove().await;
    lab.until("the container is gone", || lab.containers().is_empty())
        .await;
    for network in &networks {
        lab.docker(&["network", "rm", network]);
    }
    lab.close().await;
}
