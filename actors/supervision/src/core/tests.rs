use std::collections::BTreeSet;

use proptest::{prelude::*, strategy::Strategy as PropStrategy};

use super::{Strategy, *};

const NOTIFY: bool = true;

/// A core with a clock; its instances start and stop immediately on request.
struct Bench {
    core: Core,
    now: Instant,
    start: Instant,
}

impl Bench {
    fn new(strategy: Strategy) -> Self {
        let rules = Rules {
            strategy,
            intensity: Intensity::default(),
            backoff: Backoff::default(),
        };
        let now = Instant::now();
        Self {
            core: Core::new(rules),
            now,
            start: now,
        }
    }

    /// A supervisor with three running permanent children.
    fn running(strategy: Strategy) -> Self {
        let mut bench = Self::new(strategy);
        for key in ["a", "b", "c"] {
            bench.add(key, Restart::Permanent, !NOTIFY, false);
        }
        bench.core.handle_start(bench.now);
        bench.run();
        bench
    }

    fn add(&mut self, key: &str, restart: Restart, notify: bool, dynamic: bool) {
        let patience = Some(Duration::from_secs(5));
        let plan = Plan {
            key: key.to_owned(),
            restart,
            notify,
            patience,
            dynamic,
        };
        assert!(self.core.handle_add(plan, self.now).is_ok());
    }

    fn id(&self, key: &str) -> ChildId {
        self.core.id(key).unwrap()
    }

    fn name(&self, id: ChildId) -> String {
        self.core
            .child(id)
            .map_or_else(|| "gone".to_owned(), |child| child.plan.key.clone())
    }

    fn phase(&self, key: &str) -> Phase {
        self.core.child(self.id(key)).unwrap().phase
    }

    fn fail(&mut self, key: &str) -> Vec<String> {
        let id = self.id(key);
        self.core
            .handle_ended(id, Exit::Failed("boom".to_owned()), self.now);
        self.run()
    }

    fn finish(&mut self, key: &str) -> Vec<String> {
        let id = self.id(key);
        self.core.handle_ended(id, Exit::Finished, self.now);
        self.run()
    }

