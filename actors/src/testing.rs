//! The gRPC API of a node without the node: no listener, no disk, no containers.
//!
//! [`Api`] answers a request as the daemon would, past the same admission; what it proposes is
//! applied to a state in memory. It is meant for tests of what the API does with what it is sent.

#[cfg(test)]
pub(crate) mod cluster;

use std::{convert::Infallible, sync::Arc};

use http::{Request, Response};
use jaco_net::{
    pki::{self, BootstrapCert},
    tls::{self, CertSlot, Identity},
};
use jaco_raftnode::{RaftHandle, Storage};
use tonic::body::Body;
use tower::ServiceExt as _;

use crate::{
    api::{self, admission::Transport},
    clock::Clock,
    node::{NodeConfig, Shared},
    peer::Peers,
};

/// Why there can be no [`Lab`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Keys or certificates cannot be made.
    #[error("certificate")]
    Pki(#[from] pki::Error),
    /// The TLS configuration cannot be built.
    #[error("tls")]
    Tls(#[from] tls::Error),
}

/// What every [`Api`] of a process needs and that is slow to make.
#[derive(Clone)]
pub struct Lab {
    certificate: Arc<CertSlot>,
    tls: Arc<rustls::ServerConfig>,
    clock: Clock,
}

impl Lab {
    /// Makes a certificate; every node of the lab reads its time from `clock`.
    ///
    /// # Errors
    /// [`Error`] if the system has no randomness, say.
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
    pub fn stranger(&self) -> Api {
        Api {
            shared: Shared::idle(self.config(), self.certificate.clone(), self.tls.clone()),
        }
    }

    /// A member of the cluster whose state `raft` holds; somebody must serve the handle.
    /// `storage` stands for the directory that a node keeps open; nothing uses it.
    #[must_use]
    pub fn member(&self, raft: RaftHandle, storage: Arc<Storage>) -> Api {
        let api = self.stranger();
        api.shared
            .become_member("lab", raft, storage, Peers::default());
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
    shared: Arc<Shared>,
}

impl Api {
    /// Answers a request as if it had come in on `transport`; one of [`Transport::Peer`] carries
    /// its [`Sender`](crate::peer::Sender) as an extension.
    pub async fn call(&self, transport: Transport, request: Request<Body>) -> Response<Body> {
        let service = api::service(&self.shared, transport);
        let answer: Result<_, Infallible> = service.oneshot(request).await;
        answer.unwrap_or_else(|never| match never {})
    }
}
