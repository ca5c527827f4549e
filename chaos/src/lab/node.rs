//! One machine of a lab: a namespace, an engine, a daemon.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use super::{
    clean::{self, Name},
    netns,
    network::{self, LabNetwork},
    store::Store,
};
use crate::{
    Api, Engine,
    daemon::{self, proc, resources},
    fill::SmallDisk,
    until,
    wait::WAIT_TIMEOUT,
};

/// Port of every daemon's API.
pub const API_PORT: u16 = 7000;
/// Port of every daemon's peer transport.
pub const PEER_PORT: u16 = 7001;
/// Port of every daemon's plain HTTP ingress.
pub const HTTP_PORT: u16 = 80;
/// Mount point of the files that its daemon writes for containers.
const CONTAINER_FILES: &str = "data/container-files";
/// Longest wait for one answer over TLS.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Directory of libraries, with a subdirectory per architecture.
const LIBRARIES: &str = "/usr/lib";
/// Debian's libfaketime below it, for programs with threads.
const FAKETIME: &str = "faketime/libfaketimeMT.so.1";

/// Equipment of the nodes of a lab.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeOptions {
    /// Whether each has a container engine.
    pub(crate) engines: bool,
    /// Whether containers survive a restart of their engine.
    pub(crate) live_restore: bool,
    /// Size in bytes of a separate disk for the data directory, which can be filled.
    pub(crate) disk: Option<u64>,
    /// Whether the daemon's clock can be set.
    pub(crate) clock: bool,
    /// Additional lines of the configuration file.
    pub(crate) config: String,
    /// Content of the daemon's `/etc/hosts`; the machine's if `None`.
    pub(crate) hosts: Option<String>,
}

/// A machine of a lab, removed with it.
#[derive(Debug)]
pub struct Node {
    index: u8,
    host: String,
    dir: PathBuf,
    namespace: String,
    options: NodeOptions,
    disk: Option<SmallDisk>,
    api: Api,
    daemon: Option<Child>,
    engine: Option<Child>,
    paused: bool,
    /// Keeps descriptors of the daemon from one to the next.
    store: Option<Store>,
}

impl Node {
    /// Creates a machine on the network and starts its engine, but not its daemon.
    pub(crate) fn create(
        lab: &Name,
        network: &LabNetwork,
        index: u8,
        options: NodeOptions,
    ) -> Result<Self> {
        let host = format!("n{index}");
        let (dir, namespace) = (lab.dir().join(&host), lab.resource_name(&host));
        fs::create_dir(&dir)?;
        let data = dir.join("data");
        let disk = options.disk.map(|size| SmallDisk::mount(&data, size));
        let disk = disk.transpose()?;
        let address = network::address(index);
        let config = format!(
            "data_dir: {}\nunix_socket: {}\ndocker_socket: unix://{}\nhostname: {host}\n\
             listen_addr: {address}:{API_PORT}\ncluster_addr: {address}:{PEER_PORT}\n\
             http_port: {HTTP_PORT}\n{}{}",
            data.display(),
            dir.join("s").display(),
            dir.join("d").display(),
            daemon::acme(&options.config),
            options.config,
        );
        fs::write(dir.join("jacod.yaml"), config)?;
        fs::write(dir.join("clock"), "+0\n")?;
        if let Some(hosts) = &options.hosts {
            fs::write(dir.join("hosts"), hosts)?;
        }
        let mut node = Self {
            index,
            host,
            api: Api::new(&dir.join("s"))?,
            dir,
            namespace,
            options,
            disk,
            daemon: None,
            engine: None,
            paused: false,
            store: None,
        };
        node.power_on(network)?;
        Ok(node)
    }

    /// Creates the machine's namespace and starts its engine if it has one.
    pub(crate) fn power_on(&mut self, network: &LabNetwork) -> Result<()> {
        netns::create(&self.namespace)?;
        network.attach(&self.namespace, self.index)?;
        if self.options.engines {
            self.start_engine()?;
        }
        Ok(())
    }

