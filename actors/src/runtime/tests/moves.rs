//! Replicas that move from one host to another, and nodes that come back to find it.

use tokio::sync::oneshot;

use super::*;

const TWO: &str = "services:\n  web:\n    image: web:1\n  api:\n    image: api:1\n";
const MINUTE: Duration = Duration::from_secs(60);

/// Two nodes on one state.
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
    /// Puts replica 0 of a service on `host`, with `previous` to serve until it runs there.
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
        let mut settled = self.settled.clone();
        let settled = settled.wait_for(|settled| *settled);
        let settled = tokio::time::timeout(10 * MINUTE, settled).await;
        assert!(*settled.expect("settled in time").unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn the_old_host_serves_until_the_new_one_runs() {
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
async fn a_node_that_comes_back_stops_what_moved_before_it_starts_others() {
    let (one, two) = pair().await;
    let web = one.put("web", "n1", "");
    one.running(&web).await;
    one.engine.set_stopping_takes(Duration::from_secs(10));
    one.caught_up.send_replace(false);
    one.put("web", "n2", "");
    let api = one.put("api", "n1", "");
    two.running(&web).await;
    tokio::time::sleep(2 * MINUTE).await;
    assert!(!*one.settled.borrow());
    assert!(!one.raft.state().replicas_observed.contains_key(&api));

    one.caught_up.send_replace(true);
    one.running(&api).await;
    assert!(*one.settled.borrow());
    assert_eq!(
        one.engine.journal(),
        ["+jaco_shop-web-0", "-jaco_shop-web-0", "+jaco_shop-api-0"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_outlasts_the_cluster_starts_nothing() {
    let (one, two) = pair().await;
    let (release, held) = oneshot::channel::<()>();
    one.engine.script_pull(
        stream::once(async {
            let _ = held.await;
            Ok(())
        })
        .boxed(),
    );
    let web = one.put("web", "n1", "");
    one.observed(&web, |seen| seen.state() == ReplicaState::Pulling)
        .await;
    one.caught_up.send_replace(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    release.send(()).unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(one.engine.journal().is_empty());
    one.put("web", "n2", "");
    two.running(&web).await;
    one.caught_up.send_replace(true);
    one.settles().await;
    assert!(one.engine.journal().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_moved_is_gone_before_a_start_even_if_both_are_news() {
    let (one, _two) = pair().await;
    let web = one.put("web", "n1", "");
    one.running(&web).await;
    one.engine.set_stopping_takes(Duration::from_secs(10));
    // The node was away for a moment, and everything comes at once.
    one.caught_up.send_replace(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    one.put("api", "n1", "");
    one.put("web", "n2", "");
    one.caught_up.send_replace(true);
    one.running("shop-api-0").await;
    assert_eq!(
        one.engine.journal(),
        ["+jaco_shop-web-0", "-jaco_shop-web-0", "+jaco_shop-api-0"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_boots_starts_nothing_before_it_knows_what_is_still_its_own() {
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
    assert_eq!(engine.running(), 0, "nothing is started from an old state");
    two.put("web", "n2", "");
    one.caught_up.send_replace(true);
    one.settles().await;
    one.until("its own runs again", || engine.running() == 1)
        .await;
    two.running(&web).await;
    assert_eq!(engine.names(), ["jaco_shop-api-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_cut_off_lets_its_containers_run_and_restarts_them() {
    let (one, _two) = pair().await;
    let web = one.put("web", "n1", "");
    let first = one.running(&web).await.container_id;
    one.caught_up.send_replace(false);
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
async fn a_node_settles_only_when_its_engine_answers() {
    let (one, _two) = pair().await;
    one.settles().await;
    one.caught_up.send_replace(false);
    one.engine.set_down(true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    one.caught_up.send_replace(true);
    tokio::time::sleep(2 * MINUTE).await;
    assert!(!*one.settled.borrow());
    one.engine.set_down(false);
    one.settles().await;
}
