//! Passes over members that are unhealthy, offline, removed or back.

use super::*;

/// Three hosts with two replicas each of a stateless service.
fn six() -> Fixture {
    let mut fixture = Fixture::new(&["n1", "n2", "n3"]);
    fixture.deploy("app", &[("web", 6)], "web nginx h");
    fixture.pass();
    let ids: Vec<String> = fixture.state.replicas_desired.keys().cloned().collect();
    for id in ids {
        fixture.observe(&id, ReplicaState::Running, "", 1);
    }
    fixture
}

fn hosts(fixture: &Fixture) -> BTreeMap<String, usize> {
    let mut hosts = BTreeMap::new();
    for row in fixture.state.replicas_desired.values() {
        *hosts.entry(row.host.clone()).or_default() += 1;
    }
    hosts
}

#[test]
fn unhealthy_node_keeps_replicas_offline_node_loses_them() {
    let mut fixture = six();
    fixture.node("n1", NodeStatus::Unhealthy);
    assert_eq!(fixture.plan(), Pass::default());
    fixture.node("n1", NodeStatus::Offline);
    let moved = fixture.pass();
    assert_eq!(moved.len(), 2, "{moved:?}");
    assert_eq!(
        hosts(&fixture),
        [("n2".to_owned(), 3), ("n3".to_owned(), 3)].into()
    );
    for row in fixture.state.replicas_desired.values() {
        assert_eq!(row.previous_host, "", "an offline host does not serve");
    }
    assert_eq!(fixture.plan(), Pass::default());
    fixture.node("n1", NodeStatus::Ready);
    assert_eq!(fixture.plan(), Pass::default(), "nothing moves back");
}

#[test]
fn stateful_replicas_wait_and_deployment_is_pending() {
    let mut fixture = Fixture::new(&["n1", "n2"]);
    fixture.deploy("app", &[("db", 2), ("web", 2)], "db pg data\nweb nginx h");
    fixture.pass();
    let db: BTreeMap<String, String> = ["app-db-0", "app-db-1"]
        .map(|id| (fixture.row(id).host.clone(), id.to_owned()))
        .into();
    fixture.node("n1", NodeStatus::Offline);
    let lines = fixture.pass();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("upsert app-web-") && lines[0].ends_with("n2 nginx"));
    assert_eq!(lines[1], "status app Pending node_offline");
    assert_eq!(fixture.details("app", "host"), Some("n1"));
    assert_eq!(fixture.details("app", "replicas"), Some(db["n1"].as_str()));
    assert_eq!(fixture.plan(), Pass::default());

    // A new revision of a stuck replica is the row it starts from once its host is back.
    fixture.deploy("app", &[("db", 2), ("web", 2)], "db pg data2\nweb nginx h");
    fixture.pass();
    assert_eq!(fixture.row(&db["n1"]).host, "n1");
    assert_eq!(fixture.row(&db["n1"]).spec_hash, b"data2");

    fixture.node("n1", NodeStatus::Ready);
    assert_eq!(fixture.pass(), ["status app Active "]);
}

#[test]
fn removing_the_node_moves_stateful_replicas() {
    let mut fixture = Fixture::new(&["n1", "n2"]);
    fixture.deploy("app", &[("db", 1)], "db pg data");
    fixture.pass();
    let host = fixture.row("app-db-0").host.clone();
    fixture.node(&host, NodeStatus::Offline);
    assert_eq!(fixture.pass(), ["status app Pending node_offline"]);
    fixture.state.nodes.remove(&host);
    let other = if host == "n1" { "n2" } else { "n1" };
    assert_eq!(
        fixture.pass(),
        [
            format!("upsert app-db-0 {other} pg"),
            "status app Active ".to_owned()
        ]
    );
}

#[test]
fn node_without_isolation_serves_until_replicas_moved() {
    let mut fixture = Fixture::new(&["n1", "n2"]);
    fixture.deploy("app", &[("db", 1), ("web", 2)], "db pg data\nweb nginx h");
    fixture.pass();
    let host = fixture.row("app-db-0").host.clone();
    fixture.node(&host, NodeStatus::IsolationUnavailable);
    let lines = fixture.pass();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[1], "status app Pending isolation_unavailable");
    let moved: Vec<_> = fixture.state.replicas_desired.values().collect();
    let moved = moved.iter().filter(|row| !row.previous_host.is_empty());
    assert!(moved.clone().all(|row| row.previous_host == host));
    assert_eq!(moved.count(), 1);
}

#[test]
fn offline_target_keeps_the_earlier_previous_host() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("app", &[("web", 1)], "web nginx h");
    fixture.pass();
    fixture.observe("app-web-0", ReplicaState::Running, "", 1);
    fixture.node("n1", NodeStatus::IsolationUnavailable);
    fixture.node("n2", NodeStatus::Ready);
    fixture.pass();
    assert_eq!(fixture.row("app-web-0").previous_host, "n1");
    fixture.node("n2", NodeStatus::Offline);
    fixture.node("n3", NodeStatus::Ready);
    assert_eq!(fixture.pass(), ["upsert app-web-0 n3 nginx"]);
    assert_eq!(fixture.row("app-web-0").previous_host, "n1");
    // A row that returns to the host of its container needs no previous host.
    fixture.node("n3", NodeStatus::Offline);
    fixture.node("n1", NodeStatus::Ready);
    assert_eq!(fixture.pass(), ["upsert app-web-0 n1 nginx"]);
    assert_eq!(fixture.row("app-web-0").previous_host, "");
}

#[test]
fn new_leader_decides_the_same() {
    let mut one = six();
    let mut other = Fixture::new(&[]);
    one.node("n2", NodeStatus::Offline);
    other.state = one.state.clone();
    assert_eq!(one.pass(), other.pass());
}
