//! Proposes the newest observation of each replica to raft.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_proto::v1::{Command, ReplicaObserved, ReplicaObservedUpdate, command::Payload};
use jaco_raftnode::{Committed, ProposeError};
use jaco_supervision::{Context, Failure, Worker};
use tracing::{debug, warn};

use super::{IDENTITY, RuntimeContext, replica};
use crate::log_dedup::LogDedup;

/// Delay after a proposal that raft did not accept.
const RETRY: Duration = Duration::from_millis(500);
/// Proposals in flight at most; raft batches proposals that arrive together.
const MAX_IN_FLIGHT: usize = 64;

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
    /// Outcome of a proposal.
    Proposed(Box<ReplicaObserved>, Result<Committed, ProposeError>),
    /// The retry delay elapsed.
    Retry,
    /// Sent at start: requests the observations that the previous instance held.
    Recover,
}

/// Proposes each observation in its own command, because a follower may not submit batches.
/// Proposals of one replica are sequential.
///
/// It keeps only the newest observation per replica, so a raft outage delays observations without
/// using more memory.
pub struct PublisherActor {
    shared: Arc<RuntimeContext>,
    waiting: BTreeMap<String, ReplicaObserved>,
    /// Replicas with a proposal under way.
    in_flight: BTreeSet<String>,
    /// Until the next [`Msg::Retry`].
    paused: bool,
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
            waiting: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            paused: false,
            failures: LogDedup::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Report(row) => {
                self.waiting.insert(row.id.clone(), *row);
                self.flush(ctx);
            }
            Msg::Proposed(row, result) => self.proposed(ctx, *row, result),
            Msg::Retry => {
                self.paused = false;
                self.flush(ctx);
            }
            Msg::Recover => {
                for replica in self.shared.replica_handles().values() {
                    // A restarting actor publishes its report anyway.
                    let _ = replica.cast(replica::Msg::Tick);
                }
            }
        }
        Ok(())
    }
}

impl PublisherActor {
    fn flush(&mut self, ctx: &Context<Self>) {
        while !self.paused && self.in_flight.len() < MAX_IN_FLIGHT {
            let free = |id: &&String| !self.in_flight.contains(*id);
            let Some(id) = self.waiting.keys().find(free).cloned() else {
                return;
            };
            let Some(row) = self.waiting.remove(&id) else {
                return;
            };
            let Some(command) = self.command(&row) else {
                // No cluster exists yet to write to.
                self.requeue(row);
                self.pause(ctx);
                return;
            };
            self.in_flight.insert(id);
            let proposal = self.shared.deps.raft.submit(command);
            ctx.spawn(async move { Msg::Proposed(Box::new(row), proposal.await) });
        }
    }

    fn proposed(
        &mut self,
        ctx: &Context<Self>,
        row: ReplicaObserved,
        result: Result<Committed, ProposeError>,
    ) {
        self.in_flight.remove(&row.id);
        match result {
            Ok(_) => {
                self.failures.clear();
            }
            Err(ProposeError::Rejected(error)) => {
                debug!(subsystem = "runtime/reconciler", replica_id = %row.id, %error, "observation refused");
            }
            Err(
                error @ (ProposeError::NoLeader
                | ProposeError::Busy
                | ProposeError::Unavailable
                | ProposeError::Unknown(_)),
            ) => {
                self.requeue(row);
                if self.failures.is_new(&error) {
                    warn!(subsystem = "runtime/reconciler", %error, observations = self.waiting.len(), "observations not written yet");
                }
                self.pause(ctx);
            }
        }
        self.flush(ctx);
    }

    fn pause(&mut self, ctx: &Context<Self>) {
        if !std::mem::replace(&mut self.paused, true) {
            ctx.send_after(RETRY, Msg::Retry);
        }
    }

    /// Keeps a failed observation, unless a newer one is waiting.
    fn requeue(&mut self, row: ReplicaObserved) {
        self.waiting.entry(row.id.clone()).or_insert(row);
    }

    fn command(&self, row: &ReplicaObserved) -> Option<Command> {
        let deps = &self.shared.deps;
        let cluster_id = deps.raft.state().cluster.as_ref()?.cluster_id.clone();
        let payload = Payload::ReplicaObservedUpdate(ReplicaObservedUpdate {
            replica: Some(row.clone()),
        });
        Some(Command {
            cluster_id,
            ts: Some(deps.clock.timestamp()),
            identity: IDENTITY.to_owned(),
            payload: Some(payload),
            ..Default::default()
        })
    }
}
