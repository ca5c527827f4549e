//! Actor that carries out the membership policy.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jaco_proto::{
    Error, ErrorCode, drain_mark,
    v1::{self, command::Payload},
};
use jaco_raftnode::{MemberChange, Propose, ProposeError, RaftStatus, Role, command};
use jaco_supervision::{Context, Failure, TaskHandle, Worker};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    group::Group,
    leaving,
    policy::{Action, Policy, Verdict, View},
    view,
};
use crate::{clock::Clock, repeat::Repeats};

/// Interval of the checks.
const TICK: Duration = Duration::from_secs(3);
/// Interval of the checks while a member is leaving, because an operator waits for it.
const HURRY: Duration = Duration::from_millis(300);
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
    pub raft: Arc<dyn Propose>,
    /// Clock for the timestamps of commands.
    pub clock: Clock,
}

/// Arguments of a [`MembershipActor`].
#[derive(Clone)]
pub struct Args {
    group: Arc<dyn Group>,
    deps: Deps,
    trouble: watch::Sender<Option<Error>>,
}

impl Args {
    pub(super) fn new(group: impl Group, deps: Deps) -> (Self, watch::Receiver<Option<Error>>) {
        let trouble = watch::Sender::new(None);
        let receiver = trouble.subscribe();
        let args = Self {
            group: Arc::new(group),
            deps,
            trouble,
        };
        (args, receiver)
    }
}

/// Messages of a [`MembershipActor`].
pub enum Msg {
    /// The raft status may have changed.
    Status(watch::Receiver<RaftStatus>),
    /// Check timer of the leadership with this number.
    Tick(u64),
    /// A row was added or marked.
    Kick,
    /// A row was marked as leaving.
    Leaves {
        /// The member.
        raft_id: u64,
        /// Identity of the requester.
        identity: String,
    },
    /// A change ended.
    Done {
        /// Number of the leadership that started it.
        stint: u64,
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
    stint: u64,
    heard: BTreeMap<u64, Instant>,
    askers: BTreeMap<u64, String>,
    doing: Option<TaskHandle>,
    timer: Option<TaskHandle>,
    born: Instant,
    failures: Repeats,
}

impl Worker for MembershipActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "MembershipActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        ctx.send_to_self(Msg::Status(args.group.status()));
        args.trouble.send_replace(None);
        Ok(Self {
            args,
            policy: Policy::new(),
            term: None,
            stint: 0,
            heard: BTreeMap::new(),
            askers: BTreeMap::new(),
            doing: None,
            timer: None,
            born: Instant::now(),
            failures: Repeats::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Status(status) => self.observe(ctx, status),
            Msg::Tick(stint) if stint == self.stint => self.look(ctx),
            Msg::Kick => self.look(ctx),
            Msg::Leaves { raft_id, identity } => {
                self.askers.insert(raft_id, identity);
                self.look(ctx);
            }
            Msg::Done { stint, result } if stint == self.stint => {
                self.doing = None;
                match result {
                    Ok(()) => {
                        self.settled();
                        self.look(ctx);
                    }
                    Err(error) => {
                        self.report(error);
                        self.arm(ctx);
                    }
                }
            }
            Msg::Tick(_) | Msg::Done { .. } => {}
        }
        Ok(())
    }
}

impl MembershipActor {
    /// Records active followers, and starts over when leadership changes.
    fn observe(&mut self, ctx: &Context<Self>, mut status: watch::Receiver<RaftStatus>) {
        let now = status.borrow_and_update().clone();
        ctx.spawn(async move {
            tokio::time::sleep(SAMPLE).await;
            if status.changed().await.is_err() {
                std::future::pending::<()>().await; // the node is going down
            }
            Msg::Status(status)
        });
        let heard = Instant::now();
        for follower in &now.progress {
            if follower.recent_active {
                self.heard.insert(follower.raft_id, heard);
            }
        }
        let term = now.leading.then_some(now.term);
        if term == self.term {
            return;
        }
        self.term = term;
        self.stint += 1;
        self.policy = Policy::new();
        self.heard.clear();
        for task in [self.doing.take(), self.timer.take()].into_iter().flatten() {
            task.abort();
        }
        self.settled();
        if term.is_some() {
            self.look(ctx);
        } else {
            self.askers.clear();
        }
    }

