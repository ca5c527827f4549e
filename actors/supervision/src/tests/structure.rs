//! Dynamic children, descriptions, external actors, and several trees in one process.

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::*;

#[tokio::test(start_paused = true)]
async fn duplicate_key_is_rejected_without_side_effects() {
    let mut lab = Lab::new();
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(lab.probe("a").0)).await;
    let root = tree.root();
    lab.heard().await;
    for _ in 0..10 {
        let refused = root.start_child(lab.probe("a").0).await;
        assert_eq!(refused, Err(StartChildError::AlreadyExists("a".to_owned())));
    }
    assert_eq!(lab.heard().await, <[&str; 0]>::default());
    assert_eq!(info(&tree, "node/a").restarts_in_window, 0);

    root.stop_child("a").await.unwrap();
    root.start_child(lab.probe("a").0).await.unwrap();
    lab.hears("a up").await;
}

#[tokio::test(start_paused = true)]
async fn duplicate_static_key_fails_the_tree() {
    let lab = Lab::new();
    let spec = SupervisorSpec::new(Strategy::OneForOne);
    let spec = spec.child(lab.probe("a").0).child(lab.probe("a").0);
    let tree = Tree::start("node", spec).await.unwrap();
    let reason = "two children are called a".to_owned();
    assert_eq!(
        timeout(PATIENCE, tree.join()).await.unwrap(),
        Err(GaveUp { reason })
    );
}

#[tokio::test(start_paused = true)]
async fn slow_dynamic_child_does_not_delay_others() {
    let mut lab = Lab::new();
    let tree = start(SupervisorSpec::new(Strategy::OneForOne)).await;
    let slow = Args {
        start: Duration::from_secs(60),
        ..lab.args("slow")
    };
    tree.root()
        .start_child(ChildSpec::worker::<Probe>("slow", slow).0)
        .await
        .unwrap();
    tree.root().start_child(lab.probe("quick").0).await.unwrap();
    let began = Instant::now();
    lab.hears("quick up").await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(state(&tree, "node/slow"), ActorState::Starting);
}

