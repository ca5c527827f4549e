//! A server in a process of its own, its processor time and its memory.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, ChildStdout, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Time for a server to begin to listen.
const START: Duration = Duration::from_secs(20);

/// A server that is ended when this is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Not SIGKILL, which would leave the workers of nginx behind.
        if let Ok(pid) = i32::try_from(self.0.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, Signal::TERM); // it may have ended
        }
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts a server and waits until it accepts connections to `port` of the loopback address.
    ///
    /// # Errors
    /// If the program is missing, ends, or does not listen in time.
    pub fn start(command: &mut Command, port: u16) -> Result<Self> {
        let named = format!("{command:?}");
        let child = command.stderr(Stdio::null()).spawn();
        let mut process = Self(child.with_context(|| format!("failed to run {named}"))?);
        let deadline = Instant::now() + START;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = process.0.try_wait()? {
                bail!("{named} ended with {status}");
            }
            ensure!(Instant::now() < deadline, "{named} does not listen");
            sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    /// The output of the server, if its output was piped; the first call takes it.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// User and system time of the server and its children so far.
    ///
    /// # Errors
    /// If it has ended.
    pub fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for pid in self.pids()? {
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                // A thread may end in between.
                let Ok(stat) = fs::read_to_string(task?.path().join("schedstat")) else {
                    continue;
                };
                let run = stat.split(' ').next().context("schedstat")?;
                nanos += run.parse::<u64>()?;
            }
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Resident memory of the server and its children, in bytes.
    ///
    /// # Errors
    /// If it has ended.
    pub fn memory(&self) -> Result<u64> {
        let mut bytes = 0;
        for pid in self.pids()? {
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let mut lines = status.lines();
            let resident = lines.find_map(|line| line.strip_prefix("VmRSS:"));
            let digits = resident.and_then(|text| text.split_whitespace().next());
            bytes += digits.context("VmRSS")?.parse::<u64>()? * 1024;
        }
        Ok(bytes)
    }

    fn pids(&self) -> Result<Vec<u32>> {
        let pid = self.0.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        let children = children.split_whitespace().map(str::parse);
        let mut pids = children.collect::<Result<Vec<u32>, _>>()?;
        pids.push(pid);
        Ok(pids)
    }
}

/// A port of the loopback address that nothing listens on.
///
/// # Errors
/// If there is none.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}
