//! A client of a daemon's operator API, over the unix socket, or over TLS with a token.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use jaco_proto::{
    error::DecodedError,
    v1::{
        self, FailureMode, ReplicaState, audit_client::AuditClient, cluster_client::ClusterClient,
        deploy_client::DeployClient, registry_credentials_client::RegistryCredentialsClient,
        tokens_client::TokensClient,
    },
};
use tonic::{
    Request, Status,
    metadata::MetadataValue,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use crate::{Workload, until, wait::WAIT_TIMEOUT};

/// Longest wait for one answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection that adds the metadata of [`CallMetadata`] to its calls.
pub type ApiChannel = InterceptedService<Channel, CallMetadata>;

/// Metadata of every call of an [`Api`].
#[derive(Clone, Default)]
pub struct CallMetadata {
    /// Operator token; not needed on the socket.
    token: Option<String>,
    linearizable: bool,
}

impl Interceptor for CallMetadata {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse();
            let value = value.map_err(|_| Status::invalid_argument("a token is ASCII"))?;
            metadata.insert("authorization", value);
        }
        if self.linearizable {
            metadata.insert("jaco-read", MetadataValue::from_static("linearizable"));
        }
        Ok(request)
    }
}

/// Calls that fail with the daemon's error, and waits for a state that the daemon reports.
///
/// Reconnects after a restart of the daemon.
#[derive(Clone)]
pub struct Api {
    channel: Channel,
    metadata: CallMetadata,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Api {
    /// The API behind a socket; connects lazily.
    ///
    /// # Errors
    /// When the path is not valid for a socket.
    pub fn new(socket: &Path) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))
            .context("socket path")?
            .timeout(REQUEST_TIMEOUT);
        Ok(Self::over(endpoint.connect_lazy(), None))
    }

    /// The API behind a connection, with an operator token.
    #[must_use]
    pub fn over(channel: Channel, token: Option<String>) -> Self {
        let metadata = CallMetadata {
            token,
            linearizable: false,
        };
        Self { channel, metadata }
    }

    /// The same API with linearizable reads: they show everything acknowledged before.
    #[must_use]
    pub fn linearizable(&self) -> Self {
        let mut api = self.clone();
        api.metadata.linearizable = true;
        api
    }

    fn client<C>(&self, client: impl FnOnce(ApiChannel) -> C) -> C {
        client(InterceptedService::new(
            self.channel.clone(),
            self.metadata.clone(),
        ))
    }

    /// The `Cluster` service.
    #[must_use]
    pub fn cluster(&self) -> ClusterClient<ApiChannel> {
        self.client(ClusterClient::new)
    }

    /// The `Deploy` service.
    #[must_use]
    pub fn deploy(&self) -> DeployClient<ApiChannel> {
        self.client(DeployClient::new)
    }

    /// The `Tokens` service.
    #[must_use]
    pub fn tokens(&self) -> TokensClient<ApiChannel> {
        self.client(TokensClient::new)
    }

    /// The `Audit` service.
    #[must_use]
    pub fn audit(&self) -> AuditClient<ApiChannel> {
        self.client(AuditClient::new)
    }

    /// The `RegistryCredentials` service.
    #[must_use]
    pub fn registry(&self) -> RegistryCredentialsClient<ApiChannel> {
        self.client(RegistryCredentialsClient::new)
    }

    /// Stores a pull credential and returns its key.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn login(
        &self,
        registry: &str,
        username: &str,
        secret: &str,
    ) -> Result<String, DecodedError> {
        let request = v1::RegistryCredentialAddRequest {
            registry: registry.to_owned(),
            username: username.to_owned(),
            secret: secret.into(),
        };
        Ok(self.registry().add(request).await?.into_inner().registry)
    }

    /// Removes a pull credential.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn logout(&self, registry: &str) -> Result<(), DecodedError> {
        let request = v1::RegistryCredentialRemoveRequest {
            registry: registry.to_owned(),
        };
        self.registry().remove(request).await?;
        Ok(())
    }

    /// `Cluster.Status`.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn status(&self) -> Result<v1::ClusterStatusResponse, DecodedError> {
        Ok(self
            .cluster()
            .status(v1::ClusterStatusRequest {})
            .await?
            .into_inner())
    }

    /// Initialises a cluster.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn init(&self) -> Result<v1::ClusterInitResponse, DecodedError> {
        let request = v1::ClusterInitRequest {
            cluster_name: "chaos".to_owned(),
        };
        Ok(self.cluster().init(request).await?.into_inner())
    }

    /// Applies a workload and returns the new revision.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn apply(&self, workload: &Workload) -> Result<u64, DecodedError> {
        let response = self.deploy().apply(workload.request()).await?;
        Ok(response.into_inner().applied_revision)
    }

    /// Deletes a deployment.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn delete(&self, deployment: &str) -> Result<(), DecodedError> {
        let request = v1::DeleteRequest {
            deployment: deployment.to_owned(),
        };
        self.deploy().delete(request).await?;
        Ok(())
    }

    /// Status of all deployments.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn deployments(&self) -> Result<v1::DeployStatusResponse, DecodedError> {
        Ok(self
            .deploy()
            .status(v1::DeployStatusRequest::default())
            .await?
            .into_inner())
    }

    /// The replicas of a deployment.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn replicas(&self, deployment: &str) -> Result<Vec<v1::ReplicaDetail>, DecodedError> {
        let request = v1::GetReplicasRequest {
            deployment_filter: deployment.to_owned(),
            ..Default::default()
        };
        Ok(self
            .deploy()
            .get_replicas(request)
            .await?
            .into_inner()
            .replicas)
    }

    /// The supervision tree.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn actors(&self) -> Result<Vec<v1::ActorInfo>, DecodedError> {
        Ok(self
            .cluster()
            .actors(v1::ActorsRequest::default())
            .await?
            .into_inner()
            .actors)
    }

    /// Injects a failure into an actor.
    ///
    /// # Errors
    /// The error that the daemon returns, or no answer if the actor serves this very call.
    pub async fn kill_actor(&self, path: &str, mode: FailureMode) -> Result<(), DecodedError> {
        let request = v1::KillActorRequest {
            path: path.to_owned(),
            mode: mode.into(),
        };
        self.cluster().kill_actor(request).await?;
        Ok(())
    }

    /// Waits until an actor satisfies `wanted`.
    ///
    /// # Errors
    /// When it does not in time.
    pub async fn actor(
        &self,
        path: &str,
        what: &str,
        wanted: impl Fn(&v1::ActorInfo) -> bool,
    ) -> Result<v1::ActorInfo> {
        until(&format!("{path} {what}"), WAIT_TIMEOUT, || async {
            let actors = self.actors().await.map_err(|error| error.to_string())?;
            match actors.into_iter().find(|actor| actor.path == path) {
                Some(actor) if wanted(&actor) => Ok(actor),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until a replica satisfies `wanted`.
    ///
    /// # Errors
    /// When it does not in time.
    pub async fn replica(
        &self,
        deployment: &str,
        id: &str,
        what: &str,
        wanted: impl Fn(&v1::ReplicaDetail) -> bool,
    ) -> Result<v1::ReplicaDetail> {
        until(&format!("{id} {what}"), WAIT_TIMEOUT, || async {
            let replicas = self
                .replicas(deployment)
                .await
                .map_err(|error| error.to_string())?;
            match replicas.into_iter().find(|replica| replica.id == id) {
                Some(replica) if wanted(&replica) => Ok(replica),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until all replicas of a deployment run, and there are as many as its services want.
    ///
    /// # Errors
    /// When they do not in time.
    pub async fn converged(&self, workload: &Workload) -> Result<Vec<v1::ReplicaDetail>> {
        let wanted: usize = workload.services.iter().map(|s| s.replicas as usize).sum();
        until(
            &format!("all of {} run", workload.name),
            WAIT_TIMEOUT,
            || async {
                let replicas = self
                    .replicas(&workload.name)
                    .await
                    .map_err(|e| e.to_string())?;
                let running = |r: &v1::ReplicaDetail| r.state() == ReplicaState::Running;
                if replicas.len() == wanted && replicas.iter().all(running) {
                    return Ok(replicas);
                }
                let seen = replicas
                    .iter()
                    .map(|r| format!("{} {:?} {}", r.id, r.state(), r.code));
                Err(format!("{:?}", seen.collect::<Vec<_>>()))
            },
        )
        .await
    }
}
