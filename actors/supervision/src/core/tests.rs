use std::collections::BTreeSet;

use proptest::{prelude::*, strategy::Strategy as PropStrategy};

use super::{Strategy, *};

const NOTIFY: bool = true;

/// A core with a clock; its instances start and stop immediately on request.
struct CoreDriver {
    core: Core,
    now: Instant,
    start: Instant,
}

impl CoreDriver {
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
        let mut driver = Self::new(strategy);
        for key in ["a", "b", "c"] {
            driver.add(key, Restart::Permanent, !NOTIFY, false);
        }
        driver.core.handle_start(driver.now);
        driver.run();
        driver
    }

    fn add(&mut self, key: &str, restart: Restart, notify: bool, dynamic: bool) {
        let stop_timeout = Some(Duration::from_secs(5));
        let plan = Plan {
            key: key.to_owned(),
            restart,
            notify,
            stop_timeout,
            dynamic,
            ordered_stop: false,
        };
        assert!(self.core.handle_add(self.now, plan).is_ok());
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
            .handle_ended(self.now, id, Exit::Failed("boom".to_owned()));
        self.run()
    }

    fn finish(&mut self, key: &str) -> Vec<String> {
        let id = self.id(key);
        self.core.handle_ended(self.now, id, Exit::Finished);
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
                        self.core.handle_started(now, id);
                    }
                    Action::Stop(id) => {
                        log.push(format!("stop {}", self.name(id)));
                        self.core.handle_ended(now, id, Exit::Finished);
                    }
                    Action::Kill(id) => {
                        log.push(format!("kill {}", self.name(id)));
                        self.core
                            .handle_ended(now, id, Exit::Failed("killed".to_owned()));
                    }
                    Action::Exhausted(id) => log.push(format!("exhausted {}", self.name(id))),
                    Action::Removed(_) => log.push("removed".to_owned()),
                    Action::StartDone => log.push("start_done".to_owned()),
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
        let mut driver = CoreDriver::new(strategy);
        for key in ["a", "b"] {
            driver.add(key, Restart::Permanent, !NOTIFY, false);
        }
        assert_eq!(
            driver.core.poll_action(),
            None,
            "nothing starts before the supervisor"
        );
        driver.core.handle_start(driver.now);
        let (a, b) = (driver.id("a"), driver.id("b"));
        assert_eq!(driver.core.poll_action(), Some(Action::Start(a)));
        assert_eq!(driver.core.poll_action(), None);
        driver.core.handle_started(driver.now, a);
        assert_eq!(driver.core.poll_action(), Some(Action::Start(b)));
        assert_eq!(driver.core.poll_action(), None);
        driver.core.handle_started(driver.now, b);
        assert_eq!(driver.core.poll_action(), Some(Action::StartDone));
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
        let mut driver = CoreDriver::running(strategy);
        assert_eq!(
            driver.fail(failed).join(", "),
            expected,
            "{strategy:?} {failed}"
        );
    }
}

