//! Listeners of the API: the unix socket for operators of this machine, TLS for all other clients.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::Stream;
use jaco_policy::api::connection_limits::ConnectionLimiter;
use jaco_proto::v1::{
    audit_server::AuditServer, certs_server::CertsServer, cluster_files_server::ClusterFilesServer,
    cluster_server::ClusterServer, config_server::ConfigServer, deploy_server::DeployServer,
    internal_server::InternalServer, registry_credentials_server::RegistryCredentialsServer,
    secrets_server::SecretsServer, tokens_server::TokensServer, watch_server::WatchServer,
};
use jaco_supervision::{Context, Failure, Worker};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{
    server::NamedService,
    service::Routes,
    transport::server::{Connected, Router, Server},
};
use tower::{
    Layer as _,
    layer::util::{Identity, Stack},
};

use super::{
    admission::Transport,
    audit::AuditService,
    certs::CertsService,
    cluster::ClusterService,
    config::ConfigService,
    connection::{ConnectionGuard, IdleTimeoutIo},
    context::ApiContext,
    deploy::DeployService,
    files::ClusterFilesService,
    internal::InternalService,
    layer::{Admission, AdmissionLayer},
    methods::largest_request,
    registry::RegistryService,
    secrets::SecretsService,
    tokens::TokensService,
    watch::WatchService,
};

/// Concurrent streams one connection may hold open.
const STREAMS_PER_CONNECTION: u32 = 64;
/// Accepted connections that may wait for the server.
const ACCEPT_QUEUE: usize = 64;
/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between warnings about too many connections.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Arguments of a listener actor.
#[derive(Clone)]
pub struct ApiArgs<A> {
    pub(crate) api: Arc<ApiContext>,
    /// Address or socket to listen on.
    pub(crate) at: A,
}

fn router(api: &Arc<ApiContext>, transport: Transport) -> Router<Stack<AdmissionLayer, Identity>> {
    Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .layer(admission(api, transport))
        .add_routes(routes(api))
}

/// Returns the service that answers requests received on `transport`.
pub(crate) fn service(api: &Arc<ApiContext>, transport: Transport) -> Admission<Routes> {
    admission(api, transport).layer(routes(api))
}

fn admission(api: &Arc<ApiContext>, transport: Transport) -> AdmissionLayer {
    AdmissionLayer {
        transport,
        api: api.clone(),
    }
}

fn routes(api: &Arc<ApiContext>) -> Routes {
    let node = api.node();
    macro_rules! service {
        ($server:ident, $service:expr) => {{
            let server = $server::new($service);
            let limit = decoding_limit(&server);
            server.max_decoding_message_size(limit)
        }};
    }
    Routes::new(service!(ClusterServer, ClusterService(api.clone())))
        .add_service(service!(DeployServer, DeployService(node.clone())))
        .add_service(service!(TokensServer, TokensService(node.clone())))
        .add_service(service!(
            RegistryCredentialsServer,
            RegistryService(node.clone())
        ))
        .add_service(service!(ConfigServer, ConfigService(node.clone())))
        .add_service(service!(SecretsServer, SecretsService(node.clone())))
        .add_service(service!(
            ClusterFilesServer,
            ClusterFilesService(node.clone())
        ))
        .add_service(service!(CertsServer, CertsService(api.clone())))
        .add_service(service!(AuditServer, AuditService(node.clone())))
        .add_service(service!(WatchServer, WatchService(node.clone())))
        .add_service(service!(InternalServer, InternalService(node.clone())))
}

/// Size limit in bytes of the messages that a service decodes.
fn decoding_limit<S: NamedService>(_: &S) -> usize {
    largest_request(S::NAME)
}

/// Messages of a listener actor, one for each way in which its tasks end.
pub enum Msg {
    /// The listener accepts no more connections.
    Closed,
    /// The node stops, and the last connection is closed.
    Drained,
    /// The server returned; the listener is gone.
    Ended(String),
}

