//! Connections and queues by member, shared by raft, callers and the peer actors.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use jaco_net::quic::{Connection, Endpoint, Reason};
use jaco_policy::peer::{
    gossip::MembershipView,
    members::{Origin, PeerInfo},
    rejections::Rejections,
};
use jaco_raftnode::{OutgoingSnapshot, RaftHandle, Transport};
use jaco_supervision::Handle;
use tokio::sync::watch;

use super::{
    Peers, Sender,
    actor::Msg,
    call::QuicLink,
    directory::MemberDirectory,
    heartbeat_timer,
    outbox::{Outbox, PutOutcome},
    receive::ReceiveLimits,
};
use crate::clock::Clock;

/// Route to one member, which lives as long as the membership is known and outlives connections and
/// actors.
pub(super) struct Route {
    record: ArcSwap<PeerInfo>,
    outbox: Outbox,
    receive: ReceiveLimits,
    live: ArcSwapOption<Live>,
    /// Mailbox of the member's actor; set once, right after both were created.
    pub(super) actor: OnceLock<Handle<Msg>>,
}

/// The connection in use and its number.
struct Live {
    serial: u64,
    connection: Connection,
}

/// Whether the other side of `connection` presented the certificate in `record`.
pub(super) fn has_presented(connection: &Connection, record: &PeerInfo) -> bool {
    let mut presented = connection.fingerprints().iter();
    presented.any(|print| *print.as_bytes() == record.fingerprint)
}

impl Route {
    pub(super) fn new(record: PeerInfo) -> Self {
        Self {
            record: ArcSwap::from_pointee(record),
            outbox: Outbox::default(),
            receive: ReceiveLimits::default(),
            live: ArcSwapOption::empty(),
            actor: OnceLock::new(),
        }
    }

    pub(super) fn record(&self) -> Arc<PeerInfo> {
        self.record.load_full()
    }

    /// Replaces the record after the member moved or renewed its certificate. Closes a connection
    /// on which the member did not present the new certificate; the next handshake decides.
    pub(super) fn update(&self, record: PeerInfo) {
        if let Some(live) = &*self.live.load()
            && !has_presented(&live.connection, &record)
        {
            live.connection.close(Reason::Leaving);
        }
        self.record.store(Arc::new(record));
    }

    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Limits on what the member sends.
    pub(super) fn receive(&self) -> &ReceiveLimits {
        &self.receive
    }

    pub(super) fn connection(&self) -> Option<Connection> {
        let live = self.live.load();
        live.as_ref().map(|live| live.connection.clone())
    }

    /// Makes `connection`, with number `serial`, the one in use. Returns its number in the outbox.
    pub(super) fn connect(&self, serial: u64, connection: Connection) -> u64 {
        self.live.store(Some(Arc::new(Live { serial, connection })));
        self.outbox.open()
    }

    /// Drops connection `serial`. Returns whether it was in use.
    pub(super) fn disconnect(&self, serial: u64) -> bool {
        let live = self.live.load();
        if live.as_ref().is_none_or(|live| live.serial != serial) {
            return false;
        }
        self.live.store(None);
        self.outbox.close();
        true
    }

    /// Closes the connection, if there is one.
    pub(super) fn close(&self, reason: Reason) {
        if let Some(live) = &*self.live.load() {
            live.connection.close(reason);
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("record", &self.record.load())
            .finish_non_exhaustive()
    }
}

/// Lookup tables of the routes.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerTable {
    /// By record key: the hostname, apart from namesakes.
    pub(super) by_host: BTreeMap<String, Arc<Route>>,
    by_id: HashMap<u64, Arc<Route>>,
}

/// State of the peer transport, shared by raft, callers and the peer actors for the lifetime of the
/// node's membership.
pub struct PeerTransport {
    pub(super) directory: MemberDirectory,
    /// Number of newer membership views received so far (wrapping); the manager subscribes to it.
    pub(super) reports: watch::Sender<u64>,
    routes: ArcSwap<PeerTable>,
    endpoint: ArcSwapOption<Endpoint>,
    rejections: watch::Sender<Rejections>,
    connected: watch::Sender<BTreeSet<String>>,
    heartbeat_origin: tokio::time::Instant,
}

impl PeerTransport {
    /// Returns a transport without connections.
    pub(crate) fn new(origin: Origin, raft: RaftHandle, clock: &Clock) -> Arc<Self> {
        Arc::new(Self {
            directory: MemberDirectory::new(raft, origin),
            reports: watch::Sender::default(),
            routes: ArcSwap::default(),
            endpoint: ArcSwapOption::empty(),
            rejections: watch::Sender::default(),
            connected: watch::Sender::default(),
            heartbeat_origin: heartbeat_timer::origin(clock),
        })
    }

    /// Returns the client for calls to members.
    pub(crate) fn peers(self: &Arc<Self>) -> Peers {
        Peers::new(Arc::new(QuicLink(self.clone())))
    }

