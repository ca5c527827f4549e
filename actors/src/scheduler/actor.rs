//! Driver of the scheduler: runs passes and proposes their batches while this node leads.

use std::{sync::Arc, time::Duration};

use jaco_raftnode::{Committed, Propose, ProposeError, State};
use jaco_supervision::{Context, Failure, TaskHandle, Worker};
use tokio::{
    sync::{Mutex, OwnedMutexGuard, watch},
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

use super::{
    pace::{Outcome, Pace},
    reconcile::{Memo, Pass, reconcile},
};
use crate::{clock::Clock, commit::commit, log_dedup::LogDedup, telemetry::Metrics};

/// Timeout after which the outcome of a proposal counts as unknown; far above the commit budget.
const LONGEST_PROPOSAL: Duration = Duration::from_secs(30);

/// Arguments of a [`SchedulerActor`]; kept across restarts.
#[derive(Clone)]
pub struct Args {
    /// Reads and changes the replicated state.
    pub raft: Arc<dyn Propose>,
    /// Whether this node leads and has applied an entry of its own term.
    pub is_leader: watch::Receiver<bool>,
    /// Source of the commands' timestamps.
    pub clock: Clock,
    metrics: Metrics,
    gate: Arc<Mutex<()>>,
}

impl Args {
    /// Creates the arguments of one node's scheduler.
    #[must_use]
    pub fn new(
        raft: Arc<dyn Propose>,
        is_leader: watch::Receiver<bool>,
        clock: Clock,
        metrics: Metrics,
    ) -> Self {
        Self {
            metrics,
            raft,
            is_leader,
            clock,
            gate: Arc::default(),
        }
    }
}

/// Lock held while a proposal is in flight. A proposal cannot be withdrawn and outlives a killed
/// actor. Without waiting for it, the next instance would issue the same replicas again and their
/// containers would be created twice.
type Gate = OwnedMutexGuard<()>;

/// Mailbox of the scheduler.
pub enum Msg {
    /// Leadership may have changed.
    Leadership(watch::Receiver<bool>),
    /// State that a pass depends on changed.
    Changed(watch::Receiver<Arc<State>>),
    /// A pass may be due.
    Wake,
    /// The proposal of an earlier instance or leadership epoch has finished.
    Begin {
        /// Leadership epoch that waited for the lock.
        stint: u64,
        /// The acquired lock.
        gate: Gate,
    },
    /// The proposal of a pass has finished; a successful one is visible in the local state.
    Finished {
        /// Leadership epoch of the pass.
        stint: u64,
        /// Whether the pass left commands for the next one.
        partly: bool,
        /// Outcome of the proposal.
        outcome: Result<Committed, ProposeError>,
    },
}

/// Reconciles the replicas with the deployments, on the leader only.
pub struct SchedulerActor {
    args: Args,
    pace: Pace,
    memo: Memo,
    leading: bool,
    stint: u64,
    following: Option<TaskHandle>,
    proposing: Option<TaskHandle>,
    timer: Option<(Instant, TaskHandle)>,
    failures: LogDedup,
}

impl Worker for SchedulerActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "SchedulerActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        ctx.send_to_self(Msg::Leadership(args.is_leader.clone()));
        Ok(Self {
            args,
            pace: Pace::default(),
            memo: Memo::default(),
            leading: false,
            stint: 0,
            following: None,
            proposing: None,
            timer: None,
            failures: LogDedup::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Instant::now().into_std();
        match msg {
            Msg::Leadership(is_leader) => self.lead(ctx, is_leader),
            Msg::Changed(state) if self.leading => {
                self.pace.handle_change(now);
                self.follow(ctx, state);
            }
            Msg::Changed(_) => {}
            Msg::Wake => {
                if self.pace.handle_timeout(now) {
                    self.begin(ctx);
                }
            }
            Msg::Begin { stint, gate } if stint == self.stint => self.pass(ctx, gate),
            Msg::Begin { .. } => {}
            Msg::Finished {
                stint,
                partly,
                outcome,
            } if stint == self.stint => {
                match &outcome {
                    Ok(_) => {
                        self.failures.clear();
                        if let Some(since) = self.pace.answers_since().filter(|_| !partly) {
                            self.args.metrics.reconciled(now - since);
                        }
                    }
                    Err(error) if self.failures.is_new(error) => {
                        warn!(subsystem = "scheduler", %error, "pass failed");
                    }
                    Err(_) => {}
                }
                self.pace.handle_finished(rate(&outcome, partly), now);
            }
            Msg::Finished { .. } => {}
        }
        self.arm(ctx);
        Ok(())
    }
}

impl SchedulerActor {
    fn lead(&mut self, ctx: &Context<Self>, mut is_leader: watch::Receiver<bool>) {
        let leads = *is_leader.borrow_and_update();
        ctx.spawn(async move {
            if is_leader.changed().await.is_err() {
                std::future::pending::<()>().await; // the node is going down
            }
            Msg::Leadership(is_leader)
        });
        if leads == self.leading {
            return;
        }
        self.leading = leads;
        self.pace
            .handle_leadership(leads, Instant::now().into_std());
        self.stint += 1;
        for task in [self.following.take(), self.proposing.take()]
            .into_iter()
            .flatten()
        {
            task.abort();
        }
        if leads {
            // The cache may predate another node's leadership.
            self.memo = Memo::default();
            self.follow(ctx, self.args.raft.follow());
        }
        debug!(subsystem = "scheduler", leads, "scheduler leadership");
    }

    fn follow(&mut self, ctx: &Context<Self>, mut states: watch::Receiver<Arc<State>>) {
        if let Some(task) = self.following.take() {
            task.abort(); // task of an earlier leadership epoch
        }
        let mut last = states.borrow_and_update().clone();
        self.following = Some(ctx.spawn(async move {
            loop {
                if states.changed().await.is_err() {
                    std::future::pending::<()>().await; // the node is going down
                }
                let next = states.borrow_and_update().clone();
                if concerns_scheduling(&last, &next) {
                    return Msg::Changed(states);
                }
                last = next;
            }
        }));
    }

    fn begin(&mut self, ctx: &Context<Self>) {
        if let Ok(gate) = Arc::clone(&self.args.gate).try_lock_owned() {
            return self.pass(ctx, gate);
        }
        let (gate, stint) = (Arc::clone(&self.args.gate), self.stint);
        self.proposing = Some(ctx.spawn(async move {
            let gate = gate.lock_owned().await;
            Msg::Begin { stint, gate }
        }));
    }

    fn pass(&mut self, ctx: &Context<Self>, gate: Gate) {
        let state = self.args.raft.state();
        let Pass { batch, summary } =
            reconcile(&state, &mut self.memo, self.args.clock.timestamp());
        let Some(batch) = batch else {
            self.pace
                .handle_finished(Outcome::Done, Instant::now().into_std());
            return;
        };
        info!(
            subsystem = "scheduler",
            upserts = summary.upserts,
            removals = summary.removals,
            statuses = summary.statuses,
            counters = summary.counters,
            left = summary.left,
            applied_index = state.applied_index,
            "proposing a pass"
        );
        let (raft, stint) = (Arc::clone(&self.args.raft), self.stint);
        let partly = summary.left > 0;
        let proposal = tokio::spawn(async move {
            let outcome = timeout(LONGEST_PROPOSAL, commit(raft.as_ref(), batch)).await;
            drop(gate);
            outcome.unwrap_or_else(|_| Err(ProposeError::Unknown("no answer".to_owned())))
        });
        self.proposing = Some(ctx.spawn(async move {
            let outcome = proposal.await.unwrap_or(Err(ProposeError::Unavailable));
            Msg::Finished {
                stint,
                partly,
                outcome,
            }
        }));
    }

    /// Keeps one timer, armed for the deadline of the next pass.
    fn arm(&mut self, ctx: &Context<Self>) {
        let deadline = self.pace.deadline().map(Instant::from_std);
        if deadline == self.timer.as_ref().map(|(at, _)| *at)
            && self
                .timer
                .as_ref()
                .is_none_or(|(_, task)| !task.is_finished())
        {
            return;
        }
        if let Some((_, task)) = self.timer.take() {
            task.abort();
        }
        self.timer = deadline.map(|at| {
            let task = ctx.spawn(async move {
                tokio::time::sleep_until(at).await;
                Msg::Wake
            });
            (at, task)
        });
    }
}

fn rate(outcome: &Result<Committed, ProposeError>, partly: bool) -> Outcome {
    match outcome {
        Ok(_) if partly => Outcome::Partly,
        Ok(_) => Outcome::Done,
        Err(ProposeError::Unknown(_)) => Outcome::Unknown,
        Err(
            ProposeError::Rejected(_)
            | ProposeError::NoLeader
            | ProposeError::Busy
            | ProposeError::Unavailable,
        ) => Outcome::Failed,
    }
}

/// Whether the change can affect the result of a pass.
fn concerns_scheduling(before: &State, after: &State) -> bool {
    !(before.deployments.ptr_eq(&after.deployments)
        && before.nodes.ptr_eq(&after.nodes)
        && before.replicas_observed.ptr_eq(&after.replicas_observed))
}

#[cfg(test)]
mod tests;
