//! A node with its operators and HTTP clients, and a record of all its outputs.

mod failures;
mod http_clients;
mod manifests;
mod operators;
mod outputs;

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, ensure};
use jaco_chaos::{
    Api, Daemon, SecretScanner, Settings, Workload, daemon::free_ports, disk, until,
    wait::WAIT_TIMEOUT,
};
use jaco_proto::error::DecodedError;
use jaco_raftnode::{State, Storage};
use tempfile::TempDir;

/// Log format of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogFormat {
    Text,
    Json,
    Journal,
}

pub(super) struct Fixture {
    daemon: Daemon,
    scanner: SecretScanner,
    /// Every output with its source.
    outputs: Vec<(String, Vec<u8>)>,
    metrics: u16,
    deployment: String,
    journal: Arc<Mutex<Vec<u8>>>,
    _dir: TempDir,
}

impl Fixture {
    pub(super) async fn start(format: LogFormat) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("jaco-journal-").tempdir()?;
        let journal = Arc::<Mutex<Vec<u8>>>::default();
        let mut settings = Settings::default();
        let [metrics] = free_ports()?;
        settings.config = format!("metrics_addr: :{metrics}\nlog_level: debug\n");
        if format != LogFormat::Text {
            let invocation = ("INVOCATION_ID".to_owned(), "1".to_owned());
            settings.environment.push(invocation);
        }
        if format == LogFormat::Journal {
            let path = dir.path().join("socket");
            listen(&path, journal.clone())?;
            // A mount namespace in which the journal's socket is ours.
            let script = "mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd && \
                          mkdir /run/systemd/journal && ln -s \"$0\" /run/systemd/journal/socket \
                          && exec \"$@\"";
            let launcher = ["unshare", "--mount", "/bin/sh", "-c", script];
            settings.launcher = launcher.map(str::to_owned).into();
            settings.launcher.push(path.display().to_string());
        }
        let mut daemon = Daemon::new(settings).await?;
        daemon.spawn()?;
        let api = daemon.api().clone();
        until("the API answers", WAIT_TIMEOUT, || api.status()).await?;
        Ok(Self {
            daemon,
            scanner: SecretScanner::default(),
            outputs: Vec::new(),
            metrics,
            deployment: Workload::new("secret", []).name,
            journal,
            _dir: dir,
        })
    }

    fn api(&self) -> Api {
        self.daemon.api().clone()
    }

    fn record(&mut self, place: &str, text: impl Into<Vec<u8>>) {
        self.outputs.push((place.to_owned(), text.into()));
    }

    fn refused<T>(
        &mut self,
        place: &str,
        answer: Result<T, impl Into<DecodedError>>,
    ) -> Result<()> {
        let Err(error) = answer else {
            anyhow::bail!("{place}: was not refused");
        };
        let error: DecodedError = error.into();
        self.record(place, format!("{error} {error:?}"));
        Ok(())
    }

    /// Runs `jaco -v`; `output` decides whether its standard output is checked for secrets.
    fn jaco(
        &mut self,
        line: &str,
        output: Output,
        edit: impl FnOnce(&mut Command),
    ) -> Result<bool> {
        let mut command = self.daemon.cli()?;
        command.arg("-v").args(line.split(' '));
        edit(&mut command);
        let ended = command.output()?;
        self.record(&format!("stderr of jaco {line}"), ended.stderr);
        if output == Output::Checked {
            self.record(&format!("stdout of jaco {line}"), ended.stdout);
        }
        Ok(ended.status.success())
    }

    /// Adds the lines of a PEM file, except for the encapsulation boundaries, to the markers.
    fn add_key(&mut self, name: &str, pem: &str) -> Result<()> {
        let body: Vec<&str> = pem.lines().filter(|line| !line.starts_with("--")).collect();
        ensure!(!body.is_empty(), "{name}: no key");
        for line in body {
            self.scanner.add(name, line.as_bytes());
        }
        Ok(())
    }

    fn last(&self) -> Option<(String, String)> {
        let tell = |(place, text): &(String, Vec<u8>)| {
            (place.clone(), String::from_utf8_lossy(text).into_owned())
        };
        let stderr = |(place, _): &&(String, Vec<u8>)| place.starts_with("stderr");
        self.outputs.iter().rev().find(stderr).map(tell)
    }

    fn file(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.daemon.scratch(name);
        fs::write(&path, content)?;
        Ok(path)
    }

    /// Stops the daemon; returns its whole log.
    pub(super) async fn stop(&mut self) -> Result<String> {
        let deployment = self.deployment.clone();
        self.api().delete(&deployment).await?;
        let status = self.daemon.stop().await?;
        ensure!(status.success(), "{status}");
        // The CA key is only in the state.
        let copy = self.daemon.scratch("copy");
        disk::copy(&self.daemon.data_dir().join("raft"), &copy)?;
        let state: State = Storage::open(&copy)?.load_state()?;
        let cluster = state.cluster.as_ref().context("no cluster")?;
        let key = String::from_utf8(cluster.ca_key.clone())?;
        self.add_key("CA key", &key)?;
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let journal = String::from_utf8_lossy(&journal).into_owned();
        Ok(if journal.is_empty() {
            self.daemon.log()
        } else {
            let stderr = self.daemon.log();
            ensure!(stderr.is_empty(), "beside the journal: {stderr}");
            journal
        })
    }

    /// Fails if any output or the log contains a secret.
    pub(super) fn check(&self, log: &str) -> Result<()> {
        let mut found = self.scanner.found_in("the log", log.as_bytes());
        for (place, text) in &self.outputs {
            found.extend(self.scanner.found_in(place, text));
        }
        ensure!(
            found.is_empty(),
            "{} leaks:\n{}",
            found.len(),
            found.join("\n")
        );
        Ok(())
    }
}

/// Whether the standard output of a command is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Checked,
    /// The command prints values that an operator stored.
    Allowed,
}

/// Collects journal entries, each ended by an empty line.
fn listen(path: &std::path::Path, into: Arc<Mutex<Vec<u8>>>) -> Result<()> {
    let socket = UnixDatagram::bind(path)?;
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        while let Ok(length) = socket.recv(&mut buffer) {
            let mut entries = into.lock().unwrap_or_else(PoisonError::into_inner);
            entries.extend(&buffer[..length]);
            entries.push(b'\n');
        }
    });
    Ok(())
}