/// Serves connections until the node stops, and then those in progress to their end.
///
/// If the task is dropped instead, calls in progress are finished as well, and each connection
/// closes after its last one; the client retries on the next listener.
async fn serve<I, C>(
    router: Router<Stack<AdmissionLayer, Identity>>,
    incoming: I,
    stopping: watch::Receiver<bool>,
) -> Msg
where
    I: Stream<Item = io::Result<C>>,
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    C::ConnectInfo: Clone + Send + Sync + 'static,
{
    let mut stopped = stopping.clone();
    let stop = async move {
        let _ = stopped.wait_for(|&stopping| stopping).await; // an error: the node is gone
    };
    let served = router.serve_with_incoming_shutdown(incoming, stop).await;
    match served {
        Ok(()) if *stopping.borrow() => Msg::Drained,
        Ok(()) => Msg::Ended("no connection can come in any more".to_owned()),
        Err(error) => Msg::Ended(error.to_string()),
    }
}

fn ended(msg: Msg) -> Result<(), Failure> {
    match msg {
        Msg::Closed | Msg::Drained => Ok(()),
        Msg::Ended(why) => Err(Failure::from(format!("the listener ended: {why}"))),
    }
}

/// Source of the control socket.
#[derive(Clone)]
pub enum ControlSocket {
    /// Created here, and removed at the end.
    Path(PathBuf),
    /// Already listening; outlives this process.
    Inherited(Arc<std::os::unix::net::UnixListener>),
}

/// Serves the API on the unix socket.
pub struct UnixApiActor {
    /// The socket file, if this actor has to remove it.
    path: Option<PathBuf>,
}

impl Worker for UnixApiActor {
    type Msg = Msg;
    type Args = ApiArgs<ControlSocket>;
    const KIND: &'static str = "UnixApiActor";

    async fn start(ctx: &Context<Self>, args: Self::Args) -> Result<Self, Failure> {
        let ApiArgs { api, at } = args;
        let (listener, path) = match at {
            ControlSocket::Inherited(socket) => (adopt(&socket)?, None),
            ControlSocket::Path(path) => {
                let listener = bind_unix(&path).map_err(|error| {
                    Failure::from(format!("cannot listen on {}: {error}", path.display()))
                })?;
                (listener, Some(path))
            }
        };
        let address = listener.local_addr()?;
        let socket = path.as_deref().or(address.as_pathname());
        tracing::info!(
            subsystem = "daemon/grpc",
            socket = %socket.unwrap_or(Path::new("unnamed")).display(),
            inherited = path.is_none(),
            "API is listening"
        );
        let router = router(&api, Transport::Local);
        let stopping = api.node().stopping();
        ctx.spawn(serve(router, UnixListenerStream::new(listener), stopping));
        Ok(Self { path })
    }

    async fn handle(&mut self, _: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        ended(msg)
    }

    async fn stop(&mut self, _: &Context<Self>) {
        if let Some(path) = &self.path
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(subsystem = "daemon/grpc", %error, "socket file was not removed");
        }
    }
}

/// Returns a listener on an inherited socket, which outlives the listener.
fn adopt(inherited: &std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
    let listener = inherited.try_clone()?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Binds with mode 0660 from the start. Replaces the socket file of a dead daemon, but no other
/// kind of file.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Bound under another name and renamed, so that no client can connect before the mode is set.
    let staging = path.with_extension("sock.new");
    match fs::remove_file(&staging) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&staging)?;
    fs::set_permissions(&staging, fs::Permissions::from_mode(0o660))?;
    // A daemon without root can give the socket only to one of its own groups.
    if let Some(gid) = group("jaco")
        && let Err(error) = std::os::unix::fs::chown(&staging, None, Some(gid))
    {
        tracing::warn!(subsystem = "daemon/grpc", %error, "the group jaco cannot use the socket");
    }
    fs::rename(&staging, path)?;
    Ok(listener)
}

