//! The newest observation of each replica, on its way into the state.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jaco_proto::v1::{Batch, Command, ReplicaObserved, ReplicaObservedUpdate, command::Payload};
use jaco_raftnode::{Committed, ProposeError};
use tracing::{debug, warn};

use super::{IDENTITY, Shared, replica};
use crate::{
    repeat::Repeats,
    supervision::{Context, Failure, Worker},
};

/// Wait after a proposal that raft could not take.
const RETRY: Duration = Duration::from_millis(500);
/// Observations of one command at most.
const BATCH: usize = 256;

/// What a [`PublisherActor`] starts from.
#[derive(Clone)]
pub struct Args {
    pub(crate) shared: Arc<Shared>,
}

/// Messages of the [`PublisherActor`].
#[derive(Debug)]
pub enum Msg {
    /// A replica changed; replaces what is still waiting for it.
    Report(Box<ReplicaObserved>),
    /// Outcome of the proposal in flight.
    Proposed(Vec<ReplicaObserved>, Result<Committed, ProposeError>),
    /// A pause is over.
    Retry,
    /// This instance is new: what its predecessor held is asked for again.
    Recover,
}

/// Writes observations, many in one command, one command at a time.
///
/// It keeps one observation per replica, so an outage of raft costs nothing but time.
pub struct PublisherActor {
    shared: Arc<Shared>,
    waiting: BTreeMap<String, ReplicaObserved>,
    /// Refused as part of a batch, so proposed one by one.
    alone: BTreeMap<String, ReplicaObserved>,
    busy: bool,
    failures: Repeats,
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
            alone: BTreeMap::new(),
            busy: false,
            failures: Repeats::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Report(row) => {
                self.alone.remove(&row.id);
                self.waiting.insert(row.id.clone(), *row);
                self.flush(ctx);
            }
            Msg::Proposed(sent, result) => self.proposed(ctx, sent, result),
            Msg::Retry => {
                self.busy = false;
                self.flush(ctx);
            }
            Msg::Recover => {
                for replica in self.shared.roster().values() {
                    // One that is restarting reports anyway.
                    let _ = replica.cast(replica::Msg::Tick);
                }
            }
        }
        Ok(())
    }
}

impl PublisherActor {
    fn flush(&mut self, ctx: &Context<Self>) {
        if self.busy {
            return;
        }
        let rows: Vec<ReplicaObserved> = match self.alone.pop_first() {
            Some((_, row)) => vec![row],
            None => std::iter::from_fn(|| self.waiting.pop_first())
                .take(BATCH)
                .map(|(_, row)| row)
                .collect(),
        };
        if rows.is_empty() {
            return;
        }
        self.busy = true;
        let Some(command) = self.command(&rows) else {
            // Without a cluster there is nothing to write to yet.
            self.put_back(rows);
            ctx.send_after(RETRY, Msg::Retry);
            return;
        };
        let proposal = self.shared.deps.raft.propose(command);
        ctx.spawn(async move { Msg::Proposed(rows, proposal.await) });
    }

    fn proposed(
        &mut self,
        ctx: &Context<Self>,
        sent: Vec<ReplicaObserved>,
        result: Result<Committed, ProposeError>,
    ) {
        self.busy = false;
        match result {
            Ok(_) => {
                self.failures.clear();
            }
            Err(ProposeError::Rejected(error)) if sent.len() == 1 => {
                debug!(subsystem = "runtime/reconciler", %error, "observation refused");
            }
            Err(ProposeError::Rejected(_)) => {
                // One of them spoils the command; the others still count.
                for row in sent {
                    if !self.waiting.contains_key(&row.id) {
                        self.alone.insert(row.id.clone(), row);
                    }
                }
            }
            Err(
                error @ (ProposeError::NoLeader
                | ProposeError::Busy
                | ProposeError::Unavailable
                | ProposeError::Unknown(_)),
            ) => {
                if self.failures.is_news(&error) {
                    warn!(subsystem = "runtime/reconciler", %error, observations = sent.len(), "observations not written yet");
                }
                self.put_back(sent);
                self.busy = true;
                ctx.send_after(RETRY, Msg::Retry);
                return;
            }
        }
        self.flush(ctx);
    }

    /// Keeps what was not written, unless something newer waits.
    fn put_back(&mut self, rows: Vec<ReplicaObserved>) {
        for row in rows {
            self.waiting.entry(row.id.clone()).or_insert(row);
        }
    }

    fn command(&self, rows: &[ReplicaObserved]) -> Option<Command> {
        let deps = &self.shared.deps;
        let cluster_id = deps.raft.state().cluster.as_ref()?.cluster_id.clone();
        let ts = deps.clock.timestamp();
        let envelope = |payload| Command {
            cluster_id: cluster_id.clone(),
            ts: Some(ts),
            identity: IDENTITY.to_owned(),
            payload: Some(payload),
            ..Default::default()
        };
        let update = |row: &ReplicaObserved| {
            envelope(Payload::ReplicaObservedUpdate(ReplicaObservedUpdate {
                replica: Some(row.clone()),
            }))
        };
        Some(match rows {
            [row] => update(row),
            rows => envelope(Payload::Batch(Batch {
                children: rows.iter().map(update).collect(),
            })),
        })
    }
}
