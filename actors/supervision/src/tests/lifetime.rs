//! Handles, tasks, starts and stops.

use super::*;

#[tokio::test(start_paused = true)]
async fn handle_is_unavailable_only_during_a_restart() {
    let mut recorder = Recorder::new();
    let (a, handle) = recorder.probe("a");
    assert_eq!(
        handle.cast(Msg::Fail),
        Err(Unavailable),
        "before the first start"
    );
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(a)).await;
    let second = Duration::from_secs(1);
    assert_eq!(
        handle.call(second, |reply| Msg::Echo("hi", reply)).await,
        Ok("hi")
    );

    handle.cast(Msg::Fail).unwrap();
    recorder.expect_event("a gone").await;
    rest().await;
    assert_eq!(state(&tree, "node/a"), ActorState::Backoff);
    assert!(!handle.is_running());
    let answer = handle.call(second, |reply| Msg::Echo("hi", reply)).await;
    assert_eq!(answer, Err(CallError::Unavailable));

    handle.running().await;
    assert_eq!(
        handle.call(second, |reply| Msg::Echo("again", reply)).await,
        Ok("again")
    );
    tree.stop().await;
    assert_eq!(handle.cast(Msg::Fail), Err(Unavailable), "after the end");
}

#[tokio::test(start_paused = true)]
async fn call_error_names_the_cause() {
    let recorder = Recorder::new();
    let (a, handle) = recorder.probe("a");
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(a)).await;
    let second = Duration::from_secs(1);
    assert_eq!(
        handle.call(second, Msg::Ignore).await,
        Err(CallError::NoReply)
    );

    handle.cast(Msg::Block).unwrap();
    let began = Instant::now();
    let answer = handle.call(second, |reply| Msg::Echo("hi", reply)).await;
    assert_eq!(answer, Err(CallError::Timeout));
    assert_eq!(began.elapsed(), second);

    let call = handle.call(TEST_TIMEOUT, |reply| Msg::Echo("hi", reply));
    let (answer, _) = tokio::join!(call, async {
        rest().await;
        tree.kill("node/a", KillMode::Kill)
    });
    assert_eq!(
        answer,
        Err(CallError::NoReply),
        "the instance ended before it handled the request"
    );
}

#[tokio::test(start_paused = true)]
async fn abandoned_call_does_not_fail_the_worker() {
    let recorder = Recorder::new();
    let (a, handle) = recorder.probe("a");
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(a)).await;
    let (reply, answer) = Reply::channel();
    drop(answer);
    assert!(reply.is_abandoned());
    handle.cast(Msg::Echo("hi", reply)).unwrap();
    rest().await;
    let a = info(&tree, "node/a");
    assert_eq!((a.state, a.restarts_in_window), (ActorState::Running, 0));
}

#[tokio::test(start_paused = true)]
async fn probe_receives_messages_instead_of_a_worker() {
    let (handle, mut inbox) = Handle::probe();
    handle.cast(7).unwrap();
    assert_eq!(inbox.recv().await, Some(7));
    drop(inbox);
    assert_eq!(handle.cast(8), Err(Unavailable));
}

#[tokio::test(start_paused = true)]
async fn tasks_end_with_their_instance() {
    for end in ["error", "panic", "kill", "finish", "stop"] {
        let mut recorder = Recorder::new();
        let (a, handle) = recorder.probe("a");
        let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(a)).await;
        handle
            .cast(Msg::Later(Duration::from_secs(1), "early"))
            .unwrap();
        recorder.expect_event("a early").await;

        handle
            .cast(Msg::Later(Duration::from_secs(30), "late"))
            .unwrap();
        rest().await;
        match end {
            "error" => handle.cast(Msg::Fail).unwrap(),
            "panic" => handle.cast(Msg::Panic).unwrap(),
            "kill" => tree.kill("node/a", KillMode::Kill).unwrap(),
            "finish" => handle.cast(Msg::Finish).unwrap(),
            _ => tree.root().stop_child("a").await.unwrap(),
        }
        recorder.expect_event("a gone").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(
            !recorder.recorded().await.contains(&"a late".to_owned()),
            "{end}"
        );
        tree.stop().await;
    }
}

/// Worker with a task that blocks on its end until the test allows it.
struct Owner;

impl Worker for Owner {
    type Msg = ();
    type Args = SlowRelease;
    const KIND: &'static str = "Owner";

    async fn start(ctx: &Context<Self>, resource: SlowRelease) -> Result<Self, Failure> {
        let held = resource.take()?;
        ctx.spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        Ok(Self)
    }

