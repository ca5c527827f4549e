//! Docker Engine API over a unix socket; also works with Podman's compatible socket.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bollard::{
    Docker,
    auth::DockerCredentials,
    container::LogOutput,
    models::NetworkConnectRequest,
    query_parameters::{
        CreateContainerOptions, CreateImageOptions, KillContainerOptions, LogsOptions,
        RemoveContainerOptions, StartContainerOptions, StopContainerOptions,
    },
};
use futures::{StreamExt, TryStreamExt, future, stream::BoxStream};
use jaco_proto::manifest::compose::Hook;
use tokio::sync::Semaphore;

use crate::{
    CommandExit, Credential, DEFAULT_GRACE, Engine, EngineError, Event, Found, Inspected, LogFrame,
    LogRequest, LogStream, StartSlot,
    labels::{LABEL_CLUSTER, LABEL_PRE_STOP, LABEL_REPLICA},
    spec::{ContainerSpec, EndpointConfig},
};
use connection::{Connection, REQUEST_TIMEOUT};
use projection::endpoint_settings;

mod connection;
mod convert;
mod exec;
mod networks;
mod projection;
mod support;

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
    starts: Arc<Semaphore>,
}

impl DockerEngine {
    /// Creates an engine for `socket` without connecting.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            connection: Connection::new(socket),
            starts: Arc::new(Semaphore::new(CONCURRENT_STARTS)),
        }
    }

    async fn client(&self) -> Result<Arc<Docker>, EngineError> {
        self.connection.client().await
    }

    fn map_result<T>(&self, result: Result<T, bollard::errors::Error>) -> Result<T, EngineError> {
        self.connection.map_result(result)
    }

    async fn list_by(&self, labels: Vec<String>) -> Result<Vec<Found>, EngineError> {
        let filters = serde_json::json!({ "label": labels });
        let listed = self.connection.summaries(&filters).await?;
        Ok(listed.into_iter().map(convert::found).collect())
    }

    async fn details(&self, container: &str) -> Result<convert::Details, EngineError> {
        self.connection.details(container).await
    }
}

impl Connection {
    /// Lists containers in any state.
    async fn summaries(
        &self,
        filters: &serde_json::Value,
    ) -> Result<Vec<convert::Summary>, EngineError> {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("all", "1")
            .append_pair("filters", &filters.to_string())
            .finish();
        self.document(&format!("/containers/json?{query}")).await
    }

    async fn details(&self, container: &str) -> Result<convert::Details, EngineError> {
        self.document(&format!("/containers/{container}/json"))
            .await
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
        let details = self.details(container).await?;
        let lender = match details.lender() {
            Some(lender) => match self.details(lender).await {
                Ok(lender) => Some(lender),
                Err(EngineError::NotFound(_)) => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        Ok(convert::inspected(details, lender))
    }

    fn pull(
        &self,
        image: &str,
        platform: Option<&str>,
        auth: Option<&Credential>,
    ) -> BoxStream<'static, Result<(), EngineError>> {
        let options = CreateImageOptions {
            from_image: Some(tagged(image)),
            platform: platform.unwrap_or_default().to_owned(),
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

    async fn start_slot(&self) -> StartSlot {
        let slot = Arc::clone(&self.starts).acquire_owned().await;
        // Acquiring fails only on a closed semaphore; this one is never closed.
        slot.map(StartSlot::new).unwrap_or_default()
    }

    async fn create(&self, name: &str, spec: &ContainerSpec) -> Result<String, EngineError> {
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            platform: spec.service.platform.clone().unwrap_or_default(),
        };
        let client = self.client().await?;
        support::check(spec, &client.client_version())?;
        let answer = client.create_container(Some(options), project(spec)).await;
        Ok(self.map_result(answer)?.id)
    }

    async fn connect(
        &self,
        network: &str,
        container: &str,
        config: &EndpointConfig,
    ) -> Result<(), EngineError> {
        let request = NetworkConnectRequest {
            container: container.to_owned(),
            endpoint_config: Some(endpoint_settings(config)),
        };
        let answer = self.client().await?.connect_network(network, request).await;
        self.map_result(answer)
    }

    async fn start(&self, container: &str) -> Result<(), EngineError> {
        let answer = self
            .client()
            .await?
            .start_container(container, None::<StartContainerOptions>)
            .await;
        self.map_result(answer)
    }

    async fn run(&self, container: &str, command: &Hook) -> Result<CommandExit, EngineError> {
        self.exec(container, exec::request(command)).await
    }

    async fn pre_stop(&self, container: &str) -> Result<Vec<String>, EngineError> {
        let details = match self.details(container).await {
            Ok(details) => details,
            Err(EngineError::NotFound(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let limit = details.grace().unwrap_or(DEFAULT_GRACE);
        Ok(match details.pre_stop() {
            Some(Ok(requests)) => self.exec_all(container, requests, limit).await,
            Some(Err(error)) => vec![format!("its label {LABEL_PRE_STOP}: {error}")],
            None => Vec::new(),
        })
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
        let of_cluster = format!("{LABEL_CLUSTER}={cluster_id}");
        let filters = [("type", "container"), ("label", &of_cluster)];
        self.connection.events(&filters, convert::event)
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
    use std::time::{SystemTime, UNIX_EPOCH};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{UnixListener, UnixStream},
    };

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

    /// An engine that has received the request for its events and has not registered the stream.
    struct Unregistered {
        stream: UnixStream,
        since: Option<f64>,
    }

    impl Unregistered {
        async fn accept(listener: &UnixListener) -> Self {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
                }
                let head = String::from_utf8(request).unwrap();
                let target = head.split(' ').nth(1).unwrap();
                let (path, query) = target.split_once('?').unwrap_or((target, ""));
                if path.ends_with("/version") {
                    let body = r#"{"ApiVersion":"1.43"}"#;
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\
                         Content-Length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    continue;
                }
                assert!(path.ends_with("/events"), "{path}");
                let mut query = form_urlencoded::parse(query.as_bytes());
                let since = query.find(|(key, _)| key == "since");
                let since = since.map(|(_, value)| value.parse().unwrap());
                return Self { stream, since };
            }
        }

        /// Registers the stream: sends the events since the requested time, and ends it.
        async fn register(mut self, events: &[(SystemTime, &str)]) {
            let mut body = String::new();
            for (at, container) in events {
                let at = at.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
                if self.since.is_some_and(|since| at >= since) {
                    let attributes = serde_json::json!({ LABEL_REPLICA: "web-0" });
                    let actor = serde_json::json!({ "ID": container, "Attributes": attributes });
                    let event = serde_json::json!({ "Action": "die", "Actor": actor });
                    body.push_str(&format!("{event}\n"));
                }
            }
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            self.stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn events_before_registration_are_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let long_ago = (SystemTime::now() - Duration::from_secs(60), "c0");
        let mut events = DockerEngine::new(&socket).events("c");
        let mut first = events.next();
        let unregistered = tokio::select! {
            event = &mut first => panic!("{event:?} before any event"),
            unregistered = Unregistered::accept(&listener) => unregistered,
        };
        let past = [long_ago, (SystemTime::now(), "c1")];
        let (first, ()) = tokio::join!(first, unregistered.register(&past));
        let event = first.expect("an event").unwrap();
        assert_eq!(event.container_id, "c1");
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
