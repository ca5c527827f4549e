//! A daemon for tests, and `jaco` run as from a shell.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use jaco_net::pki::{Fingerprint, certificates};
use serde_json::Value;
use tempfile::TempDir;

/// Timeout far above the duration of any step, even on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A `jacod` process; dropping it kills the process.
pub(crate) struct Daemon {
    dir: TempDir,
    address: SocketAddr,
    ingress: SocketAddr,
    process: Child,
}

/// The container engine of a daemon.
pub(crate) struct Engine {
    pub(crate) socket: PathBuf,
    /// Address range that no network of the engine uses.
    pub(crate) pool: String,
}

/// Returns a loopback address without a listener; a process gets each port at most once, because a
/// daemon of another test may bind its ports only later.
pub(crate) fn free_address() -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        if given.insert(address.port()) {
            return address;
        }
    }
}

#[test]
fn tests_get_different_addresses() {
    let draws =
        [(); 4].map(|()| std::thread::spawn(|| Vec::from_iter((0..300).map(|_| free_address()))));
    let mut seen = BTreeSet::new();
    for address in draws.into_iter().flat_map(|draw| draw.join().unwrap()) {
        assert!(seen.insert(address), "{address} was given twice");
    }
}

impl Daemon {
    /// Starts a daemon without a cluster.
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a daemon without a cluster, optionally with an engine.
    pub(crate) fn start_with(engine: Option<&Engine>) -> Self {
        // Another process may take the port between its choice and the daemon's bind.
        for _ in 0..5 {
            if let Some(daemon) = Self::try_start(engine) {
                return daemon;
            }
        }
        panic!("the daemon does not start");
    }

    fn try_start(engine: Option<&Engine>) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (docker, pool) = match engine {
            Some(engine) => (engine.socket.clone(), engine.pool.as_str()),
            None => (dir.path().join("no-engine"), "10.244.0.0/16"),
        };
        let [address, cluster, ingress, secure] = [(); 4].map(|()| free_address());
        let config = format!(
            "data_dir: {0}/data\nunix_socket: {0}/s\ndocker_socket: unix://{1}\n\
             listen_addr: {address}\ncluster_addr: {cluster}\nhttp_port: {2}\nhttps_port: {3}\nhostname: one\n\
             log_level: debug\nipam_pool: {pool}\nisolation: off\nacme_enabled: false\n",
            dir.path().display(),
            docker.display(),
            ingress.port(),
            secure.port(),
        );
        fs::write(dir.path().join("jacod.yaml"), config).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_jacod"))
            .arg("--config")
            .arg(dir.path().join("jacod.yaml"))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut daemon = Self {
            dir,
            address,
            ingress,
            process,
        };
        let mut ended = false;
        until("the daemon listens", || {
            ended = daemon.process.try_wait().unwrap().is_some();
            let listens = UnixStream::connect(daemon.socket()).is_ok()
                && TcpStream::connect(daemon.address).is_ok();
            (ended || listens).then_some(())
        });
        (!ended).then_some(daemon)
    }

    /// Starts a daemon with a cluster; returns its operator token, too.
    pub(crate) fn initialized() -> (Self, String) {
        let daemon = Self::start();
        let token = daemon.initialize();
        (daemon, token)
    }

    /// Initializes a cluster and returns the operator token.
    fn initialize(&self) -> String {
        self.init()["operator_token"].as_str().unwrap().to_owned()
    }

    /// Initializes a cluster and returns the JSON output.
    pub(crate) fn init(&self) -> Value {
        let line = "cluster init --name lab --no-systemd-enable -o json";
        self.jaco(line).json()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the ingress.
    pub(crate) fn ingress(&self) -> SocketAddr {
        self.ingress
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("data/node/ca.crt")
    }

    /// Path of the setup token, which exists until the cluster is initialized.
    pub(crate) fn setup_token(&self) -> PathBuf {
        self.dir.path().join("data/bootstrap/setup-token")
    }

    /// Fingerprint of the CA, for pinning.
    pub(crate) fn fingerprint(&self) -> String {
        fingerprint(&self.ca())
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Flags for the two transports to this daemon: socket and TLS.
    pub(crate) fn transports(&self, token: &str) -> [String; 2] {
        let file = self.dir.path().join("token");
        fs::write(&file, format!("{token}\n")).unwrap();
        [
            format!("--socket {}", self.socket().display()),
            format!(
                "--server {} --ca-cert {} --token-file {}",
                self.address,
                self.ca().display(),
                file.display()
            ),
        ]
    }

    /// Runs a command over the socket.
    pub(crate) fn jaco(&self, line: &str) -> Outcome {
        let workdir = Workdir::new();
        workdir.jaco(&format!("{line} --socket {}", self.socket().display()))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended before
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprint_tail(&self.log());
        }
    }
}

