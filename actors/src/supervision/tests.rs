//! Whole trees, driven through mailboxes under paused time.

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

mod failures;
mod lifetime;
mod structure;

/// Longer than anything in these tests takes when it works.
const PATIENCE: Duration = Duration::from_secs(300);

/// A worker that fails on demand and reports what becomes of it.
struct Probe {
    args: Args,
}

#[derive(Clone)]
struct Args {
    name: &'static str,
    events: mpsc::UnboundedSender<String>,
    alive: Arc<AtomicUsize>,
    /// Starts that fail before one works.
    bad_starts: Arc<AtomicUsize>,
    /// How long a start and a stop take.
    start: Duration,
    stop: Duration,
}

enum Msg {
    Fail,
    Panic,
    Finish,
    Echo(&'static str, Reply<&'static str>),
    /// Never answers, and lets go of the caller.
    Ignore(Reply<()>),
    /// Keeps the mailbox busy until the instance ends.
    Block,
    /// Runs a task that reports this after a while.
    Later(Duration, &'static str),
    Report(&'static str),
    PanicInTask,
}

impl Worker for Probe {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "Probe";

    async fn start(_ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        args.say("starting");
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
        args.say("up");
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
            Msg::Report(what) => self.args.say(what),
            Msg::PanicInTask => {
                ctx.spawn(async { panic!("in a task") });
            }
        }
        Ok(())
    }

    async fn stop(&mut self, _ctx: &Context<Self>) {
        self.args.say("stopping");
        tokio::time::sleep(self.args.stop).await;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.args.alive.fetch_sub(1, Ordering::SeqCst);
        self.args.say("gone");
    }
}

impl Args {
    fn say(&self, what: &str) {
        let _ = self.events.send(format!("{} {what}", self.name));
    }
}

/// Makes probes and hears from them.
struct Lab {
    sender: mpsc::UnboundedSender<String>,
    events: mpsc::UnboundedReceiver<String>,
}

impl Lab {
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
    async fn hears(&mut self, event: &str) {
        let wait = async {
            while let Some(heard) = self.events.recv().await {
                if heard == event {
                    return;
                }
            }
        };
        timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| panic!("never heard {event:?}"));
    }

    /// Waits for these events, with no others among them.
    async fn hears_exactly(&mut self, events: &[&str]) {
        for event in events {
            let heard = timeout(PATIENCE, self.events.recv()).await;
            let heard = heard
                .unwrap_or_else(|_| panic!("never heard {event:?}"))
                .unwrap();
            assert_eq!(heard, *event);
        }
    }

    /// What was said so far, once everything has come to rest.
    async fn heard(&mut self) -> Vec<String> {
        rest().await;
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}

/// Lets everything happen that needs no more than a millisecond to pass.
async fn rest() {
    // Paused time moves only when every task waits, and then to the next timer.
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// A thing of which there is one, and which takes as long to go as the test wants.
#[derive(Clone)]
struct Stuck {
    held: Arc<AtomicUsize>,
    /// Lets it go once.
    release: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl Stuck {
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

    fn take(self) -> Result<Held, &'static str> {
        match self.held.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(Held(self)),
            _ => Err("held by an earlier instance"),
        }
    }
}

struct Held(Stuck);

impl Drop for Held {
    fn drop(&mut self) {
        // An error means that the test is over.
        let _ = self.0.release.lock().unwrap().recv();
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits in real time.
async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), wait)
        .await
        .expect("it never came true");
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
