//! Driver of one bridge.

use std::sync::Arc;

use jaco_engine::{EngineError, cidr::Cidr};
use jaco_policy::network::{
    bridge::{
        Removal,
        addresses::KnownAddresses,
        core::{Action, Core},
        drift::{Drift, audit_event, summary},
        members::needs_block,
        refused_blocks::RefusedBlocks,
        sight::BridgeSight,
    },
    firewall::local::LocalNetworks,
    ipam::{SubnetKey, existing},
    names::NetworkId,
};
use jaco_policy::runtime::documents::Documents;
use jaco_policy::{COMMIT_BUDGET, node::writers::BRIDGE};
use jaco_proto::{
    chain,
    config::advertise::Interface,
    v1::{self, command::Payload},
};
use jaco_raftnode::{ForwardingProposer, State, StateReader, command};
use jaco_supervision::{Context, Failure, Handle, Reply, Worker};
use tokio::{sync::watch, time::Instant};
use tracing::{debug, info, warn};

use super::{BridgeReady, DesiredNetwork, Error, ensure, remove, repair::repair};
use crate::{
    clock::Clock,
    log_dedup::LogDedup,
    network::{
        SharedEngine, gate::SharedGate, interfaces::SharedInterfaces, ipam::SharedAllocator,
        manager, responders::Responders,
    },
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
    /// Submits audit events to the leader.
    pub cluster: Arc<dyn ForwardingProposer>,
    /// Source of the events' timestamps.
    pub clock: Clock,
    /// Container engine that holds the networks.
    pub engine: SharedEngine,
    /// Allocates address blocks.
    pub allocator: SharedAllocator,
    /// Blocks that this host cannot use.
    pub refused_blocks: RefusedBlocks,
    /// Lists the host's interfaces.
    pub interfaces: SharedInterfaces,
    /// Bridges that this process can see.
    pub sight: BridgeSight,
    /// Receives JACO's networks in the engine whenever they are listed.
    pub local: watch::Sender<Option<Arc<LocalNetworks>>>,
    /// Addresses that containers had.
    pub addresses: KnownAddresses,
    /// Isolates address blocks; no network is ready before.
    pub gate: SharedGate,
    /// DNS responders of the networks.
    pub responders: Arc<dyn Responders>,
    /// Parsed compose documents, which name the networks of a service.
    pub documents: Arc<Documents>,
    /// Number of repairs that attached containers again, whose addresses may have changed.
    pub repairs: watch::Sender<u64>,
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

    /// This host's block of a network in the state.
    pub(super) fn block_of(&self, id: &NetworkId) -> Option<Cidr> {
        existing(&self.raft.state(), &self.subnet(id))
    }

    /// Submits an audit event; best effort.
    fn audit(&self, event: v1::AuditEvent) {
        let append = v1::AuditAppend { event: Some(event) };
        let payload = Payload::AuditAppend(append);
        let command = command(BRIDGE, self.clock.timestamp(), payload);
        let cluster = Arc::clone(&self.cluster);
        // The event is about the past: it is submitted even if the bridge ends.
        tokio::spawn(async move {
            let submitted = tokio::time::timeout(COMMIT_BUDGET, cluster.submit(command)).await;
            if !matches!(submitted, Ok(Ok(_))) {
                debug!(subsystem = "bridge", "audit event of a repair not written");
            }
        });
    }

    pub(in crate::network) async fn interfaces(&self) -> Result<Vec<Interface>, Error> {
        let listed = self.interfaces.list().await;
        listed.map_err(|error| Error::Interfaces(error.to_string()))
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
    /// The network differs from the state.
    Drifted,
    /// Differences that a repair removed, and its outcome.
    Repaired(Vec<Drift>, Result<(), Error>),
    /// Outcome of a removal.
    Removed(Result<Removal, EngineError>),
    /// This host's block appeared in the state, changed or disappeared from it.
    Row(Option<Cidr>),
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
        let row = existing(&last, &key);
        if let Some(cidr) = row {
            // The bridge may exist although the engine does not answer.
            args.env.responders.ensure(&args.id, cidr);
        }
        let mut bridge = Self {
            core: Core::new(Instant::now().into_std(), row.is_some()),
            args,
            waiting: Vec::new(),
            answering: Vec::new(),
            failures: LogDedup::default(),
        };
        let row_key = key.clone();
        let differs = move |last: &Arc<State>, next: &Arc<State>| {
            existing(last, &row_key) != existing(next, &row_key)
        };
        ctx.watch_if(states, last, differs, move |state| {
            Msg::Row(existing(&state, &key))
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
            Msg::Ensured(result) => self.ensured(now, &result),
            Msg::Drifted => self.core.handle_drift(),
            Msg::Repaired(repaired, result) => self.repaired(now, &repaired, result),
            Msg::Removed(result) => self.removed(now, result),
            Msg::Row(row) => self.core.handle_row(now, row.is_some()),
            Msg::Wake => self.core.handle_timeout(now),
        }
        self.drive(ctx);
        Ok(())
    }
}

impl BridgeActor {
    fn ensured(&mut self, now: std::time::Instant, result: &Result<BridgeReady, Error>) {
        self.log_failure(result.as_ref().err(), "network not ready");
        // The network exists, although no container may start on it yet.
        let exists = matches!(result, Ok(_) | Err(Error::NotEnforced(_)));
        self.core.handle_ensured(now, exists);
        for reply in self.answering.drain(..) {
            reply.send(result.clone());
        }
    }

    fn repaired(&mut self, now: std::time::Instant, repaired: &[Drift], result: Result<(), Error>) {
        if !repaired.is_empty() {
            let Args { env, id, .. } = &self.args;
            info!(subsystem = "bridge", network = %id, repaired = summary(repaired), "network repaired");
            env.repairs.send_modify(|repairs| *repairs += 1);
            if let Some(event) = audit_event(&env.host, id, repaired) {
                env.audit(event);
            }
        }
        self.log_failure(result.as_ref().err(), "network not repaired");
        self.core.handle_repaired(now, result.is_ok());
    }

    fn removed(&mut self, now: std::time::Instant, result: Result<Removal, EngineError>) {
        let Args { env, id, .. } = &self.args;
        match &result {
            Ok(Removal::Gone) => {
                env.responders.remove(id);
                info!(subsystem = "bridge", network = %id, "network removed");
            }
            Ok(Removal::InUse) => {}
            Err(error) if self.failures.is_new(error) => {
                warn!(subsystem = "bridge", network = %id, %error, "removal failed");
            }
            Err(_) => {}
        }
        let state = env.raft.state();
        let needs_block = needs_block(&state, &env.documents, &env.host, id);
        self.core.handle_removal(now, result.ok(), needs_block);
    }

    fn log_failure(&mut self, error: Option<&Error>, what: &str) {
        match error {
            None => {
                self.failures.clear();
            }
            Some(error) if self.failures.is_new(chain(error)) => {
                warn!(subsystem = "bridge", network = %self.args.id, error = chain(error), "{what}");
            }
            Some(_) => {}
        }
    }

    /// Runs the core's actions, then sets the deadline.
    fn drive(&mut self, ctx: &Context<Self>) {
        while let Some(action) = self.core.poll_action() {
            let Args { env, id, .. } = self.args.clone();
            match action {
                Action::Ensure => {
                    self.answering.append(&mut self.waiting);
                    ctx.spawn(async move { Msg::Ensured(ensure_with_block(env, id).await) });
                }
                Action::Repair => {
                    ctx.spawn(async move {
                        let mut repaired = Vec::new();
                        let result = repair(&env, &id, &mut repaired).await;
                        if let (Ok(()), Some(cidr)) = (&result, env.block_of(&id)) {
                            env.responders.ensure(&id, cidr);
                        }
                        Msg::Repaired(repaired, result)
                    });
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
        match ensure(&env.engine, &*env.interfaces, &wanted).await {
            Ok(ready) => return open(&env, &id, ready).await,
            Err(error) => match error.unusable_block() {
                Some(cidr) => {
                    warn!(subsystem = "bridge", network = %id, %cidr, error = chain(&error), "block not usable on this host, requesting another");
                    env.refused_blocks.add(cidr);
                    taken = Some(error);
                }
                None => return Err(error),
            },
        }
    }
    Err(taken.unwrap_or(Error::Unavailable))
}

/// Starts the responder of an existing network, and waits until its block is isolated.
async fn open(
    env: &BridgeContext,
    id: &NetworkId,
    ready: BridgeReady,
) -> Result<BridgeReady, Error> {
    env.responders.ensure(id, ready.cidr);
    let enforced = env.gate.wait_enforced(id, ready.cidr).await;
    enforced.map_err(Error::NotEnforced)?;
    Ok(ready)
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
