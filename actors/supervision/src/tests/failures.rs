//! Failures of actors, and the reactions of their supervisors.

use super::*;

/// Ways in which an instance ends.
#[derive(Clone, Copy, Debug)]
enum ExitKind {
    Error,
    Panic,
    TaskPanic,
    Kill,
    InjectedPanic,
    Finish,
}

const EXIT_KINDS: [ExitKind; 6] = [
    ExitKind::Error,
    ExitKind::Panic,
    ExitKind::TaskPanic,
    ExitKind::Kill,
    ExitKind::InjectedPanic,
    ExitKind::Finish,
];

impl ExitKind {
    fn trigger(self, tree: &Tree, handle: &Handle<Msg>, path: &str) {
        match self {
            Self::Error => handle.cast(Msg::Fail).unwrap(),
            Self::Panic => handle.cast(Msg::Panic).unwrap(),
            Self::TaskPanic => handle.cast(Msg::PanicInTask).unwrap(),
            Self::Kill => tree.kill(path, KillMode::Kill).unwrap(),
            Self::InjectedPanic => tree.kill(path, KillMode::Panic).unwrap(),
            Self::Finish => handle.cast(Msg::Finish).unwrap(),
        }
    }

    fn reason(self) -> Option<&'static str> {
        match self {
            Self::Error => Some("boom"),
            Self::Panic => Some("panicked: kaboom"),
            Self::TaskPanic => Some("panicked: in a task"),
            Self::Kill => Some("killed"),
            Self::InjectedPanic => Some("panicked: injected fault"),
            Self::Finish => None,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn end_of_child_follows_strategy_and_restart_type() {
    for strategy in [
        Strategy::OneForOne,
        Strategy::RestForOne,
        Strategy::OneForAll,
    ] {
        for restart in [Restart::Permanent, Restart::Transient, Restart::Temporary] {
            for exit_kind in EXIT_KINDS {
                check_end(strategy, restart, exit_kind).await;
            }
        }
    }
}

/// Number of starts among the events.
fn expected_starts(recorded: &[String]) -> u64 {
    recorded.iter().filter(|line| line.ends_with(" up")).count() as u64
}

async fn check_end(strategy: Strategy, restart: Restart, exit_kind: ExitKind) {
    let case = format!("{strategy:?} {restart:?} {exit_kind:?}");
    let mut recorder = Recorder::new();
    let (a, _) = recorder.probe("a");
    let (b, handle) = recorder.probe("b");
    let (c, _) = recorder.probe("c");
    let spec = SupervisorSpec::new(strategy)
        .child(a)
        .child(b.restart(restart))
        .child(c);
    let tree = start(spec).await;
    recorder.recorded().await;

    exit_kind.trigger(&tree, &handle, "node/b");
    recorder.expect_exactly(&["b gone"]).await;
    advance(Duration::from_secs(5)).await;
    let recorded = recorder.recorded().await;

    let restarts = match restart {
        Restart::Permanent => true,
        Restart::Transient => exit_kind.reason().is_some(),
        Restart::Temporary => false,
    };
    let expected: &[&str] = match strategy {
        _ if !restarts => &[],
        Strategy::OneForOne => &["b starting", "b up"],
        Strategy::RestForOne => &[
            "c stopping",
            "c gone",
            "b starting",
            "b up",
            "c starting",
            "c up",
        ],
        Strategy::OneForAll => &[
            "c stopping",
            "c gone",
            "a stopping",
            "a gone",
            "a starting",
            "a up",
            "b starting",
            "b up",
            "c starting",
            "c up",
        ],
    };
    assert_eq!(recorded, expected, "{case}");
    assert_eq!(handle.is_running(), restarts, "{case}");
    let b = info(&tree, "node/b");
    let expected = if restarts {
        ActorState::Running
    } else {
        ActorState::Stopped
    };
    assert_eq!(b.state, expected, "{case}");
    assert_eq!(b.restarts_in_window, usize::from(restarts), "{case}");
    let reason = match exit_kind.reason() {
        None if restarts => Some("finished, but is permanent"),
        reason => reason,
    };
    assert_eq!(b.last_failure.as_deref(), reason, "{case}");
    let restart_stats = tree.restart_stats()[b.kind];
    let again = expected_starts(&recorded);
    assert_eq!(
        (restart_stats.restarts, restart_stats.exhausted),
        (again, 0),
        "{case}"
    );
    for sibling in ["node/a", "node/c"] {
        assert_eq!(state(&tree, sibling), ActorState::Running, "{case}");
    }
    tree.stop().await;
}

#[tokio::test(start_paused = true)]
async fn fourth_failure_ends_the_tree() {
    let mut recorder = Recorder::new();
    let (a, handle) = recorder.probe("a");
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(a)).await;
    for restarts in 1..=3 {
        handle.cast(Msg::Fail).unwrap();
        recorder.expect_event("a gone").await;
        recorder.expect_event("a up").await;
        handle.running().await;
        assert_eq!(info(&tree, "node/a").restarts_in_window, restarts);
    }
    handle.cast(Msg::Fail).unwrap();
    let reason = "a used up its restarts: boom".to_owned();
    assert_eq!(
        timeout(TEST_TIMEOUT, tree.join()).await.unwrap(),
        Err(GaveUp { reason })
    );
    assert_eq!(state(&tree, "node"), ActorState::Stopped);
    assert_eq!(state(&tree, "node/a"), ActorState::Exhausted);
    let restart_stats = tree.restart_stats()["Probe"];
    assert_eq!((restart_stats.restarts, restart_stats.exhausted), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn failures_outside_the_window_do_not_count() {
    let mut recorder = Recorder::new();
    let (a, handle) = recorder.probe("a");
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(a)).await;
    for _ in 0..12 {
        handle.running().await;
        handle.cast(Msg::Fail).unwrap();
        recorder.expect_event("a gone").await;
        recorder.expect_event("a up").await;
        advance(Duration::from_secs(25)).await;
    }
    advance(Duration::from_secs(60)).await;
    assert_eq!(info(&tree, "node/a").restarts_in_window, 0);
}

#[tokio::test(start_paused = true)]
async fn siblings_have_separate_restart_limits() {
    let mut recorder = Recorder::new();
    let ((a, bad), (b, good)) = (recorder.probe("a"), recorder.probe("b"));
    let (reports, mut reported) = mpsc::unbounded_channel();
    let a = a.on_exhausted(OnExhausted::notify(move |report| {
        let _ = reports.send(report.clone());
    }));
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(a).child(b)).await;
    for _ in 0..4 {
        bad.running().await;
        bad.cast(Msg::Panic).unwrap();
        recorder.expect_event("a gone").await;
    }
    let report = timeout(TEST_TIMEOUT, reported.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((report.key.as_str(), report.kind), ("a", "Probe"));
    assert_eq!(
        (report.path.as_str(), &*report.last_failure),
        ("node/a", "panicked: kaboom")
    );
    rest().await;
    assert_eq!(state(&tree, "node/a"), ActorState::Exhausted);
    assert_eq!(bad.cast(Msg::Fail), Err(Unavailable));

    for _ in 0..3 {
        good.running().await;
        good.cast(Msg::Fail).unwrap();
        recorder.expect_event("b gone").await;
    }
    good.running().await;

    tree.root().restart_child("a").await.unwrap();
    bad.running().await;
    let a = info(&tree, "node/a");
    assert_eq!((a.state, a.restarts_in_window), (ActorState::Running, 0));
}

#[tokio::test(start_paused = true)]
async fn panicking_exhaustion_callback_does_not_fail_siblings() {
    let mut recorder = Recorder::new();
    let ((a, bad), (b, good)) = (recorder.probe("a"), recorder.probe("b"));
    let a = a.on_exhausted(OnExhausted::notify(|_| panic!("in a callback")));
    let spec = SupervisorSpec::new(Strategy::OneForOne).intensity(0, TEST_TIMEOUT);
    let tree = start(spec.child(a).child(b)).await;
    bad.cast(Msg::Fail).unwrap();
    recorder.expect_event("a gone").await;
    rest().await;
    assert_eq!(state(&tree, "node/a"), ActorState::Exhausted);
    assert!(good.is_running());
}

#[tokio::test(start_paused = true)]
async fn failed_start_counts_as_failure() {
    let mut recorder = Recorder::new();
    let args = recorder.args("a");
    args.bad_starts.store(2, Ordering::SeqCst);
    let (a, handle) = ChildSpec::worker::<Probe>("a", args);
    let began = Instant::now();
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(a)).await;
    assert!(handle.is_running());
    assert_eq!(began.elapsed().as_millis(), 60, "10 ms, then 50 ms");
    let a = info(&tree, "node/a");
    assert_eq!(
        (a.restarts_in_window, a.last_failure.as_deref()),
        (2, Some("a bad start"))
    );
    recorder
        .expect_exactly(&["a starting", "a starting", "a starting", "a up"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn exhausted_subtree_is_restarted_as_a_whole() {
    let mut recorder = Recorder::new();
    let ((a, _), (b, handle)) = (recorder.probe("a"), recorder.probe("b"));
    let inner = SupervisorSpec::new(Strategy::OneForOne)
        .intensity(0, TEST_TIMEOUT)
        .child(a)
        .child(b);
    let (inner, _) = ChildSpec::supervisor("inner", inner);
    let (outside, _) = recorder.probe("outside");
    let spec = SupervisorSpec::new(Strategy::OneForOne)
        .child(inner)
        .child(outside);
    let tree = start(spec).await;
    recorder.recorded().await;

    handle.cast(Msg::Fail).unwrap();
    recorder
        .expect_exactly(&["b gone", "a stopping", "a gone"])
        .await;
    recorder
        .expect_exactly(&["a starting", "a up", "b starting", "b up"])
        .await;
    rest().await;
    let inner = info(&tree, "node/inner");
    assert_eq!(
        (inner.state, inner.restarts_in_window),
        (ActorState::Running, 1)
    );
    let reason = "b used up its restarts: boom";
    assert_eq!(inner.last_failure.as_deref(), Some(reason));
    assert_eq!(info(&tree, "node/inner/b").restarts_in_window, 0);
    assert_eq!(state(&tree, "node/outside"), ActorState::Running);
}

#[tokio::test(start_paused = true)]
async fn failed_supervisor_restarts_with_its_static_children() {
    for mode in [KillMode::Kill, KillMode::Panic] {
        let mut recorder = Recorder::new();
        let ((a, first), (b, second)) = (recorder.probe("a"), recorder.probe("b"));
        let inner = SupervisorSpec::new(Strategy::OneForOne).child(a).child(b);
        let (inner, supervisor) = ChildSpec::supervisor("inner", inner);
        let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(inner)).await;
        supervisor
            .start_child(recorder.probe("dynamic").0)
            .await
            .unwrap();
        recorder.expect_event("dynamic up").await;

        tree.kill("node/inner", mode).unwrap();
        let mut gone = [(); 3].map(|()| String::new());
        for event in &mut gone {
            *event = timeout(TEST_TIMEOUT, recorder.events.recv())
                .await
                .unwrap()
                .unwrap();
        }
        gone.sort();
        assert_eq!(gone, ["a gone", "b gone", "dynamic gone"]);
        recorder
            .expect_exactly(&["a starting", "a up", "b starting", "b up"])
            .await;
        first.running().await;
        second.running().await;
        supervisor.running().await;
        let paths: Vec<_> = tree.describe().into_iter().map(|info| info.path).collect();
        assert_eq!(
            paths,
            ["node", "node/inner", "node/inner/a", "node/inner/b"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn killed_root_ends_the_tree() {
    let mut recorder = Recorder::new();
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(recorder.probe("a").0)).await;
    tree.kill("node", KillMode::Kill).unwrap();
    let reason = "killed".to_owned();
    assert_eq!(
        timeout(TEST_TIMEOUT, tree.join()).await.unwrap(),
        Err(GaveUp { reason })
    );
    assert_eq!(state(&tree, "node/a"), ActorState::Stopped);
    let ended = KillError::NotRunning("node/a".to_owned());
    assert_eq!(tree.kill("node/a", KillMode::Kill), Err(ended));
    recorder.expect_event("a gone").await;
    assert_eq!(
        tree.root().stop_child("a").await,
        Err(ChildError::Unavailable)
    );
}

#[tokio::test(start_paused = true)]
async fn only_running_actors_can_be_killed() {
    let recorder = Recorder::new();
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(recorder.probe("a").0)).await;
    for path in ["node/b", "nod", "node/a/b", ""] {
        let unknown = KillError::Unknown(path.to_owned());
        assert_eq!(tree.kill(path, KillMode::Kill), Err(unknown));
    }
    tree.stop().await;
    for mode in [KillMode::Kill, KillMode::Panic] {
        let ended = KillError::NotRunning("node".to_owned());
        assert_eq!(tree.kill("node", mode), Err(ended));
    }
}
