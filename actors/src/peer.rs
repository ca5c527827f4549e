//! The other members, as this node reaches them.
//!
//! A member is reached over one QUIC connection, kept by an actor of its own. Raft messages,
//! heartbeats, snapshots and calls each have their streams on it.
//!
//! - [`channel`]: [`PeerChannel`], on which the generated clients of `jaco.v1` call a member.
//! - [`pulse`]: heartbeats, which carry no state and are never written.
//! - `roster`: who is a member, read off the state; `hearsay`: and what others say of it;
//!   `refusals`: who says that this node is none.
//! - `endpoint`, `manager`, `actor`: the socket, one actor per member, and who starts those.
//! - `routes`: the ways to members, as raft and callers use them; `outbox`: what raft sends.
//! - `session`: what happens on a connection; `call`, `serve`, `snapshots`: on its streams.
//! - `settle`, `wire`: which of two connections stays, and what is said on it, without I/O.

pub mod actor;
mod call;
pub mod channel;
pub mod endpoint;
mod hearsay;
pub mod manager;
mod outbox;
pub mod pulse;
mod refusals;
mod roster;
mod routes;
mod serve;
mod session;
mod settle;
mod snapshots;
mod wire;

use std::{fmt, net::SocketAddr, sync::Arc};

use futures::future::BoxFuture;
use http::{Request, Response};
use jaco_net::{pki::Fingerprint, tls::CertSlot};
use jaco_supervision::{ChildSpec, Strategy, SupervisorSpec};
use tonic::body::Body;

pub use channel::PeerChannel;
pub use pulse::{Heartbeat, Pulse};
pub use refusals::Refusals;
pub use routes::Network;

pub(crate) use roster::{Origin, Record};
pub(crate) use serve::Services;
pub(crate) use wire::read_frame;

use crate::telemetry::Metrics;

/// What the peer transport is made of.
pub(crate) struct Args {
    /// The ways to members, which others hold already.
    pub(crate) network: Arc<Network>,
    /// UDP address to listen on.
    pub(crate) address: SocketAddr,
    /// What this node proves itself with.
    pub(crate) identity: Arc<CertSlot>,
    /// Certificate of the cluster's authority, PEM.
    pub(crate) ca_pem: String,
    /// What answers calls of members.
    pub(crate) services: Services,
    /// Makes and takes heartbeats.
    pub(crate) pulse: Arc<dyn Pulse>,
    /// Where round trips are counted.
    pub(crate) metrics: Metrics,
}

/// The actors of the peer transport.
pub(crate) fn supervisor(args: Args) -> ChildSpec {
    let Args {
        network,
        address,
        identity,
        ca_pem,
        services,
        pulse,
        metrics,
    } = args;
    let (endpoint, _) = ChildSpec::worker::<endpoint::EndpointActor>(
        "endpoint",
        endpoint::Args {
            network: network.clone(),
            address,
            identity,
            ca_pem,
        },
    );
    let (manager, _) = ChildSpec::worker::<manager::PeerManager>(
        "manager",
        manager::Args {
            network,
            services,
            pulse,
            metrics,
        },
    );
    let spec = SupervisorSpec::new(Strategy::OneForOne)
        .child(endpoint)
        .child(manager);
    ChildSpec::supervisor("peers", spec).0
}

/// Why a member did not answer a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The call did not leave this node; asking again, or somebody else, is safe.
    #[error("{host} cannot be reached: {reason}")]
    NotSent {
        /// The member.
        host: String,
        /// What was in the way.
        reason: String,
    },
    /// The call was on its way when the connection ended: it may have been served.
    #[error("{host} did not answer: {reason}")]
    Unanswered {
        /// The member.
        host: String,
        /// What ended it.
        reason: String,
    },
}

/// A member that called, as its certificate proved it; an extension of every request that came
/// in over the peer transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Its hostname.
    pub hostname: String,
    /// Its raft id.
    pub raft_id: u64,
    /// What it proved to be known by.
    shown: Arc<[Fingerprint]>,
}

impl Sender {
    /// Member `hostname`, which showed certificates with these fingerprints, for one key.
    #[must_use]
    pub fn new(hostname: &str, raft_id: u64, shown: impl Into<Arc<[Fingerprint]>>) -> Self {
        Self {
            hostname: hostname.to_owned(),
            raft_id,
            shown: shown.into(),
        }
    }

    /// Whether it showed a certificate with this fingerprint, or another for the same key.
    #[must_use]
    pub fn showed(&self, fingerprint: &[u8]) -> bool {
        self.shown
            .iter()
            .any(|shown| shown.as_bytes() == fingerprint)
    }
}

/// The way to other members.
pub trait Link: Send + Sync + 'static {
    /// Makes one call of `jaco.v1` on member `host`; body and answer may stream.
    fn call(
        &self,
        host: &str,
        request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, CallError>>;
}

/// The way of a node that has no peers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLink;

impl Link for NoLink {
    fn call(
        &self,
        host: &str,
        _: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, CallError>> {
        let error = CallError::NotSent {
            host: host.to_owned(),
            reason: "this node has no peer transport".to_owned(),
        };
        Box::pin(std::future::ready(Err(error)))
    }
}

/// The other members; a clone reaches the same ones.
#[derive(Clone)]
pub struct Peers(Arc<dyn Link>);

impl Peers {
    /// Members that are reached by `link`.
    #[must_use]
    pub fn new(link: Arc<dyn Link>) -> Self {
        Self(link)
    }

    /// What a generated client speaks to in order to call member `host`.
    #[must_use]
    pub fn channel(&self, host: &str) -> PeerChannel {
        PeerChannel::new(Arc::clone(&self.0), host)
    }

    /// Makes one call, and says whether a failed one may have been served.
    ///
    /// # Errors
    /// [`CallError`] if there is no answer; an answer that is an error is an answer.
    pub async fn call(
        &self,
        host: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, CallError> {
        self.0.call(host, request).await
    }
}

impl Default for Peers {
    fn default() -> Self {
        Self::new(Arc::new(NoLink))
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peers")
    }
}

#[cfg(test)]
mod tests;
