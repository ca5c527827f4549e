//! Actor that carries out the membership policy.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use jaco_policy::membership::{
    Action, Blocked, DRAIN_LIMIT, Departure, Policy, View, clear_mark, end_drain, leaving,
};
use jaco_proto::{
    Error, ErrorCode,
    v1::{self, command::Payload},
};
use jaco_raftnode::{LeaderProposer, MemberChange, ProposeError, RaftStatus, Role, State, command};
use jaco_supervision::{Context, Failure, TaskHandle, Worker};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{group::Group, view};
use crate::{clock::Clock, commit::CommitLock, log_dedup::LogDedup};

/// Interval of the checks.
const TICK: Duration = Duration::from_secs(3);
/// Interval of the checks while a member is leaving, because an operator waits for it.
const LEAVING_TICK: Duration = Duration::from_millis(300);
/// Timeout of a leadership transfer; raft aborts one after an election timeout.
const TRANSFER_BUDGET: Duration = Duration::from_secs(3);
/// Time for which a follower counts as active after a response. Raft's own flag covers the current
/// election timeout only, and is unset for every follower when that begins.
const ACTIVE: Duration = Duration::from_secs(2);
/// Minimum delay between two reads of the raft status, which changes with every commit.
const SAMPLE: Duration = Duration::from_millis(100);

/// Dependencies of membership changes.
#[derive(Clone)]
pub struct Deps {
    /// Source of the rows and target of the commands.
    pub raft: Arc<dyn LeaderProposer>,
    /// Clock for the timestamps of commands.
    pub clock: Clock,
    /// Serialises changes of the drain marks with the requests of operators.
    pub(crate) drain_mark_lock: CommitLock,
}

/// Arguments of a [`MembershipActor`].
#[derive(Clone)]
pub struct Args {
    group: Arc<dyn Group>,
    deps: Deps,
    last_error: watch::Sender<Option<Error>>,
}

impl Args {
    pub(super) fn new(group: impl Group, deps: Deps) -> (Self, watch::Receiver<Option<Error>>) {
        let last_error = watch::Sender::new(None);
        let receiver = last_error.subscribe();
        let args = Self {
            group: Arc::new(group),
            deps,
            last_error,
        };
        (args, receiver)
    }
}

/// Messages of a [`MembershipActor`].
pub enum Msg {
    /// The raft status may have changed.
    Status(RaftStatus),
    /// The next check is due.
    Tick,
    /// A row was added or marked.
    Kick,
    /// A row was marked for removal.
    MarkedLeaving {
        /// The member.
        raft_id: u64,
        /// Identity of the requester.
        identity: String,
        /// Whether the member is removed without a drain. The row says so too, unless a member of
        /// another version might not understand it.
        skip_drain: bool,
    },
    /// A change ended.
    Done {
        /// Number of the leadership that started it.
        leadership_epoch: u64,
        /// Result.
        result: Result<(), Error>,
    },
}

/// Makes the raft configuration follow the Node rows, and keeps the target number of voters; on the
/// leader only.
pub struct MembershipActor {
    args: Args,
    policy: Policy,
    term: Option<u64>,
    leadership_epoch: u64,
    last_response: BTreeMap<u64, Instant>,
    requesters: BTreeMap<u64, String>,
    /// Members to be removed without a drain, by the requests to this leader.
    undrained: BTreeSet<u64>,
    change: Option<TaskHandle>,
    failures: LogDedup,
}

impl Worker for MembershipActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "MembershipActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let mut status = args.group.status();
        status.mark_changed();
        ctx.watch_every(SAMPLE, status, Msg::Status);
        args.last_error.send_replace(None);
        Ok(Self {
            args,
            policy: Policy::new(),
            term: None,
            leadership_epoch: 0,
            last_response: BTreeMap::new(),
            requesters: BTreeMap::new(),
            undrained: BTreeSet::new(),
            change: None,
            failures: LogDedup::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Status(status) => self.observe(ctx, &status),
            Msg::Tick | Msg::Kick => self.check(ctx),
            Msg::MarkedLeaving {
                raft_id,
                identity,
                skip_drain,
            } => {
                self.requesters.insert(raft_id, identity);
                if skip_drain {
                    self.undrained.insert(raft_id);
                }
                self.check(ctx);
            }
            Msg::Done {
                leadership_epoch,
                result,
            } if leadership_epoch == self.leadership_epoch => {
                self.change = None;
                match result {
                    Ok(()) => {
                        self.clear_error();
                        self.check(ctx);
                    }
                    Err(error) => {
                        self.report(error);
                        self.schedule_check(ctx);
                    }
                }
            }
            Msg::Done { .. } => {}
        }
        Ok(())
    }
}

