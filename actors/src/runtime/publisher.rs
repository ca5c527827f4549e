//! Proposes the newest observation of each replica to raft.

use std::sync::Arc;

use jaco_policy::runtime::publisher::{Action, Core, Outcome};
use jaco_proto::v1::{Command, ReplicaObserved, ReplicaObservedUpdate, command::Payload};
use jaco_raftnode::{Committed, ProposeError};
use jaco_supervision::{Context, Failure, Worker};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{IDENTITY, RuntimeContext, replica};
use crate::log_dedup::LogDedup;

/// Arguments of a [`PublisherActor`].
#[derive(Clone)]
pub struct Args {
    pub(crate) shared: Arc<RuntimeContext>,
}

/// Messages of the [`PublisherActor`].
#[derive(Debug)]
pub enum Msg {
    /// A replica's observation changed; replaces the one still waiting.
    Report(Box<ReplicaObserved>),
    /// Outcome of the proposal for this replica.
    Proposed(String, Result<Committed, ProposeError>),
    /// The core's deadline passed.
    Timeout,
    /// Sent at start: requests the observations that the previous instance held.
    Recover,
}

/// Proposes each observation in its own command, because a follower may not submit batches.
pub struct PublisherActor {
    shared: Arc<RuntimeContext>,
    core: Core,
    failures: LogDedup,
}

impl Worker for PublisherActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "PublisherActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        ctx.send_to_self(Msg::Recover);
        Ok(Self {
            shared: args.shared,
            core: Core::default(),
            failures: LogDedup::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Instant::now().into_std();
        match msg {
            Msg::Report(row) => self.core.handle_report(*row),
            Msg::Proposed(id, result) => {
                let (outcome, error) = outcome_of(&id, result);
                self.core.handle_proposed(now, &id, outcome);
                self.log(error);
            }
            Msg::Timeout => self.core.handle_timeout(now),
            Msg::Recover => {
                for replica in self.shared.replica_handles().values() {
                    // A restarting actor publishes its report anyway.
                    let _ = replica.cast(replica::Msg::Tick);
                }
            }
        }
        self.drive(ctx, now);
        Ok(())
    }
}

impl PublisherActor {
    fn drive(&mut self, ctx: &Context<Self>, now: std::time::Instant) {
        while let Some(Action::Propose(row)) = self.core.poll_action() {
            let id = row.id.clone();
            let Some(command) = self.command(*row) else {
                // No cluster exists yet to write to.
                self.core.handle_proposed(now, &id, Outcome::Failed);
                continue;
            };
            let proposal = self.shared.deps.raft.submit(command);
            ctx.spawn(async move { Msg::Proposed(id, proposal.await) });
        }
        let deadline = self.core.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(deadline, Msg::Timeout);
    }

    fn log(&mut self, error: Option<ProposeError>) {
        match error {
            None => {
                self.failures.clear();
            }
            Some(error) if self.failures.is_new(&error) => {
                warn!(subsystem = "runtime/reconciler", %error, observations = self.core.waiting(), "observations not written yet");
            }
            Some(_) => {}
        }
    }

    fn command(&self, row: ReplicaObserved) -> Option<Command> {
        let deps = &self.shared.deps;
        let cluster_id = deps.raft.state().cluster.as_ref()?.cluster_id.clone();
        let payload = Payload::ReplicaObservedUpdate(ReplicaObservedUpdate { replica: Some(row) });
        Some(Command {
            cluster_id,
            ts: Some(deps.clock.timestamp()),
            identity: IDENTITY.to_owned(),
            payload: Some(payload),
            ..Default::default()
        })
    }
}

/// Returns the outcome for the core, and the error of one that did not succeed yet.
fn outcome_of(
    id: &str,
    result: Result<Committed, ProposeError>,
) -> (Outcome, Option<ProposeError>) {
    match result {
        Ok(_) => (Outcome::Done, None),
        Err(ProposeError::Rejected(error)) => {
            debug!(subsystem = "runtime/reconciler", replica_id = %id, %error, "observation refused");
            (Outcome::Done, None)
        }
        Err(
            error @ (ProposeError::NoLeader
            | ProposeError::Busy
            | ProposeError::Unavailable
            | ProposeError::Unknown(_)),
        ) => (Outcome::Failed, Some(error)),
    }
}
