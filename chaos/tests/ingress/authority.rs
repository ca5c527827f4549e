//! Let's Encrypt as the daemons of a lab see it: a server at its addresses, with a pebble each for
//! the staging and the production directory behind it.
//!
//! The daemons run with their usual settings. The names of the directories lead to the hub of the
//! lab, where the server ends the connections, counts the requests, can refuse them, and passes the
//! others on.

use std::{
    convert::Infallible,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header::HOST};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use jaco_chaos::{Lab, lab::netns, lab::network::HUB, until};
use jaco_policy::ingress::certificate::store::{LETS_ENCRYPT, LETS_ENCRYPT_STAGING};
use rcgen::{CertificateParams, KeyPair};
use rustls::{RootCertStore, ServerConfig, crypto::ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{net::TcpStream, sync::watch, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use crate::{client, fixture::LIMIT};

/// Resolver of both pebbles.
const RESOLVER: &str = "127.0.0.1:8053";
/// Request of pebble's directory that creates an order.
const NEW_ORDER: &str = "/order-plz";

/// A directory of the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Environment {
    Staging,
    Production,
}

impl Environment {
    const ALL: [Self; 2] = [Self::Staging, Self::Production];

    /// Host in the address of its directory.
    fn host(self) -> String {
        let url = match self {
            Self::Staging => LETS_ENCRYPT_STAGING,
            Self::Production => LETS_ENCRYPT,
        };
        let url: Uri = url.parse().unwrap();
        url.host().unwrap().to_owned()
    }

    fn port(self) -> u16 {
        match self {
            Self::Staging => 14_001,
            Self::Production => 14_000,
        }
    }

    fn management_port(self) -> u16 {
        self.port() + 1000
    }
}

/// Behaviour of the server in front of the pebbles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes every request on.
    Up,
    /// Closes every connection.
    Down,
    /// Refuses new orders with status 429.
    RateLimited,
}

/// Requests so far, refused nonces included.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: usize,
    /// Orders created at the staging directory.
    pub(crate) staging: usize,
    /// Orders created at the production directory.
    pub(crate) production: usize,
}

/// Files that exist before the lab, which the configuration of its daemons names.
pub(crate) struct Identity {
    dir: tempfile::TempDir,
    pem: String,
    key: String,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let names = Environment::ALL.map(Environment::host);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("root.pem"), &pem).unwrap();
        fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
        Self {
            dir,
            pem,
            key: key.serialize_pem(),
        }
    }

    /// Lines of the daemons' configuration.
    pub(crate) fn config(&self, preflight: bool) -> String {
        let root = self.dir.path().join("root.pem");
        format!(
            "acme_root_ca: {}\nacme_preflight: {preflight}\n",
            root.display()
        )
    }

    /// Lines of the daemons' `/etc/hosts`.
    pub(crate) fn hosts() -> String {
        let line = |environment: Environment| format!("{HUB} {}\n", environment.host());
        Environment::ALL.map(line).concat()
    }

    fn root(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()
    }
}

/// The running authority; it ends with this value.
pub(crate) struct Authority {
    shared: Arc<Shared>,
    server: JoinHandle<()>,
    _processes: Vec<Process>,
    _identity: Identity,
}

struct Shared {
    hub: String,
    roots: Arc<RootCertStore>,
    mode: Mutex<Mode>,
    counts: watch::Sender<Counts>,
}

/// A process that is killed with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Authority {
    /// Starts the pebbles on the hub of the lab. Certificates of the production directory are valid
    /// for `validity`; zero for the default.
    pub(crate) async fn start(lab: &Lab, identity: Identity, validity: Duration) -> Self {
        let hub = lab.network().namespace().to_owned();
        let dir = identity.dir.path();
        let mut resolver = netns::command(&hub, "pebble-challtestsrv");
        resolver.args(["-dns01", RESOLVER, "-management", "127.0.0.1:8055"]);
        resolver.args(["-defaultIPv4", &HUB.to_string(), "-defaultIPv6", ""]);
        resolver.args(["-http01", "", "-https01", "", "-tlsalpn01", ""]);
        let mut processes = vec![run(resolver, &dir.join("resolver.log"))];
        for environment in Environment::ALL {
            let validity = match environment {
                Environment::Staging => Duration::ZERO,
                Environment::Production => validity,
            };
            processes.push(pebble(&hub, dir, environment, validity));
        }
        let mut roots = RootCertStore::empty();
        roots.add(identity.root()).unwrap();
        let shared = Arc::new(Shared {
            hub: hub.clone(),
            roots: Arc::new(roots),
            mode: Mutex::new(Mode::Up),
            counts: watch::Sender::default(),
        });
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![identity.root()], key)
            .unwrap();
        let listener = listen(&hub, (HUB, 443).into());
        let server = tokio::spawn(serve(listener, Arc::new(config).into(), shared.clone()));
        let authority = Self {
            shared,
            server,
            _processes: processes,
            _identity: identity,
        };
        for environment in Environment::ALL {
            authority.root(environment).await;
        }
        authority
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
    }

    /// Requests so far.
    pub(crate) fn counts(&self) -> watch::Receiver<Counts> {
        self.shared.counts.subscribe()
    }

    /// The root that certificates of a directory verify under.
    pub(crate) async fn root(&self, environment: Environment) -> CertificateDer<'static> {
        let fetch = || async {
            let request = Request::get("/roots/0").header(HOST, environment.host());
            let request = request.body(Full::default()).unwrap();
            let port = environment.management_port();
            let response = exchange(&self.shared, environment, port, request).await?;
            CertificateDer::from_pem_slice(response.body())
                .map_err(|error| format!("{}: {error}", response.status()))
        };
        until("pebble answers", LIMIT, fetch).await.unwrap()
    }
}

