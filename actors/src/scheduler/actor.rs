//! Driver of the scheduler: runs passes and proposes their batches while this node leads.

use std::sync::Arc;

use jaco_policy::scheduler::{
    pass_timer::{Action, Outcome, PassTimer},
    reconcile::{Pass, PassCache, reconcile},
};
use jaco_raftnode::{Committed, LeaderProposer, ProposeError, State};
use jaco_supervision::{Context, Failure, TaskHandle, Worker};
use tokio::{
    sync::{Mutex, OwnedMutexGuard, watch},
    time::Instant,
};
use tracing::{debug, info, warn};

use crate::{clock::Clock, commit::included, log_dedup::LogDedup, telemetry::Metrics};

/// Arguments of a [`SchedulerActor`]; kept across restarts.
#[derive(Clone)]
pub struct Args {
    /// Reads and changes the replicated state.
    pub raft: Arc<dyn LeaderProposer>,
    /// Whether this node leads and has applied an entry of its own term.
    pub is_leader: watch::Receiver<bool>,
    /// Source of the commands' timestamps.
    pub clock: Clock,
    metrics: Metrics,
    proposal_lock: Arc<Mutex<()>>,
}

impl Args {
    /// Creates the arguments of one node's scheduler.
    #[must_use]
    pub fn new(
        raft: Arc<dyn LeaderProposer>,
        is_leader: watch::Receiver<bool>,
        clock: Clock,
        metrics: Metrics,
    ) -> Self {
        Self {
            metrics,
            raft,
            is_leader,
            clock,
            proposal_lock: Arc::default(),
        }
    }
}

/// Lock held by a proposal until its outcome is certain. Once raft has taken a proposal, it outlives
/// its caller: a killed actor, or one whose answer was an unknown outcome. Without waiting for it,
/// the next pass would issue the same replicas again and their containers would be created twice.
type ProposalGuard = OwnedMutexGuard<()>;

/// Mailbox of the scheduler.
pub enum Msg {
    /// This node leads (`true`) or does not lead any more.
    Leadership(bool),
    /// State that a pass depends on changed.
    Changed,
    /// A pass may be due.
    Wake,
    /// The proposal of an earlier instance or leadership epoch has finished.
    Begin {
        /// Leadership epoch that waited for the lock.
        leadership_epoch: u64,
        /// The acquired lock.
        guard: ProposalGuard,
    },
    /// The proposal of a pass has finished; a successful one is visible in the local state.
    Finished {
        /// Leadership epoch of the pass.
        leadership_epoch: u64,
        /// Whether the pass left commands for the next one.
        partial: bool,
        /// Outcome of the proposal.
        outcome: Result<Committed, ProposeError>,
    },
}

/// Reconciles the replicas with the deployments, on the leader only.
pub struct SchedulerActor {
    args: Args,
    pass_timer: PassTimer,
    cache: PassCache,
    leading: bool,
    leadership_epoch: u64,
    following: Option<TaskHandle>,
    proposing: Option<TaskHandle>,
    failures: LogDedup,
}

impl Worker for SchedulerActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "SchedulerActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let mut is_leader = args.is_leader.clone();
        is_leader.mark_changed();
        ctx.watch(is_leader, Msg::Leadership);
        Ok(Self {
            args,
            pass_timer: PassTimer::default(),
            cache: PassCache::default(),
            leading: false,
            leadership_epoch: 0,
            following: None,
            proposing: None,
            failures: LogDedup::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Instant::now().into_std();
        match msg {
            Msg::Leadership(leads) => self.leadership_changed(ctx, leads),
            Msg::Changed => self.pass_timer.handle_change(now),
            Msg::Wake => self.pass_timer.handle_timeout(now),
            Msg::Begin {
                leadership_epoch,
                guard,
            } if leadership_epoch == self.leadership_epoch => self.pass(ctx, guard),
            Msg::Begin { .. } => {}
            Msg::Finished {
                leadership_epoch,
                partial,
                outcome,
            } if leadership_epoch == self.leadership_epoch => {
                match &outcome {
                    Ok(_) => {
                        self.failures.clear();
                        if let Some(since) = self.pass_timer.covers_since().filter(|_| !partial) {
                            self.args.metrics.reconciled(now - since);
                        }
                    }
                    Err(error) if self.failures.is_new(error) => {
                        warn!(subsystem = "scheduler", %error, "pass failed");
                    }
                    Err(_) => {}
                }
                self.pass_timer
                    .handle_finished(now, outcome_of(&outcome, partial));
            }
            Msg::Finished { .. } => {}
        }
        self.drive(ctx);
        Ok(())
    }
}

