//! Metrics of a node.

use std::time::Duration;

use jaco_actors::{Node, supervision::KillMode};
use jaco_state::State;

use super::lab::{Lab, TIMEOUT, state, until};

const WEB: &str = "services: {web: {image: 'nginx:1'}, idle: {image: 'nginx:1'}}";
const SHOP: &str = "{deployment: shop, services: [{name: web, replicas: 2}, \
                    {name: idle, replicas: 0}]}";

/// Value of a sample, if it is there.
fn sample(node: &Node, series: &str) -> Option<f64> {
    let text = node.shared().metrics().render();
    let line = text.lines().find(|line| {
        line.strip_prefix(series)
            .is_some_and(|rest| rest.starts_with(' '))
    });
    line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok())
}

async fn becomes(node: &Node, series: &str, value: f64) {
    let wait = async {
        while sample(node, series) != Some(value) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(TIMEOUT, wait).await.is_err() {
        let text = node.shared().metrics().render();
        panic!("{series} never became {value}:\n{text}");
    }
}

#[tokio::test]
async fn metrics_follow_the_nodes_activity() {
    let lab = Lab::new();
    let (node, _) = lab.bootstrapped().await;
    let name = state(&node).nodes.keys().next().cloned();
    let of = |metric: &str| format!("{metric}{{node=\"{}\"}}", name.as_deref().unwrap());
    becomes(&node, &of("jaco_raft_is_leader"), 1.0).await;
    assert!(sample(&node, &of("jaco_raft_term")) >= Some(1.0));

    let local = lab.local();
    local.apply(SHOP, WEB).await.unwrap();
    let placed = |state: &State| state.replicas_desired.len() == 2;
    until(&node, "two replicas are placed", placed).await;
    becomes(
        &node,
        &of("jaco_scheduler_reconcile_lag_seconds_count"),
        1.0,
    )
    .await;

    // Every state of every service has a series, and the replicas are in one of them.
    let states = [
        "pending", "pulling", "running", "degraded", "updating", "failed", "stopped",
    ];
    for (service, replicas) in [("web", 2.0), ("idle", 0.0)] {
        let count = |state| {
            let series = format!(
                "jaco_replica_state{{deployment=\"shop\",service=\"{service}\",state=\"{state}\"}}"
            );
            sample(&node, &series).unwrap_or_else(|| panic!("{series} is missing"))
        };
        assert_eq!(states.iter().map(count).sum::<f64>(), replicas, "{service}");
    }

    local.issue("ci", false).await.unwrap();
    local.revoke("ci").await.unwrap();
    becomes(
        &node,
        &of("jaco_token_revocation_propagation_seconds_count"),
        1.0,
    )
    .await;
    let applied = node.raft().unwrap().status().applied as f64;
    assert!(sample(&node, &of("jaco_raft_applied_index")) >= Some(applied));
    assert!(sample(&node, &of("jaco_raft_commit_latency_seconds_count")) >= Some(3.0));
    let op = |op| {
        let host = name.as_deref().unwrap();
        format!("jaco_apply_duration_seconds_count{{node=\"{host}\",op=\"{op}\"}}")
    };
    assert_eq!(sample(&node, &op("deployment_apply")), Some(1.0));
    assert_eq!(sample(&node, &op("token_revoke")), Some(1.0));

    let restarts = |kind: &str| {
        let host = name.as_deref().unwrap();
        format!("jaco_actor_restarts_total{{node=\"{host}\",kind=\"{kind}\"}}")
    };
    assert_eq!(sample(&node, &restarts("SchedulerActor")), Some(0.0));
    node.tree()
        .kill("node/scheduler/reconcile", KillMode::Kill)
        .unwrap();
    becomes(&node, &restarts("SchedulerActor"), 1.0).await;
    let exhausted = restarts("SchedulerActor").replace("restarts", "budget_exhausted");
    assert_eq!(sample(&node, &exhausted), Some(0.0));
    node.stop().await;
}
