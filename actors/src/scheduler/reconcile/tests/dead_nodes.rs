//! Passes over members that are unhealthy, offline, removed or back.

use super::*;

/// Three hosts with two replicas each of a stateless service.
fn six() -> World {
    let mut world = World::new(&["n1", "n2", "n3"]);
    world.deploy("app", &[("web", 6)], "web nginx h");
    world.pass();
    let ids: Vec<String> = world.state.replicas_desired.keys().cloned().collect();
    for id in ids {
        world.observe(&id, ReplicaState::Running, "", 1);
    }
    world
}

fn hosts(world: &World) -> BTreeMap<String, usize> {
    let mut hosts = BTreeMap::new();
    for row in world.state.replicas_desired.values() {
        *hosts.entry(row.host.clone()).or_default() += 1;
    }
    hosts
}

#[test]
fn unhealthy_node_keeps_replicas_offline_node_loses_them() {
    let mut world = six();
    world.node("n1", NodeStatus::Unhealthy);
    assert_eq!(world.plan(), Pass::default());
    world.node("n1", NodeStatus::Offline);
    let moved = world.pass();
    assert_eq!(moved.len(), 2, "{moved:?}");
    assert_eq!(
        hosts(&world),
        [("n2".to_owned(), 3), ("n3".to_owned(), 3)].into()
    );
    for row in world.state.replicas_desired.values() {
        assert_eq!(row.previous_host, "", "an offline host does not serve");
    }
    assert_eq!(world.plan(), Pass::default());
    world.node("n1", NodeStatus::Ready);
    assert_eq!(world.plan(), Pass::default(), "nothing moves back");
}

#[test]
fn stateful_replicas_wait_and_deployment_is_pending() {
    let mut world = World::new(&["n1", "n2"]);
    world.deploy("app", &[("db", 2), ("web", 2)], "db pg data\nweb nginx h");
    world.pass();
    let db: BTreeMap<String, String> = ["app-db-0", "app-db-1"]
        .map(|id| (world.row(id).host.clone(), id.to_owned()))
        .into();
    world.node("n1", NodeStatus::Offline);
    let lines = world.pass();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("upsert app-web-") && lines[0].ends_with("n2 nginx"));
    assert_eq!(lines[1], "status app Pending node_offline");
    assert_eq!(world.details("app", "host"), Some("n1"));
    assert_eq!(world.details("app", "replicas"), Some(db["n1"].as_str()));
    assert_eq!(world.plan(), Pass::default());

    // A new revision of a stuck replica is the row it starts from once its host is back.
    world.deploy("app", &[("db", 2), ("web", 2)], "db pg data2\nweb nginx h");
    world.pass();
    assert_eq!(world.row(&db["n1"]).host, "n1");
    assert_eq!(world.row(&db["n1"]).spec_hash, b"data2");

    world.node("n1", NodeStatus::Ready);
    assert_eq!(world.pass(), ["status app Active "]);
}

#[test]
fn removing_the_node_moves_stateful_replicas() {
    let mut world = World::new(&["n1", "n2"]);
    world.deploy("app", &[("db", 1)], "db pg data");
    world.pass();
    let host = world.row("app-db-0").host.clone();
    world.node(&host, NodeStatus::Offline);
    assert_eq!(world.pass(), ["status app Pending node_offline"]);
    world.state.nodes.remove(&host);
    let other = if host == "n1" { "n2" } else { "n1" };
    assert_eq!(
        world.pass(),
        [
            format!("upsert app-db-0 {other} pg"),
            "status app Active ".to_owned()
        ]
    );
}

#[test]
fn node_without_isolation_serves_until_replicas_moved() {
    let mut world = World::new(&["n1", "n2"]);
    world.deploy("app", &[("db", 1), ("web", 2)], "db pg data\nweb nginx h");
    world.pass();
    let host = world.row("app-db-0").host.clone();
    world.node(&host, NodeStatus::IsolationUnavailable);
    let lines = world.pass();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[1], "status app Pending isolation_unavailable");
    let moved: Vec<_> = world.state.replicas_desired.values().collect();
    let moved = moved.iter().filter(|row| !row.previous_host.is_empty());
    assert!(moved.clone().all(|row| row.previous_host == host));
    assert_eq!(moved.count(), 1);
}

#[test]
fn offline_target_keeps_the_earlier_previous_host() {
    let mut world = World::new(&["n1"]);
    world.deploy("app", &[("web", 1)], "web nginx h");
    world.pass();
    world.observe("app-web-0", ReplicaState::Running, "", 1);
    world.node("n1", NodeStatus::IsolationUnavailable);
    world.node("n2", NodeStatus::Ready);
    world.pass();
    assert_eq!(world.row("app-web-0").previous_host, "n1");
    world.node("n2", NodeStatus::Offline);
    world.node("n3", NodeStatus::Ready);
    assert_eq!(world.pass(), ["upsert app-web-0 n3 nginx"]);
    assert_eq!(world.row("app-web-0").previous_host, "n1");
    // A row that returns to the host of its container needs no previous host.
    world.node("n3", NodeStatus::Offline);
    world.node("n1", NodeStatus::Ready);
    assert_eq!(world.pass(), ["upsert app-web-0 n1 nginx"]);
    assert_eq!(world.row("app-web-0").previous_host, "");
}

#[test]
fn new_leader_decides_the_same() {
    let mut one = six();
    let mut other = World::new(&[]);
    one.node("n2", NodeStatus::Offline);
    other.state = one.state.clone();
    assert_eq!(one.pass(), other.pass());
}
