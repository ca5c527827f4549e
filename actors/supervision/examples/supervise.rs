//! A tree whose actors fail and are restarted: `cargo run -p jaco-supervision --example supervise`.
//!
//! A shop has a till and one clerk per counter. A till that fails is restarted; a clerk that fails
//! too often is given up, and the shop continues.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use jaco_supervision::{
    ActorState, ChildSpec, Context, Failure, Handle, KillMode, OnExhausted, Reply, Strategy,
    SupervisorSpec, Tree, Worker,
};

/// Counts money in memory: a restart loses the amount.
struct Till(u64);

enum TillMsg {
    Put(u64),
    Total(Reply<u64>),
}

impl Worker for Till {
    type Msg = TillMsg;
    type Args = ();
    const KIND: &'static str = "Till";

    async fn start(ctx: &Context<Self>, (): ()) -> Result<Self, Failure> {
        println!("  {} opens", ctx.path());
        Ok(Self(0))
    }

    async fn handle(&mut self, _ctx: &Context<Self>, msg: TillMsg) -> Result<(), Failure> {
        match msg {
            TillMsg::Put(amount) => self.0 += amount,
            TillMsg::Total(reply) => reply.send(self.0),
        }
        Ok(())
    }

    async fn stop(&mut self, ctx: &Context<Self>) {
        println!("  {} closes with {} in it", ctx.path(), self.0);
    }
}

/// Serves each customer in a task of its own, so that its mailbox never waits.
struct Clerk {
    till: Handle<TillMsg>,
}

enum ClerkMsg {
    Serve { pays: i64 },
    Served { paid: u64 },
}

impl Worker for Clerk {
    type Msg = ClerkMsg;
    type Args = Handle<TillMsg>;
    const KIND: &'static str = "Clerk";

    async fn start(ctx: &Context<Self>, till: Self::Args) -> Result<Self, Failure> {
        println!("  {} is here", ctx.path());
        Ok(Self { till })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: ClerkMsg) -> Result<(), Failure> {
        match msg {
            ClerkMsg::Serve { pays } => {
                // Inconsistent books: fail instead of continuing with them.
                let paid = u64::try_from(pays).map_err(|_| "was paid a negative amount")?;
                ctx.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await; // wrapping it up
                    ClerkMsg::Served { paid }
                });
            }
            // The clerk does not fail while the till restarts: it puts the money in later.
            ClerkMsg::Served { paid } => {
                if self.till.cast(TillMsg::Put(paid)).is_err() {
                    ctx.send_after(Duration::from_millis(10), ClerkMsg::Served { paid });
                }
            }
        }
        Ok(())
    }
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (till_spec, till) = ChildSpec::worker::<Till>("till", ());
    let (counters_spec, counters) =
        ChildSpec::supervisor("counters", SupervisorSpec::new(Strategy::OneForOne));
    let shop = SupervisorSpec::new(Strategy::OneForOne)
        .child(till_spec)
        .child(counters_spec);

    println!("the shop starts, in order:");
    let tree = Tree::start("shop", shop).await?;
    tree.root().running().await;

    // Dynamic children are started and stopped by key.
    let mut clerks = Vec::new();
    let (gone_home, mut reports) = tokio::sync::mpsc::unbounded_channel();
    for name in ["ada", "bob"] {
        let (spec, clerk) = ChildSpec::worker::<Clerk>(format!("clerk:{name}"), till.clone());
        let gone_home = gone_home.clone();
        let spec = spec.on_exhausted(OnExhausted::notify(move |report| {
            let _ = gone_home.send(report.clone());
        }));
        counters.start_child(spec).await?;
        clerk.running().await;
        clerks.push(clerk);
    }

    // A count, as a restart may be over between two looks.
    let restarts = |path: &str| {
        let mut actors = tree.describe().into_iter();
        let actor = actors.find(|actor| actor.path == path);
        actor.map_or(0, |actor| actor.restarts_in_window)
    };
    println!("a killed till is back at once, and the clerks never notice:");
    tree.kill("shop/till", KillMode::Kill)?;
    while restarts("shop/till") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for clerk in &clerks {
        clerk.cast(ClerkMsg::Serve { pays: 5 })?;
    }
    while till.call(Duration::from_secs(1), TillMsg::Total).await != Ok(10) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    println!("a clerk who fails a fourth time within a minute is left at home:");
    for failure in 1..=4 {
        clerks[1].running().await;
        clerks[1].cast(ClerkMsg::Serve { pays: -1 })?;
        while failure < 4 && restarts("shop/counters/clerk:bob") < failure {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    if let Some(report) = reports.recv().await {
        println!("  {} went home: {}", report.path, report.last_failure);
    }

    println!("the tree, as it describes itself:");
    for actor in tree.describe() {
        let ActorState::Exhausted = actor.state else {
            println!("  {:<24} {:<10} {:?}", actor.path, actor.kind, actor.state);
            continue;
        };
        let failures = actor.restarts_in_window;
        println!(
            "  {:<24} {:<10} after {failures} restarts",
            actor.path, actor.kind
        );
    }

    println!("the shop stops, in reverse order:");
    tree.stop().await;
    Ok(())
}