/// Creates a directory and its missing parents with mode 0755, so that the group reaches the socket
/// whatever the umask is. Existing directories keep their mode.
fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        make_dir(parent)?;
    }
    match fs::create_dir(dir) {
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Looks up the id of a group in `/etc/group`.
fn group(name: &str) -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Serves the API over TLS.
pub struct TlsApiActor;

impl Worker for TlsApiActor {
    type Msg = Msg;
    type Args = ApiArgs<SocketAddr>;
    const KIND: &'static str = "TlsApiActor";

    async fn start(ctx: &Context<Self>, args: Self::Args) -> Result<Self, Failure> {
        let ApiArgs { api, at: address } = args;
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| Failure::from(format!("cannot listen on {address}: {error}")))?;
        tracing::info!(subsystem = "daemon/grpc", %address, "API is listening");
        let acceptor = TlsAcceptor::from(api.node().tls_server_config());
        let (sender, incoming) = mpsc::channel(ACCEPT_QUEUE);
        let router = router(&api, Transport::Api);
        let limiter = api.limiter.clone();
        ctx.spawn(async move {
            accept(listener, acceptor, limiter, sender).await;
            // The channel is closed: the server has ended, and the other task reports why.
            Msg::Closed
        });
        let stopping = api.node().stopping();
        ctx.spawn(serve(router, ReceiverStream::new(incoming), stopping));
        Ok(Self)
    }

    async fn handle(&mut self, _: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        ended(msg)
    }
}

/// Accepts connections and performs their handshakes concurrently, so that a slow client delays no
/// other. A connection over the limit is closed at once: in the kernel's queue it would block
/// others.
async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    limiter: Arc<Mutex<ConnectionLimiter>>,
    ready: mpsc::Sender<io::Result<IdleTimeoutIo<TlsStream<TcpStream>>>>,
) {
    let mut handshakes = JoinSet::new();
    let mut quiet_until = Instant::now();
    loop {
        tokio::select! {
            () = ready.closed() => return,
            Some(_) = handshakes.join_next(), if !handshakes.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let Some(connection) = ConnectionGuard::try_open(&limiter, address) else {
                        let now = Instant::now();
                        if now >= quiet_until {
                            quiet_until = now + WARN_INTERVAL;
                            tracing::warn!(subsystem = "daemon/grpc", address = %address.ip(), "too many connections");
                        }
                        continue;
                    };
                    let (acceptor, ready) = (acceptor.clone(), ready.clone());
                    handshakes.spawn(async move {
                        let _ = stream.set_nodelay(true);
                        let handshake = acceptor.accept(stream);
                        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                            Ok(Ok(stream)) => {
                                let io = IdleTimeoutIo::new(stream, connection);
                                let _ = ready.send(Ok(io)).await;
                            }
                            Ok(Err(error)) => {
                                tracing::debug!(subsystem = "daemon/grpc", %error, "handshake failed");
                            }
                            Err(_) => {
                                tracing::debug!(subsystem = "daemon/grpc", "handshake timed out");
                            }
                        }
                    });
                }
                // Out of descriptors, for example: the listener still works, and a pause lets
                // connections close.
                Err(error) => {
                    tracing::warn!(subsystem = "daemon/grpc", %error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_is_private_to_owner_and_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/jaco.sock");
        let _listener = bind_unix(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert!(!path.with_extension("sock.new").exists());
    }

    #[tokio::test]
    async fn only_created_socket_directories_get_mode_0755() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("old");
        fs::create_dir(&old).unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o710)).unwrap();
        // Umask of the daemon.
        let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let bound = [old.join("jaco.sock"), old.join("run/jaco/jaco.sock")].map(|p| bind_unix(&p));
        rustix::process::umask(umask);
        assert!(bound.iter().all(Result::is_ok));
        for (path, expected) in [("", 0o710), ("run", 0o755), ("run/jaco", 0o755)] {
            let mode = fs::metadata(old.join(path)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, expected, "{path:?}");
        }
    }

    #[tokio::test]
    async fn stale_socket_is_replaced_but_not_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jaco.sock");
        drop(bind_unix(&path).unwrap());
        drop(bind_unix(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert_eq!(
            bind_unix(&path).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
