//! Actor that drives the health cores: ticks, proposals, and the return to `ready`.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jaco_engine::Engine;
use jaco_policy::{
    health::{
        core::{self, Action::Propose as StatusProposal},
        fencing::{self, ContactEpoch},
        isolation,
        liveness::Action,
        ready::{self, ReadyConditions},
    },
    network::{
        firewall::core as firewall,
        readiness::{self, MeshStatus, Readiness},
    },
};
use jaco_proto::v1::{self, NodeStatus, command::Payload};
use jaco_raftnode::{Committed, ForwardingProposer, LeaderProposer, ProposeError, State};
use jaco_supervision::{Context, Failure, Worker};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tracing::{info, warn};

use super::failure_detector::FailureDetector;
use crate::{
    clock::Clock,
    commit::{commit, submit},
    log_dedup::LogDedup,
};

pub use jaco_policy::node::writers::NODE_HEALTH as IDENTITY;

/// Reason of a status change after missed heartbeats.
const SILENT: &str = "heartbeats_missed";
/// Reason of a status change of a member that stopped applying the log.
const HALTED: &str = "log_not_understood";
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
    pub failure_detector: Arc<FailureDetector>,
    /// Hostname of this node.
    pub host: String,
    /// Raft of this node, for status changes of other members: only a leader's are committed.
    pub raft: Arc<dyn LeaderProposer>,
    /// Proposer for this node's own status.
    pub cluster: Arc<dyn ForwardingProposer>,
    /// Confirms that the node has caught up.
    pub confirm: Confirm,
    /// Last contact in which no container was left whose row moved to another node.
    pub orphans_cleared: watch::Receiver<Option<ContactEpoch>>,
    /// Container engine of this node.
    pub engine: Arc<dyn Engine>,
    /// Clock for the timestamps of commands.
    pub clock: Clock,
    /// Network of this node.
    pub network: NetworkStatus,
}

/// State of the parts of a node's network that it needs to be ready. A part that is absent is
/// waived.
#[derive(Clone, Debug, Default)]
pub struct NetworkStatus {
    /// Isolation of deployments.
    pub firewall: Option<watch::Receiver<firewall::Status>>,
    /// Mesh between the nodes.
    pub mesh: Option<watch::Receiver<MeshStatus>>,
}

impl NetworkStatus {
    fn assess(&self, members: usize) -> Readiness {
        let isolation = self.firewall.as_ref();
        let isolation = isolation.map(|status| status.borrow().isolation.clone());
        let mesh = self.mesh.as_ref().map(|status| status.borrow().clone());
        readiness::assess(
            &isolation.unwrap_or_default(),
            &mesh.unwrap_or_default(),
            members,
        )
    }
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
    State(Arc<State>),
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
    write_errors: LogDedup,
    ready_errors: LogDedup,
}

