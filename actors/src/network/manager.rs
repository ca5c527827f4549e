//! Keeps one bridge actor per network that has a block on this host.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jaco_engine::{EngineError, EngineNetwork};
use jaco_policy::network::names::NetworkId;
use jaco_state::State;
use jaco_supervision::{
    CallError, ChildDone, ChildEvent, ChildSpec, Context, Failure, Handle, KeyedChildren, Reply,
    Worker,
};
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
    /// Restart the bridge actor with this child id, if it is exhausted.
    RestartBridge(String),
    /// The state's address blocks may have changed.
    Changed(Arc<State>),
    /// A request about a bridge actor has ended, or the actor exhausted its restarts.
    BridgeDone(ChildDone),
    /// The engine has listed its networks.
    Listed(Result<Vec<EngineNetwork>, EngineError>),
}

/// Starts, looks up and stops the sibling bridge actors.
pub struct BridgeManager {
    env: BridgeContext,
    bridges: KeyedChildren<Self, Bridge>,
    list_errors: LogDedup,
}

struct Bridge {
    network: NetworkId,
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
        let mut bridges = KeyedChildren::new("bridge:", Msg::BridgeDone).report_exhausted();
        bridges.adopt(ctx, |_, _| None);
        let mut states = env.raft.follow();
        let last = states.borrow_and_update().clone();
        ctx.send_to_self(Msg::Changed(Arc::clone(&last)));
        let differs = |last: &Arc<State>, next: &Arc<State>| !last.subnets.ptr_eq(&next.subnets);
        ctx.watch_if(states, last, differs, Msg::Changed);
        let manager = Self {
            env,
            bridges,
            list_errors: LogDedup::default(),
        };
        manager.list(ctx, Duration::ZERO);
        Ok(manager)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Ensure(id, reply) => self.route(ctx, id, reply),
            Msg::Answered(id) => {
                if let Some(bridge) = self.bridges.get_mut(&child_id(&id)) {
                    bridge.pending_requests = bridge.pending_requests.saturating_sub(1);
                }
            }
            Msg::Gone(id) => self.stop_bridge(ctx, &id),
            Msg::RestartBridge(id) => {
                // The bridge may have been replaced since it was exhausted.
                let bridge = self.bridges.get_mut(&id);
                if let Some(bridge) = bridge.filter(|bridge| bridge.exhausted) {
                    bridge.exhausted = false;
                    self.bridges.restart(ctx, &id);
                }
            }
            Msg::Changed(state) => {
                for id in networks_of(&state, &self.env.host) {
                    self.start_bridge(ctx, &id);
                }
            }
            Msg::BridgeDone(done) => match self.bridges.handle_done(ctx, done) {
                Some(ChildEvent::Started(id)) => {
                    debug!(subsystem = "bridge", network = %id, "bridge actor started");
                }
                Some(ChildEvent::Stopped(id)) => {
                    debug!(subsystem = "bridge", network = %id, "bridge actor stopped");
                }
                Some(ChildEvent::Exhausted(id, _)) => {
                    if let Some(bridge) = self.bridges.get_mut(&id) {
                        warn!(subsystem = "bridge", network = %bridge.network, "bridge actor exhausted its restarts");
                        bridge.exhausted = true;
                    }
                    ctx.send_after(RETRY, Msg::RestartBridge(id));
                }
                Some(ChildEvent::NotStarted(_, error)) => return Err(error.into()),
                None => {}
            },
            Msg::Listed(Ok(networks)) => {
                self.list_errors.clear();
                for network in networks {
                    let ours = is_of_cluster(&network, &self.env.cluster_id);
                    if let (true, Some(id)) = (ours, owner(&network)) {
                        self.start_bridge(ctx, &id);
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

    /// Starts the bridge of `id` unless there is one.
    fn start_bridge(&mut self, ctx: &Context<Self>, id: &NetworkId) {
        let child = child_id(id);
        if self.bridges.get(&child).is_some() {
            return;
        }
        let args = bridge::Args {
            env: self.env.clone(),
            id: id.clone(),
            manager: ctx.handle(),
        };
        let (spec, handle) = ChildSpec::worker::<BridgeActor>(self.bridges.key(&child), args);
        let bridge = Bridge {
            network: id.clone(),
            handle,
            pending_requests: 0,
            exhausted: false,
        };
        self.bridges.start(ctx, &child, spec, bridge);
    }

    /// Forwards a request to its bridge, and the response to the caller.
    fn route(
        &mut self,
        ctx: &Context<Self>,
        id: NetworkId,
        reply: Reply<Result<BridgeReady, Error>>,
    ) {
        self.start_bridge(ctx, &id);
        let Some(bridge) = self.bridges.get_mut(&child_id(&id)) else {
            return;
        };
        if bridge.exhausted {
            return reply.send(Err(Error::Exhausted(RETRY)));
        }
        bridge.pending_requests += 1;
        let handle = bridge.handle.clone();
        ctx.spawn(async move {
            reply.send(call_with_retry(&handle, bridge::Msg::Ensure).await);
            Msg::Answered(id)
        });
    }

    /// Stops a bridge without a block or network, unless a request or block needs it again.
    fn stop_bridge(&mut self, ctx: &Context<Self>, id: &NetworkId) {
        let child = child_id(id);
        let requested = self
            .bridges
            .get(&child)
            .is_none_or(|bridge| bridge.pending_requests > 0);
        let state = self.env.raft.state();
        if !requested && !networks_of(&state, &self.env.host).contains(id) {
            self.bridges.stop(ctx, &child);
        }
    }
}

/// Id of a bridge among the children of the manager.
fn child_id(id: &NetworkId) -> String {
    format!("{}:{}", id.deployment(), id.network())
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