    /// Carries out actions and timeouts until none is left, and returns the actions.
    fn run(&mut self) -> Vec<String> {
        let mut log = Vec::new();
        loop {
            while let Some(action) = self.core.poll_action() {
                let now = self.now;
                match action {
                    Action::Start(id) => {
                        log.push(format!("start {}", self.name(id)));
                        self.core.handle_started(id, now);
                    }
                    Action::Stop(id) => {
                        log.push(format!("stop {}", self.name(id)));
                        self.core.handle_ended(id, Exit::Finished, now);
                    }
                    Action::Kill(id) => {
                        log.push(format!("kill {}", self.name(id)));
                        self.core
                            .handle_ended(id, Exit::Failed("killed".to_owned()), now);
                    }
                    Action::Exhausted(id) => log.push(format!("exhausted {}", self.name(id))),
                    Action::Removed(_) => log.push("removed".to_owned()),
                    Action::Settled => log.push("settled".to_owned()),
                    Action::Close(None) => log.push("close".to_owned()),
                    Action::Close(Some(reason)) => log.push(format!("close: {reason}")),
                }
            }
            let Some(at) = self.core.poll_timeout() else {
                return log;
            };
            assert!(at > self.now, "a timeout in the past would spin");
            self.now = at;
            self.core.handle_timeout(at);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.core.handle_timeout(self.now);
    }
}

#[test]
fn children_start_in_order_after_their_predecessor() {
    for strategy in [
        Strategy::OneForOne,
        Strategy::RestForOne,
        Strategy::OneForAll,
    ] {
        let mut bench = Bench::new(strategy);
        for key in ["a", "b"] {
            bench.add(key, Restart::Permanent, !NOTIFY, false);
        }
        assert_eq!(
            bench.core.poll_action(),
            None,
            "nothing starts before the supervisor"
        );
        bench.core.handle_start(bench.now);
        let (a, b) = (bench.id("a"), bench.id("b"));
        assert_eq!(bench.core.poll_action(), Some(Action::Start(a)));
        assert_eq!(bench.core.poll_action(), None);
        bench.core.handle_started(a, bench.now);
        assert_eq!(bench.core.poll_action(), Some(Action::Start(b)));
        assert_eq!(bench.core.poll_action(), None);
        bench.core.handle_started(b, bench.now);
        assert_eq!(bench.core.poll_action(), Some(Action::Settled));
    }
}

#[test]
fn failure_restarts_children_of_the_strategy() {
    for (strategy, failed, expected) in [
        (Strategy::OneForOne, "b", "start b"),
        (
            Strategy::RestForOne,
            "a",
            "stop c, stop b, start a, start b, start c",
        ),
        (Strategy::RestForOne, "b", "stop c, start b, start c"),
        (Strategy::RestForOne, "c", "start c"),
        (
            Strategy::OneForAll,
            "a",
            "stop c, stop b, start a, start b, start c",
        ),
        (
            Strategy::OneForAll,
            "c",
            "stop b, stop a, start a, start b, start c",
        ),
    ] {
        let mut bench = Bench::running(strategy);
        assert_eq!(
            bench.fail(failed).join(", "),
            expected,
            "{strategy:?} {failed}"
        );
    }
}

#[test]
fn failure_of_earlier_child_widens_running_restart() {
    let mut bench = Bench::running(Strategy::RestForOne);
    let (a, c) = (bench.id("a"), bench.id("c"));
    bench
        .core
        .handle_ended(c, Exit::Failed("boom".to_owned()), bench.now);
    assert!(bench.core.awaits_round(c));
    bench
        .core
        .handle_ended(a, Exit::Failed("boom".to_owned()), bench.now);
    assert_eq!(bench.run(), ["stop b", "start a", "start b", "start c"]);
    let waited = bench.now - bench.start;
    assert_eq!(waited.as_millis(), 50, "the wait of the second failure");
}

#[test]
fn restart_type_decides_which_ends_restart() {
    use Restart::{Permanent, Temporary, Transient};
    for (restart, failed, expected) in [
        (Permanent, true, "start x"),
        (Permanent, false, "start x"),
        (Transient, true, "start x"),
        (Transient, false, ""),
        (Temporary, true, ""),
        (Temporary, false, ""),
    ] {
        for strategy in [
            Strategy::OneForOne,
            Strategy::RestForOne,
            Strategy::OneForAll,
        ] {
            for dynamic in [false, true] {
                let mut bench = Bench::new(strategy);
                bench.add("x", restart, !NOTIFY, dynamic);
                bench.core.handle_start(bench.now);
                bench.run();
                let log = if failed {
                    bench.fail("x")
                } else {
                    bench.finish("x")
                };
                let expected = match (expected, dynamic) {
                    ("", true) => "removed",
                    (expected, _) => expected,
                };
                assert_eq!(log.join(", "), expected, "{restart:?} {failed} {dynamic}");
            }
        }
    }
}

#[test]
fn group_restart_skips_temporary_children_only() {
    for dynamic in [false, true] {
        let mut bench = Bench::new(Strategy::OneForAll);
        bench.add("permanent", Restart::Permanent, !NOTIFY, false);
        bench.add("temporary", Restart::Temporary, !NOTIFY, dynamic);
        bench.add("transient", Restart::Transient, !NOTIFY, false);
        bench.core.handle_start(bench.now);
        bench.run();
        bench.finish("transient");
        let mut log = bench.fail("permanent");
        log.retain(|step| step != "removed");
        let expected = ["stop temporary", "start permanent", "start transient"];
        assert_eq!(log, expected, "{dynamic}");
        // A temporary child that is down stays down in the next round too.
        assert_eq!(
            bench.fail("permanent"),
            ["stop transient", "start permanent", "start transient"],
            "{dynamic}"
        );
    }
}

#[test]
fn fourth_failure_stops_siblings_and_escalates() {
    for strategy in [
        Strategy::OneForOne,
        Strategy::RestForOne,
        Strategy::OneForAll,
    ] {
        let mut bench = Bench::running(strategy);
        for _ in 0..3 {
            assert!(bench.fail("c").contains(&"start c".to_owned()));
        }
        assert_eq!(
            bench.fail("c"),
            [
                "exhausted c",
                "stop b",
                "stop a",
                "close: c used up its restarts: boom"
            ]
        );
    }
}

#[test]
fn failure_outside_the_window_does_not_count() {
    let mut bench = Bench::running(Strategy::OneForOne);
    for _ in 0..10 {
        assert_eq!(bench.fail("b"), ["start b"]);
        bench.pass(Duration::from_secs(20));
    }
}

#[test]
fn only_group_strategies_share_restart_limit() {
    for (strategy, expected) in [
        (Strategy::OneForOne, "start b"),
        (
            Strategy::RestForOne,
            "exhausted b, stop a, close: b used up its restarts: boom",
        ),
        (
            Strategy::OneForAll,
            "exhausted b, stop a, close: b used up its restarts: boom",
        ),
    ] {
        let mut bench = Bench::new(strategy);
        bench.add("a", Restart::Permanent, !NOTIFY, false);
        bench.add("b", Restart::Permanent, !NOTIFY, false);
        bench.core.handle_start(bench.now);
        bench.run();
        for _ in 0..3 {
            bench.fail("a");
        }
        assert_eq!(bench.fail("b").join(", "), expected, "{strategy:?}");
    }
}

#[test]
fn reported_exhaustion_spares_siblings_until_revival() {
    let mut bench = Bench::running(Strategy::OneForOne);
    bench.add("x", Restart::Permanent, NOTIFY, true);
    bench.run();
    for _ in 0..3 {
        bench.fail("x");
    }
    assert_eq!(bench.fail("x"), ["exhausted x"]);
    assert_eq!(bench.phase("x"), Phase::Exhausted);
    assert_eq!(bench.phase("a"), Phase::Running);

    assert!(bench.core.handle_revive("x", bench.now).is_some());
    assert_eq!(bench.run(), ["start x"]);
    for _ in 0..3 {
        assert_eq!(bench.fail("x"), ["start x"]);
    }
}

#[test]
fn failing_start_blocks_later_children_until_exhausted() {
    let mut bench = Bench::new(Strategy::OneForOne);
    bench.add("a", Restart::Permanent, NOTIFY, false);
    bench.add("b", Restart::Permanent, !NOTIFY, false);
    bench.core.handle_start(bench.now);
    let a = bench.id("a");
    for _ in 0..4 {
        assert_eq!(bench.core.poll_action(), Some(Action::Start(a)));
        assert_eq!(bench.core.poll_action(), None);
        bench
            .core
            .handle_ended(a, Exit::Failed("no".to_owned()), bench.now);
        if let Some(at) = bench.core.poll_timeout() {
            bench.now = at;
            bench.core.handle_timeout(at);
        }
    }
    assert_eq!(bench.run(), ["exhausted a", "start b", "settled"]);
}

#[test]
fn dynamic_children_of_one_for_one_are_unordered() {
    let mut bench = Bench::running(Strategy::OneForOne);
    bench.add("x", Restart::Permanent, !NOTIFY, true);
    bench.add("y", Restart::Permanent, !NOTIFY, true);
    let (x, y) = (bench.id("x"), bench.id("y"));
    assert_eq!(bench.core.poll_action(), Some(Action::Start(x)));
    assert_eq!(bench.core.poll_action(), Some(Action::Start(y)));

    bench.core.handle_shutdown(bench.now);
    assert_eq!(bench.core.poll_action(), Some(Action::Stop(y)));
    assert_eq!(bench.core.poll_action(), Some(Action::Stop(x)));
    assert_eq!(bench.core.poll_action(), None);
    bench.core.handle_ended(x, Exit::Finished, bench.now);
    assert_eq!(bench.core.poll_action(), None);
    bench.core.handle_ended(y, Exit::Finished, bench.now);
    assert_eq!(bench.run(), ["stop c", "stop b", "stop a", "close"]);
}

#[test]
fn child_is_killed_after_its_stop_timeout() {
    let mut bench = Bench::running(Strategy::OneForOne);
    let b = bench.core.handle_remove("b", bench.now).unwrap();
    assert_eq!(bench.core.poll_action(), Some(Action::Stop(b)));
    assert_eq!(
        bench.core.poll_timeout(),
        Some(bench.now + Duration::from_secs(5))
    );
    assert_eq!(bench.run(), ["kill b", "removed"]);
}

#[test]
fn key_is_in_use_until_child_ended() {
    let mut bench = Bench::running(Strategy::OneForOne);
    let plan = || Plan {
        key: "b".to_owned(),
        restart: Restart::Permanent,
        notify: false,
        patience: None,
        dynamic: true,
    };
    let b = bench.core.handle_remove("b", bench.now).unwrap();
    assert_eq!(
        bench.core.handle_add(plan(), bench.now),
        Err(Refusal::Taken)
    );
    bench.core.handle_ended(b, Exit::Finished, bench.now);
    assert!(bench.core.handle_add(plan(), bench.now).is_ok());
}

#[test]
fn child_in_backoff_is_removed_immediately() {
    let mut bench = Bench::running(Strategy::OneForOne);
    let b = bench.id("b");
    bench
        .core
        .handle_ended(b, Exit::Failed("boom".to_owned()), bench.now);
    assert!(matches!(bench.phase("b"), Phase::Backoff { .. }));
    bench.core.handle_remove("b", bench.now);
    assert_eq!(bench.run(), ["removed"]);
}

#[test]
fn delay_grows_with_each_restart() {
    let mut bench = Bench::running(Strategy::OneForAll);
    let mut waits = Vec::new();
    for _ in 0..3 {
        let before = bench.now;
        bench.fail("a");
        waits.push((bench.now - before).as_millis());
    }
    assert_eq!(waits, [10, 50, 100]);
    assert_eq!((bench.now - bench.start).as_millis(), 160);
}

#[derive(Clone, Debug)]
enum Step {
    Up(usize),
    Fail(usize),
    Finish(usize),
    Remove(usize),
    Revive(usize),
    Add(Restart, bool),
    Wait(u64),
    Shutdown,
}

fn steps() -> impl PropStrategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0usize..8).prop_map(Step::Up),
        6 => (0usize..8).prop_map(Step::Fail),
        3 => (0usize..8).prop_map(Step::Finish),
        1 => (0usize..8).prop_map(Step::Remove),
        1 => (0usize..8).prop_map(Step::Revive),
        2 => (restarts(), any::<bool>()).prop_map(|(restart, notify)| Step::Add(restart, notify)),
        4 => (0u64..20_000).prop_map(Step::Wait),
        1 => Just(Step::Shutdown),
    ];
    prop::collection::vec(step, 1..120)
}

