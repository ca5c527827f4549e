//! The shell of the scheduler.

use std::sync::Arc;

use jaco_raftnode::{Committed, Propose, ProposeError, State};
use tokio::{sync::watch, time::Instant};
use tracing::{debug, info, warn};

use super::{
    pace::Pace,
    reconcile::{Memo, Pass, reconcile},
};
use crate::{
    clock::Clock,
    supervision::{Context, Failure, TaskHandle, Worker},
};

/// What a scheduler needs, now and after every restart.
#[derive(Clone)]
pub struct Args {
    /// Where the state is read and changed.
    pub raft: Arc<dyn Propose>,
    /// Whether this node leads and has applied an entry of its own term.
    pub is_leader: watch::Receiver<bool>,
    /// Time of the commands.
    pub clock: Clock,
}

/// Mailbox of the scheduler.
pub enum Msg {
    /// Leadership may have changed.
    Leadership(watch::Receiver<bool>),
    /// Something a pass depends on changed.
    Changed(watch::Receiver<Arc<State>>),
    /// A pass may be due.
    Wake,
    /// The proposal of a pass is over, and its outcome shows in the local state.
    Finished {
        /// The stretch of leadership the pass belongs to.
        stint: u64,
        /// What became of it.
        outcome: Result<Committed, ProposeError>,
    },
}

/// Brings the replicas nearer to what the deployments ask for, on the leader only.
pub struct SchedulerActor {
    args: Args,
    pace: Pace,
    memo: Memo,
    stint: u64,
    following: Option<TaskHandle>,
    proposing: Option<TaskHandle>,
    timer: Option<(Instant, TaskHandle)>,
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
            stint: 0,
            following: None,
            proposing: None,
            timer: None,
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Instant::now().into_std();
        match msg {
            Msg::Leadership(is_leader) => self.lead(ctx, is_leader),
            Msg::Changed(state) => {
                self.pace.handle_change(now);
                self.follow(ctx, state);
            }
            Msg::Wake => {
                if self.pace.handle_timeout(now) {
                    self.pass(ctx);
                }
            }
            Msg::Finished { stint, outcome } if stint == self.stint => {
                if let Err(error) = &outcome {
                    warn!(%error, "pass failed");
                }
                self.pace.handle_finished(outcome.is_ok(), now);
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
        if leads == self.following.is_some() {
            return;
        }
        self.pace.handle_leadership(leads, Instant::now().into_std());
        self.stint += 1;
        for task in [self.following.take(), self.proposing.take()].into_iter().flatten() {
            task.abort();
        }
        if leads {
            // What was remembered may be from before another leader's time.
            self.memo = Memo::default();
            self.follow(ctx, self.args.raft.subscribe());
        }
        debug!(leads, "scheduler leadership");
    }

    fn follow(&mut self, ctx: &Context<Self>, mut states: watch::Receiver<Arc<State>>) {
        if self.following.is_none() && !self.is_leading() {
            return;
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

    fn is_leading(&self) -> bool {
        *self.args.is_leader.borrow()
    }

    fn pass(&mut self, ctx: &Context<Self>) {
        let state = self.args.raft.state();
        let Pass { batch, summary } =
            reconcile(&state, &mut self.memo, self.args.clock.timestamp());
        let Some(batch) = batch else {
            self.pace.handle_finished(true, Instant::now().into_std());
            return;
        };
        info!(
            upserts = summary.upserts,
            removals = summary.removals,
            statuses = summary.statuses,
            counters = summary.counters,
            applied_index = state.applied_index,
            "proposing a pass"
        );
        let (raft, stint) = (Arc::clone(&self.args.raft), self.stint);
        self.proposing = Some(ctx.spawn(async move {
            let outcome = commit(raft.as_ref(), batch).await;
            Msg::Finished { stint, outcome }
        }));
    }

    /// Keeps exactly one timer, at the deadline.
    fn arm(&mut self, ctx: &Context<Self>) {
        let deadline = self.pace.deadline().map(Instant::from_std);
        if deadline == self.timer.as_ref().map(|(at, _)| *at)
            && self.timer.as_ref().is_none_or(|(_, task)| !task.is_finished())
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

/// Proposes `command` and waits until the local state shows it, so that whoever decides next
/// decides upon it.
pub(crate) async fn commit(
    raft: &dyn Propose,
    command: jaco_proto::v1::Command,
) -> Result<Committed, ProposeError> {
    let committed = raft.propose(command).await?;
    let mut states = raft.subscribe();
    let shown = states.wait_for(|state| state.applied_index >= committed.index).await;
    match shown {
        Ok(_) => Ok(committed),
        Err(_) => Err(ProposeError::Unavailable),
    }
}

/// Whether a pass could come out differently.
fn concerns_scheduling(before: &State, after: &State) -> bool {
    !(before.deployments.ptr_eq(&after.deployments)
        && before.nodes.ptr_eq(&after.nodes)
        && before.replicas_observed.ptr_eq(&after.replicas_observed))
}

#[cfg(test)]
mod tests;
