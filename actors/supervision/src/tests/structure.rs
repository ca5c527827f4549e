//! Dynamic children, descriptions, external actors, and several trees in one process.

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::*;

#[tokio::test(start_paused = true)]
async fn duplicate_key_is_rejected_without_side_effects() {
    let mut recorder = Recorder::new();
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(recorder.probe("a").0)).await;
    let root = tree.root();
    recorder.recorded().await;
    for _ in 0..10 {
        let refused = root.start_child(recorder.probe("a").0).await;
        assert_eq!(refused, Err(StartChildError::AlreadyExists("a".to_owned())));
    }
    assert_eq!(recorder.recorded().await, <[&str; 0]>::default());
    assert_eq!(info(&tree, "node/a").restarts_in_window, 0);

    root.stop_child("a").await.unwrap();
    root.start_child(recorder.probe("a").0).await.unwrap();
    recorder.expect_event("a up").await;
}

#[tokio::test(start_paused = true)]
async fn duplicate_static_key_fails_the_tree() {
    let recorder = Recorder::new();
    let spec = SupervisorSpec::new(Strategy::OneForOne);
    let spec = spec
        .child(recorder.probe("a").0)
        .child(recorder.probe("a").0);
    let tree = Tree::start("node", spec).await.unwrap();
    let reason = "two children are called a".to_owned();
    assert_eq!(
        timeout(TEST_TIMEOUT, tree.join()).await.unwrap(),
        Err(GaveUp { reason })
    );
}

#[tokio::test(start_paused = true)]
async fn slow_dynamic_child_does_not_delay_others() {
    let mut recorder = Recorder::new();
    let tree = start(SupervisorSpec::new(Strategy::OneForOne)).await;
    let slow = Args {
        start: Duration::from_secs(60),
        ..recorder.args("slow")
    };
    tree.root()
        .start_child(ChildSpec::worker::<Probe>("slow", slow).0)
        .await
        .unwrap();
    tree.root()
        .start_child(recorder.probe("quick").0)
        .await
        .unwrap();
    let began = Instant::now();
    recorder.expect_event("quick up").await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(state(&tree, "node/slow"), ActorState::Starting);
}

