//! A fake daemon for tests: a real server on a unix socket with scripted responses.

mod certs;
mod cluster;
mod credentials;
mod files;
mod hosting;

use std::{
    io::{self, Write},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use futures::stream;
use jaco_proto::{
    Error,
    v1::{
        self, audit_server::AuditServer, certs_server::CertsServer,
        cluster_files_server::ClusterFilesServer, cluster_server::ClusterServer,
        config_server::ConfigServer, deploy_server::DeployServer,
        registry_credentials_server::RegistryCredentialsServer, secrets_server::SecretsServer,
        tokens_server::TokensServer, watch_server::WatchServer,
    },
};
use tokio::{net::UnixListener, sync::mpsc};
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, transport::Server};

use super::{
    connection::Client,
    failure::{Failure, Stop},
    output::{Format, Ui},
    transport::Target,
};

type Boxed<T> = std::pin::Pin<Box<dyn futures::Stream<Item = Result<T, Status>> + Send>>;

/// Behaviour of a subscription after the last scripted status was fetched.
#[derive(Clone, Default)]
pub(crate) enum AtEnd {
    /// The stream ends.
    #[default]
    Close,
    /// The stream stays open without further events.
    Silence,
    /// The stream fails.
    Fail(Error),
}

/// The responses of the daemon. A list advances with every call and stays at its last entry; after
/// every status except the last one subscribers get an event.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) status: Vec<v1::DeployStatusResponse>,
    pub(crate) replicas: Vec<Vec<v1::ReplicaDetail>>,
    pub(crate) events: Vec<v1::SubscribeEvent>,
    pub(crate) at_end: AtEnd,
    pub(crate) apply: Option<Result<v1::ApplyResponse, Error>>,
    pub(crate) logs: Vec<Result<v1::LogLine, Error>>,
    pub(crate) audit: Vec<v1::AuditEvent>,
    pub(crate) cluster: v1::ClusterStatusResponse,
    /// Whether join tokens come with raft addresses, as from upstream's daemon.
    pub(crate) raft_leader_addrs: bool,
    pub(crate) actors: Vec<v1::ActorInfo>,
    pub(crate) digest: v1::DigestResponse,
    pub(crate) network: v1::NetworkStatusResponse,
    pub(crate) routes: Vec<v1::RealizedRoute>,
    pub(crate) tokens: Vec<v1::TokenInfo>,
    pub(crate) credentials: Vec<v1::RegistryCredentialSummary>,
    pub(crate) config: Vec<v1::ConfigEntry>,
    /// Answers of the checks of a domain.
    pub(crate) checks: Vec<v1::CheckDomainResponse>,
    pub(crate) certs: Vec<v1::CertInfo>,
    pub(crate) files: Vec<v1::ClusterFileInfo>,
    pub(crate) secrets: Vec<v1::SecretInfo>,
    /// Addresses of the domains whose TLS is switched.
    pub(crate) urls: Vec<String>,
    pub(crate) backup: Vec<Result<Vec<u8>, Error>>,
    pub(crate) refuse: Option<Error>,
}

#[derive(Default)]
struct Recorded {
    applies: Vec<v1::ApplyRequest>,
    subscriptions: Vec<v1::SubscribeRequest>,
    logs: Vec<v1::LogsRequest>,
    audit: Vec<v1::AuditQueryRequest>,
    authorization: Vec<Option<String>>,
    reads: Vec<Option<String>>,
    credentials: Vec<v1::RegistryCredentialAddRequest>,
    files: Vec<v1::ClusterFileCreateRequest>,
    secrets: Vec<v1::SecretSetRequest>,
}

#[derive(Default)]
struct Inner {
    script: Script,
    recorded: Recorded,
    subscribers: Vec<mpsc::UnboundedSender<Result<v1::SubscribeEvent, Status>>>,
}

#[derive(Clone, Default)]
pub(crate) struct Service(Arc<Mutex<Inner>>);

/// A running daemon; dropping it stops it.
pub(crate) struct Fake {
    service: Service,
    task: tokio::task::JoinHandle<()>,
    dir: tempfile::TempDir,
}

