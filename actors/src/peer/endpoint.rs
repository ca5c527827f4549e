//! The actor that owns the socket of the peer transport.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use jaco_net::{
    quic::{self, Arrival, ConnectError, Endpoint, Reason, Settings},
    tls::CertSlot,
};
use jaco_proto::chain;
use jaco_supervision::{Context, Failure, Worker};
use tokio::sync::mpsc;

use super::{actor, routes::Network, settle};
use crate::repeat::Repeats;

/// Arrivals that wait for this actor.
const ARRIVALS: usize = 64;
/// Causes of refusals that are told apart at once; more are one.
const CAUSES: usize = 64;
/// Time until a cause that is still there is told again, with how often it was met.
const RETELL: Duration = Duration::from_secs(60);

/// What an [`EndpointActor`] starts from.
#[derive(Clone)]
pub struct Args {
    pub(super) network: Arc<Network>,
    pub(super) address: SocketAddr,
    pub(super) identity: Arc<CertSlot>,
    pub(super) ca_pem: String,
}

/// What an [`EndpointActor`] is told.
#[derive(Debug)]
pub enum Msg {
    /// It is time to bind.
    Bind,
    /// Somebody came, and here are those after.
    Came(Arrival, mpsc::Receiver<Arrival>),
    /// It is time to tell refusals again.
    Retell,
    /// Nobody comes any more.
    Closed,
}

/// Owns the socket: others dial with it, and it lets members in.
pub struct EndpointActor {
    args: Args,
    endpoint: Option<Endpoint>,
    /// Attempts to bind that failed.
    failures: u32,
    said: Repeats,
    refusals: Refusals,
}

impl Worker for EndpointActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "EndpointActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        ctx.send_after(RETELL, Msg::Retell);
        let mut this = Self {
            args,
            endpoint: None,
            failures: 0,
            said: Repeats::default(),
            refusals: Refusals::default(),
        };
        this.bind(ctx);
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Bind => self.bind(ctx),
            Msg::Came(arrival, rest) => {
                self.came(arrival);
                next(ctx, rest);
            }
            Msg::Retell => {
                ctx.send_after(RETELL, Msg::Retell);
                for (address, cause, count) in self.refusals.retell() {
                    tracing::warn!(subsystem = "peer", %address, %cause, count, "peers refused again");
                }
            }
            Msg::Closed => return Err("the peer endpoint ended".into()),
        }
        Ok(())
    }

    async fn stop(&mut self, _: &Context<Self>) {
        if let Some(endpoint) = &self.endpoint {
            self.args.network.set_endpoint(None);
            endpoint.close().await;
        }
    }
}

impl Drop for EndpointActor {
    /// The socket must be free for the next instance, and the connections are of no use to it.
    fn drop(&mut self) {
        if let Some(endpoint) = &self.endpoint {
            self.args.network.set_endpoint(None);
            endpoint.abandon();
        }
    }
}

impl EndpointActor {
    /// A member that cannot be reached still serves its operators, so an address that is taken
    /// is tried again.
    fn bind(&mut self, ctx: &Context<Self>) {
        let bound = Endpoint::bind(quic::Args {
            address: self.args.address,
            identity: self.args.identity.clone(),
            ca_pem: self.args.ca_pem.clone(),
            roster: Arc::new(self.args.network.roster.clone()),
            settings: Settings::default(),
        });
        match bound {
            Ok(endpoint) => {
                let address = endpoint.local_addr().unwrap_or(self.args.address);
                tracing::info!(subsystem = "peer", %address, "peers are listened to");
                self.args.network.set_endpoint(Some(endpoint.clone()));
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
                if self.said.is_news(&reason) {
                    tracing::error!(subsystem = "peer", error = %reason, "peers cannot reach this node");
                }
                // Mostly it is the last instance's socket, which is closed in a moment.
                ctx.send_after(settle::pause(self.failures, false, u8::MAX), Msg::Bind);
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    fn came(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Member(connection) => {
                let route = self.args.network.route_to(connection.member().raft_id);
                let actor = route.as_ref().and_then(|route| route.actor.get());
                let taken = actor.map(|actor| actor.cast(actor::Msg::Arrived(connection.clone())));
                if !matches!(taken, Some(Ok(()))) {
                    // Its actor is not there yet; it dials, or is dialled, again.
                    connection.close(Reason::Leaving);
                }
            }
            Arrival::Refused(address, error) => {
                let cause = error.to_string();
                if self.refusals.note(address.ip(), &error) {
                    tracing::warn!(subsystem = "peer", address = %address.ip(), %cause, "peer refused");
                }
            }
        }
    }
}

/// Reports the next arrival.
fn next(ctx: &Context<EndpointActor>, mut arrivals: mpsc::Receiver<Arrival>) {
    ctx.spawn(async move {
        match arrivals.recv().await {
            Some(arrival) => Msg::Came(arrival, arrivals),
            None => Msg::Closed,
        }
    });
}

/// Refusals by address and cause: each is worth one line, a flood is not worth more.
#[derive(Debug, Default)]
struct Refusals {
    counts: HashMap<(IpAddr, String), u64>,
    /// Whether the line about too many causes was written.
    overflowed: bool,
}

impl Refusals {
    /// Whether this one is to be told.
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

    /// Those that were met again since they were told; the others are forgotten.
    fn retell(&mut self) -> Vec<(IpAddr, String, u64)> {
        self.overflowed = false;
        self.counts.retain(|_, count| *count > 0);
        let told = self
            .counts
            .iter_mut()
            .map(|((address, cause), count)| (*address, cause.clone(), std::mem::take(count)));
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_and_a_flood_of_causes_is_one() {
        let mut refusals = Refusals::default();
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        assert!(refusals.note(ip(1), &ConnectError::Slow));
        assert!(!refusals.note(ip(1), &ConnectError::Slow));
        assert!(refusals.note(ip(1), &ConnectError::Stranger));
        assert_eq!(
            refusals.retell(),
            [(ip(1), ConnectError::Slow.to_string(), 1)]
        );
        assert!(refusals.retell().is_empty());
        let told = (0..=255).filter(|last| refusals.note(ip(*last), &ConnectError::Slow));
        assert_eq!(told.count(), CAUSES + 1);
        assert_eq!(refusals.counts.len(), CAUSES);
    }
}
