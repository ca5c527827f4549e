//! Allocator actor: makes one decision at a time, each after the previous one is committed.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use jaco_engine::cidr::Cidr;
use jaco_policy::network::ipam::{Decision, Pool, SubnetKey, allocation, decide, utilisation};
use jaco_proto::v1::command::Payload;
use jaco_raftnode::{Committed, LeaderProposer, ProposeError, State, command};
use jaco_supervision::{Context, Failure, Handle, Reply, Worker};
use prost_types::Timestamp;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{Allocator, Error, SharedAllocator};
use crate::{clock::Clock, commit::commit, log_dedup::LogDedup};

/// Identity under which allocations are proposed.
const IDENTITY: &str = "ipam";
/// Timeout of a request; longer than a commit may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Arguments of an [`IpamActor`]; kept across restarts.
#[derive(Clone)]
pub struct Args {
    /// Reads and changes the replicated state.
    pub raft: Arc<dyn LeaderProposer>,
    /// Whether this node leads and has applied an entry of its own term.
    pub is_leader: watch::Receiver<bool>,
    /// Source of the commands' timestamps.
    pub clock: Clock,
    /// Pool to allocate from in a cluster whose state names none.
    pub pool: Pool,
}

/// Mailbox of the allocator.
pub enum Msg {
    /// Requests the block of a network.
    Ensure {
        /// Network and host of the block.
        key: SubnetKey,
        /// Blocks that the host cannot use.
        refused: Vec<Cidr>,
        /// Receives the block.
        reply: Reply<Result<Cidr, Error>>,
    },
    /// The proposal of an allocation has finished.
    Committed {
        /// Chosen block.
        cidr: Cidr,
        /// Outcome of the proposal.
        outcome: Result<Committed, ProposeError>,
    },
}

struct Request {
    key: SubnetKey,
    refused: Vec<Cidr>,
    reply: Reply<Result<Cidr, Error>>,
}

/// Allocates address blocks to networks, on the leader only.
pub struct IpamActor {
    args: Args,
    waiting: VecDeque<Request>,
    committing: Option<Request>,
    exhausted_log: LogDedup,
}

impl Worker for IpamActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "IpamActor";

    async fn start(_: &Context<Self>, args: Args) -> Result<Self, Failure> {
        Ok(Self {
            args,
            waiting: VecDeque::new(),
            committing: None,
            exhausted_log: LogDedup::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Ensure {
                key,
                refused,
                reply,
            } => self.waiting.push_back(Request {
                key,
                refused,
                reply,
            }),
            Msg::Committed { cidr, outcome } => self.finish(cidr, outcome),
        }
        self.serve(ctx);
        Ok(())
    }
}

impl IpamActor {
    fn serve(&mut self, ctx: &Context<Self>) {
        while self.committing.is_none() {
            let Some(request) = self.waiting.pop_front() else {
                return;
            };
            if request.reply.is_abandoned() {
                continue;
            }
            // The state machine checks the block by the time of the command.
            let now = self.args.clock.timestamp();
            match self.choose(&now, &request) {
                Ok(Decision::Existing(cidr)) => request.reply.send(Ok(cidr)),
                Ok(Decision::Exhausted) => {
                    if self.exhausted_log.is_new(&request.key) {
                        warn!(subsystem = "ipam", key = %request.key, "no address block left");
                    }
                    let exhausted = Error::Exhausted(request.key);
                    request.reply.send(Err(exhausted));
                }
                Ok(Decision::Allocate(cidr)) => {
                    let payload = Payload::SubnetAllocate(allocation(&request.key, cidr));
                    let command = command(IDENTITY, now, payload);
                    self.committing = Some(request);
                    let raft = Arc::clone(&self.args.raft);
                    ctx.spawn(async move {
                        let outcome = commit(raft.as_ref(), command).await;
                        Msg::Committed { cidr, outcome }
                    });
                }
                Err(error) => request.reply.send(Err(error)),
            }
        }
    }

    fn pool(&self, state: &State) -> Pool {
        Pool::of_cluster(state).unwrap_or(self.args.pool)
    }

    fn choose(
        &self,
        now: &Timestamp,
        Request { key, refused, .. }: &Request,
    ) -> Result<Decision, Error> {
        if !*self.args.is_leader.borrow() {
            return Err(Error::NotLeader);
        }
        let state = self.args.raft.state();
        // A block of a removed deployment or host would never be freed.
        let used = state.networks_in_use();
        if !used.contains(&key.deployment, &key.network) {
            return Err(Error::UnknownDeployment(key.deployment.clone()));
        }
        if !state.nodes.contains_key(&key.host) {
            return Err(Error::UnknownHost(key.host.clone()));
        }
        let pool = self.pool(&state);
        Ok(decide(now, &state, key, pool, refused))
    }

    fn finish(&mut self, cidr: Cidr, outcome: Result<Committed, ProposeError>) {
        let Some(Request { key, reply, .. }) = self.committing.take() else {
            return;
        };
        if let Err(error) = outcome {
            reply.send(Err(Error::Propose(error)));
            return;
        }
        let state = self.args.raft.state();
        let used = utilisation(&state, self.pool(&state));
        match used {
            0.9.. => {
                error!(subsystem = "ipam", %key, %cidr, used, "address pool is nearly exhausted")
            }
            0.75.. => warn!(subsystem = "ipam", %key, %cidr, used, "address pool is filling up"),
            _ => info!(subsystem = "ipam", %key, %cidr, used, "allocated an address block"),
        }
        self.exhausted_log.clear();
        reply.send(Ok(cidr));
    }
}

/// Creates an allocator that calls the actor behind `handle`.
#[must_use]
pub fn allocator(handle: Handle<Msg>) -> SharedAllocator {
    Arc::new(Local(handle))
}

struct Local(Handle<Msg>);

impl Allocator for Local {
    fn ensure(
        &self,
        key: SubnetKey,
        refused: Vec<Cidr>,
    ) -> BoxFuture<'static, Result<Cidr, Error>> {
        let handle = self.0.clone();
        async move {
            let answer = handle
                .call(CALL_TIMEOUT, |reply| Msg::Ensure {
                    key,
                    refused,
                    reply,
                })
                .await;
            answer.unwrap_or(Err(Error::Unavailable))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
