//! Keeps one bridge actor per network that has a block on this host, and compares all networks of
//! the host with the state.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::StreamExt;
use jaco_engine::NetworkEvent;
use jaco_policy::network::{
    bridge::{
        drift::{self, HostNetworks},
        members::members,
        plan::{DesiredNetwork, is_of_cluster, owner},
        survey::{Action, DEBOUNCE, SurveyTimer},
    },
    firewall::local::LocalNetworks,
    ipam::existing,
    names::NetworkId,
};
use jaco_proto::chain;
use jaco_state::State;
use jaco_supervision::{
    ChildDone, ChildEvent, ChildSpec, Context, Failure, Handle, KeyedChildren, Reply, Worker,
};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::bridge::{self, BridgeActor, BridgeContext, BridgeReady, Error};
use crate::log_dedup::LogDedup;
use directory::call_with_retry;

mod directory;

pub use directory::BridgeDirectory;

/// Delay before restarting an exhausted bridge.
const RETRY: Duration = Duration::from_secs(30);
/// Delay before subscribing again after the engine's events ended; it doubles up to
/// [`MAX_EVENT_RETRY`].
const EVENT_RETRY: Duration = Duration::from_secs(1);
/// Longest delay before subscribing again.
const MAX_EVENT_RETRY: Duration = Duration::from_secs(8);

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
    /// Subscribe to the engine's events.
    Subscribe,
    /// A network was removed or lost a container.
    NetworkChanged,
    /// An interface of the host changed.
    InterfacesChanged,
    /// Whether a bridge is gone after such a change.
    BridgeLost(bool),
    /// The engine's events ended.
    EventsEnded(String),
    /// The networks of the host were read, beginning at this time.
    Surveyed(Instant, Result<HostNetworks, Error>),
    /// The survey's deadline passed.
    Wake,
}

/// Starts, looks up and stops the sibling bridge actors.
pub struct BridgeManager {
    env: BridgeContext,
    bridges: KeyedChildren<Self, Bridge>,
    survey: SurveyTimer,
    survey_errors: LogDedup,
    event_retry: Duration,
    event_errors: LogDedup,
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
        let mut manager = Self {
            env,
            bridges,
            survey: SurveyTimer::new(Instant::now().into_std()),
            survey_errors: LogDedup::default(),
            event_retry: EVENT_RETRY,
            event_errors: LogDedup::default(),
        };
        manager.subscribe(ctx);
        let interfaces = manager.env.interfaces.changes();
        ctx.watch_every(DEBOUNCE, interfaces, |_| Msg::InterfacesChanged);
        manager.drive(ctx);
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
            Msg::Subscribe => self.subscribe(ctx),
            Msg::NetworkChanged => self.survey.handle_change(Instant::now().into_std()),
            Msg::InterfacesChanged => self.interfaces_changed(ctx),
            Msg::BridgeLost(true) => self.survey.handle_change(Instant::now().into_std()),
            Msg::BridgeLost(false) => {}
            Msg::EventsEnded(reason) => {
                if self.event_errors.is_new(&reason) {
                    warn!(subsystem = "bridge", %reason, "network events of the engine lost");
                }
                ctx.send_after(self.event_retry, Msg::Subscribe);
                self.event_retry = (self.event_retry * 2).min(MAX_EVENT_RETRY);
            }
            Msg::Surveyed(begun, seen) => {
                self.survey.handle_finished(Instant::now().into_std());
                self.surveyed(ctx, begun, seen);
            }
            Msg::Wake => {}
        }
        self.drive(ctx);
        Ok(())
    }
}

