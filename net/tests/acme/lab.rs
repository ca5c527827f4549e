//! Pebble, its resolver and a responder, on a loopback address of their own.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use jaco_net::acme::{Challenge, Directory};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::JoinHandle,
};

pub(crate) const DIRECTORY_PORT: u16 = 14000;
const HTTP_PORT: u16 = 5002;

/// A running pebble; it ends with this value.
pub(crate) struct Pebble {
    pub(crate) address: Ipv4Addr,
    pub(crate) dir: TempDir,
    /// Certificate of its listener, which is its own root.
    pub(crate) root: String,
    environment: Vec<(String, String)>,
    _resolver: Child,
    _server: Child,
}

impl Pebble {
    pub(crate) async fn start(environment: &[(&str, &str)]) -> Self {
        Self::start_with_validity(Duration::ZERO, environment).await
    }

    /// Starts a pebble whose certificates are valid for this long; zero for its default.
    pub(crate) async fn start_with_validity(
        validity: Duration,
        environment: &[(&str, &str)],
    ) -> Self {
        let address = unique_loopback_address();
        let dir = TempDir::new().unwrap();
        let params = CertificateParams::new([address.to_string()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().pem();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("server.crt"), &root).unwrap();
        std::fs::write(path("server.key"), key.serialize_pem()).unwrap();
        let config = format!(
            r#"{{"pebble": {{"listenAddress": "{address}:{DIRECTORY_PORT}",
                "managementListenAddress": "{address}:15000", "certificate": {:?},
                "privateKey": {:?}, "httpPort": {HTTP_PORT}, "tlsPort": 5001,
                "certificateValidityPeriod": {}}}}}"#,
            path("server.crt"),
            path("server.key"),
            validity.as_secs(),
        );
        std::fs::write(path("pebble.json"), config).unwrap();
        let resolver = Command::new("pebble-challtestsrv")
            .args(["-dns01", &format!("{address}:8053")])
            .args(["-management", &format!("{address}:8055")])
            .args(["-defaultIPv4", &address.to_string()])
            .args([
                "-defaultIPv6",
                "",
                "-http01",
                "",
                "-https01",
                "",
                "-tlsalpn01",
                "",
            ])
            .stdout(process::Stdio::null())
            .stderr(process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("Debian's package pebble is installed");
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let environment: Vec<_> = environment.iter().map(owned).collect();
        let server = serve(&dir, address, &environment).await;
        Self {
            address,
            dir,
            root,
            environment,
            _resolver: resolver,
            _server: server,
        }
    }

    /// Starts it again: it keeps everything in memory.
    pub(crate) async fn restart(mut self) -> Self {
        self._server.kill().await.unwrap();
        self._server = serve(&self.dir, self.address, &self.environment).await;
        self
    }

    pub(crate) fn directory(&self) -> Directory {
        let url = format!("https://{}:{DIRECTORY_PORT}/dir", self.address);
        Directory::new(&url, Some(&self.root)).unwrap()
    }
}

/// Starts pebble and waits until it accepts connections.
async fn serve(dir: &TempDir, address: Ipv4Addr, environment: &[(String, String)]) -> Child {
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let server = Command::new("pebble")
        .arg("-config")
        .arg(dir.path().join("pebble.json"))
        .args(["-dnsserver", &format!("{address}:8053")])
        .env("PEBBLE_VA_NOSLEEP", "1")
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .expect("Debian's package pebble is installed");
    let ready = async {
        while TcpStream::connect((address, DIRECTORY_PORT)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), ready).await;
    waited.expect("pebble listens");
    server
}

/// A loopback address that no other test uses.
fn unique_loopback_address() -> Ipv4Addr {
    static CALLS: AtomicU32 = AtomicU32::new(1);
    let call = CALLS.fetch_add(1, Ordering::Relaxed) % (1 << 10);
    let process = process::id() % (1 << 13);
    Ipv4Addr::from_bits(0x7f80_0000 | (process << 10) | call)
}

/// Answers challenges over HTTP.
pub(crate) struct Responder {
    answers: Arc<Mutex<HashMap<String, String>>>,
    server: JoinHandle<()>,
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Responder {
    pub(crate) async fn start(pebble: &Pebble) -> Self {
        let answers = Arc::<Mutex<HashMap<String, String>>>::default();
        let listener = TcpListener::bind((pebble.address, HTTP_PORT))
            .await
            .unwrap();
        let shared = Arc::clone(&answers);
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let _ = answer(socket, &shared).await; // the directory may hang up
            }
        });
        Self { answers, server }
    }

    pub(crate) fn answer(&self, token: &str, body: &str) {
        let mut answers = self.answers.lock().unwrap();
        answers.insert(token.to_owned(), body.to_owned());
    }

    pub(crate) fn publish(
        &self,
    ) -> impl FnOnce(Challenge) -> BoxFuture<'static, Result<(), String>> + use<'_> {
        |challenge| {
            self.answer(&challenge.token, challenge.key_auth.expose());
            Box::pin(async { Ok(()) })
        }
    }
}

async fn answer(
    socket: TcpStream,
    answers: &Mutex<HashMap<String, String>>,
) -> std::io::Result<()> {
    let mut socket = BufReader::new(socket);
    let mut request = String::new();
    socket.read_line(&mut request).await?;
    let mut header = String::new();
    while socket.read_line(&mut header).await? > 2 {
        header.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let token = path.rsplit('/').next().unwrap_or_default();
    let body = answers.lock().unwrap().get(token).cloned();
    let status = if body.is_some() {
        "200 OK"
    } else {
        "404 Not Found"
    };
    let body = body.unwrap_or_default();
    let length = body.len();
    let response =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    socket.write_all(response.as_bytes()).await
}
