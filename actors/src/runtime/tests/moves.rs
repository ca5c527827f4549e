//! Replicas that move between hosts, and nodes that rejoin after a move.

use jaco_engine::fake::HeldCall;
use tokio::sync::oneshot;

use super::*;

const TWO: &str = "services:\n  web:\n    image: web:1\n  api:\n    image: api:1\n";
const MINUTE: Duration = Duration::from_secs(60);

/// Two nodes that share one replicated state.
async fn pair() -> (Node, Node) {
    let mut state = State {
        cluster: Some(Arc::new(v1::ClusterMeta {
            cluster_id: CLUSTER.into(),
            ..Default::default()
        })),
        ..Default::default()
    };
    for host in ["n1", "n2"] {
        let node = v1::Node {
            hostname: host.into(),
            status: v1::NodeStatus::Ready.into(),
            ..Default::default()
        };
        state.nodes.insert(host.into(), Arc::new(node));
    }
    let raft = MemoryRaft::new(state);
    let one = Node::of(raft.clone(), "n1", FakeEngine::new(), true).await;
    let two = Node::of(raft, "n2", FakeEngine::new(), true).await;
    one.deploy(TWO);
    (one, two)
}

impl Node {
    /// Assigns replica 0 of a service to `host`; `previous` keeps serving until it runs there.
    fn put(&self, service: &str, host: &str, previous: &str) -> String {
        let id = format!("shop-{service}-0");
        let row = v1::ReplicaDesired {
            id: id.clone(),
            deployment: "shop".into(),
            service: service.into(),
            host: host.into(),
            previous_host: previous.into(),
            ..Default::default()
        };
        self.apply(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
            replica: Some(row),
        }));
        id
    }

    async fn settles(&self) {
        let mut cleared = self.orphans_cleared.clone();
        let cleared = cleared.wait_for(Option::is_some);
        let cleared = tokio::time::timeout(10 * MINUTE, cleared).await;
        assert!(cleared.expect("orphans cleared in time").is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn old_host_serves_until_new_host_runs() {
    let (one, two) = pair().await;
    let id = one.put("web", "n1", "");
    let before = one.running(&id).await;
    let (release, held) = oneshot::channel::<()>();
    two.engine.script_pull(
        stream::once(async {
            let _ = held.await;
            Ok(())
        })
        .boxed(),
    );
    one.put("web", "n2", "n1");
    tokio::time::sleep(2 * MINUTE).await;
    let seen = one.raft.state().replicas_observed[&id].clone();
    assert_eq!(
        (seen.host.as_str(), seen.state()),
        ("n1", ReplicaState::Running)
    );
    assert_eq!(seen.container_id, before.container_id);
    assert_eq!(seen.details["move_state"], "pulling");
    assert_eq!(one.engine.journal(), ["+jaco_shop-web-0"]);

    release.send(()).unwrap();
    let seen = one.observed(&id, |seen| {
        seen.host == "n2" && seen.state() == ReplicaState::Running
    });
    assert!(!seen.await.details.contains_key("move_state"));
    one.until("the old one is gone", || one.engine.names().is_empty())
        .await;
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(two.engine.journal(), ["+jaco_shop-web-0"]);
}

#[tokio::test(start_paused = true)]
async fn rejoining_node_stops_moved_replicas_before_starts() {
    let (one, two) = pair().await;
    let web = one.put("web", "n1", "");
    one.running(&web).await;
    one.engine.set_stopping_takes(Duration::from_secs(10));
    one.contact.set(false);
    one.put("web", "n2", "");
    let api = one.put("api", "n1", "");
    two.running(&web).await;
    tokio::time::sleep(2 * MINUTE).await;
    assert!(one.orphans_cleared.borrow().is_none());
    assert!(!one.raft.state().replicas_observed.contains_key(&api));

    one.contact.set(true);
    one.running(&api).await;
    assert!(one.orphans_cleared.borrow().is_some());
    assert_eq!(
        one.engine.journal(),
        ["+jaco_shop-web-0", "-jaco_shop-web-0", "+jaco_shop-api-0"]
    );
}

#[tokio::test(start_paused = true)]
async fn moved_replica_stops_before_simultaneous_start() {
    let (one, _two) = pair().await;
    let web = one.put("web", "n1", "");
    one.running(&web).await;
    one.engine.set_stopping_takes(Duration::from_secs(10));
    // The node was disconnected briefly and receives all changes at once.
    one.contact.set(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    one.put("api", "n1", "");
    one.put("web", "n2", "");
    one.contact.set(true);
    one.running("shop-api-0").await;
    assert_eq!(
        one.engine.journal(),
        ["+jaco_shop-web-0", "-jaco_shop-web-0", "+jaco_shop-api-0"]
    );
}

#[tokio::test(start_paused = true)]
async fn brief_disconnect_also_triggers_orphan_check() {
    let (one, _two) = pair().await;
    one.settles().await;
    let labels = [("jaco.cluster_id", CLUSTER), ("jaco.replica_id", "moved-0")];
    one.engine.insert_container("moved", &labels);
    one.engine.set_stopping_takes(Duration::from_secs(10));
    one.contact.set(false);
    one.contact.set(true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        one.orphans_cleared.borrow().is_none(),
        "no listing since the disconnect"
    );
    let api = one.put("api", "n1", "");
    one.running(&api).await;
    assert_eq!(one.engine.journal(), ["-moved", "+jaco_shop-api-0"]);
}

/// A listing of one contact arrives in the next one, `late` after that one began.
async fn listing_of_earlier_contact(late: Duration) {
    let (one, _two) = pair().await;
    one.settles().await;
    let calls = one.engine.calls();
    let release = one.engine.hold_next(HeldCall::List);
    one.contact.set(false);
    one.contact.set(true);
    one.until("the engine lists", || one.engine.calls() > calls)
        .await;
    // That listing shows no container. The next contact begins with one.
    one.contact.set(false);
    let labels = [("jaco.cluster_id", CLUSTER), ("jaco.replica_id", "moved-0")];
    one.engine.insert_container("moved", &labels);
    one.engine.set_stopping_takes(Duration::from_secs(1));
    one.contact.set(true);
    let api = one.put("api", "n1", "");
    if !late.is_zero() {
        tokio::time::sleep(late).await;
    }
    let released = tokio::time::Instant::now();
    release.send(()).unwrap();
    one.running(&api).await;
    assert_eq!(one.engine.journal(), ["-moved", "+jaco_shop-api-0"]);
    let took = released.elapsed();
    assert!(
        took < Duration::from_secs(15),
        "only the tick listed: {took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn listing_of_earlier_contact_is_dropped() {
    listing_of_earlier_contact(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn late_listing_of_earlier_contact_is_repeated() {
    // The sweep of the later contact was skipped, because a listing was under way.
    listing_of_earlier_contact(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn booted_node_starts_nothing_before_catching_up() {
    let (one, two) = pair().await;
    let web = one.put("web", "n1", "");
    let api = one.put("api", "n1", "");
    for id in [&web, &api] {
        let container = one.running(id).await.container_id;
        let _ = one.engine.stop(&container).await;
    }
    let (raft, engine) = (one.raft.clone(), one.engine.clone());
    one.tree.stop().await;
    let one = Node::of(raft, "n1", engine.clone(), false).await;
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(engine.running(), 0, "no start from a stale state");
    two.put("web", "n2", "");
    one.contact.set(true);
    one.settles().await;
    one.until("its own runs again", || engine.running() == 1)
        .await;
    two.running(&web).await;
    assert_eq!(engine.names(), ["jaco_shop-api-0"]);
}

#[tokio::test(start_paused = true)]
async fn disconnected_node_keeps_and_restarts_its_containers() {
    let (one, _two) = pair().await;
    let web = one.put("web", "n1", "");
    let first = one.running(&web).await.container_id;
    one.contact.set(false);
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(one.engine.journal(), ["+jaco_shop-web-0"]);
    one.engine.die(&first);
    let seen = one.observed(&web, |seen| {
        seen.state() == ReplicaState::Running && seen.container_id != first
    });
    seen.await;
    assert_eq!(one.engine.names(), ["jaco_shop-web-0"]);
}

#[tokio::test(start_paused = true)]
async fn orphan_check_needs_a_responding_engine() {
    let (one, _two) = pair().await;
    one.settles().await;
    one.contact.set(false);
    one.engine.set_down(true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    one.contact.set(true);
    tokio::time::sleep(2 * MINUTE).await;
    assert!(one.orphans_cleared.borrow().is_none());
    one.engine.set_down(false);
    one.settles().await;
}

#[tokio::test(start_paused = true)]
async fn unremovable_stopped_container_does_not_block_starts() {
    let (one, two) = pair().await;
    let web = one.put("web", "n1", "");
    let moved = one.running(&web).await.container_id;
    let labels = [("jaco.cluster_id", CLUSTER), ("jaco.replica_id", "gone-0")];
    one.contact.set(false);
    one.engine.insert_container("gone", &labels);
    for stuck in ["gone", &moved] {
        one.engine.set_stuck(stuck, true);
    }
    one.put("web", "n2", "");
    two.running(&web).await;
    let api = one.put("api", "n1", "");
    one.contact.set(true);
    one.running(&api).await;
    assert_eq!(one.engine.running(), 1, "but all of it has stopped");
    assert_eq!(one.engine.names().len(), 3);
    for stuck in ["gone", &moved] {
        one.engine.set_stuck(stuck, false);
    }
    one.until("what is left goes later", || {
        one.engine.names() == ["jaco_shop-api-0"]
    })
    .await;
}
