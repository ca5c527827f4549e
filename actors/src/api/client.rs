//! In-process client of the API: the same handlers and the same admission as on the unix socket,
//! called as functions.

use std::{
    convert::Infallible,
    fmt,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response};
use jaco_proto::{
    error::DecodedError,
    v1::{
        self, audit_client::AuditClient, cluster_client::ClusterClient,
        cluster_files_client::ClusterFilesClient, config_client::ConfigClient,
        deploy_client::DeployClient, registry_credentials_client::RegistryCredentialsClient,
        secrets_client::SecretsClient, tokens_client::TokensClient, watch_client::WatchClient,
    },
};
use tonic::{Status, Streaming, body::Body, service::Routes};
use tower::{Service, ServiceExt};

use super::{admission::Transport, context::ApiContext, layer::Admission, server::service};
use crate::node::NodeContext;

/// The services of one node, for its own process.
pub(crate) struct InProcess {
    shared: Arc<NodeContext>,
    services: Admission<Routes>,
}

impl InProcess {
    pub(crate) fn new(api: &Arc<ApiContext>) -> Self {
        Self {
            services: service(api, Transport::Process),
            shared: api.node().clone(),
        }
    }

    async fn call(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        // Held until the response is returned, so that a stopping node waits for it. A stream that
        // follows the response is not waited for.
        let stopping = self.shared.stopping();
        if *stopping.borrow() {
            return Status::from(NodeContext::stopped()).into_http();
        }
        match self.services.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Transport of the generated clients of `jaco.v1`, without a connection.
///
/// It does not keep the node alive: once the node was dropped, calls fail with `raft_unavailable`.
#[derive(Clone)]
pub struct LocalService(Weak<InProcess>);

impl fmt::Debug for LocalService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalService")
    }
}

impl Service<Request<Body>> for LocalService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let node = self.0.upgrade();
        Box::pin(async move {
            Ok(match node {
                Some(node) => node.call(request).await,
                None => Status::from(NodeContext::stopped()).into_http(),
            })
        })
    }
}

/// Operator client of a node in this process; created by [`crate::Node::client`].
///
/// It calls the same handlers as a client on the unix socket, as identity `local`, without a socket
/// in between. The methods here are those that most programs need; [`Client::cluster`],
/// [`Client::deploy`] and so on give access to the whole API of [`jaco_proto::v1`].
///
/// Messages have no size limit. Streams advance as fast as they are read, and end with
/// `raft_unavailable` when the node stops. Dropping a call or a stream cancels it.
#[derive(Clone, Debug)]
pub struct Client(LocalService);

impl Client {
    pub(crate) fn new(node: &Arc<InProcess>) -> Self {
        Self(LocalService(Arc::downgrade(node)))
    }

    /// The `Cluster` service.
    #[must_use]
    pub fn cluster(&self) -> ClusterClient<LocalService> {
        ClusterClient::new(self.0.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The `Deploy` service.
    #[must_use]
    pub fn deploy(&self) -> DeployClient<LocalService> {
        DeployClient::new(self.0.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The `Tokens` service.
    #[must_use]
    pub fn tokens(&self) -> TokensClient<LocalService> {
        TokensClient::new(self.0.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The `RegistryCredentials` service.
    #[must_use]
    pub fn registry_credentials(&self) -> RegistryCredentialsClient<LocalService> {
        RegistryCredentialsClient::new(self.0.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The `Config` service.
    #[must_use]
    pub fn config(&self) -> ConfigClient<LocalService> {
        ConfigClient::new(self.0.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The `Secrets` service.
    #[must_use]
    pub fn secrets(&self) -> SecretsClient<LocalService> {
        SecretsClient::new(self.0.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The `ClusterFiles` service.
    #[must_use]
    pub fn cluster_files(&self) -> ClusterFilesClient<LocalService> {
        ClusterFilesClient::new(self.0.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The `Audit` service.
    #[must_use]
    pub fn audit(&self) -> AuditClient<LocalService> {
        AuditClient::new(self.0.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The `Watch` service.
    #[must_use]
    pub fn watcher(&self) -> WatchClient<LocalService> {
        WatchClient::new(self.0.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Bootstraps a single-node cluster called `name`, or by its id if that is empty.
    ///
    /// # Errors
    /// `cluster_already_initialized` if the node is a member; see `Cluster.Init`.
    pub async fn init(&self, name: &str) -> Result<v1::ClusterInitResponse, DecodedError> {
        let request = v1::ClusterInitRequest {
            cluster_name: name.to_owned(),
        };
        Ok(self.cluster().init(request).await?.into_inner())
    }

    /// Returns the status of the node and its cluster.
    ///
    /// # Errors
    /// See `Cluster.Status`.
    pub async fn status(&self) -> Result<v1::ClusterStatusResponse, DecodedError> {
        let request = v1::ClusterStatusRequest {};
        Ok(self.cluster().status(request).await?.into_inner())
    }

    /// Applies a deployment: the text of its `jaco.yaml` and of its compose file, whose `env_file`s
    /// and `${VAR}`s are already resolved. Returns once it is committed; [`Client::replicas`] and
    /// [`Client::watch`] show its progress.
    ///
    /// # Errors
    /// `validation_failed` with the position of the first error, and others; see `Deploy.Apply`.
    pub async fn apply(
        &self,
        jaco_yaml: &str,
        compose_yaml: &str,
    ) -> Result<v1::ApplyResponse, DecodedError> {
        let request = v1::ApplyRequest {
            jaco_yaml: jaco_yaml.into(),
            compose_yaml: compose_yaml.into(),
            dry_run: false,
            files: Vec::new(),
            secret_values: Default::default(),
        };
        Ok(self.deploy().apply(request).await?.into_inner())
    }

    /// Deletes a deployment; its containers are stopped and removed afterwards. Deleting a
    /// deployment that does not exist succeeds.
    ///
    /// # Errors
    /// See `Deploy.Delete`.
    pub async fn delete(&self, deployment: &str) -> Result<(), DecodedError> {
        let request = v1::DeleteRequest {
            deployment: deployment.to_owned(),
        };
        self.deploy().delete(request).await?;
        Ok(())
    }

    /// Returns the desired and observed replicas of a deployment.
    ///
    /// # Errors
    /// See `Deploy.GetReplicas`.
    pub async fn replicas(&self, deployment: &str) -> Result<Vec<v1::ReplicaDetail>, DecodedError> {
        let request = v1::GetReplicasRequest {
            deployment_filter: deployment.to_owned(),
            ..Default::default()
        };
        let answer = self.deploy().get_replicas(request).await?;
        Ok(answer.into_inner().replicas)
    }

    /// Follows changes of the replicated state; see `Watch.Subscribe` for the filters of a request.
    ///
    /// # Errors
    /// `validation_failed` for an unknown entity type.
    pub async fn watch(
        &self,
        request: v1::SubscribeRequest,
    ) -> Result<Streaming<v1::SubscribeEvent>, DecodedError> {
        Ok(self.watcher().subscribe(request).await?.into_inner())
    }

    /// Streams the output of a deployment's replicas.
    ///
    /// # Errors
    /// `deployment_not_found`, `unknown_service`; `logs_unavailable` without an engine.
    pub async fn logs(
        &self,
        request: v1::LogsRequest,
    ) -> Result<Streaming<v1::LogLine>, DecodedError> {
        Ok(self.deploy().logs(request).await?.into_inner())
    }
}
