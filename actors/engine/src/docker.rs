//! Docker Engine API over a unix socket; also works with Podman's compatible socket.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bollard::{
    Docker,
    auth::DockerCredentials,
    container::LogOutput,
    models::{EndpointSettings, NetworkConnectRequest},
    query_parameters::{
        CreateContainerOptions, CreateImageOptions, EventsOptions, KillContainerOptions,
        LogsOptions, RemoveContainerOptions, StartContainerOptions, StopContainerOptions,
    },
};
use futures::{StreamExt, TryStreamExt, future, stream::BoxStream};
use tokio::sync::Semaphore;

use crate::{
    Credential, DEFAULT_GRACE, Engine, EngineError, Event, Found, Inspected, LogFrame, LogRequest,
    LogStream,
    labels::{LABEL_CLUSTER, LABEL_REPLICA},
    spec::ContainerSpec,
};
use connection::{Connection, REQUEST_TIMEOUT};

mod connection;
mod convert;
mod networks;
mod projection;

pub use bollard::models::ContainerCreateBody;
pub use projection::project;

/// Create and start requests in flight at once; more slow all of them down.
const CONCURRENT_STARTS: usize = 8;
/// Request timeout of a pull. The engine does not answer before the registry has; callers give up
/// on a silent pull earlier.
const PULL_TIMEOUT: Duration = Duration::from_secs(600);

/// Docker or Podman engine behind a unix socket; the socket need not exist yet.
pub struct DockerEngine {
    connection: Arc<Connection>,
    starts: Semaphore,
}

impl DockerEngine {
    /// Creates an engine for `socket` without connecting.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            connection: Connection::new(socket),
            starts: Semaphore::new(CONCURRENT_STARTS),
        }
    }

    async fn client(&self) -> Result<Arc<Docker>, EngineError> {
        self.connection.client().await
    }

    fn map_result<T>(&self, result: Result<T, bollard::errors::Error>) -> Result<T, EngineError> {
        self.connection.map_result(result)
    }

    async fn list_by(&self, labels: Vec<String>) -> Result<Vec<Found>, EngineError> {
        let filters = serde_json::json!({ "label": labels }).to_string();
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("all", "1")
            .append_pair("filters", &filters)
            .finish();
        let path = format!("/containers/json?{query}");
        let listed: Vec<convert::Summary> = self.connection.document(&path).await?;
        Ok(listed.into_iter().map(convert::found).collect())
    }

    async fn details(&self, container: &str) -> Result<convert::Details, EngineError> {
        let path = format!("/containers/{container}/json");
        self.connection.document(&path).await
    }

    async fn start_slot(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        // Acquiring fails only on a closed semaphore; this one is never closed.
        self.starts.acquire().await.ok()
    }
}

#[async_trait]
impl Engine for DockerEngine {
    async fn ping(&self) -> Result<(), EngineError> {
        let answer = self.client().await?.ping().await;
        self.map_result(answer).map(drop)
    }

    async fn find(&self, cluster_id: &str, replica_id: &str) -> Result<Vec<Found>, EngineError> {
        self.list_by(vec![
            format!("{LABEL_CLUSTER}={cluster_id}"),
            format!("{LABEL_REPLICA}={replica_id}"),
        ])
        .await
    }

    async fn list(&self, cluster_id: &str) -> Result<Vec<Found>, EngineError> {
        self.list_by(vec![format!("{LABEL_CLUSTER}={cluster_id}")])
            .await
    }

    async fn inspect(&self, container: &str) -> Result<Inspected, EngineError> {
        Ok(convert::inspected(self.details(container).await?))
    }

