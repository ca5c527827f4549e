//! Driver of one bridge.

use std::sync::Arc;

use jaco_engine::{EngineError, cidr::Cidr};
use jaco_policy::network::{
    bridge::{
        Removal,
        core::{Action, Core},
        refused_blocks::RefusedBlocks,
    },
    ipam::{SubnetKey, existing},
    names::NetworkId,
};
use jaco_proto::chain;
use jaco_raftnode::{State, StateReader};
use jaco_supervision::{Context, Failure, Handle, Reply, Worker};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{BridgeReady, DesiredNetwork, Error, ensure, remove};
use crate::{
    log_dedup::LogDedup,
    network::{SharedEngine, ipam::SharedAllocator, manager},
};

/// Blocks tried per job before the requests fail; callers retry.
const MAX_BLOCK_ATTEMPTS: usize = 4;

/// Dependencies shared by all bridges of a host.
#[derive(Clone)]
pub struct BridgeContext {
    /// Cluster this host belongs to.
    pub cluster_id: String,
    /// This host.
    pub host: String,
    /// Reads the replicated state.
    pub raft: Arc<dyn StateReader>,
    /// Container engine that holds the networks.
    pub engine: SharedEngine,
    /// Allocates address blocks.
    pub allocator: SharedAllocator,
    /// Blocks that this host cannot use.
    pub refused_blocks: RefusedBlocks,
}

impl BridgeContext {
    /// Key of this host's block of a network.
    pub(in crate::network) fn subnet(&self, id: &NetworkId) -> SubnetKey {
        SubnetKey {
            deployment: id.deployment().to_owned(),
            network: id.network().to_owned(),
            host: self.host.clone(),
        }
    }
}

/// Arguments of one bridge; kept across restarts.
#[derive(Clone)]
pub struct Args {
    /// Dependencies shared with the other bridges.
    pub env: BridgeContext,
    /// Network of this bridge.
    pub id: NetworkId,
    /// Manager to notify when the network is removed.
    pub manager: Handle<manager::Msg>,
}

/// Mailbox of a bridge.
pub enum Msg {
    /// Requests the network.
    Ensure(Reply<Result<BridgeReady, Error>>),
    /// Outcome of ensuring the network.
    Ensured(Result<BridgeReady, Error>),
    /// Outcome of a removal.
    Removed(Result<Removal, EngineError>),
    /// This host's block appeared in the state or disappeared from it.
    Row(bool),
    /// The core's deadline passed.
    Wake,
}

/// Manages the bridge network of one (deployment, network) on this host.
pub struct BridgeActor {
    args: Args,
    core: Core,
    /// Requests received since the current job began.
    waiting: Vec<Reply<Result<BridgeReady, Error>>>,
    /// Requests that the current job answers.
    answering: Vec<Reply<Result<BridgeReady, Error>>>,
    failures: LogDedup,
}

impl Worker for BridgeActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "BridgeActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let mut states = args.env.raft.follow();
        let key = args.env.subnet(&args.id);
        let last = states.borrow_and_update().clone();
        let has_row = existing(&last, &key).is_some();
        let mut bridge = Self {
            core: Core::new(Instant::now().into_std(), has_row),
            args,
            waiting: Vec::new(),
            answering: Vec::new(),
            failures: LogDedup::default(),
        };
        let row_key = key.clone();
        let differs = move |last: &Arc<State>, next: &Arc<State>| {
            existing(last, &row_key).is_some() != existing(next, &row_key).is_some()
        };
        ctx.watch_if(states, last, differs, move |state| {
            Msg::Row(existing(&state, &key).is_some())
        });
        bridge.drive(ctx);
        Ok(bridge)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Instant::now().into_std();
        match msg {
            Msg::Ensure(reply) => {
                self.waiting.push(reply);
                self.core.handle_request();
            }
            Msg::Ensured(result) => {
                match &result {
                    Ok(_) => {
                        self.failures.clear();
                    }
                    Err(error) if self.failures.is_new(chain(error)) => {
                        warn!(subsystem = "bridge", network = %self.args.id, error = chain(error), "network not ready")
                    }
                    Err(_) => {}
                }
                self.core.handle_ensured(now, result.is_ok());
                for reply in self.answering.drain(..) {
                    reply.send(result.clone());
                }
            }
            Msg::Removed(result) => {
                match &result {
                    Ok(Removal::Gone) => {
                        info!(subsystem = "bridge", network = %self.args.id, "network removed")
                    }
                    Ok(Removal::InUse) => {}
                    Err(error) if self.failures.is_new(error) => {
                        warn!(subsystem = "bridge", network = %self.args.id, %error, "removal failed")
                    }
                    Err(_) => {}
                }
                self.core.handle_removal(now, result.ok());
            }
            Msg::Row(present) => self.core.handle_row(now, present),
            Msg::Wake => self.core.handle_timeout(now),
        }
        self.drive(ctx);
        Ok(())
    }
}

impl BridgeActor {
    /// Runs the core's actions, then sets the deadline.
    fn drive(&mut self, ctx: &Context<Self>) {
        while let Some(action) = self.core.poll_action() {
            let Args { env, id, .. } = self.args.clone();
            match action {
                Action::Ensure => {
                    self.answering.append(&mut self.waiting);
                    ctx.spawn(async move { Msg::Ensured(ensure_with_block(env, id).await) });
                }
                Action::Remove => {
                    ctx.spawn(async move {
                        Msg::Removed(remove(&env.engine, &env.cluster_id, &id).await)
                    });
                }
                Action::Gone => {
                    // A restarting manager replaces every bridge anyway.
                    let _ = self.args.manager.cast(manager::Msg::Gone(id));
                }
            }
        }
        let deadline = self.core.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(deadline, Msg::Wake);
    }
}

/// Obtains the block of a network and ensures the network. A block that this host cannot use is
/// exchanged for another one.
async fn ensure_with_block(env: BridgeContext, id: NetworkId) -> Result<BridgeReady, Error> {
    let mut taken = None;
    for _ in 0..MAX_BLOCK_ATTEMPTS {
        let wanted = DesiredNetwork {
            id: id.clone(),
            cluster_id: env.cluster_id.clone(),
            cidr: block(&env, &id).await?,
        };
        match ensure(&env.engine, &wanted).await {
            Err(error @ Error::BlockInUse(cidr, _)) => {
                warn!(subsystem = "bridge", network = %id, %cidr, error = chain(&error), "block not usable on this host, requesting another");
                env.refused_blocks.add(cidr);
                taken = Some(error);
            }
            done => return done,
        }
    }
    Err(taken.unwrap_or(Error::Unavailable))
}

/// Returns this host's block of a network. The leader is called only if the state does not show a
/// usable block, so a node without contact to the leader still restarts its containers.
async fn block(env: &BridgeContext, id: &NetworkId) -> Result<Cidr, Error> {
    let (key, refused) = (env.subnet(id), env.refused_blocks.blocks());
    let usable = |cidr: &Cidr| !refused.iter().any(|refused| refused.overlaps(*cidr));
    if let Some(cidr) = existing(&env.raft.state(), &key).filter(usable) {
        return Ok(cidr);
    }
    let given = env.allocator.ensure(key, refused);
    given.await.map_err(Error::Subnet)
}
