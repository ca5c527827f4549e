//! Runs one peer actor per member of the replicated state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_net::quic::Reason;
use jaco_policy::peer::members::PeerInfo;
use jaco_raftnode::{State, StateReader as _};
use jaco_supervision::{ChildDone, ChildEvent, ChildSpec, Context, Failure, KeyedChildren, Worker};

use super::{
    HeartbeatHandler, Services,
    actor::{self, PeerActor},
    routes::{PeerTransport, Route},
};
use crate::telemetry::Metrics;

/// Delay before a failed child start or a failed read index is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Arguments of a [`PeerManager`].
#[derive(Clone)]
pub struct Args {
    pub(super) transport: Arc<PeerTransport>,
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
    /// A start or stop of a peer actor has ended.
    PeerDone(ChildDone),
    /// Retry the starts that failed.
    Retry,
}

/// Keeps routes and peer actors in line with the member directory.
pub struct PeerManager {
    args: Args,
    peers: KeyedChildren<Self, Arc<Route>>,
    seen: Option<Arc<State>>,
    /// Whether a read index that will outdate the stored reports is in flight.
    confirming: bool,
}

impl Worker for PeerManager {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "PeerManager";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let mut state = args.transport.raft().follow();
        let mut this = Self {
            args,
            peers: KeyedChildren::new("peer:", Msg::PeerDone),
            seen: None,
            confirming: false,
        };
        this.recall(ctx);
        ctx.watch(this.args.transport.reports.subscribe(), |_| Msg::Reported);
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
                self.sync(ctx, self.args.transport.raft().state());
                self.confirm(ctx);
            }
            Msg::Confirmed(serial, confirmed) => {
                self.confirming = false;
                if confirmed {
                    self.args.transport.directory.discard_reports(serial);
                    self.sync(ctx, self.args.transport.raft().state());
                }
                self.confirm(ctx);
            }
            Msg::PeerDone(done) => match self.peers.handle_done(ctx, done) {
                Some(ChildEvent::NotStarted(peer, error)) => {
                    tracing::warn!(subsystem = "peer", %peer, %error, "peer actor not started");
                    ctx.send_after(RETRY, Msg::Retry);
                }
                Some(ChildEvent::Stopped(_)) => self.sync(ctx, self.args.transport.raft().state()),
                Some(ChildEvent::Started(_) | ChildEvent::Exhausted(..)) | None => {}
            },
            Msg::Retry => self.sync(ctx, self.args.transport.raft().state()),
        }
        Ok(())
    }
}

impl PeerManager {
    /// Takes over the children of the previous instance of this actor: a child with a route is kept,
    /// any other is stopped.
    fn recall(&mut self, ctx: &Context<Self>) {
        let left = self.args.transport.routes();
        self.peers
            .adopt(ctx, |host, _| left.by_host.get(host).cloned());
    }

    /// Starts a read index that confirms that this node has applied every entry committed when the
    /// newest report arrived; reports are in use until then.
    fn confirm(&mut self, ctx: &Context<Self>) {
        let transport = &self.args.transport;
        let Some(serial) = transport
            .directory
            .last_report()
            .filter(|_| !self.confirming)
        else {
            return;
        };
        self.confirming = true;
        let raft = transport.raft().clone();
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
        let transport = self.args.transport.clone();
        let members = transport.directory.members();
        self.seen = Some(state);
        let mut wanted: BTreeMap<String, PeerInfo> = members
            .into_iter()
            .map(|record| (record.key(), record))
            .collect();
        let ids: BTreeSet<u64> = wanted.values().map(|r| r.raft_id).collect();
        let mut gone = Vec::new();
        for (host, route) in self.peers.iter() {
            let now = route.record();
            match wanted.get(host) {
                // The same hostname with a new raft id is a new member.
                Some(record) if record.raft_id == now.raft_id => {
                    if *record != *now {
                        route.update(record.clone());
                        if let Some(actor) = route.actor.get() {
                            let _ = actor.cast(actor::Msg::Moved); // a new instance reads the route
                        }
                    }
                }
                _ => {
                    // A namesake that took over its plain hostname has a new key, but is still a
                    // member.
                    route.close(if ids.contains(&now.raft_id) {
                        Reason::Leaving
                    } else {
                        Reason::NotMember
                    });
                    gone.push(host.to_owned());
                }
            }
        }
        for host in gone {
            tracing::info!(subsystem = "peer", peer = %host, "not a member any more");
            self.peers.stop(ctx, &host);
        }
        // A member that takes the place of another gets a route once the other's actor has ended:
        // until then the connection and the rejections under this key are the other's.
        wanted.retain(|host, _| self.peers.get(host).is_none() && !self.peers.is_stopping(host));
        for (host, record) in wanted {
            self.start_peer(ctx, &host, record);
        }
        let routes = self.peers.iter();
        transport.set_routes(
            routes
                .map(|(host, route)| (host.to_owned(), Arc::clone(route)))
                .collect(),
        );
    }

    fn start_peer(&mut self, ctx: &Context<Self>, host: &str, record: PeerInfo) {
        let Args {
            transport,
            services,
            heartbeat,
            metrics,
        } = self.args.clone();
        let route = Arc::new(Route::new(record));
        let args = actor::Args {
            transport,
            route: route.clone(),
            services,
            heartbeat,
            metrics,
        };
        let (spec, handle) = ChildSpec::worker::<PeerActor>(self.peers.key(host), args);
        let _ = route.actor.set(handle); // a new route, so never set before
        self.peers.start(ctx, host, spec, route);
    }
}