fn pebble(hub: &str, dir: &Path, environment: Environment, validity: Duration) -> Process {
    let config = serde_json::json!({ "pebble": {
        "listenAddress": format!("127.0.0.1:{}", environment.port()),
        "managementListenAddress": format!("127.0.0.1:{}", environment.management_port()),
        "certificate": dir.join("root.pem"),
        "privateKey": dir.join("key.pem"),
        "httpPort": 80,
        "tlsPort": 443,
        "certificateValidityPeriod": validity.as_secs(),
    }});
    let path = dir.join(format!("{environment:?}.json"));
    fs::write(&path, config.to_string()).unwrap();
    let mut command = netns::command(hub, "pebble");
    command.arg("-config").arg(&path);
    command.args(["-dnsserver", RESOLVER]);
    // Every order validates, so that each meets whichever node the balancer picks.
    command.envs([
        ("PEBBLE_VA_NOSLEEP", "1"),
        ("PEBBLE_AUTHZREUSE", "0"),
        ("PEBBLE_WFE_NONCEREJECT", "10"),
    ]);
    run(command, &path.with_extension("log"))
}

fn run(mut command: std::process::Command, log: &Path) -> Process {
    let log = fs::File::create(log).unwrap();
    command
        .stdin(Stdio::null())
        .stderr(log.try_clone().unwrap());
    let started = command.stdout(log).spawn();
    Process(started.expect("Debian's package pebble is installed"))
}

/// A listener on the hub of a lab.
pub(crate) fn listen(hub: &str, address: SocketAddr) -> tokio::net::TcpListener {
    let listener = netns::within(hub, || TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    listener.set_nonblocking(true).unwrap();
    tokio::net::TcpListener::from_std(listener).unwrap()
}

async fn serve(listener: tokio::net::TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    while let Ok((socket, _)) = listener.accept().await {
        if *shared.mode.lock().unwrap() == Mode::Down {
            continue;
        }
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            // A client that was killed hangs up.
            let Ok(stream) = acceptor.accept(socket).await else {
                return;
            };
            let answer = service_fn(|request| answer(&shared, request));
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}

async fn answer(
    shared: &Shared,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let host = request.headers().get(HOST);
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    let named = |environment: &Environment| environment.host() == host;
    let environment = Environment::ALL.into_iter().find(named);
    let (mut head, body) = request.into_parts();
    let body = body.collect().await;
    let (Some(environment), Ok(body)) = (environment, body) else {
        return Ok(refusal(StatusCode::BAD_REQUEST, "malformed"));
    };
    shared.counts.send_modify(|counts| counts.requests += 1);
    let orders = head.uri.path() == NEW_ORDER && head.method == Method::POST;
    if orders && *shared.mode.lock().unwrap() == Mode::RateLimited {
        return Ok(refusal(StatusCode::TOO_MANY_REQUESTS, "rateLimited"));
    }
    // The one address that is not taken from a response of pebble.
    if head.uri.path() == "/directory" {
        head.uri = Uri::from_static("/dir");
    }
    let request = Request::from_parts(head, Full::new(body.to_bytes()));
    let response = exchange(shared, environment, environment.port(), request).await;
    if orders
        && response
            .as_ref()
            .is_ok_and(|r| r.status() == StatusCode::CREATED)
    {
        shared.counts.send_modify(|counts| match environment {
            Environment::Staging => counts.staging += 1,
            Environment::Production => counts.production += 1,
        });
    }
    let response = response.map(|response| response.map(Full::new));
    Ok(response.unwrap_or_else(|_| refusal(StatusCode::BAD_GATEWAY, "serverInternal")))
}

fn refusal(status: StatusCode, kind: &str) -> Response<Full<Bytes>> {
    let problem = serde_json::json!({
        "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": "by the test",
    });
    let response = Response::builder().status(status);
    let response = response.header("content-type", "application/problem+json");
    response.body(Full::from(problem.to_string())).unwrap()
}

/// One exchange with a pebble.
async fn exchange(
    shared: &Shared,
    environment: Environment,
    port: u16,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let socket: TcpStream = netns::connect(&shared.hub, address)
        .await
        .map_err(|error| text(&error))?;
    let stream = client::handshake(socket, &environment.host(), shared.roots.clone())
        .await
        .map_err(|error| text(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| text(&error))?;
    let connection = tokio::spawn(connection);
    let exchanged = async {
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok::<_, hyper::Error>(Response::from_parts(head, body))
    };
    let exchanged = exchanged.await;
    connection.abort();
    exchanged.map_err(|error| text(&error))
}
