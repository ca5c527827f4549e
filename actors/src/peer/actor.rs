//! One actor per member, which keeps a connection to it.

use std::{sync::Arc, time::Duration};

use jaco_net::quic::{Closed, ConnectError, Connection, Reason};
use jaco_policy::peer::simultaneous_open::{self, Dialled};
use jaco_supervision::{Context, Failure, TaskHandle, Worker};
use tokio::time::Instant;

use super::{
    HeartbeatHandler, Sender, Services,
    routes::{PeerTransport, Route, has_presented},
    session::Session,
};
use crate::{log_dedup::LogDedup, telemetry::Metrics};

/// Minimum lifetime of a connection that resets the dial backoff.
const STABLE: Duration = Duration::from_secs(10);

/// Arguments of a [`PeerActor`].
#[derive(Clone)]
pub struct Args {
    pub(super) transport: Arc<PeerTransport>,
    pub(super) route: Arc<Route>,
    pub(super) services: Services,
    pub(super) heartbeat: Arc<dyn HeartbeatHandler>,
    pub(super) metrics: Metrics,
}

/// Messages of a [`PeerActor`].
#[derive(Debug)]
pub enum Msg {
    /// The backoff timer fired: dial.
    Dial,
    /// Result of a dial.
    Dialled(Result<Connection, ConnectError>),
    /// Connection that the member opened.
    Arrived(Connection),
    /// The connection with this number ended.
    Lost(u64, Closed),
    /// The record of the member changed, addresses included.
    Moved,
}

/// Keeps one connection to a member; either side may dial.
pub struct PeerActor {
    args: Args,
    host: String,
    /// Key of its record.
    key: String,
    raft_id: u64,
    live: Option<Live>,
    /// Number of the last connection.
    serial: u64,
    dialling: Option<Attempt>,
    failures: u32,
    last_error: LogDedup,
}

/// Dial in progress.
struct Attempt {
    since: Instant,
    task: TaskHandle,
}

/// The connection in use. Dropping it aborts the session and closes the connection.
struct Live {
    args: Args,
    key: String,
    serial: u64,
    connection: Connection,
    dialled: Dialled,
    since: Instant,
    session: TaskHandle,
    /// Sent to the peer when this is dropped.
    reason: Reason,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.session.abort();
        self.connection.close(self.reason);
        let route = &self.args.route;
        if route.disconnect(self.serial) {
            self.args.transport.note_connected(&self.key, false);
            // Messages in flight may be lost without a report, so raft must probe again.
            let raft_id = route.record().raft_id;
            self.args.transport.raft().unreachable(raft_id);
        }
    }
}

impl Worker for PeerActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "PeerActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let record = args.route.record();
        let mut this = Self {
            args,
            host: record.hostname.clone(),
            key: record.key(),
            raft_id: record.raft_id,
            live: None,
            serial: 0,
            dialling: None,
            failures: 0,
            last_error: LogDedup::default(),
        };
        if this.dials_second() {
            this.dial_later(ctx);
        } else {
            ctx.send_to_self(Msg::Dial);
        }
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Dial => self.dial(ctx),
            Msg::Moved => {
                self.failures = 0;
                self.dial(ctx);
            }
            Msg::Dialled(result) => {
                self.dialling = None;
                match result {
                    Ok(connection) => self.on_connection(ctx, connection),
                    Err(error) => self.not_dialled(ctx, &error),
                }
            }
            Msg::Arrived(connection) => self.on_connection(ctx, connection),
            Msg::Lost(serial, closed) => self.lost(ctx, serial, &closed),
        }
        Ok(())
    }

    async fn stop(&mut self, _: &Context<Self>) {
        self.live = None;
    }
}

impl PeerActor {
    /// Whether the peer has the smaller raft id and so dials first.
    fn dials_second(&self) -> bool {
        self.raft_id < self.args.transport.origin().raft_id
    }

    fn dial(&mut self, ctx: &Context<Self>) {
        if self.live.is_some() || self.dialling.is_some() {
            return;
        }
        // A member without an address dials this node; a new address arrives as `Msg::Moved`.
        let record = self.args.route.record();
        let addresses: Vec<_> = record.addresses().collect();
        if addresses.is_empty() {
            return;
        }
        let address = addresses[self.failures as usize % addresses.len()];
        let Some(endpoint) = self.args.transport.endpoint() else {
            return self.dial_later(ctx);
        };
        let host = self.host.clone();
        let dial = async move { Msg::Dialled(endpoint.dial(&host, address).await) };
        self.dialling = Some(Attempt {
            since: Instant::now(),
            task: ctx.spawn(dial),
        });
    }