    fn pull(
        &self,
        image: &str,
        auth: Option<&Credential>,
    ) -> BoxStream<'static, Result<(), EngineError>> {
        let options = CreateImageOptions {
            from_image: Some(tagged(image)),
            ..Default::default()
        };
        let credentials = auth.map(|credential| DockerCredentials {
            username: Some(credential.username.clone()),
            password: Some(credential.secret.expose().to_owned()),
            serveraddress: Some(credential.server.clone()),
            ..Default::default()
        });
        let progress = Arc::clone(&self.connection).stream(move |docker| {
            let patient = docker.clone().with_timeout(PULL_TIMEOUT);
            patient
                .create_image(Some(options), None, credentials)
                .boxed()
        });
        progress
            .and_then(|step| future::ready(convert::progress(step)))
            .boxed()
    }

    async fn create(&self, name: &str, spec: &ContainerSpec) -> Result<String, EngineError> {
        let _slot = self.start_slot().await;
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            ..Default::default()
        };
        let answer = self
            .client()
            .await?
            .create_container(Some(options), project(spec))
            .await;
        Ok(self.map_result(answer)?.id)
    }

    async fn connect(
        &self,
        network: &str,
        container: &str,
        aliases: &[String],
    ) -> Result<(), EngineError> {
        let request = NetworkConnectRequest {
            container: container.to_owned(),
            endpoint_config: Some(EndpointSettings {
                aliases: Some(aliases.to_vec()),
                ..Default::default()
            }),
        };
        let answer = self.client().await?.connect_network(network, request).await;
        self.map_result(answer)
    }

    async fn start(&self, container: &str) -> Result<(), EngineError> {
        let _slot = self.start_slot().await;
        let answer = self
            .client()
            .await?
            .start_container(container, None::<StartContainerOptions>)
            .await;
        self.map_result(answer)
    }

    async fn stop(&self, container: &str) -> Result<(), EngineError> {
        let grace = match self.details(container).await {
            Ok(details) => details.grace().unwrap_or(DEFAULT_GRACE),
            Err(EngineError::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        // Podman does not default to the container's own grace period, so it is always passed
        // explicitly.
        let options = StopContainerOptions {
            t: i32::try_from(grace.as_secs()).ok(),
            ..Default::default()
        };
        let client = self.client().await?;
        let answer = Docker::clone(&client)
            .with_timeout(REQUEST_TIMEOUT + grace)
            .stop_container(container, Some(options))
            .await;
        EngineError::ignore_not_found(self.map_result(answer))
    }

    async fn kill(&self, container: &str, signal: &str) -> Result<(), EngineError> {
        let options = KillContainerOptions {
            signal: signal.to_owned(),
        };
        let answer = self
            .client()
            .await?
            .kill_container(container, Some(options))
            .await;
        EngineError::ignore_not_found(self.map_result(answer))
    }

    async fn remove(&self, container: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptions {
            v: true,
            force: true,
            ..Default::default()
        };
        let answer = self
            .client()
            .await?
            .remove_container(container, Some(options))
            .await;
        EngineError::ignore_not_found(self.map_result(answer))
    }

    fn events(&self, cluster_id: &str) -> BoxStream<'static, Result<Event, EngineError>> {
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            (
                "label".to_owned(),
                vec![format!("{LABEL_CLUSTER}={cluster_id}")],
            ),
        ]);
        let options = EventsOptions {
            filters: Some(filters),
            ..Default::default()
        };
        let events = Arc::clone(&self.connection)
            .stream(|docker| docker.events(Some(options)).boxed())
            .try_filter_map(|message| future::ready(Ok(convert::event(message))));
        events.boxed()
    }

    fn logs(
        &self,
        container: &str,
        request: LogRequest,
    ) -> BoxStream<'static, Result<LogFrame, EngineError>> {
        let options = LogsOptions {
            follow: request.follow,
            stdout: true,
            stderr: true,
            since: i32::try_from(request.since).unwrap_or(i32::MAX),
            timestamps: true,
            tail: "all".to_owned(),
            ..Default::default()
        };
        let container = container.to_owned();
        let output = Arc::clone(&self.connection)
            .stream(move |docker| docker.logs(&container, Some(options)).boxed());
        output.map_ok(frame).boxed()
    }
}

fn frame(output: LogOutput) -> LogFrame {
    let (stream, bytes) = match output {
        LogOutput::StdErr { message } => (LogStream::Stderr, message),
        LogOutput::StdOut { message }
        | LogOutput::StdIn { message }
        | LogOutput::Console { message } => (LogStream::Stdout, message),
    };
    LogFrame { stream, bytes }
}

/// Appends `latest` to a reference without a tag: the engine would pull every tag.
fn tagged(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_without_tag_pulls_latest() {
        for (image, pulled) in [
            ("alpine", "alpine:latest"),
            ("alpine:3", "alpine:3"),
            ("reg:5000/app", "reg:5000/app:latest"),
            ("reg:5000/app@sha256:ab", "reg:5000/app@sha256:ab"),
        ] {
            assert_eq!(tagged(image), pulled);
        }
    }

    #[tokio::test]
    async fn missing_socket_is_unreachable_not_fatal() {
        let folder = tempfile::tempdir().unwrap();
        let engine = DockerEngine::new(folder.path().join("none.sock"));
        let error = engine.ping().await.unwrap_err();
        assert!(matches!(error, EngineError::Unreachable(_)), "{error}");
        let mut events = engine.events("c");
        assert!(matches!(
            events.next().await,
            Some(Err(EngineError::Unreachable(_)))
        ));
    }
}