fn restarts() -> impl PropStrategy<Value = Restart> {
    prop_oneof![
        Just(Restart::Permanent),
        Just(Restart::Transient),
        Just(Restart::Temporary)
    ]
}

fn strategies() -> impl PropStrategy<Value = Strategy> {
    prop_oneof![
        Just(Strategy::OneForOne),
        Just(Strategy::RestForOne),
        Just(Strategy::OneForAll)
    ]
}

/// Model of the supervisor actor: its instances, and whether it has ended.
#[derive(Default)]
struct World {
    instances: BTreeSet<ChildId>,
    closed: bool,
}

impl World {
    fn carry_out(&mut self, core: &mut Core) -> Result<(), TestCaseError> {
        while let Some(action) = core.poll_action() {
            let forgets = matches!(action, Action::Removed(_));
            prop_assert!(forgets || !self.closed, "{:?} after the close", action);
            match action {
                Action::Start(id) => {
                    prop_assert!(self.instances.insert(id), "two instances of {:?}", id);
                }
                Action::Stop(id) | Action::Kill(id) => {
                    prop_assert!(self.instances.contains(&id), "stop without an instance");
                }
                Action::Removed(id) => prop_assert!(!self.instances.contains(&id)),
                Action::Exhausted(id) => prop_assert!(!self.instances.contains(&id)),
                Action::Settled => {}
                Action::Close(_) => {
                    prop_assert!(self.instances.is_empty(), "children outlive the supervisor");
                    self.closed = true;
                }
            }
        }
        Ok(())
    }