impl SchedulerActor {
    /// Runs the timer's actions, then sets the deadline.
    fn drive(&mut self, ctx: &Context<Self>) {
        while let Some(action) = self.pass_timer.poll_action() {
            match action {
                Action::Pass => self.begin(ctx),
            }
        }
        let deadline = self.pass_timer.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(deadline, Msg::Wake);
    }

    fn leadership_changed(&mut self, ctx: &Context<Self>, leads: bool) {
        if leads == self.leading {
            return;
        }
        self.leading = leads;
        self.pass_timer
            .handle_leadership(Instant::now().into_std(), leads);
        self.leadership_epoch += 1;
        for task in [self.following.take(), self.proposing.take()]
            .into_iter()
            .flatten()
        {
            task.abort();
        }
        if leads {
            // The cache may predate another node's leadership.
            self.cache = PassCache::default();
            self.following = Some(self.follow(ctx));
        }
        debug!(subsystem = "scheduler", leads, "scheduler leadership");
    }

    fn follow(&self, ctx: &Context<Self>) -> TaskHandle {
        let mut states = self.args.raft.follow();
        let last = states.borrow_and_update().clone();
        let concerns = |last: &Arc<State>, next: &Arc<State>| concerns_scheduling(last, next);
        ctx.watch_if(states, last, concerns, |_| Msg::Changed)
    }

    fn begin(&mut self, ctx: &Context<Self>) {
        if let Ok(guard) = Arc::clone(&self.args.proposal_lock).try_lock_owned() {
            return self.pass(ctx, guard);
        }
        let (guard, leadership_epoch) =
            (Arc::clone(&self.args.proposal_lock), self.leadership_epoch);
        self.proposing = Some(ctx.spawn(async move {
            let guard = guard.lock_owned().await;
            Msg::Begin {
                leadership_epoch,
                guard,
            }
        }));
    }

    fn pass(&mut self, ctx: &Context<Self>, guard: ProposalGuard) {
        // Read before the state, so that a command based on it is not appended in a later term.
        let Some(term) = self.args.raft.leading_term() else {
            self.pass_timer
                .handle_finished(Instant::now().into_std(), Outcome::Failed);
            return;
        };
        let state = self.args.raft.state();
        let now = Instant::now().into_std();
        let Pass { batch, summary } =
            reconcile(&state, &mut self.cache, now, self.args.clock.timestamp());
        self.pass_timer.schedule(self.cache.poll_timeout());
        let Some(batch) = batch else {
            self.pass_timer
                .handle_finished(Instant::now().into_std(), Outcome::Done);
            return;
        };
        info!(
            subsystem = "scheduler",
            upserts = summary.upserts,
            removals = summary.removals,
            statuses = summary.statuses,
            counters = summary.counters,
            left = summary.deferred,
            applied_index = state.applied_index,
            "proposing a pass"
        );
        let (raft, leadership_epoch) = (Arc::clone(&self.args.raft), self.leadership_epoch);
        let partial = summary.deferred > 0;
        let proposal = raft.propose_in_term(term, batch, Box::new(guard));
        self.proposing = Some(ctx.spawn(async move {
            let outcome = included(raft.as_ref(), proposal).await;
            Msg::Finished {
                leadership_epoch,
                partial,
                outcome,
            }
        }));
    }
}

fn outcome_of(outcome: &Result<Committed, ProposeError>, partial: bool) -> Outcome {
    match outcome {
        Ok(_) if partial => Outcome::Partial,
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
        && before.replicas_observed.ptr_eq(&after.replicas_observed)
        && before.secrets.ptr_eq(&after.secrets))
}

#[cfg(test)]
mod tests;