#[tokio::test(start_paused = true)]
async fn tree_describes_all_its_actors() {
    let recorder = Recorder::new();
    let (a, handle) = recorder.probe("a");
    let (inner, inner_handle) =
        ChildSpec::supervisor("inner", SupervisorSpec::new(Strategy::OneForAll).child(a));
    let external = ChildSpec::external("raft", "RaftActor", spawn_external);
    let tree = start(
        SupervisorSpec::new(Strategy::OneForOne)
            .child(inner)
            .child(external),
    )
    .await;
    handle.cast(Msg::Block).unwrap();
    rest().await;
    for _ in 0..3 {
        handle.cast(Msg::Fail).unwrap();
    }
    advance(Duration::from_secs(90)).await;

    let described: Vec<_> = tree
        .describe()
        .into_iter()
        .map(|info| (info.path, info.kind, info.state, info.mailbox_depth))
        .collect();
    let running = ActorState::Running;
    let expected = [
        ("node", "Supervisor", running, 0),
        ("node/inner", "Supervisor", running, 0),
        ("node/inner/a", "Probe", running, 3),
        ("node/raft", "RaftActor", running, 0),
    ];
    assert_eq!(
        described,
        expected
            .map(|(path, ..)| path.to_owned())
            .into_iter()
            .zip(expected)
            .map(|(path, (_, kind, state, depth))| (path, kind, state, depth))
            .collect::<Vec<_>>()
    );
    for info in tree.describe() {
        assert_eq!(
            info.uptime.map(|up| up.as_secs()),
            Some(90),
            "{}",
            info.path
        );
        assert_eq!(info.last_failure, None, "{}", info.path);
    }
    assert_eq!(inner_handle.describe().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn trees_of_same_name_are_independent() {
    let mut recorders = [Recorder::new(), Recorder::new()];
    let mut trees = Vec::new();
    for recorder in &recorders {
        let spec = SupervisorSpec::new(Strategy::OneForOne).child(recorder.probe("a").0);
        trees.push(start(spec).await);
    }
    for recorder in &mut recorders {
        recorder.recorded().await;
    }
    trees[0].kill("node/a", KillMode::Kill).unwrap();
    recorders[0]
        .expect_exactly(&["a gone", "a starting", "a up"])
        .await;
    trees[0].stop().await;
    assert_eq!(recorders[1].recorded().await, <[&str; 0]>::default());
    assert_eq!(state(&trees[1], "node/a"), ActorState::Running);
}

/// A ractor actor that is not a worker; its message determines how it ends.
struct External;

enum ExternalEnd {
    Stop,
    Fail,
}

impl Actor for External {
    type Msg = ExternalEnd;
    type State = ();
    type Arguments = ();

    async fn pre_start(
        &self,
        _myself: ActorRef<ExternalEnd>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<ExternalEnd>,
        end: ExternalEnd,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match end {
            ExternalEnd::Stop => myself.stop(None),
            ExternalEnd::Fail => return Err("external trouble".into()),
        }
        Ok(())
    }
}

async fn spawn_external(
    supervisor: ractor::ActorCell,
) -> Result<ractor::ActorCell, ractor::SpawnErr> {
    let (actor, _) = Actor::spawn_linked(None, External, (), supervisor).await?;
    Ok(actor.get_cell())
}

/// Returns the specification of an external child, and a receiver of its instances.
fn external() -> (ChildSpec, mpsc::UnboundedReceiver<ActorRef<ExternalEnd>>) {
    let (instances, spawned) = mpsc::unbounded_channel();
    let spec = ChildSpec::external("raft", "RaftActor", move |cell| {
        let instances = instances.clone();
        async move {
            let cell = spawn_external(cell).await?;
            let _ = instances.send(cell.clone().into());
            Ok(cell)
        }
    });
    (spec, spawned)
}

#[tokio::test(start_paused = true)]
async fn external_actor_is_supervised_like_a_worker() {
    let (spec, mut spawned) = external();
    let spec = spec.restart(Restart::Transient);
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(spec)).await;
    let mut instance = spawned.recv().await.unwrap();
    for (fail, reason) in [
        ("error", "external trouble"),
        ("kill", "killed"),
        ("inject", "panicked: injected fault"),
    ] {
        match fail {
            "error" => instance.send_message(ExternalEnd::Fail).unwrap(),
            "kill" => instance.kill(),
            _ => tree.kill("node/raft", KillMode::Panic).unwrap(),
        }
        let next = timeout(TEST_TIMEOUT, spawned.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            instance.get_status(),
            ractor::ActorStatus::Stopped,
            "the old instance ended first"
        );
        rest().await;
        let raft = info(&tree, "node/raft");
        assert_eq!(raft.state, ActorState::Running);
        assert_eq!(raft.last_failure.as_deref(), Some(reason));
        instance = next;
    }
    instance.send_message(ExternalEnd::Stop).unwrap();
    rest().await;
    assert_eq!(state(&tree, "node/raft"), ActorState::Stopped);
}

#[tokio::test(start_paused = true)]
async fn external_actor_stops_with_its_tree() {
    for kill in [false, true] {
        let (spec, mut spawned) = external();
        let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(spec)).await;
        let instance = spawned.recv().await.unwrap();
        if kill {
            tree.kill("node", KillMode::Kill).unwrap();
        } else {
            let began = Instant::now();
            tree.stop().await;
            assert_eq!(began.elapsed(), Duration::ZERO);
        }
        timeout(TEST_TIMEOUT, instance.wait(None))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(tree.join().await.is_err(), kill);
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_start_of_external_actor_can_be_stopped() {
    let tree = start(SupervisorSpec::new(Strategy::OneForOne)).await;
    let resource = ChildSpec::external("raft", "RaftActor", |_| std::future::pending());
    tree.root().start_child(resource).await.unwrap();
    rest().await;
    assert_eq!(state(&tree, "node/raft"), ActorState::Starting);
    tree.root().stop_child("raft").await.unwrap();
    assert_eq!(tree.describe().len(), 1);
}

/// External actor that blocks on its end until the test allows it.
struct Sluggish;

impl Actor for Sluggish {
    type Msg = ();
    type State = HeldResource;
    type Arguments = SlowRelease;

    async fn pre_start(
        &self,
        _myself: ActorRef<()>,
        resource: SlowRelease,
    ) -> Result<HeldResource, ActorProcessingErr> {
        Ok(resource.take()?)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn external_actor_restarts_only_after_its_end() {
    let (resource, release) = SlowRelease::new();
    let raft = ChildSpec::external("raft", "RaftActor", {
        let resource = resource.clone();
        move |cell| {
            let resource = resource.clone();
            async move {
                let (actor, _) = Actor::spawn_linked(None, Sluggish, resource, cell).await?;
                Ok(actor.get_cell())
            }
        }
    });
    let backoff = Backoff {
        first: Duration::ZERO,
        ..Backoff::default()
    };
    let tree = start(
        SupervisorSpec::new(Strategy::OneForOne)
            .backoff(backoff)
            .child(raft),
    )
    .await;

    tree.kill("node/raft", KillMode::Kill).unwrap();
    until(|| state(&tree, "node/raft") == ActorState::Stopped).await;
    assert_eq!(resource.held.load(Ordering::SeqCst), 1);

    release.send(()).unwrap();
    until(|| state(&tree, "node/raft") == ActorState::Running).await;
    let raft = info(&tree, "node/raft");
    assert_eq!(
        (raft.restarts_in_window, raft.last_failure.as_deref()),
        (1, Some("killed"))
    );
    drop(release);
    tree.stop().await;
}

/// Worker that starts its dynamic sibling whenever it starts.
struct Manager;

#[derive(Clone)]
struct ManagerArgs(Args);

impl Worker for Manager {
    type Msg = ();
    type Args = ManagerArgs;
    const KIND: &'static str = "Manager";

    async fn start(ctx: &Context<Self>, ManagerArgs(args): ManagerArgs) -> Result<Self, Failure> {
        let (replica, _) = ChildSpec::worker::<Probe>("replica", args);
        match ctx.supervisor().start_child(replica).await {
            Ok(()) | Err(StartChildError::AlreadyExists(_)) => Ok(Self),
            Err(error @ StartChildError::Unavailable) => Err(error.into()),
        }
    }

    async fn handle(&mut self, _ctx: &Context<Self>, (): ()) -> Result<(), Failure> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn manager_restores_dynamic_children_after_supervisor_restart() {
    let mut recorder = Recorder::new();
    let (manager, _) =
        ChildSpec::worker::<Manager>("manager", ManagerArgs(recorder.args("replica")));
    let (inner, _) = ChildSpec::supervisor(
        "inner",
        SupervisorSpec::new(Strategy::OneForOne).child(manager),
    );
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(inner)).await;
    recorder
        .expect_exactly(&["replica starting", "replica up"])
        .await;

    // A restart of the manager does not restart the children.
    tree.kill("node/inner/manager", KillMode::Kill).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(state(&tree, "node/inner/manager"), ActorState::Running);
    assert_eq!(recorder.recorded().await, <[&str; 0]>::default());

    tree.kill("node/inner", KillMode::Kill).unwrap();
    recorder
        .expect_exactly(&["replica gone", "replica starting", "replica up"])
        .await;
}
