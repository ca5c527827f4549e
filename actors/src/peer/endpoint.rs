//! Actor that owns the UDP socket of the peer transport.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use jaco_net::{
    quic::{self, ConnectError, Endpoint, IncomingPeer, Reason, Settings},
    tls::CertSlot,
};
use jaco_policy::peer::simultaneous_open;
use jaco_proto::chain;
use jaco_supervision::{Context, Failure, Worker};
use tokio::sync::mpsc;

use super::{actor, routes::PeerTransport};
use crate::log_dedup::LogDedup;

/// Capacity of the channel of arrivals.
const ARRIVALS: usize = 64;
/// Maximum number of refusal causes tracked; of further ones only the first is logged.
const CAUSES: usize = 64;
/// Interval of the summary of repeated refusals.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

/// Arguments of an [`EndpointActor`].
#[derive(Clone)]
pub struct Args {
    pub(super) transport: Arc<PeerTransport>,
    pub(super) address: SocketAddr,
    pub(super) identity: Arc<CertSlot>,
    pub(super) ca_pem: String,
}

/// Messages of an [`EndpointActor`].
#[derive(Debug)]
pub enum Msg {
    /// Bind the socket, again after a failure.
    Bind,
    /// An incoming connection, and the channel of further ones.
    Arrived(IncomingPeer, mpsc::Receiver<IncomingPeer>),
    /// Log repeated refusals.
    Summarize,
    /// The endpoint accepts no more connections.
    Closed,
}

/// Owns the socket, through which peer actors dial and members connect.
pub struct EndpointActor {
    args: Args,
    endpoint: Option<Endpoint>,
    /// Failed attempts to bind.
    failures: u32,
    last_error: LogDedup,
    refusals: RefusalLog,
}

impl Worker for EndpointActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "EndpointActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        ctx.send_after(SUMMARY_INTERVAL, Msg::Summarize);
        let mut this = Self {
            args,
            endpoint: None,
            failures: 0,
            last_error: LogDedup::default(),
            refusals: RefusalLog::default(),
        };
        this.bind(ctx);
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Bind => self.bind(ctx),
            Msg::Arrived(arrival, rest) => {
                self.on_arrival(arrival);
                next(ctx, rest);
            }
            Msg::Summarize => {
                ctx.send_after(SUMMARY_INTERVAL, Msg::Summarize);
                for (address, cause, count) in self.refusals.summarize() {
                    tracing::warn!(subsystem = "peer", %address, %cause, count, "peers refused again");
                }
            }
            Msg::Closed => return Err("the peer endpoint ended".into()),
        }
        Ok(())
    }

    async fn stop(&mut self, _: &Context<Self>) {
        if let Some(endpoint) = &self.endpoint {
            self.args.transport.set_endpoint(None);
            endpoint.close().await;
        }
    }
}

impl Drop for EndpointActor {
    /// Frees the socket for the next instance, which cannot use the connections of this one.
    fn drop(&mut self) {
        if let Some(endpoint) = &self.endpoint {
            self.args.transport.set_endpoint(None);
            endpoint.abandon();
        }
    }
}

impl EndpointActor {
    /// Binds the socket, or schedules a retry: without its peers the node still serves its
    /// operators.
    fn bind(&mut self, ctx: &Context<Self>) {
        let bound = Endpoint::bind(quic::Args {
            address: self.args.address,
            identity: self.args.identity.clone(),
            ca_pem: self.args.ca_pem.clone(),
            roster: Arc::new(self.args.transport.directory.clone()),
            settings: Settings::default(),
        });
        match bound {
            Ok(endpoint) => {
                let address = endpoint.local_addr().unwrap_or(self.args.address);
                tracing::info!(subsystem = "peer", %address, "listening for peers");
                self.args.transport.set_endpoint(Some(endpoint.clone()));
                self.endpoint = Some(endpoint.clone());
                let (sender, arrivals) = mpsc::channel(ARRIVALS);
                ctx.spawn(async move {
                    endpoint.serve(sender).await;
                    Msg::Closed
                });
                next(ctx, arrivals);
            }
            Err(error) => {
                let reason = chain(&error);
                if self.last_error.is_new(&reason) {
                    tracing::error!(subsystem = "peer", error = %reason, "peers cannot reach this node");
                }
                // Usually the previous instance's socket is still closing.
                ctx.send_after(
                    simultaneous_open::backoff(self.failures, false, u8::MAX),
                    Msg::Bind,
                );
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    fn on_arrival(&mut self, arrival: IncomingPeer) {
        match arrival {
            IncomingPeer::Member(connection) => {
                let route = self.args.transport.route_to(connection.member().raft_id);
                let actor = route.as_ref().and_then(|route| route.actor.get());
                let taken = actor.map(|actor| actor.cast(actor::Msg::Arrived(connection.clone())));
                if !matches!(taken, Some(Ok(()))) {
                    // The actor is not running yet; one of the two sides dials again.
                    connection.close(Reason::Leaving);
                }
            }
            IncomingPeer::Refused(address, error) => {
                let cause = error.to_string();
                if self.refusals.note(address.ip(), &error) {
                    tracing::warn!(subsystem = "peer", address = %address.ip(), %cause, "peer refused");
                }
            }
        }
    }
}

/// Sends one message for the next arrival.
fn next(ctx: &Context<EndpointActor>, mut arrivals: mpsc::Receiver<IncomingPeer>) {
    ctx.spawn(async move {
        match arrivals.recv().await {
            Some(arrival) => Msg::Arrived(arrival, arrivals),
            None => Msg::Closed,
        }
    });
}

/// Counts refusals by address and cause: each cause is logged once at first, then in summaries, so
/// a flood of connections cannot flood the log.
#[derive(Debug, Default)]
struct RefusalLog {
    counts: HashMap<(IpAddr, String), u64>,
    /// Whether the overflow line was logged.
    overflowed: bool,
}

impl RefusalLog {
    /// Counts a refusal. Returns whether to log it.
    fn note(&mut self, address: IpAddr, error: &ConnectError) -> bool {
        let cause = (address, error.to_string());
        if let Some(count) = self.counts.get_mut(&cause) {
            *count += 1;
            return false;
        }
        if self.counts.len() >= CAUSES {
            return !std::mem::replace(&mut self.overflowed, true);
        }
        self.counts.insert(cause, 0);
        true
    }

    /// Returns the causes repeated since the last call, with counts, and forgets the others.
    fn summarize(&mut self) -> Vec<(IpAddr, String, u64)> {
        self.overflowed = false;
        self.counts.retain(|_, count| *count > 0);
        let summaries = self
            .counts
            .iter_mut()
            .map(|((address, cause), count)| (*address, cause.clone(), std::mem::take(count)));
        summaries.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_logged_once_and_overflow_once() {
        let mut refusals = RefusalLog::default();
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        assert!(refusals.note(ip(1), &ConnectError::TimedOut));
        assert!(!refusals.note(ip(1), &ConnectError::TimedOut));
        assert!(refusals.note(ip(1), &ConnectError::NotMember));
        assert_eq!(
            refusals.summarize(),
            [(ip(1), ConnectError::TimedOut.to_string(), 1)]
        );
        assert!(refusals.summarize().is_empty());
        let summaries = (0..=255).filter(|last| refusals.note(ip(*last), &ConnectError::TimedOut));
        assert_eq!(summaries.count(), CAUSES + 1);
        assert_eq!(refusals.counts.len(), CAUSES);
    }
}