    /// Returns the transport for raft messages and snapshots.
    pub(crate) fn raft_transport(self: &Arc<Self>) -> Arc<dyn Transport> {
        Arc::new(RaftTransport(self.clone()))
    }

    /// Subscribes to the members that reject this node; notifies on each rejection.
    pub fn rejections(&self) -> watch::Receiver<Rejections> {
        self.rejections.subscribe()
    }

    /// Clears the rejections, since this node presents another certificate from now on.
    pub(crate) fn clear_rejections(&self) {
        self.rejections.send_replace(Rejections::default());
    }

    /// Subscribes to the set of connected members.
    pub fn connected(&self) -> watch::Receiver<BTreeSet<String>> {
        self.connected.subscribe()
    }

    /// Smoothed round-trip time of the connection to `host`; `None` while disconnected.
    pub fn rtt(&self, host: &str) -> Option<Duration> {
        let connection = self.route(host)?.connection()?;
        Some(connection.rtt())
    }

    /// Number of members in the join response, or 0 if this node founded the cluster.
    pub(crate) fn joined_members(&self) -> usize {
        self.origin().members.len()
    }

    /// Origin of the heartbeats' times on every connection.
    pub(super) fn heartbeat_origin(&self) -> tokio::time::Instant {
        self.heartbeat_origin
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.directory.origin
    }

    pub(super) fn raft(&self) -> &RaftHandle {
        &self.directory.raft
    }

    pub(super) fn routes(&self) -> Arc<PeerTable> {
        self.routes.load_full()
    }

    pub(super) fn route(&self, host: &str) -> Option<Arc<Route>> {
        self.routes.load().by_host.get(host).cloned()
    }

    pub(super) fn route_to(&self, raft_id: u64) -> Option<Arc<Route>> {
        self.routes.load().by_id.get(&raft_id).cloned()
    }

    /// Replaces the routes. Only the manager writes them, so no update is lost.
    pub(super) fn set_routes(&self, by_host: BTreeMap<String, Arc<Route>>) {
        let id = |route: &Arc<Route>| (route.record().raft_id, route.clone());
        let by_id = by_host.values().map(id).collect();
        self.connected.send_if_modified(|hosts| {
            let before = hosts.len();
            hosts.retain(|host| by_host.contains_key(host));
            hosts.len() != before
        });
        self.update_rejections(|rejections| {
            rejections.handle_members(|host| by_host.contains_key(host));
        });
        self.routes.store(Arc::new(PeerTable { by_host, by_id }));
    }

    pub(super) fn endpoint(&self) -> Option<Arc<Endpoint>> {
        self.endpoint.load_full()
    }

    pub(super) fn set_endpoint(&self, endpoint: Option<Endpoint>) {
        self.endpoint.store(endpoint.map(Arc::new));
    }

    /// Records whether member `host` rejected this node. `rejected` is `false` if it accepted the
    /// node or did not answer.
    pub(super) fn note_rejection(&self, host: &str, rejected: bool) {
        let now = tokio::time::Instant::now().into_std();
        self.update_rejections(|rejections| {
            if rejected {
                rejections.handle_rejected(now, host);
            } else {
                rejections.handle_not_rejected(host);
            }
        });
    }

    /// Updates the rejections and notifies their subscribers of a change.
    fn update_rejections(&self, update: impl FnOnce(&mut Rejections)) {
        self.rejections.send_if_modified(|rejections| {
            let before = rejections.clone();
            update(rejections);
            *rejections != before
        });
    }

    /// Stores the membership view of the connected member with record `key`.
    pub(super) fn record_report(&self, key: &str, speaker: &Sender, view: MembershipView) {
        if self.directory.record_report(key, speaker, view) {
            self.reports
                .send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    pub(super) fn note_connected(&self, host: &str, connected: bool) {
        if !connected {
            self.directory.drop_report(host);
        }
        self.connected.send_if_modified(|hosts| {
            if connected {
                hosts.insert(host.to_owned())
            } else {
                hosts.remove(host)
            }
        });
    }
}

impl fmt::Debug for PeerTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerTransport")
    }
}

/// Hands messages and snapshots of raft to the outbox of their member.
struct RaftTransport(Arc<PeerTransport>);

impl Transport for RaftTransport {
    fn send(&self, to: u64, message: Vec<u8>) {
        let routes = self.0.routes.load();
        let put = match routes.by_id.get(&to) {
            Some(route) => route.outbox.put(message, Instant::now()),
            // Its record is not applied yet, or no longer there; raft retransmits either way.
            None => PutOutcome::Unreachable,
        };
        if put == PutOutcome::Unreachable {
            self.0.raft().unreachable(to);
        }
    }

    fn send_snapshot(&self, to: u64, snapshot: OutgoingSnapshot) {
        // Without a route the snapshot is dropped; its drop reports the failure to raft.
        if let Some(route) = self.0.routes.load().by_id.get(&to) {
            route.outbox.put_snapshot(snapshot);
        }
    }
}