impl Fake {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let service = Service::default();
        let router = service.router();
        let task = tokio::spawn(async move {
            router
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .unwrap();
        });
        tokio::task::yield_now().await;
        Self { service, task, dir }
    }

    pub(crate) fn script(&self, edit: impl FnOnce(&mut Script)) {
        edit(&mut self.service.inner().script);
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(false)
    }

    pub(crate) fn client_with(&self, consistent: bool) -> Client {
        Client::new(Target::Socket(self.socket()), consistent).unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// The `jaco-read` header of every call, in order.
    pub(crate) fn reads(&self) -> Vec<Option<String>> {
        self.service.inner().recorded.reads.clone()
    }

    pub(crate) fn applies(&self) -> Vec<v1::ApplyRequest> {
        self.service.inner().recorded.applies.clone()
    }

    pub(crate) fn subscriptions(&self) -> Vec<v1::SubscribeRequest> {
        self.service.inner().recorded.subscriptions.clone()
    }

    pub(crate) fn log_requests(&self) -> Vec<v1::LogsRequest> {
        self.service.inner().recorded.logs.clone()
    }

    pub(crate) fn credentials(&self) -> Vec<v1::RegistryCredentialAddRequest> {
        self.service.inner().recorded.credentials.clone()
    }

    pub(crate) fn files(&self) -> Vec<v1::ClusterFileCreateRequest> {
        self.service.inner().recorded.files.clone()
    }

    pub(crate) fn secrets(&self) -> Vec<v1::SecretSetRequest> {
        self.service.inner().recorded.secrets.clone()
    }

    pub(crate) fn audit_queries(&self) -> Vec<v1::AuditQueryRequest> {
        self.service.inner().recorded.audit.clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Service {
    pub(crate) fn router(&self) -> tonic::transport::server::Router {
        Server::builder()
            .add_service(ClusterServer::new(self.clone()))
            .add_service(DeployServer::new(self.clone()))
            .add_service(WatchServer::new(self.clone()))
            .add_service(AuditServer::new(self.clone()))
            .add_service(CertsServer::new(self.clone()))
            .add_service(ClusterFilesServer::new(self.clone()))
            .add_service(TokensServer::new(self.clone()))
            .add_service(ConfigServer::new(self.clone()))
            .add_service(SecretsServer::new(self.clone()))
            .add_service(RegistryCredentialsServer::new(self.clone()))
    }

    pub(crate) fn script(&self, edit: impl FnOnce(&mut Script)) {
        edit(&mut self.inner().script);
    }

    /// The `authorization` header of every call, in order.
    pub(crate) fn authorization(&self) -> Vec<Option<String>> {
        self.inner().recorded.authorization.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let mut inner = self.inner();
        let header = |name| {
            let value = request.metadata().get(name);
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        inner.recorded.authorization.push(header("authorization"));
        inner.recorded.reads.push(header("jaco-read"));
        inner
            .script
            .refuse
            .clone()
            .map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Inner {
    /// Sends subscribers the next event, or ends their streams.
    fn publish(&mut self) {
        if self.script.status.len() > 1 {
            self.script.status.remove(0);
            let event = match self.script.events.is_empty() {
                true => deployment_event(1),
                false => self.script.events.remove(0),
            };
            for subscriber in &self.subscribers {
                let _ = subscriber.send(Ok(event.clone()));
            }
            return;
        }
        match self.script.at_end.clone() {
            AtEnd::Silence => {}
            AtEnd::Close => self.subscribers.clear(),
            AtEnd::Fail(error) => {
                for subscriber in self.subscribers.drain(..) {
                    let _ = subscriber.send(Err(error.clone().into()));
                }
            }
        }
    }
}

#[tonic::async_trait]
impl v1::deploy_server::Deploy for Service {
    async fn apply(
        &self,
        request: Request<v1::ApplyRequest>,
    ) -> Result<Response<v1::ApplyResponse>, Status> {
        self.admit(&request)?;
        let mut inner = self.inner();
        inner.recorded.applies.push(request.into_inner());
        let answer = inner
            .script
            .apply
            .clone()
            .unwrap_or_else(|| Ok(Default::default()));
        Ok(Response::new(answer?))
    }

    async fn rollback(
        &self,
        request: Request<v1::RollbackRequest>,
    ) -> Result<Response<v1::RollbackResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::RollbackResponse { revision: 4 }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::DeleteResponse {}))
    }

    async fn status(
        &self,
        request: Request<v1::DeployStatusRequest>,
    ) -> Result<Response<v1::DeployStatusResponse>, Status> {
        self.admit(&request)?;
        let mut inner = self.inner();
        let answer = inner.script.status.first().cloned().unwrap_or_default();
        inner.publish();
        Ok(Response::new(answer))
    }

    type LogsStream = Boxed<v1::LogLine>;

    async fn logs(
        &self,
        request: Request<v1::LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        self.admit(&request)?;
        let mut inner = self.inner();
        inner.recorded.logs.push(request.into_inner());
        let lines = inner
            .script
            .logs
            .clone()
            .into_iter()
            .map(|line| line.map_err(Status::from));
        Ok(Response::new(Box::pin(stream::iter(
            lines.collect::<Vec<_>>(),
        ))))
    }

    async fn get_replicas(
        &self,
        request: Request<v1::GetReplicasRequest>,
    ) -> Result<Response<v1::GetReplicasResponse>, Status> {
        self.admit(&request)?;
        let mut inner = self.inner();
        let replicas = inner.script.replicas.first().cloned().unwrap_or_default();
        if inner.script.replicas.len() > 1 {
            inner.script.replicas.remove(0);
        }
        Ok(Response::new(v1::GetReplicasResponse { replicas }))
    }

    async fn set_tls(
        &self,
        request: Request<v1::SetTlsRequest>,
    ) -> Result<Response<v1::SetTlsResponse>, Status> {
        self.admit(&request)?;
        let urls = match request.into_inner().domain {
            domain if domain.is_empty() => self.inner().script.urls.clone(),
            domain => vec![format!("https://{domain}")],
        };
        Ok(Response::new(v1::SetTlsResponse { urls }))
    }

    async fn control_rollout(
        &self,
        request: Request<v1::ControlRolloutRequest>,
    ) -> Result<Response<v1::ControlRolloutResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::ControlRolloutResponse { revision: 3 }))
    }

    async fn get_route(
        &self,
        request: Request<v1::GetRouteRequest>,
    ) -> Result<Response<v1::GetRouteResponse>, Status> {
        self.admit(&request)?;
        let domain = request.into_inner().domain;
        let routes = self.inner().script.routes.clone();
        Ok(Response::new(v1::GetRouteResponse { domain, routes }))
    }
}

