//! Runs one peer actor per member of the replicated state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_net::quic::Reason;
use jaco_raftnode::{Propose as _, State};
use jaco_supervision::{ChildSpec, Context, Failure, Worker};

use super::{
    HeartbeatHandler, Services,
    actor::{self, PeerActor},
    directory::PeerInfo,
    routes::{PeerTransport, Route},
};
use crate::telemetry::Metrics;

/// Delay before a failed child start or a failed read index is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Arguments of a [`PeerManager`].
#[derive(Clone)]
pub struct Args {
    pub(super) network: Arc<PeerTransport>,
    pub(super) services: Services,
    pub(super) heartbeat: Arc<dyn HeartbeatHandler>,
    pub(super) metrics: Metrics,
}

/// Messages of a [`PeerManager`].
#[derive(Debug)]
pub enum Msg {
    /// The replicated state changed.
    StateChanged(Arc<State>),
    /// A member reported a membership view that is newer than the state here.
    Reported,
    /// Result of a read index that began after the report with this number.
    Confirmed(u64, bool),
    /// The actor of this member was started (`true`), or its start failed.
    Started(String, bool),
    /// The actor of this member has stopped.
    Stopped(String),
}

/// Keeps routes and peer actors in line with the member directory.
pub struct PeerManager {
    args: Args,
    routes: BTreeMap<String, Arc<Route>>,
    /// Actors being stopped; their child keys stay in use until then.
    stopping: BTreeSet<String>,
    seen: Option<Arc<State>>,
    /// Whether a read index that will outdate the stored reports is in flight.
    confirming: bool,
}

impl Worker for PeerManager {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "PeerManager";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let mut state = args.network.raft().follow();
        let mut this = Self {
            args,
            routes: BTreeMap::new(),
            stopping: BTreeSet::new(),
            seen: None,
            confirming: false,
        };
        this.recall(ctx);
        ctx.watch(this.args.network.reports.subscribe(), |_| Msg::Reported);
        let now = state.borrow_and_update().clone();
        this.sync(ctx, now);
        this.confirm(ctx);
        ctx.watch(state, Msg::StateChanged);
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::StateChanged(now) => {
                let same = |seen: &Arc<State>| seen.nodes.ptr_eq(&now.nodes);
                if !self.seen.as_ref().is_some_and(same) {
                    self.sync(ctx, now);
                }
            }
            Msg::Reported => {
                self.sync(ctx, self.args.network.raft().state());
                self.confirm(ctx);
            }
            Msg::Confirmed(serial, confirmed) => {
                self.confirming = false;
                if confirmed {
                    self.args.network.directory.discard_reports(serial);
                    self.sync(ctx, self.args.network.raft().state());
                }
                self.confirm(ctx);
            }
            Msg::Started(_, true) => {}
            Msg::Started(host, false) => {
                self.routes.remove(&host);
                self.stop_child(ctx, host);
            }
            Msg::Stopped(host) => {
                self.stopping.remove(&host);
                self.sync(ctx, self.args.network.raft().state());
            }
        }
        Ok(())
    }
}

impl PeerManager {
    /// Takes over the children of the previous instance of this actor: a running child with a route
    /// is kept, any other is stopped.
    fn recall(&mut self, ctx: &Context<Self>) {
        let family = ctx.path().rsplit_once('/').map_or("", |(family, _)| family);
        let prefix = format!("{family}/{}", key(""));
        let left = self.args.network.routes();
        for info in ctx.supervisor().describe() {
            let Some(host) = info.path.strip_prefix(&prefix) else {
                continue;
            };
            match left.by_host.get(host) {
                Some(route) if info.state != jaco_supervision::ActorState::Stopped => {
                    self.routes.insert(host.to_owned(), route.clone());
                }
                _ => self.stop_child(ctx, host.to_owned()),
            }
        }
    }

    /// Starts a read index that confirms that this node has applied every entry committed when the
    /// newest report arrived; reports are in use until then.
    fn confirm(&mut self, ctx: &Context<Self>) {
        let network = &self.args.network;
        let Some(serial) = network.directory.last_report().filter(|_| !self.confirming) else {
            return;
        };
        self.confirming = true;
        let raft = network.raft().clone();
        ctx.spawn(async move {
            let confirmed = raft.read_index().await.is_ok();
            if !confirmed {
                tokio::time::sleep(RETRY).await;
            }
            Msg::Confirmed(serial, confirmed)
        });
    }

    /// Updates routes and actors to the member directory, which reflects `state` or a later state.
    fn sync(&mut self, ctx: &Context<Self>, state: Arc<State>) {
        let network = self.args.network.clone();
        let members = network.directory.members();
        self.seen = Some(state);
        let mut wanted: BTreeMap<String, PeerInfo> = members
            .into_iter()
            .map(|record| (record.key(), record))
            .collect();
        let ids: BTreeSet<u64> = wanted.values().map(|r| r.member.raft_id).collect();
        let mut gone = Vec::new();
        self.routes.retain(|host, route| {
            let now = route.record();
            match wanted.get(host) {
                // The same hostname with a new raft id is a new member.
                Some(record) if record.member.raft_id == now.member.raft_id => {
                    if *record != *now {
                        route.update(record.clone());
                        if let Some(actor) = route.actor.get() {
                            let _ = actor.cast(actor::Msg::Moved); // a new instance reads the route
                        }
                    }
                    true
                }
                _ => {
                    // A namesake that took over its plain hostname has a new key, but is still a
                    // member.
                    route.close(if ids.contains(&now.member.raft_id) {
                        Reason::Leaving
                    } else {
                        Reason::NotMember
                    });
                    gone.push(host.clone());
                    false
                }
            }
        });
        for host in gone {
            tracing::info!(subsystem = "peer", peer = %host, "not a member any more");
            self.stop_child(ctx, host);
        }
        wanted.retain(|host, _| !self.routes.contains_key(host) && !self.stopping.contains(host));
        for (host, record) in wanted {
            self.start_child(ctx, host, record);
        }
        network.set_routes(self.routes.clone());
    }

    fn start_child(&mut self, ctx: &Context<Self>, host: String, record: PeerInfo) {
        let Args {
            network,
            services,
            heartbeat,
            metrics,
        } = self.args.clone();
        let route = Arc::new(Route::new(record));
        let args = actor::Args {
            network,
            route: route.clone(),
            services,
            heartbeat,
            metrics,
        };
        let (spec, handle) = ChildSpec::worker::<PeerActor>(key(&host), args);
        let _ = route.actor.set(handle); // a new route, so never set before
        self.routes.insert(host.clone(), route);
        let supervisor = ctx.supervisor();
        ctx.spawn(async move {
            let started = supervisor.start_child(spec).await;
            if let Err(error) = &started {
                tracing::warn!(subsystem = "peer", peer = %host, %error, "peer actor not started");
                tokio::time::sleep(RETRY).await;
            }
            Msg::Started(host, started.is_ok())
        });
    }

    fn stop_child(&mut self, ctx: &Context<Self>, host: String) {
        self.stopping.insert(host.clone());
        let supervisor = ctx.supervisor();
        ctx.spawn(async move {
            // An unknown child counts as stopped.
            let _ = supervisor.stop_child(&key(&host)).await;
            Msg::Stopped(host)
        });
    }
}

fn key(host: &str) -> String {
    format!("peer:{host}")
}