    fn dial_later(&mut self, ctx: &Context<Self>) {
        let mut jitter = [0];
        let _ = getrandom::fill(&mut jitter); // on failure the jitter is 0
        let backoff = simultaneous_open::backoff(self.failures, self.dials_second(), jitter[0]);
        self.failures = self.failures.saturating_add(1);
        ctx.set_deadline(Some(Instant::now() + backoff), Msg::Dial);
    }

    fn not_dialled(&mut self, ctx: &Context<Self>, error: &ConnectError) {
        let transport = &self.args.transport;
        transport.note_rejection(&self.key, error.is_not_member());
        if self.live.is_some() {
            return;
        }
        if self.last_error.is_new(error) {
            let addresses: Vec<_> = self.args.route.record().addresses().collect();
            tracing::warn!(subsystem = "peer", peer = %self.host, ?addresses, %error, "not connected");
        }
        self.dial_later(ctx);
    }

    /// Takes a new connection into use, unless the present one takes precedence.
    fn on_connection(&mut self, ctx: &Context<Self>, connection: Connection) {
        let own = self.args.transport.origin().raft_id;
        let dialled = Dialled {
            by: if connection.is_outgoing() {
                own
            } else {
                self.raft_id
            },
            incarnation: connection.incarnation(),
        };
        // The record changed after the handshake; the next handshake decides by the new one.
        if !has_presented(&connection, &self.args.route.record()) {
            connection.close(Reason::Leaving);
            // `Msg::Moved` was ignored while this dial was in progress, so schedule another.
            if self.live.is_none() && self.dialling.is_none() {
                self.dial_later(ctx);
            }
            return;
        }
        if let Some(live) = &mut self.live {
            if live.connection.close_reason().is_none()
                && !simultaneous_open::replaces(dialled, live.dialled)
            {
                connection.close(Reason::Duplicate);
                return;
            }
            live.reason = Reason::Duplicate;
        }
        self.live = None;
        let hanging =
            |attempt: &mut Attempt| simultaneous_open::is_hanging(attempt.since.elapsed());
        if let Some(attempt) = self.dialling.take_if(hanging) {
            attempt.task.abort();
        }
        self.use_connection(ctx, connection, dialled);
    }

    fn use_connection(&mut self, ctx: &Context<Self>, connection: Connection, dialled: Dialled) {
        self.serial += 1;
        let serial = self.serial;
        let Args {
            transport,
            route,
            services,
            heartbeat,
            metrics,
        } = self.args.clone();
        tracing::info!(
            subsystem = "peer",
            peer = %self.host,
            address = %connection.remote_address(),
            dialled_here = connection.is_outgoing(),
            "connected"
        );
        let number = route.connect(serial, connection.clone());
        transport.note_connected(&self.key, true);
        transport.note_rejection(&self.key, false);
        self.last_error.clear();
        let session = Session {
            transport,
            route,
            services,
            heartbeat,
            metrics,
            member: Sender::new(&self.host, self.raft_id, connection.fingerprints().clone()),
            key: self.key.clone(),
            number,
        };
        let served = connection.clone();
        let session = ctx.spawn(async move { Msg::Lost(serial, session.run(served).await) });
        self.live = Some(Live {
            args: self.args.clone(),
            key: self.key.clone(),
            serial,
            connection,
            dialled,
            since: Instant::now(),
            session,
            reason: Reason::Leaving,
        });
    }

    fn lost(&mut self, ctx: &Context<Self>, serial: u64, closed: &Closed) {
        let Some(live) = self.live.take_if(|live| live.serial == serial) else {
            return;
        };
        if live.since.elapsed() >= STABLE {
            self.failures = 0;
        }
        drop(live);
        tracing::warn!(subsystem = "peer", peer = %self.host, reason = %closed, "disconnected");
        if closed.is_not_member() {
            self.args.transport.note_rejection(&self.key, true);
        }
        self.dial_later(ctx);
    }
}
