//! Keeps one bridge actor per network that this host has a part of.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_raftnode::State;
use jaco_supervision::{
    CallError, ChildSpec, Context, Failure, Handle, OnExhausted, Reply, StartChildError, Worker,
};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{
    bridge::{self, BridgeActor, BridgeReady, Env, Error, is_of_cluster, owner},
    engine::{EngineError, EngineNetwork},
    names::NetworkId,
};
use crate::repeat::Repeats;

/// Longer than an ensure that has to stop containers first, behind one that an engine hangs on.
const ENSURE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a request waits for an actor that is not up.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time until the next instance is asked what the last one took to its grave.
const AGAIN: Duration = Duration::from_millis(10);
/// Time until an engine that did not answer is asked again, and an exhausted bridge is revived.
const RETRY: Duration = Duration::from_secs(30);

/// Where the runtime asks for networks.
#[derive(Clone, Debug)]
pub struct BridgeDirectory(Handle<Msg>);

impl BridgeDirectory {
    /// The directory kept by the manager behind `manager`.
    #[must_use]
    pub fn new(manager: Handle<Msg>) -> Self {
        Self(manager)
    }

    /// Makes this host's part of a network ready for containers; idempotent.
    ///
    /// # Errors
    /// See [`Error`]; nothing is half-made that asking again would not complete.
    ///
    /// # Cancel safety
    /// The network is made whether or not the caller waits.
    pub async fn ensure(&self, deployment: &str, network: &str) -> Result<BridgeReady, Error> {
        let id = NetworkId::new(deployment, network);
        ask(&self.0, |reply| Msg::Ensure(id.clone(), reply)).await
    }
}

