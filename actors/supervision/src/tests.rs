//! Tests of whole trees through their mailboxes, in paused time.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, advance, timeout},
};

use super::*;

mod children;
mod failures;
mod lifetime;
mod structure;
mod timing;

/// Timeout far above the duration of any passing test.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Worker that fails on request and reports its lifecycle.
struct Probe {
    args: Args,
}

#[derive(Clone)]
struct Args {
    name: &'static str,
    events: mpsc::UnboundedSender<String>,
    alive: Arc<AtomicUsize>,
    /// Number of starts that fail before one succeeds.
    bad_starts: Arc<AtomicUsize>,
    /// Duration of a start and of a stop.
    start: Duration,
    stop: Duration,
}

enum Msg {
    Fail,
    Panic,
    Finish,
    Echo(&'static str, Reply<&'static str>),
    /// Drops the reply without a response.
    Ignore(Reply<()>),
    /// Blocks the mailbox until the instance ends.
    Block,
    /// Starts a task that sends `Report` after the delay.
    Later(Duration, &'static str),
    Report(&'static str),
    PanicInTask,
}

impl Worker for Probe {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "Probe";

    async fn start(_ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        args.report("starting");
        tokio::time::sleep(args.start).await;
        let bad = args
            .bad_starts
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        if bad.is_ok() {
            return Err("a bad start".into());
        }
        let instances = args.alive.fetch_add(1, Ordering::SeqCst);
        assert_eq!(instances, 0, "{} runs twice", args.name);
        args.report("up");
        Ok(Self { args })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Fail => Err("boom")?,
            Msg::Panic => panic!("kaboom"),
            Msg::Finish => ctx.finish(),
            Msg::Echo(text, reply) => reply.send(text),
            Msg::Ignore(reply) => drop(reply),
            Msg::Block => std::future::pending().await,
            Msg::Later(delay, what) => {
                ctx.send_after(delay, Msg::Report(what));
            }
            Msg::Report(what) => self.args.report(what),
            Msg::PanicInTask => {
                ctx.spawn(async { panic!("in a task") });
            }
        }
        Ok(())
    }

    async fn stop(&mut self, _ctx: &Context<Self>) {
        self.args.report("stopping");
        tokio::time::sleep(self.args.stop).await;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.args.alive.fetch_sub(1, Ordering::SeqCst);
        self.args.report("gone");
    }
}

impl Args {
    fn report(&self, what: &str) {
        let _ = self.events.send(format!("{} {what}", self.name));
    }
}

/// Creates probes and records their events.
struct Recorder {
    sender: mpsc::UnboundedSender<String>,
    events: mpsc::UnboundedReceiver<String>,
}

impl Recorder {
    fn new() -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        Self { sender, events }
    }

    fn args(&self, name: &'static str) -> Args {
        Args {
            name,
            events: self.sender.clone(),
            alive: Arc::default(),
            bad_starts: Arc::default(),
            start: Duration::ZERO,
            stop: Duration::ZERO,
        }
    }

    fn probe(&self, name: &'static str) -> (ChildSpec, Handle<Msg>) {
        ChildSpec::worker::<Probe>(name, self.args(name))
    }

    /// Waits for an event, skipping others.
    async fn expect_event(&mut self, event: &str) {
        let wait = async {
            while let Some(recorded) = self.events.recv().await {
                if recorded == event {
                    return;
                }
            }
        };
        timeout(TEST_TIMEOUT, wait)
            .await
            .unwrap_or_else(|_| panic!("no event {event:?}"));
    }

    /// Waits for exactly these events in this order.
    async fn expect_exactly(&mut self, events: &[&str]) {
        for event in events {
            let recorded = timeout(TEST_TIMEOUT, self.events.recv()).await;
            let recorded = recorded
                .unwrap_or_else(|_| panic!("no event {event:?}"))
                .unwrap();
            assert_eq!(recorded, *event);
        }
    }

    /// Events so far, after [`rest`].
    async fn recorded(&mut self) -> Vec<String> {
        rest().await;
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}

/// Lets every task run that needs at most a millisecond of paused time.
async fn rest() {
    // Paused time advances only when every task waits, and then to the next timer.
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Exclusive resource with a release that blocks until the test allows it.
#[derive(Clone)]
struct SlowRelease {
    held: Arc<AtomicUsize>,
    /// Each message allows one release.
    release: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl SlowRelease {
    fn new() -> (Self, std::sync::mpsc::Sender<()>) {
        let (release, released) = std::sync::mpsc::channel();
        (
            Self {
                held: Arc::default(),
                release: Arc::new(Mutex::new(released)),
            },
            release,
        )
    }

    fn take(self) -> Result<HeldResource, &'static str> {
        match self.held.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(HeldResource(self)),
            _ => Err("held by an earlier instance"),
        }
    }
}

struct HeldResource(SlowRelease);

impl Drop for HeldResource {
    fn drop(&mut self) {
        // An error means that the test has ended.
        let _ = self.0.release.lock().unwrap().recv();
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits in real time for a condition.
async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), wait)
        .await
        .expect("the condition stays false");
}

fn info(tree: &Tree, path: &str) -> ActorInfo {
    let infos = tree.describe();
    infos
        .into_iter()
        .find(|info| info.path == path)
        .unwrap_or_else(|| panic!("no {path}"))
}

fn state(tree: &Tree, path: &str) -> ActorState {
    info(tree, path).state
}

async fn start(spec: SupervisorSpec) -> Tree {
    let tree = Tree::start("node", spec).await.unwrap();
    tree.root().running().await;
    tree
}
