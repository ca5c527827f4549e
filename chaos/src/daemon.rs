//! A `jacod` process into which a test may inject faults.

use std::{
    fs::{self, File},
    io::{Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{Api, Engine, engine, lab::clean, until, wait::WAIT_TIMEOUT};

pub mod proc;
pub(crate) mod resources;

pub use resources::{AddressPool, free_ports, program};

/// Hostname of the one node.
pub const HOST: &str = "chaos";
/// Name of the control socket in the daemon's directory.
const SOCKET: &str = "s";
/// Lines of the log that are printed when the daemon is dropped.
const LOG_TAIL: usize = 150;

/// Settings of a daemon; empty ones mean the default.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Data directory; by default one beside the socket.
    pub data_dir: Option<PathBuf>,
    /// Socket of the engine; by default that of the machine's engine.
    pub docker_socket: Option<PathBuf>,
    /// Hostname; by default [`HOST`].
    pub hostname: Option<String>,
    /// Additional lines of the configuration file.
    pub config: String,
    /// Additional environment variables of the daemon.
    pub environment: Vec<(String, String)>,
    /// Command line that starts the daemon: the daemon's own is appended to it, and it must `exec`.
    pub launcher: Vec<String>,
    /// Address pool; by default one of its own. A daemon with the state of another one needs its
    /// pool.
    pub pool: Option<Arc<AddressPool>>,
    /// Suppresses the end of the log on drop, for programs whose output is parsed.
    pub quiet: bool,
}

/// Line of a configuration that keeps a daemon of a test from asking Let's Encrypt for certificates,
/// unless `config` has settings of its own.
pub(crate) fn acme(config: &str) -> &'static str {
    if config.contains("acme_") {
        ""
    } else {
        "acme_enabled: false\n"
    }
}

/// A daemon and its directory, which outlives its processes.
///
/// Dropping it kills the process, prints the end of its log, and removes everything its cluster
/// made on the engine.
pub struct Daemon {
    dir: TempDir,
    data_dir: PathBuf,
    engine: Engine,
    api: Api,
    listen: u16,
    process: Option<Child>,
    cluster_id: String,
    operator_token: String,
    environment: Vec<(String, String)>,
    launcher: Vec<String>,
    http_port: u16,
    quiet: bool,
    pool: Arc<AddressPool>,
}

impl Daemon {
    /// Creates the directory and the configuration, without a process.
    ///
    /// # Errors
    /// Without an engine or without the binary.
    pub async fn new(settings: Settings) -> Result<Self> {
        let engine = Engine::connect().await?;
        resources::program("jacod")?;
        // Directly under /tmp, because the length of socket paths is limited.
        let dir = tempfile::Builder::new()
            .prefix("jaco-")
            .tempdir_in("/tmp")?;
        let data_dir = settings.data_dir.unwrap_or_else(|| dir.path().join("data"));
        let docker = settings.docker_socket.unwrap_or_else(engine::socket);
        let hostname = settings.hostname.as_deref().unwrap_or(HOST);
        let [listen, cluster, http, https] = free_ports()?;
        let pool = match settings.pool {
            Some(pool) => pool,
            None => Arc::new(AddressPool::free(&engine).await?),
        };
        let config = format!(
            "data_dir: {}\nunix_socket: {}\ndocker_socket: unix://{}\n\
             listen_addr: 127.0.0.1:{listen}\ncluster_addr: 127.0.0.1:{cluster}\n\
             http_port: {http}\nhttps_port: {https}\nhostname: {hostname}\nipam_pool: {}\n{}{}{}",
            data_dir.display(),
            dir.path().join(SOCKET).display(),
            docker.display(),
            pool.cidr(),
            // Daemons of other tests share the network namespace, which has room for one ruleset and
            // one mesh.
            if settings.config.contains("isolation:") {
                ""
            } else {
                "isolation: off\n"
            },
            acme(&settings.config),
            settings.config,
        );
        fs::write(dir.path().join("jacod.yaml"), config)?;
        let api = Api::new(&dir.path().join(SOCKET))?;
        Ok(Self {
            dir,
            data_dir,
            engine,
            api,
            listen,
            process: None,
            cluster_id: String::new(),
            operator_token: String::new(),
            environment: settings.environment,
            launcher: settings.launcher,
            http_port: http,
            quiet: settings.quiet,
            pool,
        })
    }