#[tokio::test(start_paused = true)]
async fn tree_describes_all_its_actors() {
    let lab = Lab::new();
    let (a, handle) = lab.probe("a");
    let (inner, inner_handle) =
        ChildSpec::supervisor("inner", SupervisorSpec::new(Strategy::OneForAll).child(a));
    let foreign = ChildSpec::foreign("raft", "RaftActor", spawn_foreign);
    let tree = start(
        SupervisorSpec::new(Strategy::OneForOne)
            .child(inner)
            .child(foreign),
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
    let mut labs = [Lab::new(), Lab::new()];
    let mut trees = Vec::new();
    for lab in &labs {
        let spec = SupervisorSpec::new(Strategy::OneForOne).child(lab.probe("a").0);
        trees.push(start(spec).await);
    }
    for lab in &mut labs {
        lab.heard().await;
    }
    trees[0].kill("node/a", KillMode::Kill).unwrap();
    labs[0]
        .hears_exactly(&["a gone", "a starting", "a up"])
        .await;
    trees[0].stop().await;
    assert_eq!(labs[1].heard().await, <[&str; 0]>::default());
    assert_eq!(state(&trees[1], "node/a"), ActorState::Running);
}

/// A ractor actor that is not a worker; its message determines how it ends.
struct Foreign;

enum ForeignEnd {
    Stop,
    Fail,
}

impl Actor for Foreign {
    type Msg = ForeignEnd;
    type State = ();
    type Arguments = ();

    async fn pre_start(
        &self,
        _myself: ActorRef<ForeignEnd>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<ForeignEnd>,
        end: ForeignEnd,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match end {
            ForeignEnd::Stop => myself.stop(None),
            ForeignEnd::Fail => return Err("foreign trouble".into()),
        }
        Ok(())
    }
}

async fn spawn_foreign(
    supervisor: ractor::ActorCell,
) -> Result<ractor::ActorCell, ractor::SpawnErr> {
    let (actor, _) = Actor::spawn_linked(None, Foreign, (), supervisor).await?;
    Ok(actor.get_cell())
}

/// Returns the specification of an external child, and a receiver of its instances.
fn foreign() -> (ChildSpec, mpsc::UnboundedReceiver<ActorRef<ForeignEnd>>) {
    let (instances, born) = mpsc::unbounded_channel();
    let spec = ChildSpec::foreign("raft", "RaftActor", move |cell| {
        let instances = instances.clone();
        async move {
            let cell = spawn_foreign(cell).await?;
            let _ = instances.send(cell.clone().into());
            Ok(cell)
        }
    });
    (spec, born)
}

#[tokio::test(start_paused = true)]
async fn external_actor_is_supervised_like_a_worker() {
    let (spec, mut born) = foreign();
    let spec = spec.restart(Restart::Transient);
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(spec)).await;
    let mut instance = born.recv().await.unwrap();
    for (fail, reason) in [
        ("error", "foreign trouble"),
        ("kill", "killed"),
        ("inject", "panicked: injected fault"),
    ] {
        match fail {
            "error" => instance.send_message(ForeignEnd::Fail).unwrap(),
            "kill" => instance.kill(),
            _ => tree.kill("node/raft", KillMode::Panic).unwrap(),
        }
        let next = timeout(PATIENCE, born.recv()).await.unwrap().unwrap();
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
    instance.send_message(ForeignEnd::Stop).unwrap();
    rest().await;
    assert_eq!(state(&tree, "node/raft"), ActorState::Stopped);
}

#[tokio::test(start_paused = true)]
async fn external_actor_stops_with_its_tree() {
    for kill in [false, true] {
        let (spec, mut born) = foreign();
        let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(spec)).await;
        let instance = born.recv().await.unwrap();
        if kill {
            tree.kill("node", KillMode::Kill).unwrap();
        } else {
            let began = Instant::now();
            tree.stop().await;
            assert_eq!(began.elapsed(), Duration::ZERO);
        }
        timeout(PATIENCE, instance.wait(None))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(tree.join().await.is_err(), kill);
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_start_of_external_actor_can_be_stopped() {
    let tree = start(SupervisorSpec::new(Strategy::OneForOne)).await;
    let stuck = ChildSpec::foreign("raft", "RaftActor", |_| std::future::pending());
    tree.root().start_child(stuck).await.unwrap();
    rest().await;
    assert_eq!(state(&tree, "node/raft"), ActorState::Starting);
    tree.root().stop_child("raft").await.unwrap();
    assert_eq!(tree.describe().len(), 1);
}

/// External actor that blocks on its end until the test allows it.
struct Sluggish;

impl Actor for Sluggish {
    type Msg = ();
    type State = Held;
    type Arguments = Stuck;

    async fn pre_start(
        &self,
        _myself: ActorRef<()>,
        stuck: Stuck,
    ) -> Result<Held, ActorProcessingErr> {
        Ok(stuck.take()?)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn external_actor_restarts_only_after_its_end() {
    let (stuck, release) = Stuck::new();
    let raft = ChildSpec::foreign("raft", "RaftActor", {
        let stuck = stuck.clone();
        move |cell| {
            let stuck = stuck.clone();
            async move {
                let (actor, _) = Actor::spawn_linked(None, Sluggish, stuck, cell).await?;
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
    assert_eq!(stuck.held.load(Ordering::SeqCst), 1);

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
    let mut lab = Lab::new();
    let (manager, _) = ChildSpec::worker::<Manager>("manager", ManagerArgs(lab.args("replica")));
    let (inner, _) = ChildSpec::supervisor(
        "inner",
        SupervisorSpec::new(Strategy::OneForOne).child(manager),
    );
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(inner)).await;
    lab.hears_exactly(&["replica starting", "replica up"]).await;

    // A restart of the manager does not restart the children.
    tree.kill("node/inner/manager", KillMode::Kill).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(state(&tree, "node/inner/manager"), ActorState::Running);
    assert_eq!(lab.heard().await, <[&str; 0]>::default());

    tree.kill("node/inner", KillMode::Kill).unwrap();
    lab.hears_exactly(&["replica gone", "replica starting", "replica up"])
        .await;
}