    /// Its number, from 1.
    #[must_use]
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Its hostname.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its address on the network of the lab.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        network::address(self.index)
    }

    /// `host:port` of its API.
    #[must_use]
    pub fn api_address(&self) -> SocketAddr {
        (self.address(), API_PORT).into()
    }

    /// Its network namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A path in its directory, such as `data`, `jacod.yaml`, `jacod.log`, `dockerd.log`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Its daemon's control socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("s")
    }

    /// Its engine's socket.
    #[must_use]
    pub fn engine_socket(&self) -> PathBuf {
        self.path("d")
    }

    /// Its daemon's API over the socket.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Its daemon's API over TLS, through connections from the namespace `from`.
    ///
    /// # Errors
    /// When the daemon has no CA yet.
    pub fn remote_api(&self, from: &str, token: &str) -> Result<Api> {
        let ca = fs::read(self.path("data/node/ca.crt")).context("the CA of the cluster")?;
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca))
            .domain_name(&self.host);
        let address = self.api_address();
        let endpoint = Endpoint::from_shared(format!("https://{address}"))?
            .tls_config(tls)?
            .timeout(REQUEST_TIMEOUT);
        let from = from.to_owned();
        let channel = endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
            let from = from.clone();
            async move {
                let stream = netns::connect(&from, address).await;
                stream.map(TokioIo::new).map_err(std::io::Error::other)
            }
        }));
        Ok(Api::over(channel, Some(token.to_owned())))
    }

    /// A client of its engine, without the daemon in between.
    ///
    /// # Errors
    /// When it has none, or the engine does not answer.
    pub async fn engine(&self) -> Result<Engine> {
        ensure!(self.options.engines, "{} has no engine", self.host);
        let socket = self.engine_socket();
        until(
            &format!("the engine of {}", self.host),
            WAIT_TIMEOUT,
            || async {
                Engine::connect_to(&socket)
                    .await
                    .map_err(|error| format!("{error:#}"))
            },
        )
        .await
    }

    /// A command that runs on this machine.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        netns::command(&self.namespace, program)
    }

    /// Runs the command-line client on its daemon's socket and returns the output.
    ///
    /// # Errors
    /// When the client cannot be run; a failure of the client is in the output.
    pub async fn jaco(&self, words: &[&str]) -> Result<Output> {
        let mut command = tokio::process::Command::new(resources::program("jaco")?);
        command
            .env_clear()
            .env("JACO_SOCKET", self.socket())
            .env("JACO_CONFIG", self.path("jacod.yaml"))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        Ok(command.args(words).output().await?)
    }

    /// Starts a daemon; returns before the daemon answers.
    ///
    /// # Errors
    /// When one runs already.
    pub fn spawn(&mut self) -> Result<()> {
        ensure!(
            self.daemon.is_none(),
            "the daemon of {} runs already",
            self.host
        );
        let command = self.daemon_command()?;
        self.daemon = Some(run(command, &self.path("jacod.log"))?);
        Ok(())
    }

    /// Starts a daemon that replaces the running one, and waits until that one has ended and the new
    /// one answers.
    ///
    /// # Errors
    /// When none runs, it does not end, or the new one never answers.
    pub async fn replace(&mut self) -> Result<()> {
        let running = self.take_daemon()?;
        let mut command = self.daemon_command()?;
        command.arg("--replace");
        self.daemon = Some(run(command, &self.path("jacod.log"))?);
        let status = wait_exit("the end of the replaced daemon", running).await?;
        ensure!(status.success(), "the replaced daemon ended with {status}");
        self.wait_ready().await
    }

    /// Has a store keep the descriptors of the daemons that are started from now on, as systemd does.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub fn keep_descriptors(&mut self) -> Result<()> {
        self.store = Some(Store::start(self.path("notify"))?);
        Ok(())
    }

    /// Stops the daemon gracefully, starts another one with the descriptors that were kept, and waits
    /// until it answers.
    ///
    /// # Errors
    /// When none runs, it does not end, or the new one never answers.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        let command = self.daemon_command()?;
        let store = self.store.as_ref().context("nothing is kept")?;
        let command = store.pass(command)?;
        self.daemon = Some(run(command, &self.path("jacod.log"))?);
        self.wait_ready().await
    }

    fn daemon_command(&self) -> Result<Command> {
        let binary = resources::program("jacod")?;
        let mut command = match &self.options.hosts {
            None => self.command(binary),
            Some(_) => {
                // Each program replaces the one before it, so the process id is the daemon's.
                let mut command = self.command("unshare");
                command
                    .args(["--mount", "--propagation", "private", "--", "sh", "-c"])
                    .arg("mount --bind \"$0\" /etc/hosts && exec \"$@\"")
                    .arg(self.path("hosts"))
                    .arg(binary);
                command
            }
        };
        command
            .arg("--config")
            .arg(self.path("jacod.yaml"))
            .arg("--enable-fault-injection")
            .env("RUST_BACKTRACE", "1");
        if let Some(store) = &self.store {
            command.env("NOTIFY_SOCKET", store.path());
        }
        if self.options.clock {
            command
                .env("LD_PRELOAD", faketime()?)
                .env("FAKETIME_TIMESTAMP_FILE", self.path("clock"))
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        Ok(command)
    }

    /// Starts a daemon and waits until it answers.
    ///
    /// # Errors
    /// When it ends or never answers.
    pub async fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_ready().await
    }

    /// Waits until its daemon answers.
    ///
    /// # Errors
    /// When it ends or never answers.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let api = self.api.clone();
        let mut answer = std::pin::pin!(until("the API answers", WAIT_TIMEOUT, || api.status()));
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        loop {
            tokio::select! {
                answer = &mut answer => {
                    return answer.map(drop).with_context(|| format!("the daemon of {}", self.host));
                }
                _ = tick.tick() => {
                    let daemon = self.daemon.as_mut().context("no daemon")?;
                    if let Some(status) = daemon.try_wait()? {
                        bail!("{} ended with {status}:\n{}", self.host, self.log_tail(50));
                    }
                }
            }
        }
    }

    /// Kills the daemon without any warning; its containers stay.
    ///
    /// # Errors
    /// When none runs.
    pub fn kill(&mut self) -> Result<()> {
        let mut daemon = self.take_daemon()?;
        daemon.kill()?;
        daemon.wait()?;
        Ok(())
    }

    /// Stops the daemon gracefully.
    ///
    /// # Errors
    /// When none runs, or it does not exit.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        wait_exit("the end of the daemon", self.take_daemon()?).await
    }

    fn take_daemon(&mut self) -> Result<Child> {
        self.paused = false;
        self.daemon
            .take()
            .with_context(|| format!("no daemon runs on {}", self.host))
    }

    /// Stops the daemon's process (SIGSTOP), as on an overloaded machine.
    ///
    /// # Errors
    /// When none runs.
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::STOP)?;
        self.paused = true;
        // The kernel stops its threads one after the other.
        let (pid, start) = (self.pid()?, Instant::now());
        while !proc::is_stopped(pid)? {
            ensure!(
                start.elapsed() < WAIT_TIMEOUT,
                "process {pid} does not stop"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Continues a paused daemon.
    ///
    /// # Errors
    /// When none runs.
    pub fn resume(&mut self) -> Result<()> {
        self.signal(Signal::CONT)?;
        self.paused = false;
        Ok(())
    }

    fn signal(&self, wanted: Signal) -> Result<()> {
        signal(self.pid()?, wanted)
    }

    /// Id of the daemon's process.
    ///
    /// # Errors
    /// When none runs.
    pub fn pid(&self) -> Result<u32> {
        let daemon = self.daemon.as_ref();
        Ok(daemon
            .with_context(|| format!("no daemon runs on {}", self.host))?
            .id())
    }

    /// Whether a daemon runs and is not paused.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.daemon.is_some() && !self.paused
    }

    /// Whether the daemon is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// See [`super::Lab::crash`].
    pub(crate) fn crash(&mut self, network: &LabNetwork) -> Result<()> {
        clean::kill(&self.namespace)?;
        for child in [self.daemon.take(), self.engine.take()]
            .into_iter()
            .flatten()
        {
            reap(child);
        }
        self.paused = false;
        // Memory is lost, too.
        for dir in ["engine", "exec", CONTAINER_FILES] {
            clean::unmount_below(&self.path(dir))?;
        }
        clean::remove_control_groups(&self.namespace)?;
        network.detach(self.index)?;
        netns::delete(&self.namespace)
    }

    /// Deletes everything the stopped daemon has stored, so that the machine is a new one.
    ///
    /// # Errors
    /// While the daemon runs.
    pub fn wipe(&mut self) -> Result<()> {
        ensure!(self.daemon.is_none(), "the daemon of {} runs", self.host);
        clean::unmount_below(&self.path(CONTAINER_FILES))?;
        let data = self.path("data");
        for entry in fs::read_dir(&data)? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?
            } else {
                fs::remove_file(path)?
            }
        }
        Ok(())
    }

    /// Fills the disk of its data directory.
    ///
    /// # Errors
    /// When the lab was made without small disks.
    pub fn fill_disk(&self) -> Result<()> {
        Ok(self.small_disk()?.fill()?)
    }

    /// Removes the file that [`Node::fill_disk`] wrote.
    ///
    /// # Errors
    /// When it was not filled.
    pub fn free_disk(&self) -> Result<()> {
        Ok(self.small_disk()?.free()?)
    }

    fn small_disk(&self) -> Result<&SmallDisk> {
        self.disk
            .as_ref()
            .context("the lab was made without small disks")
    }

    /// Sets the daemon's wall clock `seconds` ahead, or behind if negative; its timers are
    /// not affected.
    ///
    /// # Errors
    /// When the lab was made without clocks that can be set.
    pub fn skew_clock(&self, seconds: i64) -> Result<()> {
        ensure!(
            self.options.clock,
            "the lab was made without clocks that can be set"
        );
        // A rename is atomic, so the daemon never reads half a line.
        let (path, new) = (self.path("clock"), self.path("clock.new"));
        fs::write(&new, format!("{seconds:+}\n"))?;
        Ok(fs::rename(new, path)?)
    }

    /// The whole log of its daemons.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.path("jacod.log"))
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// The last lines of its daemons' log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Stops its engine gracefully; containers survive only in a lab with
    /// [`live_restore`](super::Builder::live_restore).
    ///
    /// # Errors
    /// When none runs, or it does not exit.
    pub async fn stop_engine(&mut self) -> Result<ExitStatus> {
        let engine = self.engine.take();
        let engine = engine.with_context(|| format!("no engine runs on {}", self.host))?;
        signal(engine.id(), Signal::TERM)?;
        wait_exit("the end of the engine", engine).await
    }

    /// Starts its stopped engine; returns before the engine answers.
    ///
    /// # Errors
    /// When its program cannot be run.
    pub fn start_engine(&mut self) -> Result<()> {
        // After a crash these files hold ids that may belong to other processes by now.
        for stale in ["dockerd.pid", "exec/containerd/containerd.pid"] {
            let _ = fs::remove_file(self.path(stale));
        }
        let mut command = self.command("dockerd");
        command
            .arg("--host")
            .arg(format!("unix://{}", self.engine_socket().display()))
            .arg("--data-root")
            .arg(self.path("engine"))
            .arg("--exec-root")
            .arg(self.path("exec"))
            .arg("--pidfile")
            .arg(self.path("dockerd.pid"))
            // `clean` finds its containers by this control group.
            .args(["--cgroup-parent", &self.namespace])
            .args(["--exec-opt", "native.cgroupdriver=cgroupfs"])
            .arg("--insecure-registry")
            .arg(format!("{}:{}", network::HUB, super::registry::PORT))
            .args(["--bridge", "none", "--log-level", "warn"]);
        if self.options.live_restore {
            command.arg("--live-restore");
        }
        self.engine = Some(run(command, &self.path("dockerd.log"))?);
        Ok(())
    }

    /// Ends the daemon and the engine, when the lab is dropped.
    pub(crate) fn reap(&mut self) {
        for child in [self.daemon.take(), self.engine.take()]
            .into_iter()
            .flatten()
        {
            reap(child);
        }
        self.disk = None;
    }
}

/// Path of libfaketime on any architecture.
fn faketime() -> Result<PathBuf> {
    let dirs = fs::read_dir(LIBRARIES)?.flatten();
    let mut paths = dirs.map(|dir| dir.path().join(FAKETIME));
    let found = paths.find(|path| path.is_file());
    found.with_context(|| {
        format!("{LIBRARIES}/*/{FAKETIME} is needed; install it with `make setup`")
    })
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    Ok(kill_process(pid.context("a process id")?, signal)?)
}

/// Waits until a process ends after its signal.
async fn wait_exit(what: &str, process: Child) -> Result<ExitStatus> {
    let process = std::sync::Mutex::new(process);
    until(what, WAIT_TIMEOUT, || async {
        let ended = process
            .lock()
            .map_err(|error| error.to_string())?
            .try_wait();
        ended
            .map_err(|e| e.to_string())?
            .ok_or_else(|| "it still runs".to_owned())
    })
    .await
}

fn reap(mut child: Child) {
    // The process may have exited by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// Starts a command with its output in a log file of its own.
pub(crate) fn run(mut command: Command, log: &Path) -> Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let what = command.get_program().to_owned();
    command
        .spawn()
        .with_context(|| format!("start {}", what.display()))
}
