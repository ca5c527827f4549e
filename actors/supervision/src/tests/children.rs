//! Children that a worker keeps by id.

use std::collections::BTreeMap;

use super::*;

/// Worker that starts and stops probes on request, and reports the changes of its set.
struct Manager {
    args: ManagerArgs,
    children: KeyedChildren<Self, u32>,
}

#[derive(Clone)]
struct ManagerArgs {
    events: mpsc::UnboundedSender<String>,
    probes: BTreeMap<&'static str, Args>,
}

enum ManagerMsg {
    Start(&'static str, u32),
    Stop(&'static str),
    Restart(&'static str),
    Done(ChildDone),
    /// Delays the messages behind this one.
    Pause(Duration),
    /// Requests the ids of the set, with those being stopped.
    Ids(Reply<Vec<String>>),
    /// Requests the ids and values of the set.
    List(Reply<Vec<(String, u32)>>),
    Fail,
}

/// Value of a child that the manager adopts; it adopts `a` only.
const ADOPTED: u32 = 99;
/// Value of a child that is exhausted when the manager adopts it.
const ADOPTED_EXHAUSTED: u32 = 98;

impl Worker for Manager {
    type Msg = ManagerMsg;
    type Args = ManagerArgs;
    const KIND: &'static str = "Manager";

    async fn start(ctx: &Context<Self>, args: ManagerArgs) -> Result<Self, Failure> {
        let mut children = KeyedChildren::new("child:", ManagerMsg::Done).report_exhausted();
        children.adopt(ctx, |id, info| {
            (id == "a").then_some(match info.state {
                ActorState::Exhausted => ADOPTED_EXHAUSTED,
                _ => ADOPTED,
            })
        });
        Ok(Self { args, children })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: ManagerMsg) -> Result<(), Failure> {
        match msg {
            ManagerMsg::Start(id, value) => {
                let args = self.args.probes[id].clone();
                let (spec, _) = ChildSpec::worker::<Probe>(self.children.key(id), args);
                self.children.start(ctx, id, spec, value);
            }
            ManagerMsg::Stop(id) => {
                self.children.stop(ctx, id);
            }
            ManagerMsg::Restart(id) => self.children.restart(ctx, id),
            ManagerMsg::Done(done) => {
                if let Some(event) = self.children.handle_done(ctx, done) {
                    let _ = self.args.events.send(format!("{event:?}"));
                }
            }
            ManagerMsg::Pause(pause) => tokio::time::sleep(pause).await,
            ManagerMsg::Ids(reply) => {
                reply.send(self.children.ids().map(str::to_owned).collect());
            }
            ManagerMsg::List(reply) => {
                let children = self.children.iter();
                reply.send(
                    children
                        .map(|(id, value)| (id.to_owned(), *value))
                        .collect(),
                );
            }
            ManagerMsg::Fail => Err("boom")?,
        }
        Ok(())
    }
}

struct World {
    recorder: Recorder,
    manager: Handle<ManagerMsg>,
    tree: Tree,
}

impl World {
    /// Starts a manager whose probes `a` and `b` are changed by `edit`.
    async fn start(restarts: usize, edit: impl Fn(&mut Args)) -> Self {
        let recorder = Recorder::new();
        let probes = ["a", "b"].map(|name| {
            let mut args = recorder.args(name);
            edit(&mut args);
            (name, args)
        });
        let args = ManagerArgs {
            events: recorder.sender.clone(),
            probes: probes.into(),
        };
        let (spec, manager) = ChildSpec::worker::<Manager>("manager", args);
        let spec = SupervisorSpec::new(Strategy::OneForOne).child(spec);
        let tree = start(spec.intensity(restarts, Duration::from_secs(60))).await;
        Self {
            recorder,
            manager,
            tree,
        }
    }

    fn cast(&self, msg: ManagerMsg) {
        self.manager.cast(msg).unwrap();
    }

    /// Starts a child and waits until it is up.
    async fn start_child(&mut self, name: &'static str, value: u32) {
        self.cast(ManagerMsg::Start(name, value));
        self.recorder.expect_event(&format!("{name} up")).await;
    }

    async fn list(&self) -> Vec<(String, u32)> {
        let listed = self.manager.call(TEST_TIMEOUT, ManagerMsg::List);
        listed.await.unwrap()
    }

    async fn ids(&self) -> Vec<String> {
        let ids = self.manager.call(TEST_TIMEOUT, ManagerMsg::Ids);
        ids.await.unwrap()
    }

    fn kill(&self, path: &str) {
        self.tree.kill(path, KillMode::Kill).unwrap();
    }

    /// Paths of the children in the tree.
    fn paths(&self) -> Vec<String> {
        let infos = self.tree.describe().into_iter();
        let probes = infos.filter(|info| info.kind == Probe::KIND);
        probes.map(|info| info.path).collect()
    }
}

fn unchanged(_: &mut Args) {}

#[tokio::test(start_paused = true)]
async fn children_start_and_stop_by_id() {
    let mut world = World::start(3, unchanged).await;
    world.cast(ManagerMsg::Start("a", 1));
    world.cast(ManagerMsg::Start("b", 2));
    rest().await;
    assert_eq!(world.paths(), ["node/child:a", "node/child:b"]);
    assert_eq!(world.list().await, [("a".into(), 1), ("b".into(), 2)]);
    let recorded = world.recorder.recorded().await;
    assert!(recorded.contains(&"Started(\"a\")".to_owned()));

    world.cast(ManagerMsg::Stop("a"));
    world.recorder.expect_event("Stopped(\"a\")").await;
    assert_eq!(world.paths(), ["node/child:b"]);
    assert_eq!(world.list().await, [("b".into(), 2)]);
}

#[tokio::test(start_paused = true)]
async fn second_start_keeps_child() {
    let mut world = World::start(3, unchanged).await;
    world.start_child("a", 1).await;
    world.recorder.recorded().await;
    world.cast(ManagerMsg::Start("a", 2));
    assert!(world.recorder.recorded().await.is_empty());
    assert_eq!(world.list().await, [("a".into(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn child_started_while_stopping_awaits_its_predecessor() {
    let stop = Duration::from_secs(2);
    let mut world = World::start(3, |args| args.stop = stop).await;
    world.start_child("a", 1).await;
    let stopped = Instant::now();
    world.cast(ManagerMsg::Stop("a"));
    rest().await;
    world.cast(ManagerMsg::Start("a", 2));
    assert_eq!(world.list().await, [("a".into(), 2)]);
    assert!(stopped.elapsed() < stop, "the manager does not wait");
    // The probe asserts that no two instances run.
    world.recorder.expect_event("a gone").await;
    assert_eq!(stopped.elapsed().as_secs(), stop.as_secs());
    world.recorder.expect_event("a up").await;
    assert_eq!(world.paths(), ["node/child:a"]);
}

#[tokio::test(start_paused = true)]
async fn stop_during_start_removes_child() {
    let world = World::start(3, |args| args.start = Duration::from_secs(5)).await;
    world.cast(ManagerMsg::Start("a", 1));
    world.cast(ManagerMsg::Stop("a"));
    assert!(world.list().await.is_empty());
    rest().await;
    assert!(world.paths().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unknown_child_with_same_key_is_stopped() {
    let mut world = World::start(3, unchanged).await;
    let (spec, _) = ChildSpec::worker::<Probe>("child:b", world.recorder.args("other"));
    world.tree.root().start_child(spec).await.unwrap();
    world.cast(ManagerMsg::Start("b", 1));
    let refused = "NotStarted(\"b\", AlreadyExists(\"child:b\"))";
    world.recorder.expect_event(refused).await;
    assert!(world.list().await.is_empty());
    world.cast(ManagerMsg::Start("b", 2));
    world.recorder.expect_event("other gone").await;
    world.recorder.expect_event("b up").await;
    assert_eq!(world.list().await, [("b".into(), 2)]);
}

#[tokio::test(start_paused = true)]
async fn restarted_manager_adopts_or_stops_children() {
    let mut world = World::start(3, unchanged).await;
    world.cast(ManagerMsg::Start("a", 1));
    world.start_child("b", 2).await;
    world.recorder.recorded().await;
    world.cast(ManagerMsg::Fail);
    world
        .recorder
        .expect_exactly(&["b stopping", "b gone"])
        .await;
    world.recorder.expect_exactly(&["Stopped(\"b\")"]).await;
    assert_eq!(world.list().await, [("a".into(), ADOPTED)]);
    assert_eq!(world.paths(), ["node/child:a"]);
}

#[tokio::test(start_paused = true)]
async fn exhausted_child_is_restarted_on_request() {
    let mut world = World::start(0, |args| args.bad_starts = Arc::new(1.into())).await;
    world.cast(ManagerMsg::Start("a", 1));
    let exhausted = "Exhausted(\"a\", \"a bad start\")";
    world.recorder.expect_event(exhausted).await;
    rest().await;
    assert_eq!(state(&world.tree, "node/child:a"), ActorState::Exhausted);
    assert_eq!(world.list().await, [("a".into(), 1)]);
    world.recorder.recorded().await;
    world.cast(ManagerMsg::Restart("a"));
    let recorded = world.recorder.recorded().await;
    assert!(recorded.contains(&"a up".to_owned()));
    assert!(recorded.contains(&"Started(\"a\")".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn child_that_cannot_restart_is_stopped() {
    let mut world = World::start(0, unchanged).await;
    world.start_child("a", 1).await;
    world.tree.root().stop_child("child:a").await.unwrap();
    world.cast(ManagerMsg::Restart("a"));
    world.recorder.expect_event("Stopped(\"a\")").await;
    assert!(world.ids().await.is_empty());
    world.start_child("a", 2).await;
}

#[tokio::test(start_paused = true)]
async fn stop_during_restart_removes_child() {
    let start = Duration::from_secs(5);
    let mut world = World::start(0, |args| args.start = start).await;
    world.start_child("a", 1).await;
    world.kill("node/child:a");
    world
        .recorder
        .expect_event("Exhausted(\"a\", \"killed\")")
        .await;
    world.cast(ManagerMsg::Restart("a"));
    world.cast(ManagerMsg::Stop("a"));
    assert!(world.list().await.is_empty());
    world.recorder.expect_event("Stopped(\"a\")").await;
    assert!(world.paths().is_empty());
}

#[tokio::test(start_paused = true)]
async fn late_report_spares_successor_of_its_child() {
    let mut world = World::start(0, unchanged).await;
    world.start_child("a", 1).await;
    world.recorder.recorded().await;
    // The report of the first child arrives when the second is wanted.
    world.cast(ManagerMsg::Pause(Duration::from_secs(1)));
    world.cast(ManagerMsg::Stop("a"));
    world.cast(ManagerMsg::Start("a", 2));
    world.kill("node/child:a");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let recorded = world.recorder.recorded().await;
    let reports = recorded
        .iter()
        .filter(|event| event.starts_with("Exhausted"));
    assert_eq!(reports.count(), 0, "{recorded:?}");
    assert!(recorded.contains(&"a up".to_owned()), "{recorded:?}");
    assert_eq!(state(&world.tree, "node/child:a"), ActorState::Running);
    // The successor has reports of its own.
    world.kill("node/child:a");
    world
        .recorder
        .expect_event("Exhausted(\"a\", \"killed\")")
        .await;
}

#[tokio::test(start_paused = true)]
async fn adopted_child_reports_to_new_manager() {
    let mut world = World::start(1, unchanged).await;
    world.start_child("a", 1).await;
    world.cast(ManagerMsg::Fail);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.list().await, [("a".into(), ADOPTED)]);
    world.kill("node/child:a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.kill("node/child:a");
    world
        .recorder
        .expect_event("Exhausted(\"a\", \"killed\")")
        .await;
    world.cast(ManagerMsg::Restart("a"));
    world.recorder.expect_event("a up").await;
}

#[tokio::test(start_paused = true)]
async fn adoption_shows_exhausted_children() {
    let world = World::start(1, |args| args.bad_starts = Arc::new(2.into())).await;
    world.cast(ManagerMsg::Start("a", 1));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(state(&world.tree, "node/child:a"), ActorState::Exhausted);
    world.cast(ManagerMsg::Fail);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.list().await, [("a".into(), ADOPTED_EXHAUSTED)]);
}

#[tokio::test(start_paused = true)]
async fn adoption_stops_children_being_stopped() {
    let stop = Duration::from_secs(3);
    let mut world = World::start(3, |args| args.stop = stop).await;
    world.start_child("a", 1).await;
    world.cast(ManagerMsg::Stop("a"));
    world.recorder.expect_event("a stopping").await;
    assert_eq!(world.ids().await, ["a"]);
    world.cast(ManagerMsg::Fail);
    tokio::time::sleep(stop / 2).await;
    assert!(world.list().await.is_empty());
    assert_eq!(world.ids().await, ["a"]);
    world.recorder.expect_event("Stopped(\"a\")").await;
    assert!(world.ids().await.is_empty());
}