    /// Starts the next change, if there is one and none is in progress.
    fn look(&mut self, ctx: &Context<Self>) {
        if self.term.is_none() || self.doing.is_some() {
            return;
        }
        let status = self.args.group.status().borrow().clone();
        let state = self.args.deps.raft.state();
        let view = view(&status, &state, |follower| {
            let heard = self.heard.get(&follower);
            heard.is_some_and(|at| at.elapsed() < ACTIVE)
        });
        match self.policy.plan(self.born.elapsed(), &view) {
            Verdict::Rest => {
                self.settled();
                self.arm(ctx);
            }
            Verdict::Blocked { raft_id, reason } => {
                let code = ErrorCode::RaftDemoteFailed;
                self.report(failed(code, &hostname(&view, raft_id), reason));
                self.arm(ctx);
            }
            Verdict::Act(action) => self.act(ctx, &view, action),
        }
    }

    fn act(&mut self, ctx: &Context<Self>, view: &View, action: Action) {
        let (code, id) = match action {
            Action::Add(id) | Action::Promote(id) => (ErrorCode::RaftAddNonvoterFailed, id),
            Action::Demote(id) => (ErrorCode::RaftDemoteFailed, id),
            Action::Keep(id) | Action::Remove(id) | Action::Transfer(id) | Action::Forget(id) => {
                (ErrorCode::RaftRemoveFailed, id)
            }
        };
        let host = hostname(view, id);
        tracing::info!(subsystem = "raft", ?action, %host, "membership changes");
        let group = Arc::clone(&self.args.group);
        let stint = self.stint;
        let written = match action {
            Action::Forget(id) => Some(self.forget(id, &host)),
            Action::Keep(_) => Some(self.keep(&host)),
            Action::Add(_)
            | Action::Promote(_)
            | Action::Demote(_)
            | Action::Remove(_)
            | Action::Transfer(_) => None,
        };
        let raft = Arc::clone(&self.args.deps.raft);
        self.doing = Some(ctx.spawn(async move {
            let outcome = match written {
                Some(command) => propose(&*raft, command).await,
                None => perform(&*group, action).await,
            };
            let result = outcome.map_err(|reason| failed(code, &host, &reason));
            Msg::Done { stint, result }
        }));
    }

    /// Builds the command that removes a member after it left the raft configuration.
    fn forget(&mut self, raft_id: u64, host: &str) -> v1::Command {
        let identity = self.askers.remove(&raft_id);
        let identity = identity.unwrap_or_else(|| format!("drain:{host}"));
        let hostname = host.to_owned();
        let payload = Payload::NodeRemove(v1::NodeRemove { hostname });
        command(identity, self.args.deps.clock.timestamp(), payload)
    }

    /// Builds the command that clears the drain mark of a leader that cannot leave.
    fn keep(&mut self, host: &str) -> v1::Command {
        let payload = Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: host.to_owned(),
            drain_mark: drain_mark::CLEAR,
            ..Default::default()
        });
        let identity = format!("drain:{host}");
        command(identity, self.args.deps.clock.timestamp(), payload)
    }

    fn report(&mut self, error: Error) {
        if self.failures.is_news(format!("{error:?}")) {
            tracing::warn!(subsystem = "raft", %error, "membership does not change");
        }
        self.args.trouble.send_replace(Some(error));
    }

    fn settled(&mut self) {
        self.failures.clear();
        self.args
            .trouble
            .send_if_modified(|trouble| trouble.take().is_some());
    }

    fn arm(&mut self, ctx: &Context<Self>) {
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
        let state = self.args.deps.raft.state();
        let hurry = state.nodes.values().any(|node| leaving(node));
        let delay = if hurry { HURRY } else { TICK };
        self.timer = Some(ctx.send_after(delay, Msg::Tick(self.stint)));
    }
}

/// Makes one configuration change and waits until it is in effect.
async fn perform(group: &dyn Group, action: Action) -> Result<(), String> {
    let change = match action {
        Action::Add(id) => MemberChange::AddLearner(id),
        Action::Promote(id) => MemberChange::Promote(id),
        Action::Demote(id) => MemberChange::Demote(id),
        Action::Remove(id) => MemberChange::Remove(id),
        Action::Transfer(to) => return transfer(group, to).await,
        Action::Forget(_) | Action::Keep(_) => return Ok(()),
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

async fn propose(raft: &dyn Propose, command: v1::Command) -> Result<(), String> {
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
    Error::new(code, "the membership does not change")
        .with("hostname", hostname)
        .with("reason", reason)
}
