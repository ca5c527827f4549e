//! The gRPC API of a node without the node: no listener, no disk, no containers.
//!
//! [`Api`] answers a request as the daemon would, after the same admission; its proposals are
//! applied to a state in memory. It is meant for tests of the API's behaviour.

#[cfg(test)]
pub(crate) mod cluster;
mod state;

use std::{
    convert::Infallible,
    net::Ipv4Addr,
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use http::{Request, Response};
use jaco_net::{
    pki::{self, BootstrapCert},
    tls::{self, CertSlot, Identity},
};
use jaco_raftnode::{RaftHandle, RaftLimits, StateReader as _, Storage};
use tokio::sync::mpsc;
use tonic::body::Body;
use tower::ServiceExt as _;

use crate::{
    api::{self, ApiContext, admission::Transport},
    clock::Clock,
    node::{MemberContext, MemberParts, NodeConfig, NodeContext, NodeParts},
    peer::Peers,
    telemetry::Metrics,
};

pub use state::FakeState;

/// Decodes a peer frame as each kind of frame, encodes the result and decodes that again. For
/// fuzzing.
///
/// # Panics
/// If the two results differ.
pub fn read_peer_frame(frame: &[u8]) {
    crate::peer::read_frame(frame);
}

/// Returns a loopback address of this machine that is not used elsewhere: a new one at every call,
/// and in every process.
///
/// On the address that all processes share, a port that was free a moment ago may be taken.
pub fn unique_loopback_address() -> Ipv4Addr {
    static CALLS: AtomicU32 = AtomicU32::new(1);
    let call = CALLS.fetch_add(1, Ordering::Relaxed) % (1 << 10);
    let process = process::id() % (1 << 13);
    // The half above 127.128.0.0, which no program uses by convention.
    Ipv4Addr::from_bits(0x7f80_0000 | (process << 10) | call)
}

/// Why a [`Lab`] cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Keys or certificates cannot be made.
    #[error("certificate")]
    Pki(#[from] pki::Error),
    /// The TLS configuration cannot be built.
    #[error("tls")]
    Tls(#[from] tls::Error),
}

/// Parts of an [`Api`] that are slow to create and shared within a process.
#[derive(Clone)]
pub struct Lab {
    certificate: Arc<CertSlot>,
    tls: Arc<rustls::ServerConfig>,
    clock: Clock,
}

impl Lab {
    /// Creates a certificate; every node of the lab reads its time from `clock`.
    ///
    /// # Errors
    /// [`Error`], for example if the system has no randomness.
    pub fn new(clock: Clock) -> Result<Self, Error> {
        let cert = BootstrapCert::generate("lab", &[], clock.now())?;
        let certificate = CertSlot::new(&Identity::bootstrap(&cert)?);
        let tls = tls::api_server(certificate.clone())?;
        Ok(Self {
            certificate,
            tls,
            clock,
        })
    }

    /// A node that waits to be initialised.
    #[must_use]
    pub fn uninitialized(&self) -> Api {
        let node = NodeContext::new(NodeParts {
            config: self.config(),
            metrics: Metrics::new("", self.clock.clone()),
            certificate: self.certificate.clone(),
            mesh_key: None,
            tls: self.tls.clone(),
            fatal: mpsc::unbounded_channel().0,
            setup_token: None,
            member: false,
            removed: false,
        });
        Api {
            context: Arc::new(ApiContext::new(Arc::new(node))),
        }
    }

    /// A member of the cluster whose state `raft` holds; the caller must serve the handle.
    /// `storage` stands for the directory that a node keeps open; it is not used.
    #[must_use]
    pub fn member(&self, raft: RaftHandle, storage: Arc<Storage>) -> Api {
        let api = self.uninitialized();
        api.become_member("lab", raft, storage, Peers::default());
        api
    }

    fn config(&self) -> NodeConfig {
        NodeConfig {
            docker_socket: "/nonexistent/docker.sock".into(),
            fault_injection: true,
            clock: self.clock.clone(),
            ..NodeConfig::new("/nonexistent".into())
        }
    }
}

/// The services of one node.
#[derive(Clone)]
pub struct Api {
    context: Arc<ApiContext>,
}

impl Api {
    /// Installs a membership that has neither files nor actors.
    fn become_member(&self, host: &str, raft: RaftHandle, storage: Arc<Storage>, peers: Peers) {
        let cluster = raft.state().cluster.clone().unwrap_or_default();
        let parts = MemberParts {
            hostname: host.to_owned(),
            cluster_id: cluster.cluster_id.clone(),
            raft,
            storage,
            peers,
            transport: None,
            limits: RaftLimits::default(),
        };
        let node = self.context.node();
        node.become_member(Arc::new(MemberContext::new(parts, &node.config)));
    }

    /// Answers a request as if it was received on `transport`; one of [`Transport::Peer`] carries
    /// its [`Sender`](crate::peer::Sender) as an extension.
    pub async fn call(&self, transport: Transport, request: Request<Body>) -> Response<Body> {
        let service = api::service(&self.context, transport);
        let answer: Result<_, Infallible> = service.oneshot(request).await;
        answer.unwrap_or_else(|never| match never {})
    }
}