impl MembershipActor {
    /// Records active followers, and starts over when leadership changes.
    fn observe(&mut self, ctx: &Context<Self>, status: &RaftStatus) {
        let last_response = Instant::now();
        for follower in &status.progress {
            if follower.recent_active {
                self.last_response.insert(follower.raft_id, last_response);
            }
        }
        let term = status.leading.then_some(status.term);
        if term == self.term {
            return;
        }
        self.term = term;
        self.leadership_epoch += 1;
        self.policy = Policy::new();
        self.last_response.clear();
        if let Some(change) = self.change.take() {
            change.abort();
        }
        ctx.set_deadline(None, Msg::Tick);
        self.clear_error();
        if term.is_some() {
            self.check(ctx);
        } else {
            self.requesters.clear();
            self.undrained.clear();
        }
    }

    /// Starts the next change, if there is one and none is in progress.
    fn check(&mut self, ctx: &Context<Self>) {
        if self.term.is_none() || self.change.is_some() {
            return;
        }
        let status = self.args.group.status().borrow().clone();
        let state = self.args.deps.raft.state();
        let mut view = view(&status, &state, |follower| {
            let last_response = self.last_response.get(&follower);
            last_response.is_some_and(|at| at.elapsed() < ACTIVE)
        });
        self.undrained.retain(|id| {
            let row = view.rows.get(id);
            row.is_some_and(|row| row.departure != Departure::Staying)
        });
        for (id, row) in &mut view.rows {
            if row.departure == Departure::Draining && self.undrained.contains(id) {
                row.departure = Departure::Leaving;
            }
        }
        self.policy.handle_view(Instant::now().into_std(), &view);
        self.drive(ctx, &view);
    }

    /// Carries out the action of the policy for this view; without one, waits for the next check.
    fn drive(&mut self, ctx: &Context<Self>, view: &View) {
        if let Some(action) = self.policy.poll_action() {
            return self.act(ctx, view, action);
        }
        match self.policy.blocked() {
            Some(Blocked { raft_id, reason }) => {
                let code = ErrorCode::RaftDemoteFailed;
                self.report(failed(code, &hostname(view, raft_id), reason));
            }
            None => self.clear_error(),
        }
        self.schedule_check(ctx);
    }

