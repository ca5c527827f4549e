//! Keeps one bridge actor per network that has a block on this host.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_engine::{EngineError, EngineNetwork};
use jaco_policy::network::names::NetworkId;
use jaco_state::State;
use jaco_supervision::{
    CallError, ChildSpec, Context, Failure, Handle, OnExhausted, Reply, StartChildError, Worker,
};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::bridge::{self, BridgeActor, BridgeContext, BridgeReady, Error, is_of_cluster, owner};
use crate::log_dedup::LogDedup;

/// Timeout of an ensure request: it may have to stop containers first, and wait for a request on
/// which the engine hangs.
const ENSURE_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest wait of a request for an actor to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before retrying a request that died with its instance.
const RETRY_AFTER_RESTART: Duration = Duration::from_millis(10);
/// Delay before listing again after a failed listing, and before restarting an exhausted bridge.
const RETRY: Duration = Duration::from_secs(30);

/// Handle through which the runtime requests networks.
#[derive(Clone, Debug)]
pub struct BridgeDirectory(Handle<Msg>);

impl BridgeDirectory {
    /// Creates the directory for the manager behind `manager`.
    #[must_use]
    pub fn new(manager: Handle<Msg>) -> Self {
        Self(manager)
    }

    /// Ensures this host's part of a network; idempotent.
    ///
    /// # Errors
    /// See [`Error`]; a retry continues where a failed attempt stopped.
    ///
    /// # Cancel safety
    /// The network is created even if the caller stops waiting.
    pub async fn ensure(&self, deployment: &str, network: &str) -> Result<BridgeReady, Error> {
        let id = NetworkId::new(deployment, network);
        call_with_retry(&self.0, |reply| Msg::Ensure(id.clone(), reply)).await
    }
}

/// Calls an actor, and its next instance if this one ends before it responds; safe to repeat
/// because ensuring is idempotent.
async fn call_with_retry<M>(
    handle: &Handle<M>,
    make: impl Fn(Reply<Result<BridgeReady, Error>>) -> M,
) -> Result<BridgeReady, Error> {
    loop {
        let up = tokio::time::timeout(START_TIMEOUT, handle.running()).await;
        up.map_err(|_| Error::Unavailable)?;
        match handle.call(ENSURE_TIMEOUT, &make).await {
            Ok(answer) => return answer,
            Err(CallError::Timeout) => return Err(Error::Unavailable),
            Err(CallError::Unavailable | CallError::NoReply) => {
                tokio::time::sleep(RETRY_AFTER_RESTART).await
            }
        }
    }
}

/// Mailbox of the manager.
pub enum Msg {
    /// Requests a network.
    Ensure(NetworkId, Reply<Result<BridgeReady, Error>>),
    /// A request was answered.
    Answered(NetworkId),
    /// A bridge's network is removed and has no block here any more.
    Gone(NetworkId),
    /// A bridge actor exhausted its restarts.
    Exhausted(NetworkId),
    /// Restart an exhausted bridge actor.
    RestartBridge(NetworkId),
    /// The state's address blocks may have changed.
    Changed(watch::Receiver<Arc<State>>),
    /// The engine has listed its networks.
    Listed(Result<Vec<EngineNetwork>, EngineError>),
}

/// Starts, looks up and stops the sibling bridge actors.
pub struct BridgeManager {
    env: BridgeContext,
    bridges: BTreeMap<NetworkId, Bridge>,
    list_errors: LogDedup,
}

struct Bridge {
    handle: Handle<bridge::Msg>,
    /// Number of unanswered requests.
    pending_requests: usize,
    /// Its actor has exhausted its restarts and is down.
    exhausted: bool,
}

impl Worker for BridgeManager {
    type Msg = Msg;
    type Args = BridgeContext;
    const KIND: &'static str = "BridgeManager";