    /// A running daemon with an initialised cluster.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn bootstrap(settings: Settings) -> Result<Self> {
        let mut daemon = Self::new(settings).await?;
        daemon.spawn()?;
        daemon.init().await?;
        Ok(daemon)
    }

    /// Address pool of the daemon.
    #[must_use]
    pub fn pool(&self) -> Arc<AddressPool> {
        Arc::clone(&self.pool)
    }

    /// Initialises a cluster on the running daemon.
    ///
    /// # Errors
    /// When it fails, or the daemon exits.
    pub async fn init(&mut self) -> Result<()> {
        let api = self.api.clone();
        self.wait_while_running(until("the API answers", WAIT_TIMEOUT, || api.status()))
            .await?;
        let founded = self.api.init().await?;
        (self.cluster_id, self.operator_token) = (founded.cluster_id, founded.operator_token);
        self.ready().await
    }

    /// Registers the id of a cluster that was restored into its data directory, so that drop
    /// removes its containers.
    pub fn adopt(&mut self, cluster_id: &str) {
        cluster_id.clone_into(&mut self.cluster_id);
    }

    /// Runs the command-line client on its socket and its configuration, and returns the output.
    ///
    /// # Errors
    /// When the client cannot be run; a failure of the client is in the output.
    pub async fn jaco(&self, words: &[&str]) -> Result<Output> {
        let mut command = tokio::process::Command::from(self.cli()?);
        Ok(command.args(words).output().await?)
    }

    /// Address of its API for remote clients.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.listen)
    }

    /// Starts the process; returns before its API answers.
    ///
    /// # Errors
    /// When one runs already, or the binary does not start.
    pub fn spawn(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the daemon runs already");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let binary = resources::program("jacod")?;
        let mut command = match &self.launcher[..] {
            [] => Command::new(binary),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(binary);
                command
            }
        };
        let process = command
            .envs(self.environment.iter().map(|(k, v)| (k, v)))
            .arg("--config")
            .arg(self.dir.path().join("jacod.yaml"))
            .arg("--enable-fault-injection")
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start jacod")?;
        self.process = Some(process);
        Ok(())
    }

    /// Starts the process of a member and waits until its cluster has a leader; returns how long
    /// that took.
    ///
    /// # Errors
    /// When the process exits, or there is no leader in time.
    pub async fn start(&mut self) -> Result<Duration> {
        let from = Instant::now();
        self.spawn()?;
        self.ready().await?;
        Ok(from.elapsed())
    }

    async fn ready(&mut self) -> Result<()> {
        let api = self.api.clone();
        let leads = until("a leader", WAIT_TIMEOUT, || async {
            let status = api.status().await.map_err(|error| error.to_string())?;
            if status.initialized && !status.leader_hostname.is_empty() {
                Ok(())
            } else {
                Err(format!("{status:?}"))
            }
        });
        self.wait_while_running(leads).await
    }

    /// Waits for `wait`, and fails as soon as the process exits.
    async fn wait_while_running<T>(&mut self, wait: impl Future<Output = Result<T>>) -> Result<T> {
        let mut wait = std::pin::pin!(wait);
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        loop {
            tokio::select! {
                done = &mut wait => return done,
                _ = tick.tick() => {
                    if let Some(status) = self.exited()? {
                        bail!("the daemon ended with {status}:\n{}", self.log_tail(LOG_TAIL));
                    }
                }
            }
        }
    }

    /// Kills the process without any warning.
    ///
    /// # Errors
    /// When none runs.
    pub fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the daemon does not run")?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Stops the process gracefully.
    ///
    /// # Errors
    /// When none runs, or it does not exit.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        let pid = self.pid()?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("a process id")?;
        kill_process(pid, Signal::TERM)?;
        self.ended().await
    }

    /// Waits until the process exits by itself.
    ///
    /// # Errors
    /// When none runs, or it does not exit.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        self.pid()?;
        let process = std::sync::Mutex::new(&mut self.process);
        let status = until("the end of the daemon", WAIT_TIMEOUT, || async {
            let mut process = process.lock().map_err(|error| error.to_string())?;
            let child = process.as_mut().ok_or("nothing runs")?;
            child
                .try_wait()
                .map_err(|e| e.to_string())?
                .ok_or_else(|| "it still runs".to_owned())
        })
        .await?;
        self.process = None;
        Ok(status)
    }

    /// Exit status of the process, if it has exited.
    ///
    /// # Errors
    /// When none was started.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self
            .process
            .as_mut()
            .context("the daemon does not run")?
            .try_wait()?)
    }

    /// Id of its process.
    ///
    /// # Errors
    /// When none runs.
    pub fn pid(&self) -> Result<u32> {
        Ok(self
            .process
            .as_ref()
            .context("the daemon does not run")?
            .id())
    }

    /// Resident memory of the process, in bytes.
    ///
    /// # Errors
    /// When none runs.
    pub fn rss_bytes(&self) -> Result<u64> {
        proc::rss_bytes(self.pid()?)
    }

    /// Processor time that the process has used.
    ///
    /// # Errors
    /// When none runs.
    pub fn cpu_time(&self) -> Result<Duration> {
        proc::cpu_time(self.pid()?)
    }

    /// Its API.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Its control socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }

    /// The engine it uses, without the daemon in between.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Id of its cluster; empty before [`Daemon::init`].
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The operator token of its cluster; empty before [`Daemon::init`].
    #[must_use]
    pub fn operator_token(&self) -> &str {
        &self.operator_token
    }

    /// A `jaco` command for the operator of this daemon, over its socket.
    ///
    /// # Errors
    /// Without the binary.
    pub fn cli(&self) -> Result<Command> {
        let mut command = Command::new(resources::program("jaco")?);
        command
            .env_clear()
            .env("JACO_SOCKET", self.socket())
            .env("JACO_CONFIG", self.scratch("jacod.yaml"))
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Port of its plain HTTP ingress.
    #[must_use]
    pub fn http_port(&self) -> u16 {
        self.http_port
    }

    /// Its data directory.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// A path in its directory, for the use of the test.
    #[must_use]
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The whole log of its processes.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Truncates the log.
    ///
    /// # Errors
    /// When the file cannot be truncated.
    pub fn clear_log(&self) -> Result<()> {
        let mut file = File::options().write(true).open(self.log_path())?;
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        Ok(())
    }

    /// Logged panics other than injected ones.
    #[must_use]
    pub fn panics(&self) -> Vec<String> {
        let log = self.log();
        let mut lines = log.lines().peekable();
        let mut found = Vec::new();
        while let Some(line) = lines.next() {
            if !line.contains("panicked at") {
                continue;
            }
            // The message follows on the same line or on the next one.
            let message = format!("{line} {}", lines.peek().unwrap_or(&""));
            if !message.contains("injected fault") {
                found.push(message);
            }
        }
        found
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.process.is_some() {
            // It may have exited by itself.
            let _ = self.kill();
        }
        // Files of containers are on a file system of their own.
        let _ = clean::unmount_below(&self.data_dir);
        if !self.quiet {
            let log = self.log_tail(LOG_TAIL);
            show(&format!("--- end of the daemon's log\n{log}\n---"));
        }
        if !self.cluster_id.is_empty()
            && let Err(error) = Engine::sweep_blocking(&self.cluster_id)
        {
            show(&format!(
                "cluster {} is not cleaned up: {error:#}",
                self.cluster_id
            ));
        }
    }
}

/// The test harness keeps the output of a test and shows it only if the test fails.
#[expect(
    clippy::print_stdout,
    reason = "only tests and benchmarks use this crate"
)]
fn show(text: &str) {
    println!("{text}");
}