    fn act(&mut self, ctx: &Context<Self>, view: &View, action: Action) {
        let (code, id) = match action {
            Action::Add(id) | Action::Promote(id) => (ErrorCode::RaftAddNonvoterFailed, id),
            Action::Demote(id) => (ErrorCode::RaftDemoteFailed, id),
            Action::ClearMark(id)
            | Action::Remove(id)
            | Action::Transfer(id)
            | Action::DeleteRow(id) => (ErrorCode::RaftRemoveFailed, id),
            Action::EndDrain(id) => (ErrorCode::DrainApplyFailed, id),
        };
        let host = hostname(view, id);
        tracing::info!(subsystem = "raft", ?action, %host, "membership changes");
        let leadership_epoch = self.leadership_epoch;
        let work: BoxFuture<'static, Result<(), String>> = match action {
            Action::DeleteRow(id) => {
                let raft = Arc::clone(&self.args.deps.raft);
                let command = self.delete_row(id, &host);
                Box::pin(async move { propose(&*raft, command).await })
            }
            Action::ClearMark(_) => self.change_mark(&host, clear_mark),
            Action::EndDrain(_) => self.change_mark(&host, end_drain_logged),
            Action::Add(_)
            | Action::Promote(_)
            | Action::Demote(_)
            | Action::Remove(_)
            | Action::Transfer(_) => {
                let group = Arc::clone(&self.args.group);
                Box::pin(async move { perform(&*group, action).await })
            }
        };
        self.change = Some(ctx.spawn(async move {
            let outcome = work.await;
            let result = outcome.map_err(|reason| failed(code, &host, &reason));
            Msg::Done {
                leadership_epoch,
                result,
            }
        }));
    }

    /// Builds the command that removes a member after it left the raft configuration.
    fn delete_row(&mut self, raft_id: u64, host: &str) -> v1::Command {
        let identity = self.requesters.remove(&raft_id);
        let identity = identity.unwrap_or_else(|| format!("drain:{host}"));
        let hostname = host.to_owned();
        let payload = Payload::NodeRemove(v1::NodeRemove { hostname });
        command(identity, self.args.deps.clock.timestamp(), payload)
    }

    /// Changes the drain mark of `host` as `update` says. The decision was made without the lock: the
    /// update is derived from the state again, which an operator may have changed since, and is
    /// dropped if there is none any more.
    fn change_mark(
        &self,
        host: &str,
        update: fn(&State, &str) -> Option<v1::NodeStatusUpdate>,
    ) -> BoxFuture<'static, Result<(), String>> {
        let (deps, term, host) = (self.args.deps.clone(), self.term, host.to_owned());
        Box::pin(async move {
            let raft = &*deps.raft;
            let locked = deps.drain_mark_lock.lock(raft).await;
            let guard = locked.map_err(|error| error.to_string())?;
            // The next leadership decides for itself.
            if term != Some(guard.term()) {
                return Ok(());
            }
            let Some(update) = update(&raft.state(), &host) else {
                return Ok(());
            };
            let payload = Payload::NodeStatusUpdate(update);
            let command = command(format!("drain:{host}"), deps.clock.timestamp(), payload);
            let committed = guard.commit(raft, command).await;
            committed.map(drop).map_err(|error| error.to_string())
        })
    }

    fn report(&mut self, error: Error) {
        if self.failures.is_new(format!("{error:?}")) {
            tracing::warn!(subsystem = "raft", %error, "membership does not change");
        }
        self.args.last_error.send_replace(Some(error));
    }

    fn clear_error(&mut self) {
        self.failures.clear();
        self.args
            .last_error
            .send_if_modified(|last_error| last_error.take().is_some());
    }

    fn schedule_check(&self, ctx: &Context<Self>) {
        let state = self.args.deps.raft.state();
        let any_leaving = state.nodes.values().any(|node| leaving(node));
        let delay = if any_leaving { LEAVING_TICK } else { TICK };
        ctx.set_deadline(Some(Instant::now() + delay), Msg::Tick);
    }
}

/// Returns the update that gives up the drain of `host`, and logs that it does.
fn end_drain_logged(state: &State, host: &str) -> Option<v1::NodeStatusUpdate> {
    let update = end_drain(state, host)?;
    tracing::warn!(
        subsystem = "raft",
        %host, replicas = ?update.details.get("replicas"), limit = ?DRAIN_LIMIT,
        "the node is not drained in time and stays a member"
    );
    Some(update)
}

/// Makes one configuration change and waits until it is in effect.
async fn perform(group: &dyn Group, action: Action) -> Result<(), String> {
    let change = match action {
        Action::Add(id) => MemberChange::AddLearner(id),
        Action::Promote(id) => MemberChange::Promote(id),
        Action::Demote(id) => MemberChange::Demote(id),
        Action::Remove(id) => MemberChange::Remove(id),
        Action::Transfer(to) => return transfer(group, to).await,
        Action::DeleteRow(_) | Action::ClearMark(_) | Action::EndDrain(_) => return Ok(()),
    };
    let changed = group.change(change).await;
    changed.map_err(|error| error.to_string())
}

async fn transfer(group: &dyn Group, to: u64) -> Result<(), String> {
    let mut status = group.status();
    group.transfer(to);
    let gone = status.wait_for(|status| status.role != Role::Leader);
    match timeout(TRANSFER_BUDGET, gone).await {
        Ok(_) => Ok(()),
        Err(_) => Err("leadership was not taken over".to_owned()),
    }
}

async fn propose(raft: &dyn LeaderProposer, command: v1::Command) -> Result<(), String> {
    match raft.propose(command).await {
        Ok(_) => Ok(()),
        // The row is already gone.
        Err(ProposeError::Rejected(error)) if error.code == ErrorCode::NodeNotFound => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn hostname(view: &View, raft_id: u64) -> String {
    match view.rows.get(&raft_id) {
        Some(row) => row.hostname.clone(),
        None => format!("raft id {raft_id}"),
    }
}

fn failed(code: ErrorCode, hostname: &str, reason: &str) -> Error {
    Error::new(
        code,
        format!("the role of member {hostname:?} does not change"),
    )
    .with("hostname", hostname)
    .because(reason)
}