    fn pick(&self, index: usize) -> Option<ChildId> {
        self.instances
            .iter()
            .nth(index % self.instances.len().max(1))
            .copied()
    }
}

proptest! {
    #[test]
    fn random_steps_keep_one_instance_and_close(
        strategy in strategies(),
        statics in prop::collection::vec((restarts(), any::<bool>()), 0..5),
        steps in steps(),
    ) {
        let Bench { mut core, mut now, .. } = Bench::new(strategy);
        let mut world = World::default();
        let plan = |key: usize, restart, notify, dynamic| Plan {
            key: key.to_string(), restart, notify, patience: Some(Duration::from_secs(5)), dynamic,
        };
        for (key, (restart, notify)) in statics.iter().enumerate() {
            let _ = core.handle_add(plan(key, *restart, *notify, false), now);
        }
        core.handle_start(now);
        world.carry_out(&mut core)?;
        for step in steps {
            match step {
                Step::Up(index) => {
                    if let Some(id) = world.pick(index) { core.handle_started(id, now); }
                }
                Step::Fail(index) | Step::Finish(index) => {
                    if let Some(id) = world.pick(index) {
                        world.instances.remove(&id);
                        let exit = match step {
                            Step::Fail(_) => Exit::Failed("boom".to_owned()),
                            _ => Exit::Finished,
                        };
                        core.handle_ended(id, exit, now);
                    }
                }
                Step::Remove(key) => { core.handle_remove(&key.to_string(), now); }
                Step::Revive(key) => { core.handle_revive(&key.to_string(), now); }
                Step::Add(restart, notify) => {
                    for key in 0..8 {
                        if core.handle_add(plan(key, restart, notify, true), now).is_ok() {
                            break;
                        }
                    }
                }
                Step::Wait(ms) => { now += Duration::from_millis(ms); core.handle_timeout(now); }
                Step::Shutdown => core.handle_shutdown(now),
            }
            world.carry_out(&mut core)?;
            for child in core.children() {
                let exists = world.instances.contains(&child.id);
                prop_assert_eq!(child.phase.is_alive(), exists, "{:?}", child);
            }
            let overdue = core.poll_timeout().is_some_and(|at| at <= now);
            if overdue {
                core.handle_timeout(now);
                world.carry_out(&mut core)?;
                prop_assert!(core.poll_timeout().is_none_or(|at| at > now), "overdue again");
            }
        }

        // After a shutdown the supervisor closes as soon as its instances have ended.
        core.handle_shutdown(now);
        world.carry_out(&mut core)?;
        for _ in 0..100 {
            let Some(id) = world.pick(0) else { break };
            world.instances.remove(&id);
            core.handle_ended(id, Exit::Finished, now);
            world.carry_out(&mut core)?;
        }
        prop_assert!(world.closed);
    }

    #[test]
    fn permanent_children_run_again_after_sparse_failures(
        strategy in strategies(),
        failures in prop::collection::vec((0usize..3, 0u64..100), 1..40),
    ) {
        let mut bench = Bench::running(strategy);
        for (child, pause) in failures {
            // Slow enough never to exhaust the limit.
            bench.pass(Duration::from_secs(20 + pause));
            bench.run();
            bench.fail(["a", "b", "c"][child]);
        }
        for key in ["a", "b", "c"] {
            prop_assert_eq!(bench.phase(key), Phase::Running);
        }
    }
}
