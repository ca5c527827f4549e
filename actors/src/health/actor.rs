//! Actor that drives the health cores: ticks, proposals, and the return to `ready`.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jaco_engine::Engine;
use jaco_proto::v1::{self, NodeStatus, command::Payload};
use jaco_raftnode::{Committed, Propose, ProposeError, State};
use jaco_supervision::{Context, Failure, Worker};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tracing::{info, warn};

use super::{
    contact,
    core::{self, Effect::Propose as Verdict},
    heart::{Effect, Heart},
    ready::{self, Facts},
};
use crate::{clock::Clock, commit::commit, repeat::Repeats};

/// Reason of a status change after missed heartbeats.
const SILENT: &str = "heartbeats_missed";
/// Reason of a status change of a member that stopped applying the log.
const HALTED: &str = "log_not_understood";
/// Identity of the proposed commands.
pub const IDENTITY: &str = "node-health";
/// Interval of the checks.
const TICK: Duration = Duration::from_millis(250);
/// Timeout of a command and of an engine ping.
const BUDGET: Duration = Duration::from_secs(10);
/// Delay between attempts to become ready.
const RETRY: Duration = Duration::from_secs(1);

/// Resolves to whether this node has applied every entry committed at the call; may take long.
pub type Confirm = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// Arguments of a [`HealthActor`].
#[derive(Clone)]
pub struct Args {
    /// Heartbeat state.
    pub heart: Arc<Heart>,
    /// Hostname of this node.
    pub host: String,
    /// Raft of this node. Status changes of other members go here and not through forwarding, so
    /// that only a leader's are committed.
    pub raft: Arc<dyn Propose>,
    /// Proposer for this node's own status, which forwards to the leader.
    pub cluster: Arc<dyn Propose>,
    /// Confirms that the node has caught up.
    pub confirm: Confirm,
    /// Whether, since the node caught up, no container is left whose row moved to another node.
    pub settled: watch::Receiver<bool>,
    /// Container engine of this node.
    pub engine: Arc<dyn Engine>,
    /// Clock for the timestamps of commands.
    pub clock: Clock,
}

impl fmt::Debug for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Args")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Messages of a [`HealthActor`].
#[derive(Debug)]
pub enum Msg {
    /// Timer tick.
    Tick,
    /// The replicated state changed.
    State(watch::Receiver<Arc<State>>),
    /// The proposal of a member's status ended.
    Proposed(String, Result<Committed, ProposeError>),
    /// Result of a catch-up attempt.
    Confirmed(u64, bool),
    /// Result of an attempt to become ready.
    Returned(Result<(), String>),
}

/// Detects dead members, and returns this node to `ready` after it was marked down.
pub struct HealthActor {
    args: Args,
    seen: Arc<State>,
    returning: bool,
    next_return: Option<Instant>,
    unwritten: Repeats,
    unready: Repeats,
}

