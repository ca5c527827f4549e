//! A node under test, and its clients.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use hyper_util::rt::TokioIo;
use jaco_actors::{Node, NodeConfig, StartError, testing::unique_loopback_address};
use jaco_net::{
    pki::{Fingerprint, certificates},
    tls::{self, Trust},
};
use jaco_proto::{
    error::DecodedError,
    v1::{
        self, audit_client::AuditClient, cluster_client::ClusterClient,
        deploy_client::DeployClient, tokens_client::TokensClient, watch_client::WatchClient,
    },
};
use jaco_raftnode::{State, StateReader as _};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::net::{TcpSocket, UnixStream};
use tonic::{
    Request, Status,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};
use tower::service_fn;

/// A directory and addresses on which nodes are started, one after the other.
pub(crate) struct Lab {
    dir: TempDir,
    address: SocketAddr,
    pub(crate) fault_injection: bool,
    pub(crate) hostname: Option<String>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            address: (unique_loopback_address(), 7000).into(),
            fault_injection: false,
            hostname: Some("one".to_owned()),
        }
    }

    pub(crate) fn config(&self) -> NodeConfig {
        let mut node = Node::builder(self.data())
            .listen_addr(self.address)
            .cluster_addr((self.address.ip(), 7001).into())
            .unix_socket(self.socket())
            .docker_socket(self.dir.path().join("no-engine.sock"))
            .http_port(0)
            .version(VERSION)
            .fault_injection(self.fault_injection);
        if let Some(name) = &self.hostname {
            node = node.hostname(name);
        }
        node.build().unwrap()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("jaco.sock")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn start(&self) -> Node {
        self.try_start().await.unwrap()
    }

    pub(crate) async fn try_start(&self) -> Result<Node, StartError> {
        Node::start(self.config()).await
    }

    /// Starts a node with a cluster, and returns it with its operator token.
    pub(crate) async fn bootstrapped(&self) -> (Node, String) {
        let node = self.start().await;
        let token = self.init().await.unwrap().operator_token;
        // The last writes before a test makes its own: a new member announces its version, and the
        // leader makes the key of the secrets once all have.
        until(&node, "the node's version and the secrets key", |state| {
            let keyed = state
                .cluster
                .as_ref()
                .is_some_and(|it| !it.secrets_key_id.is_empty());
            keyed && state.nodes.values().all(|node| node.version == VERSION)
        })
        .await;
        (node, token)
    }

    pub(crate) async fn init(&self) -> Result<v1::ClusterInitResponse, DecodedError> {
        let request = v1::ClusterInitRequest {
            cluster_name: "lab".to_owned(),
        };
        let response = self.local().cluster().init(request).await?;
        Ok(response.into_inner())
    }

    /// Returns a client on the unix socket.
    pub(crate) fn local(&self) -> Client {
        let socket = self.socket();
        let connect = service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        Client::new(endpoint().connect_with_connector_lazy(connect), None)
    }

    /// Returns a client over TLS.
    pub(crate) fn remote(&self, trust: &Trust, token: Option<&str>) -> Client {
        self.remote_from(Ipv4Addr::UNSPECIFIED.into(), trust, token)
    }

    /// Returns a client over TLS that connects from another address of this machine.
    pub(crate) fn remote_from(&self, source: IpAddr, trust: &Trust, token: Option<&str>) -> Client {
        let (tls, address) = (tls::api_client(trust).unwrap(), self.address);
        let connect = service_fn(move |_| {
            let tls = tls.clone();
            async move {
                let socket = TcpSocket::new_v4()?;
                if !source.is_unspecified() {
                    socket.bind((source, 0).into())?;
                }
                let stream = socket.connect(address).await?;
                let name = ServerName::from(address.ip());
                let stream = tokio_rustls::TlsConnector::from(tls)
                    .connect(name, stream)
                    .await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        Client::new(endpoint().connect_with_connector_lazy(connect), token)
    }

    /// Returns a client over TLS that pins the cluster's CA.
    pub(crate) fn pinned(&self, token: Option<&str>) -> Client {
        self.remote(&Trust::Ca(self.ca()), token)
    }

    pub(crate) fn ca(&self) -> String {
        fs::read_to_string(self.data().join("node/ca.crt")).unwrap()
    }

    pub(crate) fn setup_token(&self) -> String {
        fs::read_to_string(self.data().join("bootstrap/setup-token")).unwrap()
    }

    /// Trust in the certificate of the setup phase, by its fingerprint.
    pub(crate) fn setup_trust(&self) -> Trust {
        Trust::Fingerprint(fingerprint(
            &fs::read_to_string(self.data().join("bootstrap/server.crt")).unwrap(),
        ))
    }
}

/// Fingerprint of the first certificate of a PEM text.
pub(crate) fn fingerprint(pem: &str) -> Fingerprint {
    Fingerprint::of(&certificates(pem).unwrap()[0])
}

/// The replicated state of a member.
pub(crate) fn state(node: &Node) -> Arc<State> {
    node.raft().expect("a member").state()
}

/// Waits until the newest state satisfies `check`.
pub(crate) async fn until(node: &Node, what: &str, check: impl Fn(&State) -> bool) -> Arc<State> {
    let mut states = node.raft().expect("a member").subscribe();
    let found = states.wait_for(|state| check(state));
    match tokio::time::timeout(TIMEOUT, found).await {
        Ok(state) => state.unwrap().clone(),
        Err(_) => panic!("not in {TIMEOUT:?}: {what}"),
    }
}

/// Time limit for an expected event.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Version that every node announces.
const VERSION: &str = "0.0.0-test";

/// Clients of one caller for all services.
#[derive(Clone)]
pub(crate) struct Client(InterceptedService<Channel, Bearer>);

#[derive(Clone)]
pub(crate) struct Bearer(Option<String>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

type Service = InterceptedService<Channel, Bearer>;

impl Client {
    fn new(channel: Channel, token: Option<&str>) -> Self {
        Self(InterceptedService::new(
            channel,
            Bearer(token.map(str::to_owned)),
        ))
    }

    pub(crate) fn service(&self) -> Service {
        self.0.clone()
    }

    pub(crate) fn cluster(&self) -> ClusterClient<Service> {
        ClusterClient::new(self.0.clone())
    }

    pub(crate) fn deploy(&self) -> DeployClient<Service> {
        DeployClient::new(self.0.clone())
    }

    pub(crate) fn tokens(&self) -> TokensClient<Service> {
        TokensClient::new(self.0.clone())
    }

    pub(crate) fn audit(&self) -> AuditClient<Service> {
        AuditClient::new(self.0.clone())
    }

    pub(crate) fn watch(&self) -> WatchClient<Service> {
        WatchClient::new(self.0.clone())
    }

    pub(crate) async fn apply(
        &self,
        jaco: &str,
        compose: &str,
    ) -> Result<v1::ApplyResponse, DecodedError> {
        self.apply_with(jaco, compose, false).await
    }

    pub(crate) async fn dry_run(
        &self,
        jaco: &str,
        compose: &str,
    ) -> Result<v1::ApplyResponse, DecodedError> {
        self.apply_with(jaco, compose, true).await
    }

    async fn apply_with(
        &self,
        jaco: &str,
        compose: &str,
        dry_run: bool,
    ) -> Result<v1::ApplyResponse, DecodedError> {
        let request = v1::ApplyRequest {
            jaco_yaml: jaco.into(),
            compose_yaml: compose.into(),
            dry_run,
            files: Vec::new(),
            secret_values: Default::default(),
        };
        Ok(self.deploy().apply(request).await?.into_inner())
    }

    pub(crate) async fn status(&self) -> Result<v1::ClusterStatusResponse, DecodedError> {
        let request = v1::ClusterStatusRequest {};
        Ok(self.cluster().status(request).await?.into_inner())
    }

    pub(crate) async fn issue(
        &self,
        identity: &str,
        privileged: bool,
    ) -> Result<String, DecodedError> {
        let request = v1::TokenIssueRequest {
            identity: identity.to_owned(),
            allows_privileged: privileged,
        };
        Ok(self.tokens().issue(request).await?.into_inner().token)
    }

    pub(crate) async fn revoke(&self, identity: &str) -> Result<(), DecodedError> {
        let identity = identity.to_owned();
        self.tokens()
            .revoke(v1::TokenRevokeRequest { identity })
            .await?;
        Ok(())
    }
}

fn endpoint() -> Endpoint {
    Endpoint::from_static("http://localhost")
}