#[tonic::async_trait]
impl v1::watch_server::Watch for Service {
    type SubscribeStream = Boxed<v1::SubscribeEvent>;

    async fn subscribe(
        &self,
        request: Request<v1::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        self.admit(&request)?;
        let mut inner = self.inner();
        inner.recorded.subscriptions.push(request.into_inner());
        let (sender, receiver) = mpsc::unbounded_channel();
        inner.subscribers.push(sender);
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(
            receiver,
        ))))
    }
}

#[tonic::async_trait]
impl v1::audit_server::Audit for Service {
    type QueryStream = Boxed<v1::AuditEvent>;

    async fn query(
        &self,
        request: Request<v1::AuditQueryRequest>,
    ) -> Result<Response<Self::QueryStream>, Status> {
        self.admit(&request)?;
        let mut inner = self.inner();
        inner.recorded.audit.push(request.into_inner());
        let events: Vec<_> = inner.script.audit.iter().cloned().map(Ok).collect();
        Ok(Response::new(Box::pin(stream::iter(events))))
    }
}

/// An event without any content but its index.
pub(crate) fn deployment_event(raft_index: u64) -> v1::SubscribeEvent {
    let event = v1::DeploymentEvent {
        raft_index,
        ..Default::default()
    };
    v1::SubscribeEvent {
        payload: Some(v1::subscribe_event::Payload::Deployment(event)),
    }
}

/// Output of a command.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command and captures its output.
pub(crate) async fn capture(
    format: Format,
    command: impl AsyncFnOnce(&mut Ui<'_>) -> Result<(), Stop>,
) -> (Result<(), Stop>, Captured) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut ui = Ui {
        out: &mut out,
        err: &mut err,
        format,
        quiet: false,
        err_columns: None,
        out_is_terminal: false,
    };
    let result = command(&mut ui).await;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        result,
        Captured {
            out: text(out),
            err: text(err),
        },
    )
}

/// Runs a command whose stdout is a closed pipe.
pub(crate) async fn into_closed_pipe(
    command: impl AsyncFnOnce(&mut Ui<'_>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (mut out, mut err) = (Closed, Vec::new());
    let mut ui = Ui {
        out: &mut out,
        err: &mut err,
        format: Format::Table,
        quiet: false,
        err_columns: None,
        out_is_terminal: false,
    };
    command(&mut ui).await
}

/// The failure that a command ended with.
pub(crate) fn failure(result: Result<(), Stop>) -> Failure {
    match result {
        Err(Stop::Failed(failure)) => *failure,
        other => panic!("not a failure: {other:?}"),
    }
}