impl Worker for HealthActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "HealthActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        args.heart.restart();
        let mut states = args.raft.follow();
        let seen = states.borrow_and_update().clone();
        let mut this = Self {
            args,
            seen: Arc::clone(&seen),
            returning: false,
            next_return: None,
            unwritten: Repeats::default(),
            unready: Repeats::default(),
        };
        let effects = this.args.heart.state(&seen);
        this.run(ctx, effects);
        follow(ctx, states);
        ctx.send_to_self(Msg::Tick);
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Tick => {
                ctx.send_after(TICK, Msg::Tick);
                let effects = self.args.heart.tick();
                self.run(ctx, effects);
                self.come_back(ctx);
            }
            Msg::State(mut states) => {
                let newest = states.borrow_and_update().clone();
                follow(ctx, states);
                self.state(ctx, newest);
            }
            Msg::Proposed(host, outcome) => {
                // The core requires the newest members before the end of a proposal.
                let newest = self.args.raft.state();
                self.state(ctx, newest);
                match outcome {
                    Ok(_) => {
                        self.unwritten.clear();
                    }
                    Err(error) if self.unwritten.is_news(&error) => {
                        warn!(subsystem = "scheduler/health", %host, %error, "node status not written");
                    }
                    Err(_) => {}
                }
                self.args.heart.proposed(host);
            }
            Msg::Confirmed(attempt, current) => self.args.heart.confirmed(attempt, current),
            Msg::Returned(outcome) => {
                self.returning = false;
                match outcome {
                    Ok(()) => {
                        self.unready.clear();
                    }
                    Err(why) => {
                        self.next_return = Some(Instant::now() + RETRY);
                        if self.unready.is_news(&why) {
                            warn!(subsystem = "scheduler/health", error = %why, "this node is not ready yet");
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl HealthActor {
    fn state(&mut self, ctx: &Context<Self>, newest: Arc<State>) {
        let before = std::mem::replace(&mut self.seen, newest);
        if before.nodes.ptr_eq(&self.seen.nodes) {
            return;
        }
        for (host, node) in &self.seen.nodes {
            let was = before.nodes.get(host).map(|node| node.status());
            if was != Some(node.status()) {
                info!(
                    subsystem = "scheduler/health",
                    %host,
                    from = was.unwrap_or_default().as_str_name(),
                    to = node.status().as_str_name(),
                    "node status changed"
                );
            }
        }
        let effects = self.args.heart.state(&self.seen);
        self.run(ctx, effects);
    }

    fn run(&mut self, ctx: &Context<Self>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Judge(Verdict {
                    host,
                    status,
                    missed,
                    halted,
                }) => {
                    let reason = if halted { HALTED } else { SILENT };
                    self.propose(ctx, host, status, (reason, missed));
                }
                Effect::Contact(contact::Effect::Confirm { attempt }) => {
                    let confirmed = (self.args.confirm)();
                    ctx.spawn(async move { Msg::Confirmed(attempt, confirmed.await) });
                }
            }
        }
    }

    fn propose(
        &self,
        ctx: &Context<Self>,
        host: String,
        status: NodeStatus,
        (reason, missed): (&str, u32),
    ) {
        warn!(
            subsystem = "scheduler/health",
            %host,
            status = status.as_str_name(),
            reason,
            missed,
            limit = core::OFFLINE_MISSED,
            "member status degraded"
        );
        let update = v1::NodeStatusUpdate {
            hostname: host.clone(),
            status: status.into(),
            details: [
                ("reason", reason.to_owned()),
                ("missed", missed.to_string()),
            ]
            .map(|(key, value)| (key.to_owned(), value))
            .into(),
            ..Default::default()
        };
        let proposal = write(Arc::clone(&self.args.raft), self.command(update));
        ctx.spawn(async move { Msg::Proposed(host, proposal.await) });
    }

    /// Proposes this node as `ready` once the conditions hold.
    fn come_back(&mut self, ctx: &Context<Self>) {
        if self.returning || self.next_return.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let Args {
            heart,
            host,
            settled,
            ..
        } = &self.args;
        let facts = facts(heart, settled);
        let state = self.args.raft.state();
        let ready = |node: &Arc<v1::Node>| node.status() == NodeStatus::Ready;
        if facts.current && state.nodes.get(host).is_some_and(ready) {
            heart.note_ready();
        }
        let Some(update) = ready::update(&state, host, facts) else {
            return;
        };
        self.returning = true;
        let engine = Arc::clone(&self.args.engine);
        let proposal = write(Arc::clone(&self.args.cluster), self.command(update));
        ctx.spawn(async move {
            let ping = timeout(BUDGET, engine.ping()).await;
            let answers = match ping {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the engine does not answer".to_owned()),
            };
            Msg::Returned(match answers {
                Ok(()) => proposal.await.map(drop).map_err(|error| error.to_string()),
                Err(why) => Err(why),
            })
        });
    }

    fn command(&self, update: v1::NodeStatusUpdate) -> v1::Command {
        let payload = Payload::NodeStatusUpdate(update);
        jaco_raftnode::command(IDENTITY, self.args.clock.timestamp(), payload)
    }
}

/// Commits a command and waits until the local state includes it.
async fn write(raft: Arc<dyn Propose>, command: v1::Command) -> Result<Committed, ProposeError> {
    let outcome = timeout(BUDGET, commit(raft.as_ref(), command)).await;
    outcome.unwrap_or_else(|_| Err(ProposeError::Unknown("no answer in time".to_owned())))
}

/// Collects the conditions under which this node may report itself ready.
fn facts(heart: &Heart, settled: &watch::Receiver<bool>) -> Facts {
    // Copied to locals to keep the lock order: within the expression below the borrow of `settled`
    // would last while `is_listed` takes the lock of `Heart`.
    let (current, settled) = (heart.is_current(), *settled.borrow());
    let current = current && !heart.is_halted();
    Facts {
        current,
        listed: heart.is_listed(),
        settled,
        started: !heart.was_ready(),
    }
}

/// Sends one message at the next state change.
fn follow(ctx: &Context<HealthActor>, mut states: watch::Receiver<Arc<State>>) {
    ctx.spawn(async move {
        if states.changed().await.is_err() {
            // The state's sender is gone: this node is shutting down.
            std::future::pending::<()>().await;
        }
        Msg::State(states)
    });
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use jaco_raftnode::RaftStatus;

    use super::*;

    #[test]
    fn facts_do_not_deadlock_with_ticks() {
        const LOOKS: usize = 20_000;
        /// Reached only in a deadlock; the loops take a fraction of it.
        const FOREVER: Duration = Duration::from_secs(60);
        let (_status, raft) = watch::channel(RaftStatus::default());
        let (_settled, settled) = watch::channel(true);
        let heart = Arc::new(Heart::new("a", raft, Clock::system()));
        let (done, ended) = mpsc::channel();
        for looks in [false, true] {
            let (heart, settled, done) = (Arc::clone(&heart), settled.clone(), done.clone());
            thread::spawn(move || {
                for _ in 0..LOOKS {
                    if looks {
                        facts(&heart, &settled);
                    } else {
                        heart.tick();
                    }
                }
                done.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            ended
                .recv_timeout(FOREVER)
                .expect("the threads are deadlocked");
        }
    }
}