    async fn start(ctx: &Context<Self>, env: BridgeContext) -> Result<Self, Failure> {
        // This instance has no handles of bridges that an earlier one started. Bridges hold no
        // state of their own, so they are replaced.
        for info in ctx.supervisor().describe() {
            let key = info
                .path
                .rsplit_once('/')
                .map_or(info.path.as_str(), |(_, key)| key);
            if info.kind == BridgeActor::KIND {
                // A child that the supervisor does not have counts as stopped.
                let _ = ctx.supervisor().stop_child(key).await;
            }
        }
        ctx.send_to_self(Msg::Changed(env.raft.follow()));
        let manager = Self {
            env,
            bridges: BTreeMap::new(),
            list_errors: LogDedup::default(),
        };
        manager.list(ctx, Duration::ZERO);
        Ok(manager)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Ensure(id, reply) => self.route(ctx, id, reply).await?,
            Msg::Answered(id) => {
                if let Some(bridge) = self.bridges.get_mut(&id) {
                    bridge.pending_requests = bridge.pending_requests.saturating_sub(1);
                }
            }
            Msg::Gone(id) => self.stop_bridge(ctx, id).await,
            Msg::Exhausted(id) => {
                warn!(subsystem = "bridge", network = %id, "bridge actor exhausted its restarts");
                if let Some(bridge) = self.bridges.get_mut(&id) {
                    bridge.exhausted = true;
                }
                ctx.send_after(RETRY, Msg::RestartBridge(id));
            }
            Msg::RestartBridge(id) => {
                if let Some(bridge) = self.bridges.get_mut(&id) {
                    bridge.exhausted = false;
                }
                // Fails if the bridge has been dismissed meanwhile.
                let _ = ctx.supervisor().restart_child(&key(&id)).await;
            }
            Msg::Changed(states) => self.follow(ctx, states).await?,
            Msg::Listed(Ok(networks)) => {
                self.list_errors.clear();
                for network in networks {
                    let ours = is_of_cluster(&network, &self.env.cluster_id);
                    if let (true, Some(id)) = (ours, owner(&network)) {
                        self.bridge(ctx, &id).await?;
                    }
                }
            }
            Msg::Listed(Err(error)) => {
                if self.list_errors.is_new(&error) {
                    warn!(subsystem = "bridge", %error, "cannot look for leftover networks");
                }
                self.list(ctx, RETRY);
            }
        }
        Ok(())
    }
}

impl BridgeManager {
    /// Lists the engine's networks, to find those whose deployment was removed while this node was
    /// down.
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

    /// Returns the bridge of `id`; starts it if it does not exist.
    async fn bridge(
        &mut self,
        ctx: &Context<Self>,
        id: &NetworkId,
    ) -> Result<&mut Bridge, Failure> {
        if !self.bridges.contains_key(id) {
            let handle = self.start_bridge(ctx, id).await?;
            let bridge = Bridge {
                handle,
                pending_requests: 0,
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
            // A restarting manager replaces every bridge.
            let _ = manager.cast(Msg::Exhausted(exhausted.clone()));
        }));
        ctx.supervisor().start_child(spec).await?;
        debug!(subsystem = "bridge", network = %id, "bridge actor started");
        Ok(handle)
    }

    /// Forwards a request to its bridge, and the response to the caller.
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
        bridge.pending_requests += 1;
        let handle = bridge.handle.clone();
        ctx.spawn(async move {
            reply.send(call_with_retry(&handle, bridge::Msg::Ensure).await);
            Msg::Answered(id)
        });
        Ok(())
    }

    /// Stops a bridge without a block or network, unless a request or block needs it again.
    async fn stop_bridge(&mut self, ctx: &Context<Self>, id: NetworkId) {
        let state = self.env.raft.state();
        let needed = networks_of(&state, &self.env.host).contains(&id)
            || self
                .bridges
                .get(&id)
                .is_none_or(|bridge| bridge.pending_requests > 0);
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
mod history;
#[cfg(test)]
mod tests;