impl BridgeManager {
    /// Follows the engine's events about networks. The state of the engine at that time is unknown,
    /// so it is surveyed.
    fn subscribe(&mut self, ctx: &Context<Self>) {
        self.survey.handle_change(Instant::now().into_std());
        let mut events = self.env.engine.network_events();
        let me = ctx.handle();
        ctx.spawn(async move {
            loop {
                match events.next().await {
                    Some(Ok(event)) if is_ours(&event) => {
                        let _ = me.cast(Msg::NetworkChanged); // a new instance surveys at its start
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Msg::EventsEnded(error.to_string()),
                    None => return Msg::EventsEnded("the stream ended".to_owned()),
                }
            }
        });
    }

    /// Looks whether a bridge is gone, which causes a survey. The kernel announces every container,
    /// too.
    fn interfaces_changed(&self, ctx: &Context<Self>) {
        let env = self.env.clone();
        ctx.spawn(async move {
            let interfaces = env.interfaces().await;
            Msg::BridgeLost(interfaces.is_ok_and(|found| env.sight.has_lost(&found)))
        });
    }

    /// Begins a survey if one is due, then sets the deadline of the next.
    fn drive(&mut self, ctx: &Context<Self>) {
        self.survey.handle_timeout(Instant::now().into_std());
        while let Some(Action::Survey) = self.survey.poll_action() {
            let env = self.env.clone();
            let begun = Instant::now();
            ctx.spawn(async move { Msg::Surveyed(begun, survey(&env).await) });
        }
        let deadline = self.survey.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(deadline, Msg::Wake);
    }

    /// Compares the host's networks with the state. Starts the bridges of networks whose deployment
    /// was removed while this node was down, and notifies those whose network differs.
    fn surveyed(&mut self, ctx: &Context<Self>, begun: Instant, seen: Result<HostNetworks, Error>) {
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) => {
                if self.survey_errors.is_new(chain(&error)) {
                    warn!(
                        subsystem = "bridge",
                        error = chain(&error),
                        "networks of this host not read"
                    );
                }
                return;
            }
        };
        self.survey_errors.clear();
        self.event_retry = EVENT_RETRY;
        let (begun, cluster_id) = (begun.into_std(), &self.env.cluster_id);
        let local = LocalNetworks::of_engine(begun, &seen.networks, cluster_id);
        self.env.local.send_replace(Some(Arc::new(local)));
        for network in &seen.networks {
            let ours = is_of_cluster(network, &self.env.cluster_id);
            if let (true, Some(id)) = (ours, owner(network)) {
                self.start_bridge(ctx, &id);
            }
        }
        self.env
            .sight
            .handle_listing(&seen.networks, &seen.interfaces);
        let state = self.env.raft.state();
        let documents = &self.env.documents;
        documents.retain(|name| state.deployments.contains_key(name));
        let mut members = members(&state, documents, &self.env.host);
        for id in networks_of(&state, &self.env.host) {
            let Some(cidr) = existing(&state, &self.env.subnet(&id)) else {
                continue;
            };
            let members = members.remove(&id).unwrap_or_default();
            let known = &self.env.addresses;
            known.handle_listing(&id, &members, &seen.containers);
            let wanted = DesiredNetwork {
                id,
                cluster_id: self.env.cluster_id.clone(),
                cidr,
            };
            let drift = drift::compare(&wanted, &members, &seen, &self.env.sight);
            if let (false, Some(bridge)) =
                (drift.is_empty(), self.bridges.get(&child_id(&wanted.id)))
            {
                // A restarting bridge repairs its network anyway.
                let _ = bridge.handle.cast(bridge::Msg::Drifted);
            }
        }
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

/// Whether an event concerns a network with a name of ours; others with such a name do no harm.
fn is_ours(event: &NetworkEvent) -> bool {
    match event {
        NetworkEvent::Destroyed(name) | NetworkEvent::Disconnected(name) => {
            name.starts_with("jaco_")
        }
    }
}

/// Reads the networks of this host once for all of its bridges.
async fn survey(env: &BridgeContext) -> Result<HostNetworks, Error> {
    let networks = env.engine.list().await.map_err(Error::Engine)?;
    let containers = env.engine.containers(&env.cluster_id).await;
    Ok(HostNetworks {
        networks,
        containers: containers.map_err(Error::Engine)?,
        interfaces: env.interfaces().await?,
    })
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
mod repairs;
#[cfg(test)]
mod tests;