#[test]
fn failure_of_earlier_child_widens_running_restart() {
    let mut driver = CoreDriver::running(Strategy::RestForOne);
    let (a, c) = (driver.id("a"), driver.id("c"));
    driver
        .core
        .handle_ended(driver.now, c, Exit::Failed("boom".to_owned()));
    assert!(driver.core.awaits_round(c));
    driver
        .core
        .handle_ended(driver.now, a, Exit::Failed("boom".to_owned()));
    assert_eq!(driver.run(), ["stop b", "start a", "start b", "start c"]);
    let waited = driver.now - driver.start;
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
                let mut driver = CoreDriver::new(strategy);
                driver.add("x", restart, !NOTIFY, dynamic);
                driver.core.handle_start(driver.now);
                driver.run();
                let log = if failed {
                    driver.fail("x")
                } else {
                    driver.finish("x")
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
        let mut driver = CoreDriver::new(Strategy::OneForAll);
        driver.add("permanent", Restart::Permanent, !NOTIFY, false);
        driver.add("temporary", Restart::Temporary, !NOTIFY, dynamic);
        driver.add("transient", Restart::Transient, !NOTIFY, false);
        driver.core.handle_start(driver.now);
        driver.run();
        driver.finish("transient");
        let mut log = driver.fail("permanent");
        log.retain(|step| step != "removed");
        let expected = ["stop temporary", "start permanent", "start transient"];
        assert_eq!(log, expected, "{dynamic}");
        // A temporary child that is down stays down in the next round too.
        assert_eq!(
            driver.fail("permanent"),
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
        let mut driver = CoreDriver::running(strategy);
        for _ in 0..3 {
            assert!(driver.fail("c").contains(&"start c".to_owned()));
        }
        assert_eq!(
            driver.fail("c"),
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
    let mut driver = CoreDriver::running(Strategy::OneForOne);
    for _ in 0..10 {
        assert_eq!(driver.fail("b"), ["start b"]);
        driver.pass(Duration::from_secs(20));
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
        let mut driver = CoreDriver::new(strategy);
        driver.add("a", Restart::Permanent, !NOTIFY, false);
        driver.add("b", Restart::Permanent, !NOTIFY, false);
        driver.core.handle_start(driver.now);
        driver.run();
        for _ in 0..3 {
            driver.fail("a");
        }
        assert_eq!(driver.fail("b").join(", "), expected, "{strategy:?}");
    }
}

#[test]
fn reported_exhaustion_spares_siblings_until_revival() {
    let mut driver = CoreDriver::running(Strategy::OneForOne);
    driver.add("x", Restart::Permanent, NOTIFY, true);
    driver.run();
    for _ in 0..3 {
        driver.fail("x");
    }
    assert_eq!(driver.fail("x"), ["exhausted x"]);
    assert_eq!(driver.phase("x"), Phase::Exhausted);
    assert_eq!(driver.phase("a"), Phase::Running);

    assert!(driver.core.handle_restart(driver.now, "x").is_ok());
    assert_eq!(driver.run(), ["start x"]);
    for _ in 0..3 {
        assert_eq!(driver.fail("x"), ["start x"]);
    }
}

#[test]
fn failing_start_blocks_later_children_until_exhausted() {
    let mut driver = CoreDriver::new(Strategy::OneForOne);
    driver.add("a", Restart::Permanent, NOTIFY, false);
    driver.add("b", Restart::Permanent, !NOTIFY, false);
    driver.core.handle_start(driver.now);
    let a = driver.id("a");
    for _ in 0..4 {
        assert_eq!(driver.core.poll_action(), Some(Action::Start(a)));
        assert_eq!(driver.core.poll_action(), None);
        driver
            .core
            .handle_ended(driver.now, a, Exit::Failed("no".to_owned()));
        if let Some(at) = driver.core.poll_timeout() {
            driver.now = at;
            driver.core.handle_timeout(at);
        }
    }
    assert_eq!(driver.run(), ["exhausted a", "start b", "start_done"]);
}

#[test]
fn dynamic_children_of_one_for_one_are_unordered() {
    let mut driver = CoreDriver::running(Strategy::OneForOne);
    driver.add("x", Restart::Permanent, !NOTIFY, true);
    driver.add("y", Restart::Permanent, !NOTIFY, true);
    let (x, y) = (driver.id("x"), driver.id("y"));
    assert_eq!(driver.core.poll_action(), Some(Action::Start(x)));
    assert_eq!(driver.core.poll_action(), Some(Action::Start(y)));

    driver.core.handle_shutdown(driver.now);
    assert_eq!(driver.core.poll_action(), Some(Action::Stop(y)));
    assert_eq!(driver.core.poll_action(), Some(Action::Stop(x)));
    assert_eq!(driver.core.poll_action(), None);
    driver.core.handle_ended(driver.now, x, Exit::Finished);
    assert_eq!(driver.core.poll_action(), None);
    driver.core.handle_ended(driver.now, y, Exit::Finished);
    assert_eq!(driver.run(), ["stop c", "stop b", "stop a", "close"]);
}

#[test]
fn dynamic_children_may_stop_in_order() {
    let mut driver = CoreDriver::running(Strategy::OneForOne);
    for (key, ordered_stop) in [("x", true), ("y", false), ("z", true)] {
        let plan = Plan {
            key: key.to_owned(),
            restart: Restart::Permanent,
            notify: false,
            stop_timeout: None,
            dynamic: true,
            ordered_stop,
        };
        driver.core.handle_add(driver.now, plan).unwrap();
        let id = driver.id(key);
        assert_eq!(driver.core.poll_action(), Some(Action::Start(id)));
    }

    driver.core.handle_shutdown(driver.now);
    for key in ["z", "y", "x"] {
        let id = driver.id(key);
        assert_eq!(driver.core.poll_action(), Some(Action::Stop(id)));
        assert_eq!(driver.core.poll_action(), None);
        driver.core.handle_ended(driver.now, id, Exit::Finished);
    }
    assert_eq!(driver.run(), ["stop c", "stop b", "stop a", "close"]);
}

#[test]
fn child_is_killed_after_its_stop_timeout() {
    let mut driver = CoreDriver::running(Strategy::OneForOne);
    let b = driver.core.handle_remove(driver.now, "b").unwrap();
    assert_eq!(driver.core.poll_action(), Some(Action::Stop(b)));
    assert_eq!(
        driver.core.poll_timeout(),
        Some(driver.now + Duration::from_secs(5))
    );
    assert_eq!(driver.run(), ["kill b", "removed"]);
}

#[test]
fn key_is_in_use_until_child_ended() {
    let mut driver = CoreDriver::running(Strategy::OneForOne);
    let plan = || Plan {
        key: "b".to_owned(),
        restart: Restart::Permanent,
        notify: false,
        stop_timeout: None,
        dynamic: true,
        ordered_stop: false,
    };
    let b = driver.core.handle_remove(driver.now, "b").unwrap();
    assert_eq!(
        driver.core.handle_add(driver.now, plan()),
        Err(Refusal::Taken)
    );
    driver.core.handle_ended(driver.now, b, Exit::Finished);
    assert!(driver.core.handle_add(driver.now, plan()).is_ok());
}

#[test]
fn child_in_backoff_is_removed_immediately() {
    let mut driver = CoreDriver::running(Strategy::OneForOne);
    let b = driver.id("b");
    driver
        .core
        .handle_ended(driver.now, b, Exit::Failed("boom".to_owned()));
    assert!(matches!(driver.phase("b"), Phase::Backoff { .. }));
    driver.core.handle_remove(driver.now, "b").unwrap();
    assert_eq!(driver.run(), ["removed"]);
}

#[test]
fn delay_grows_with_each_restart() {
    let mut driver = CoreDriver::running(Strategy::OneForAll);
    let mut waits = Vec::new();
    for _ in 0..3 {
        let before = driver.now;
        driver.fail("a");
        waits.push((driver.now - before).as_millis());
    }
    assert_eq!(waits, [10, 50, 100]);
    assert_eq!((driver.now - driver.start).as_millis(), 160);
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
struct Model {
    instances: BTreeSet<ChildId>,
    closed: bool,
}

impl Model {
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
                Action::StartDone => {}
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
        let CoreDriver { mut core, mut now, .. } = CoreDriver::new(strategy);
        let mut model = Model::default();
        let plan = |key: usize, restart, notify, dynamic| Plan {
            key: key.to_string(), restart, notify, dynamic,
            stop_timeout: Some(Duration::from_secs(5)), ordered_stop: key.is_multiple_of(3),
        };
        for (key, (restart, notify)) in statics.iter().enumerate() {
            let _ = core.handle_add(now, plan(key, *restart, *notify, false));
        }
        core.handle_start(now);
        model.carry_out(&mut core)?;
        for step in steps {
            match step {
                Step::Up(index) => {
                    if let Some(id) = model.pick(index) { core.handle_started(now, id); }
                }
                Step::Fail(index) | Step::Finish(index) => {
                    if let Some(id) = model.pick(index) {
                        model.instances.remove(&id);
                        let exit = match step {
                            Step::Fail(_) => Exit::Failed("boom".to_owned()),
                            _ => Exit::Finished,
                        };
                        core.handle_ended(now, id, exit);
                    }
                }
                Step::Remove(key) => { let _ = core.handle_remove(now, &key.to_string()); }
                Step::Revive(key) => { let _ = core.handle_restart(now, &key.to_string()); }
                Step::Add(restart, notify) => {
                    for key in 0..8 {
                        if core.handle_add(now, plan(key, restart, notify, true)).is_ok() {
                            break;
                        }
                    }
                }
                Step::Wait(ms) => { now += Duration::from_millis(ms); core.handle_timeout(now); }
                Step::Shutdown => core.handle_shutdown(now),
            }
            model.carry_out(&mut core)?;
            for child in core.children() {
                let exists = model.instances.contains(&child.id);
                prop_assert_eq!(child.phase.is_alive(), exists, "{:?}", child);
            }
            let overdue = core.poll_timeout().is_some_and(|at| at <= now);
            if overdue {
                core.handle_timeout(now);
                model.carry_out(&mut core)?;
                prop_assert!(core.poll_timeout().is_none_or(|at| at > now), "overdue again");
            }
        }

        // After a shutdown the supervisor closes as soon as its instances have ended.
        core.handle_shutdown(now);
        model.carry_out(&mut core)?;
        for _ in 0..100 {
            let Some(id) = model.pick(0) else { break };
            model.instances.remove(&id);
            core.handle_ended(now, id, Exit::Finished);
            model.carry_out(&mut core)?;
        }
        prop_assert!(model.closed);
    }

    #[test]
    fn permanent_children_run_again_after_sparse_failures(
        strategy in strategies(),
        failures in prop::collection::vec((0usize..3, 0u64..100), 1..40),
    ) {
        let mut driver = CoreDriver::running(strategy);
        for (child, pause) in failures {
            // Slow enough never to exhaust the limit.
            driver.pass(Duration::from_secs(20 + pause));
            driver.run();
            driver.fail(["a", "b", "c"][child]);
        }
        for key in ["a", "b", "c"] {
            prop_assert_eq!(driver.phase(key), Phase::Running);
        }
    }
}
