//! A dockerd for a single test, which may damage it.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::fixture::try_docker_at;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A dockerd in its own directory; it and its containers end on drop.
pub(crate) struct PrivateEngine {
    folder: TempDir,
    process: Option<Child>,
}

impl PrivateEngine {
    pub(crate) fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("jaco-dockerd-")
            .tempdir_in("/tmp")
            .expect("a folder");
        let mut engine = Self {
            folder,
            process: None,
        };
        engine.spawn();
        engine
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn socket(&self) -> String {
        self.at("s")
    }

    /// Starts the process on the files of an earlier one and waits until it answers.
    pub(crate) fn spawn(&mut self) {
        // A killed dockerd leaves its pid file, and the pid may belong to another process by now.
        let _ = std::fs::remove_file(self.at("pid"));
        let log = std::fs::File::create(self.at("log")).expect("a log");
        let process = Command::new("dockerd")
            .args(["--host", &format!("unix://{}", self.socket())])
            .args([
                "--data-root",
                &self.at("data"),
                "--exec-root",
                &self.at("exec"),
            ])
            .args(["--pidfile", &self.at("pid"), "--bridge", "none"])
            .args(["--iptables=false", "--log-level", "warn"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("dockerd");
        self.process = Some(process);
        let begun = Instant::now();
        while try_docker_at(&self.socket(), &["version"]).is_err() {
            let log = || std::fs::read_to_string(self.at("log")).unwrap_or_default();
            assert!(begun.elapsed() < TIMEOUT, "dockerd: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("a process");
        kill_process(Pid::from_child(process), signal).expect("sent");
    }

    /// Ends the process by a signal.
    pub(crate) fn end(&mut self, signal: Signal) {
        self.signal(signal);
        let mut process = self.process.take().expect("a process");
        process.wait().expect("ended");
    }

    /// Deletes every container's metadata, as if the disk had been replaced.
    pub(crate) fn forget_containers(&self) {
        std::fs::remove_dir_all(Path::new(&self.at("data")).join("containers")).expect("forgotten");
    }
}

impl Drop for PrivateEngine {
    fn drop(&mut self) {
        if self.process.is_none() {
            self.spawn(); // to remove the containers of a killed one
        }
        self.signal(Signal::CONT);
        let socket = self.socket();
        let left = try_docker_at(&socket, &["ps", "-aq"]).unwrap_or_default();
        for id in left.split_whitespace() {
            let _ = try_docker_at(&socket, &["rm", "-f", id]);
        }
        self.end(Signal::TERM);
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let ours = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|path| path.starts_with(&self.folder.path().display().to_string()));
        for path in ours {
            let _ = Command::new("umount").args(["-l", path]).status();
        }
    }
}