/// Asks an actor, and its next instance if this one ends before it answers: to ensure twice is
/// to ensure once.
async fn ask<M>(
    handle: &Handle<M>,
    make: impl Fn(Reply<Result<BridgeReady, Error>>) -> M,
) -> Result<BridgeReady, Error> {
    loop {
        let up = tokio::time::timeout(START_TIMEOUT, handle.running()).await;
        up.map_err(|_| Error::Unavailable)?;
        match handle.call(ENSURE_TIMEOUT, &make).await {
            Ok(answer) => return answer,
            Err(CallError::Timeout) => return Err(Error::Unavailable),
            Err(CallError::Unavailable | CallError::NoReply) => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Mailbox of the manager.
pub enum Msg {
    /// Somebody wants to use a network.
    Ensure(NetworkId, Reply<Result<BridgeReady, Error>>),
    /// A request got its answer.
    Answered(NetworkId),
    /// A bridge has nothing left to look after.
    Gone(NetworkId),
    /// A bridge actor failed too often and stays down for now.
    Exhausted(NetworkId),
    /// Time to give an exhausted bridge actor another chance.
    Revive(NetworkId),
    /// Blocks of this host changed.
    Changed(watch::Receiver<Arc<State>>),
    /// The engine listed its networks.
    Listed(Result<Vec<EngineNetwork>, EngineError>),
}

/// Starts, finds and stops the bridge actors beside it.
pub struct BridgeManager {
    env: Env,
    bridges: BTreeMap<NetworkId, Bridge>,
    unlisted: Repeats,
}

struct Bridge {
    handle: Handle<bridge::Msg>,
    /// Requests without an answer.
    open: usize,
    /// Its actor failed too often and is down.
    exhausted: bool,
}

impl Worker for BridgeManager {
    type Msg = Msg;
    type Args = Env;
    const KIND: &'static str = "BridgeManager";

    async fn start(ctx: &Context<Self>, env: Env) -> Result<Self, Failure> {
        // Bridges of an earlier instance cannot be reached by this one. They hold no truth, so
        // they are replaced.
        for info in ctx.supervisor().describe() {
            let key = info
                .path
                .rsplit_once('/')
                .map_or(info.path.as_str(), |(_, key)| key);
            if info.kind == BridgeActor::KIND {
                // Unknown by now is as good as stopped.
                let _ = ctx.supervisor().stop_child(key).await;
            }
        }
        ctx.send_to_self(Msg::Changed(env.raft.follow()));
        let manager = Self {
            env,
            bridges: BTreeMap::new(),
            unlisted: Repeats::default(),
        };
        manager.list(ctx, Duration::ZERO);
        Ok(manager)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Ensure(id, reply) => self.route(ctx, id, reply).await?,
            Msg::Answered(id) => {
                if let Some(bridge) = self.bridges.get_mut(&id) {
                    bridge.open = bridge.open.saturating_sub(1);
                }
            }
            Msg::Gone(id) => self.dismiss(ctx, id).await,
            Msg::Exhausted(id) => {
                warn!(subsystem = "bridge", network = %id, "bridge actor gave up");
                if let Some(bridge) = self.bridges.get_mut(&id) {
                    bridge.exhausted = true;
                }
                ctx.send_after(RETRY, Msg::Revive(id));
            }
            Msg::Revive(id) => {
                if let Some(bridge) = self.bridges.get_mut(&id) {
                    bridge.exhausted = false;
                }
                // Unknown by now: it was dismissed.
                let _ = ctx.supervisor().revive_child(&key(&id)).await;
            }
            Msg::Changed(states) => self.follow(ctx, states).await?,
            Msg::Listed(Ok(networks)) => {
                self.unlisted.clear();
                for network in networks {
                    let ours = is_of_cluster(&network, &self.env.cluster_id);
                    if let (true, Some(id)) = (ours, owner(&network)) {
                        self.bridge(ctx, &id).await?;
                    }
                }
            }
            Msg::Listed(Err(error)) => {
                if self.unlisted.is_news(&error) {
                    warn!(subsystem = "bridge", %error, "cannot look for leftover networks");
                }
                self.list(ctx, RETRY);
            }
        }
        Ok(())
    }
}

impl BridgeManager {
    /// Asks the engine for networks a deployment may have left while this node was down.
    fn list(&self, ctx: &Context<Self>, delay: Duration) {
        let engine = Arc::clone(&self.env.engine);
        ctx.spawn(async move {
            tokio::time::sleep(delay).await;
            Msg::Listed(engine.list().await)
        });
    }

    async fn follow(
        &mut self,
        ctx: &Context<Self>,
        mut states: watch::Receiver<Arc<State>>,
    ) -> Result<(), Failure> {
        let last = states.borrow_and_update().clone();
        for id in networks_of(&last, &self.env.host) {
            self.bridge(ctx, &id).await?;
        }
        ctx.spawn(async move {
            let changed = |state: &Arc<State>| !state.subnets.ptr_eq(&last.subnets);
            if states.wait_for(changed).await.is_err() {
                std::future::pending::<()>().await; // the node is going down
            }
            Msg::Changed(states)
        });
        Ok(())
    }

    /// The bridge of `id`, started if it is not there.
    async fn bridge(
        &mut self,
        ctx: &Context<Self>,
        id: &NetworkId,
    ) -> Result<&mut Bridge, Failure> {
        if !self.bridges.contains_key(id) {
            let handle = self.start_bridge(ctx, id).await?;
            let bridge = Bridge {
                handle,
                open: 0,
                exhausted: false,
            };
            self.bridges.insert(id.clone(), bridge);
        }
        self.bridges
            .get_mut(id)
            .ok_or_else(|| Failure::from("bridge vanished"))
    }

    async fn start_bridge(
        &self,
        ctx: &Context<Self>,
        id: &NetworkId,
    ) -> Result<Handle<bridge::Msg>, StartChildError> {
        let args = bridge::Args {
            env: self.env.clone(),
            id: id.clone(),
            manager: ctx.handle(),
        };
        let (spec, handle) = ChildSpec::worker::<BridgeActor>(key(id), args);
        let (manager, exhausted) = (ctx.handle(), id.clone());
        let spec = spec.on_exhausted(OnExhausted::notify(move |_| {
            // A manager that is restarting starts every bridge anew.
            let _ = manager.cast(Msg::Exhausted(exhausted.clone()));
        }));
        ctx.supervisor().start_child(spec).await?;
        debug!(subsystem = "bridge", network = %id, "bridge actor started");
        Ok(handle)
    }

    /// Hands a request to its bridge, and the answer back.
    async fn route(
        &mut self,
        ctx: &Context<Self>,
        id: NetworkId,
        reply: Reply<Result<BridgeReady, Error>>,
    ) -> Result<(), Failure> {
        let bridge = self.bridge(ctx, &id).await?;
        if bridge.exhausted {
            reply.send(Err(Error::Exhausted(RETRY)));
            return Ok(());
        }
        bridge.open += 1;
        let handle = bridge.handle.clone();
        ctx.spawn(async move {
            reply.send(ask(&handle, bridge::Msg::Ensure).await);
            Msg::Answered(id)
        });
        Ok(())
    }

    /// Stops a bridge that has nothing to look after, unless it is about to.
    async fn dismiss(&mut self, ctx: &Context<Self>, id: NetworkId) {
        let state = self.env.raft.state();
        let needed = networks_of(&state, &self.env.host).contains(&id)
            || self.bridges.get(&id).is_none_or(|bridge| bridge.open > 0);
        if needed {
            return;
        }
        self.bridges.remove(&id);
        let _ = ctx.supervisor().stop_child(&key(&id)).await;
        debug!(subsystem = "bridge", network = %id, "bridge actor stopped");
    }
}

fn key(id: &NetworkId) -> String {
    format!("bridge:{}:{}", id.deployment(), id.network())
}

fn networks_of(state: &State, host: &str) -> BTreeSet<NetworkId> {
    let rows = state
        .subnets
        .keys()
        .filter(|(_, _, row_host)| row_host == host);
    rows.map(|(deployment, network, _)| NetworkId::new(deployment, network))
        .collect()
}

#[cfg(test)]
mod storm;
#[cfg(test)]
mod tests;
