//! Transport between cluster members.
//!
//! Each member is reached over one QUIC connection, owned by a dedicated actor. Raft messages,
//! heartbeats, snapshots and calls use separate streams of that connection.
//!
//! - [`channel`]: [`PeerChannel`], the transport of the generated `jaco.v1` clients.
//! - [`heartbeat`]: heartbeats; they carry no replicated state and are never persisted.
//! - `directory`: the members according to the replicated state and to reports of other members.
//! - `endpoint`, `manager`, `actor`: the UDP socket, the manager of the peer actors, and the actor
//!   of one member.
//! - `routes`: connections and queues by member, for raft and callers; `outbox`: queued raft
//!   traffic.
//! - `receive`: limits on what one member can make this node hold.
//! - `session`: the tasks of one connection; `call`, `serve`, `snapshots`: its streams.
//! - `wire`: frame encoding, without I/O.
//!
//! [`jaco_policy::peer`] computes the members, chooses between duplicate connections and records
//! rejections.

pub mod actor;
mod call;
pub mod channel;
mod directory;
pub mod endpoint;
pub mod heartbeat;
mod heartbeat_timer;
pub mod manager;
mod outbox;
mod receive;
mod routes;
mod serve;
mod session;
mod snapshots;
mod wire;

use std::{fmt, net::SocketAddr, sync::Arc};

use futures::future::BoxFuture;
use http::{Request, Response};
use jaco_net::{pki::Fingerprint, tls::CertSlot};
use jaco_policy::peer::gossip::Speaker;
use jaco_supervision::{ChildSpec, Strategy, SupervisorSpec};
use tonic::body::Body;

pub use channel::PeerChannel;
pub use heartbeat::{Heartbeat, HeartbeatHandler};
pub use routes::PeerTransport;

pub(crate) use serve::Services;
#[cfg(any(test, feature = "testing"))]
pub(crate) use wire::read_frame;

use crate::telemetry::Metrics;

/// Dependencies of the peer transport.
pub(crate) struct Args {
    /// State shared with raft and callers.
    pub(crate) transport: Arc<PeerTransport>,
    /// UDP address to listen on.
    pub(crate) address: SocketAddr,
    /// Certificate and key of this node.
    pub(crate) identity: Arc<CertSlot>,
    /// Certificate of the cluster's authority, PEM.
    pub(crate) ca_pem: String,
    /// Handler of the calls of members.
    pub(crate) services: Services,
    /// Source and sink of heartbeats.
    pub(crate) heartbeat: Arc<dyn HeartbeatHandler>,
    /// Receives the round-trip times of connections.
    pub(crate) metrics: Metrics,
}

/// Supervisor of the peer transport's actors.
pub(crate) fn supervisor(args: Args) -> ChildSpec {
    let Args {
        transport,
        address,
        identity,
        ca_pem,
        services,
        heartbeat,
        metrics,
    } = args;
    let (endpoint, _) = ChildSpec::worker::<endpoint::EndpointActor>(
        "endpoint",
        endpoint::Args {
            transport: transport.clone(),
            address,
            identity,
            ca_pem,
        },
    );
    let (manager, _) = ChildSpec::worker::<manager::PeerManager>(
        "manager",
        manager::Args {
            transport,
            services,
            heartbeat,
            metrics,
        },
    );
    let spec = SupervisorSpec::new(Strategy::OneForOne)
        .child(endpoint)
        .child(manager);
    ChildSpec::supervisor("peers", spec).0
}

/// Reason a call to a member failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The call did not leave this node; a retry, here or on another member, is safe.
    #[error("{host} cannot be reached: {reason}")]
    NotSent {
        /// The member.
        host: String,
        /// Reason.
        reason: String,
    },
    /// The connection ended while the call was in flight: the member may have executed it.
    #[error("{host} did not answer: {reason}")]
    Unanswered {
        /// The member.
        host: String,
        /// Reason.
        reason: String,
    },
}

/// Caller of a request, authenticated by its certificate; an extension of every request received
/// over the peer transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Hostname.
    pub hostname: String,
    /// Raft id.
    pub raft_id: u64,
    /// Fingerprints of the certificates it presented.
    presented: Arc<[Fingerprint]>,
}

impl Sender {
    /// Returns the member `hostname` that presented certificates with these fingerprints, all of
    /// one key.
    #[must_use]
    pub fn new(hostname: &str, raft_id: u64, presented: impl Into<Arc<[Fingerprint]>>) -> Self {
        Self {
            hostname: hostname.to_owned(),
            raft_id,
            presented: presented.into(),
        }
    }

    /// Whether the member presented a certificate with this fingerprint.
    #[must_use]
    pub fn has_presented(&self, fingerprint: &[u8]) -> bool {
        self.presented
            .iter()
            .any(|presented| presented.as_bytes() == fingerprint)
    }
}

impl From<&Sender> for Speaker {
    fn from(sender: &Sender) -> Self {
        let presented = sender.presented.iter();
        Self {
            hostname: sender.hostname.clone(),
            raft_id: sender.raft_id,
            presented: presented.map(|print| *print.as_bytes()).collect(),
        }
    }
}

/// Calls other members.
pub trait Link: Send + Sync + 'static {
    /// Makes one `jaco.v1` call to member `host`; request and response bodies may stream.
    fn call(
        &self,
        host: &str,
        request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, CallError>>;
}

/// The [`Link`] of a node without a peer transport: every call fails with [`CallError::NotSent`].
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

/// Client for calls to other members; clones share the link.
#[derive(Clone)]
pub struct Peers(Arc<dyn Link>);

impl Peers {
    /// Returns a client that calls through `link`.
    #[must_use]
    pub fn new(link: Arc<dyn Link>) -> Self {
        Self(link)
    }

    /// Returns a channel to member `host` for a generated client.
    #[must_use]
    pub fn channel(&self, host: &str) -> PeerChannel {
        PeerChannel::new(Arc::clone(&self.0), host)
    }

    /// Makes one call; the error says whether the member may have executed it.
    ///
    /// # Errors
    /// [`CallError`] without a response. A response with an error status is `Ok`.
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