impl Worker for HealthActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "HealthActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        args.failure_detector.restart();
        let mut states = args.raft.follow();
        let seen = states.borrow_and_update().clone();
        let mut this = Self {
            args,
            seen: Arc::clone(&seen),
            returning: false,
            next_return: None,
            write_errors: LogDedup::default(),
            ready_errors: LogDedup::default(),
        };
        this.args.failure_detector.state(&seen);
        this.drive(ctx);
        ctx.watch(states, Msg::State);
        ctx.send_to_self(Msg::Tick);
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Tick => {
                ctx.send_after(TICK, Msg::Tick);
                self.args.failure_detector.tick();
                self.drive(ctx);
                self.return_to_ready(ctx);
            }
            Msg::State(newest) => self.state(ctx, newest),
            Msg::Proposed(host, outcome) => {
                // The core requires the newest members before the end of a proposal.
                let newest = self.args.raft.state();
                self.state(ctx, newest);
                match outcome {
                    Ok(_) => {
                        self.write_errors.clear();
                    }
                    Err(error) if self.write_errors.is_new(&error) => {
                        warn!(subsystem = "scheduler/health", %host, %error, "node status not written");
                    }
                    Err(_) => {}
                }
                self.args.failure_detector.proposed(&host);
            }
            Msg::Confirmed(attempt, current) => {
                self.args.failure_detector.confirmed(attempt, current)
            }
            Msg::Returned(outcome) => {
                self.returning = false;
                match outcome {
                    Ok(()) => {
                        self.ready_errors.clear();
                    }
                    Err(why) => {
                        self.next_return = Some(Instant::now() + RETRY);
                        if self.ready_errors.is_new(&why) {
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
        self.args.failure_detector.state(&self.seen);
        self.drive(ctx);
    }

    /// Carries out the actions of the core.
    fn drive(&mut self, ctx: &Context<Self>) {
        while let Some(action) = self.args.failure_detector.poll_action() {
            match action {
                Action::Detect(StatusProposal {
                    host,
                    status,
                    missed,
                    halted,
                }) => {
                    let reason = if halted { HALTED } else { SILENT };
                    self.propose(ctx, host, status, (reason, missed));
                }
                Action::Fence(fencing::Action::Confirm { attempt }) => {
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
        let details = [
            ("reason", reason.to_owned()),
            ("missed", missed.to_string()),
        ];
        let details = details.map(|(key, value)| (key.to_owned(), value));
        let kept = self.seen.nodes.get(&host);
        let kept = kept.and_then(|node| isolation::kept_detail(node));
        let update = v1::NodeStatusUpdate {
            hostname: host.clone(),
            status: status.into(),
            details: details.into_iter().chain(kept).collect(),
            ..Default::default()
        };
        let (raft, command) = (Arc::clone(&self.args.raft), self.command(update));
        ctx.spawn(async move {
            let outcome = in_time(commit(raft.as_ref(), command)).await;
            Msg::Proposed(host, outcome)
        });
    }

    /// Proposes this node as `ready` once the conditions hold.
    fn return_to_ready(&mut self, ctx: &Context<Self>) {
        if self.returning || self.next_return.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let Args {
            failure_detector,
            host,
            orphans_cleared,
            network,
            ..
        } = &self.args;
        let conditions = conditions(failure_detector, orphans_cleared);
        let state = self.args.raft.state();
        let ready = |node: &Arc<v1::Node>| node.status() == NodeStatus::Ready;
        if conditions.current && state.nodes.get(host).is_some_and(ready) {
            failure_detector.note_ready();
        }
        let network = network.assess(state.nodes.len());
        if let Readiness::Waits(reason) = &network
            && state.nodes.get(host).is_some_and(|node| !ready(node))
            && self.ready_errors.is_new(reason)
        {
            warn!(subsystem = "scheduler/health", error = %reason, "this node is not ready yet");
        }
        let Some(update) = ready::update(&state, host, conditions, &network) else {
            return;
        };
        self.returning = true;
        let engine = Arc::clone(&self.args.engine);
        let (cluster, command) = (Arc::clone(&self.args.cluster), self.command(update));
        ctx.spawn(async move {
            let ping = timeout(BUDGET, engine.ping()).await;
            let answers = match ping {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the engine does not answer".to_owned()),
            };
            Msg::Returned(match answers {
                Ok(()) => in_time(submit(cluster.as_ref(), command))
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string()),
                Err(why) => Err(why),
            })
        });
    }

    fn command(&self, update: v1::NodeStatusUpdate) -> v1::Command {
        let payload = Payload::NodeStatusUpdate(update);
        jaco_raftnode::command(IDENTITY, self.args.clock.timestamp(), payload)
    }
}

/// Limits the time of a proposal, after which its outcome is unknown.
async fn in_time(
    proposal: impl Future<Output = Result<Committed, ProposeError>>,
) -> Result<Committed, ProposeError> {
    let outcome = timeout(BUDGET, proposal).await;
    outcome.unwrap_or_else(|_| Err(ProposeError::Unknown("no answer in time".to_owned())))
}

/// Collects the conditions under which this node may report itself ready.
fn conditions(
    failure_detector: &FailureDetector,
    orphans_cleared: &watch::Receiver<Option<ContactEpoch>>,
) -> ReadyConditions {
    // Copied to locals to keep the lock order: within the expression below the borrow of
    // `orphans_cleared` would last while `is_seen_by_leader` takes the lock of `FailureDetector`.
    let (contact, cleared) = (failure_detector.contact(), *orphans_cleared.borrow());
    ReadyConditions {
        current: contact.is_some() && !failure_detector.is_halted(),
        seen_by_leader: failure_detector.is_seen_by_leader(),
        orphans_cleared: contact.is_some() && cleared == contact,
        never_ready: !failure_detector.was_ready(),
    }
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
        let (_cleared, orphans_cleared) = watch::channel(None);
        let failure_detector = Arc::new(FailureDetector::new("a", raft, Clock::system()));
        let (done, ended) = mpsc::channel();
        for looks in [false, true] {
            let (failure_detector, orphans_cleared, done) = (
                Arc::clone(&failure_detector),
                orphans_cleared.clone(),
                done.clone(),
            );
            thread::spawn(move || {
                for _ in 0..LOOKS {
                    if looks {
                        conditions(&failure_detector, &orphans_cleared);
                    } else {
                        failure_detector.tick();
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
