//! Driver of one bridge.

use std::sync::Arc;

use jaco_engine::{EngineError, cidr::Cidr};
use jaco_policy::network::{
    bridge::{
        Removal,
        core::{Core, Effect},
        refused_blocks::RefusedBlocks,
    },
    ipam::{SubnetKey, existing},
    names::NetworkId,
};
use jaco_proto::chain;
use jaco_raftnode::{Propose, State};
use jaco_supervision::{Context, Failure, Handle, Reply, TaskHandle, Worker};
use tokio::{sync::watch, time::Instant};
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
    pub raft: Arc<dyn Propose>,
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
    Row(bool, watch::Receiver<Arc<State>>),
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
    timer: Option<TaskHandle>,
    failures: LogDedup,
}

impl Worker for BridgeActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "BridgeActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let mut states = args.env.raft.follow();
        let key = args.env.subnet(&args.id);
        let has_row = existing(&states.borrow_and_update(), &key).is_some();
        let mut bridge = Self {
            core: Core::new(has_row, Instant::now().into_std()),
            args,
            waiting: Vec::new(),
            answering: Vec::new(),
            timer: None,
            failures: LogDedup::default(),
        };
        bridge.follow(ctx, has_row, states);
        bridge.drain(ctx);
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
                self.core.handle_ensured(result.is_ok(), now);
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
                self.core.handle_removal(result.ok(), now);
            }
            Msg::Row(present, states) => {
                self.core.handle_row(present, now);
                self.follow(ctx, present, states);
            }
            Msg::Wake => {}
        }
        self.drain(ctx);
        Ok(())
    }
}

impl BridgeActor {
    /// Waits for this host's block to appear in the state or to disappear.
    fn follow(&self, ctx: &Context<Self>, was: bool, mut states: watch::Receiver<Arc<State>>) {
        let key = self.args.env.subnet(&self.args.id);
        ctx.spawn(async move {
            let changed = |state: &Arc<State>| existing(state, &key).is_some() != was;
            if states.wait_for(changed).await.is_err() {
                std::future::pending::<()>().await; // the node is going down
            }
            Msg::Row(!was, states)
        });
    }

    /// Runs the core's effects, then re-arms the timer.
    fn drain(&mut self, ctx: &Context<Self>) {
        while let Some(effect) = self.core.poll_effect(Instant::now().into_std()) {
            let Args { env, id, .. } = self.args.clone();
            match effect {
                Effect::Ensure => {
                    self.answering.append(&mut self.waiting);
                    ctx.spawn(async move { Msg::Ensured(ensure_with_block(env, id).await) });
                }
                Effect::Remove => {
                    ctx.spawn(async move {
                        Msg::Removed(remove(&env.engine, &env.cluster_id, &id).await)
                    });
                }
                Effect::Gone => {
                    // A restarting manager replaces every bridge anyway.
                    let _ = self.args.manager.cast(manager::Msg::Gone(id));
                }
            }
        }
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
        self.timer = self.core.poll_timeout().map(|at| {
            ctx.spawn(async move {
                tokio::time::sleep_until(Instant::from_std(at)).await;
                Msg::Wake
            })
        });
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