    async fn handle(&mut self, _ctx: &Context<Self>, (): ()) -> Result<(), Failure> {
        Err("boom".into())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn restart_waits_for_tasks_of_last_instance() {
    for victim in ["node/inner/owner", "node/inner"] {
        let (release, released) = std::sync::mpsc::channel();
        let resource = SlowRelease {
            held: Arc::default(),
            release: Arc::new(Mutex::new(released)),
        };
        let (owner, handle) = ChildSpec::worker::<Owner>("owner", resource.clone());
        let backoff = Backoff {
            first: Duration::ZERO,
            ..Backoff::default()
        };
        let spec = || SupervisorSpec::new(Strategy::OneForOne).backoff(backoff);
        let (inner, _) = ChildSpec::supervisor("inner", spec().child(owner));
        let tree = start(spec().child(inner)).await;

        tree.kill(victim, KillMode::Kill).unwrap();
        until(|| state(&tree, victim) == ActorState::Stopped).await;
        until(|| !handle.is_running()).await;
        assert_eq!(resource.held.load(Ordering::SeqCst), 1);
        assert_eq!(info(&tree, victim).restarts_in_window, 0);

        release.send(()).unwrap();
        until(|| info(&tree, victim).restarts_in_window == 1).await;
        timeout(TEST_TIMEOUT, handle.running()).await.unwrap();
        assert_eq!(resource.held.load(Ordering::SeqCst), 1);

        drop(release);
        tree.stop().await;
        assert_eq!(
            resource.held.load(Ordering::SeqCst),
            0,
            "a stop waits for the tasks too"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn tree_starts_in_order_and_stops_in_reverse() {
    let mut recorder = Recorder::new();
    let slow = Args {
        start: Duration::from_secs(3),
        ..recorder.args("a")
    };
    let (a, _) = ChildSpec::worker::<Probe>("a", slow);
    let inner = SupervisorSpec::new(Strategy::OneForOne)
        .child(a)
        .child(recorder.probe("b").0);
    let (inner, supervisor) = ChildSpec::supervisor("inner", inner);
    let spec = SupervisorSpec::new(Strategy::RestForOne)
        .child(inner)
        .child(recorder.probe("c").0);
    let tree = Tree::start("node", spec).await.unwrap();
    recorder.expect_event("a starting").await;
    rest().await;
    for path in [
        "node",
        "node/inner",
        "node/inner/a",
        "node/inner/b",
        "node/c",
    ] {
        assert_eq!(state(&tree, path), ActorState::Starting, "{path}");
    }
    recorder
        .expect_exactly(&["a up", "b starting", "b up", "c starting", "c up"])
        .await;
    supervisor.running().await;
    tree.root().running().await;

    tree.stop().await;
    let stops = [
        "c stopping",
        "c gone",
        "b stopping",
        "b gone",
        "a stopping",
        "a gone",
    ];
    recorder.expect_exactly(&stops).await;
    assert_eq!(tree.join().await, Ok(()));
    assert_eq!(state(&tree, "node"), ActorState::Stopped);
}

#[tokio::test(start_paused = true)]
async fn stop_becomes_kill_after_its_timeout() {
    let mut recorder = Recorder::new();
    let slow = Args {
        stop: Duration::from_secs(60),
        ..recorder.args("a")
    };
    let (a, _) = ChildSpec::worker::<Probe>("a", slow);
    let (b, busy) = recorder.probe("b");
    let a = a.stop_timeout(Duration::from_secs(2));
    let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(a).child(b)).await;
    busy.cast(Msg::Block).unwrap();
    let began = Instant::now();
    tree.stop().await;
    assert_eq!(
        began.elapsed().as_secs(),
        7,
        "5 s for the busy one, 2 s for the slow one"
    );
    recorder.expect_event("b gone").await;
    recorder.expect_exactly(&["a stopping", "a gone"]).await;
}

#[tokio::test(start_paused = true)]
async fn child_can_be_stopped_in_every_state() {
    let mut recorder = Recorder::new();
    let tree = start(SupervisorSpec::new(Strategy::OneForOne)).await;
    let root = tree.root();

    // Starting; the start would outlast the test.
    let slow = Args {
        start: TEST_TIMEOUT * 10,
        ..recorder.args("a")
    };
    root.start_child(ChildSpec::worker::<Probe>("a", slow).0)
        .await
        .unwrap();
    recorder.expect_event("a starting").await;
    let began = Instant::now();
    root.stop_child("a").await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);

    // Running.
    root.start_child(recorder.probe("a").0).await.unwrap();
    recorder.expect_event("a up").await;
    root.stop_child("a").await.unwrap();
    recorder.expect_exactly(&["a stopping", "a gone"]).await;

    // Waiting for its restart.
    let (a, handle) = recorder.probe("a");
    root.start_child(a).await.unwrap();
    handle.running().await;
    handle.cast(Msg::Fail).unwrap();
    recorder.expect_event("a gone").await;
    rest().await;
    assert_eq!(state(&tree, "node/a"), ActorState::Backoff);
    root.stop_child("a").await.unwrap();

    assert_eq!(
        root.stop_child("a").await,
        Err(ChildError::Unknown("a".to_owned()))
    );
    assert_eq!(tree.describe().len(), 1);
    tokio::time::sleep(TEST_TIMEOUT).await;
    assert_eq!(
        recorder.recorded().await,
        <[&str; 0]>::default(),
        "no restart after the stop"
    );
}