#[expect(clippy::print_stderr, reason = "shown with the failure of the test")]
fn eprint_tail(log: &str) {
    let lines: Vec<&str> = log.lines().collect();
    let tail = &lines[lines.len().saturating_sub(40)..];
    eprintln!("--- end of the daemon's log\n{}\n---", tail.join("\n"));
}

/// The fingerprint of the certificate in a file.
pub(crate) fn fingerprint(pem: &Path) -> String {
    let pem = fs::read_to_string(pem).unwrap();
    Fingerprint::of(&certificates(&pem).unwrap()[0]).to_string()
}

/// Working and home directory of commands, with an otherwise empty environment.
pub(crate) struct Workdir {
    dir: TempDir,
    env: Vec<(&'static str, String)>,
}

impl Workdir {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        Self {
            dir,
            env: Vec::new(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file of the given mode and returns its path.
    pub(crate) fn file(&self, name: &str, mode: u32, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Installs a program into the `PATH` of commands.
    pub(crate) fn program(&self, name: &str, script: &str) {
        self.file(
            &format!("bin/{name}"),
            0o755,
            &format!("#!/bin/sh\n{script}\n"),
        );
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// A command that is not started yet.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jaco"));
        command
            .args(line.split(' ').filter(|word| !word.is_empty()))
            .current_dir(self.dir.path())
            .env_clear()
            .env("HOME", self.dir.path())
            .env("PATH", self.path("bin"))
            .env("JACO_SOCKET", self.path("absent.sock"))
            .envs(
                self.env
                    .iter()
                    .map(|(name, value)| (name, OsStr::new(value))),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn jaco(&self, line: &str) -> Outcome {
        let output = self.command(line).output().unwrap();
        Outcome::new(line, output)
    }

    /// Runs a command with `input` on its stdin.
    pub(crate) fn jaco_reading(&self, line: &str, input: &[u8]) -> Outcome {
        let mut child = self.command(line).stdin(Stdio::piped()).spawn().unwrap();
        // A command that needs no input may have exited already.
        let _ = child.stdin.take().unwrap().write_all(input);
        Outcome::new(line, child.wait_with_output().unwrap())
    }
}

/// Outcome of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    #[expect(dead_code, reason = "shown when the test fails")]
    line: String,
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Outcome {
    pub(crate) fn new(line: &str, output: std::process::Output) -> Self {
        Self {
            line: line.to_owned(),
            status: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asserts success without output on stderr.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!((self.status, self.err.as_str()), (Some(0), ""), "{self:?}");
        self
    }

    /// The JSON document that a successful command printed.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, Some(0), "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts failure with one error of this code that contains `words`, and without output.
    #[track_caller]
    pub(crate) fn fails(&self, code: &str, words: &[&str]) {
        assert_eq!((self.status, self.out.as_str()), (Some(1), ""), "{self:?}");
        let report = format!("Error: {code}: ");
        assert!(self.err.starts_with(&report), "{self:?}");
        assert_eq!(self.err.matches("Error:").count(), 1, "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word} is not in {self:?}");
        }
    }
}

/// Waits until `condition` returns a value.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Manifests of one service with two replicas of `image`, and a route with the line `path`.
pub(crate) fn manifests(workdir: &Workdir, image: &str, path: &str) -> PathBuf {
    let compose = format!("services:\n  web:\n    image: {image}\n");
    workdir.file("compose.yml", 0o644, &compose);
    let jaco = format!(
        "deployment: app\nservices:\n  - name: web\n    replicas: 2\nroutes:\n  \
         - domain: app.example\n    service: web\n    port: 80\n    tls: off\n{path}"
    );
    workdir.file("jaco.yaml", 0o644, &jaco)
}
