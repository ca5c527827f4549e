//! A daemon's operator: its API over the unix socket.

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
use tonic::transport::{Channel, Endpoint};

use crate::{Workload, until, wait::PATIENCE};

/// Longest wait for one answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Calls that fail with what the daemon said, and waits for what it shows.
///
/// Connects anew when the daemon went away and came back.
#[derive(Clone, Debug)]
pub struct Api(Channel);

impl Api {
    /// The API behind a socket; nothing is connected yet.
    ///
    /// # Errors
    /// When the path cannot be one of a socket.
    pub fn new(socket: &Path) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))
            .context("socket path")?
            .timeout(REQUEST_TIMEOUT);
        Ok(Self(endpoint.connect_lazy()))
    }

    /// The `Cluster` service.
    #[must_use]
    pub fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.0.clone())
    }

    /// The `Deploy` service.
    #[must_use]
    pub fn deploy(&self) -> DeployClient<Channel> {
        DeployClient::new(self.0.clone())
    }

    /// The `Tokens` service.
    #[must_use]
    pub fn tokens(&self) -> TokensClient<Channel> {
        TokensClient::new(self.0.clone())
    }

    /// The `Audit` service.
    #[must_use]
    pub fn audit(&self) -> AuditClient<Channel> {
        AuditClient::new(self.0.clone())
    }

    /// The `RegistryCredentials` service.
    #[must_use]
    pub fn registry(&self) -> RegistryCredentialsClient<Channel> {
        RegistryCredentialsClient::new(self.0.clone())
    }

    /// Stores a pull credential and returns its key.
    ///
    /// # Errors
    /// As the daemon answers.
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

    /// Drops a pull credential.
    ///
    /// # Errors
    /// As the daemon answers.
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
    /// As the daemon answers.
    pub async fn status(&self) -> Result<v1::ClusterStatusResponse, DecodedError> {
        Ok(self
            .cluster()
            .status(v1::ClusterStatusRequest {})
            .await?
            .into_inner())
    }

    /// Founds a cluster.
    ///
    /// # Errors
    /// As the daemon answers.
    pub async fn init(&self) -> Result<v1::ClusterInitResponse, DecodedError> {
        let request = v1::ClusterInitRequest {
            cluster_name: "chaos".to_owned(),
        };
        Ok(self.cluster().init(request).await?.into_inner())
    }

    /// Applies and returns the new revision.
    ///
    /// # Errors
    /// As the daemon answers.
    pub async fn apply(&self, workload: &Workload) -> Result<u64, DecodedError> {
        let response = self.deploy().apply(workload.request()).await?;
        Ok(response.into_inner().applied_revision)
    }

    /// Deletes a deployment.
    ///
    /// # Errors
    /// As the daemon answers.
    pub async fn delete(&self, deployment: &str) -> Result<(), DecodedError> {
        let request = v1::DeleteRequest {
            deployment: deployment.to_owned(),
        };
        self.deploy().delete(request).await?;
        Ok(())
    }

    /// Everything there is.
    ///
    /// # Errors
    /// As the daemon answers.
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
    /// As the daemon answers.
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
    /// As the daemon answers.
    pub async fn actors(&self) -> Result<Vec<v1::ActorInfo>, DecodedError> {
        Ok(self
            .cluster()
            .actors(v1::ActorsRequest::default())
            .await?
            .into_inner()
            .actors)
    }

    /// Makes an actor fail.
    ///
    /// # Errors
    /// As the daemon answers; if the actor serves this very call, there may be no answer.
    pub async fn kill_actor(&self, path: &str, mode: FailureMode) -> Result<(), DecodedError> {
        let request = v1::KillActorRequest {
            path: path.to_owned(),
            mode: mode.into(),
        };
        self.cluster().kill_actor(request).await?;
        Ok(())
    }

    /// Waits until an actor is as wanted.
    ///
    /// # Errors
    /// When it never is.
    pub async fn actor(
        &self,
        path: &str,
        what: &str,
        wanted: impl Fn(&v1::ActorInfo) -> bool,
    ) -> Result<v1::ActorInfo> {
        until(&format!("{path} {what}"), PATIENCE, || async {
            let actors = self.actors().await.map_err(|error| error.to_string())?;
            match actors.into_iter().find(|actor| actor.path == path) {
                Some(actor) if wanted(&actor) => Ok(actor),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until a replica is as wanted.
    ///
    /// # Errors
    /// When it never is.
    pub async fn replica(
        &self,
        deployment: &str,
        id: &str,
        what: &str,
        wanted: impl Fn(&v1::ReplicaDetail) -> bool,
    ) -> Result<v1::ReplicaDetail> {
        until(&format!("{id} {what}"), PATIENCE, || async {
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
    /// When they never do.
    pub async fn converged(&self, workload: &Workload) -> Result<Vec<v1::ReplicaDetail>> {
        let wanted: usize = workload.services.iter().map(|s| s.replicas as usize).sum();
        until(
            &format!("all of {} run", workload.name),
            PATIENCE,
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
