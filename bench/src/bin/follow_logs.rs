//! 1,000 lines a second from each of 20 replicas through one `jaco logs -f`: whether all arrive,
//! and what it costs the daemon, the client and the engine.
//!
//! Halfway the client is stopped for a while, like one whose terminal blocks: the daemon's memory
//! must not grow, and no line may be missing afterwards.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use jaco_chaos::{
    Daemon, Service, Settings, Workload,
    daemon::proc::{cpu_time, rss_bytes},
    engine,
};
use rustix::process::{Pid, Signal, kill_process};

const REPLICAS: u32 = 20;
/// Lines of each replica.
const LINES: u64 = 30_000;
/// Lines of a replica between two pauses of 0.1 s.
const BURST: u64 = 100;
/// Time for which the client is stopped.
const STOP_DURATION: Duration = Duration::from_secs(8);
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> Result<()> {
    let mut daemon = Daemon::bootstrap(Settings {
        quiet: true,
        ..Settings::default()
    })
    .await?;
    let engine = engine_pid().await?;
    let workload = Workload::new("bench", [writer()]);
    daemon.api().apply(&workload).await?;
    daemon.api().converged(&workload).await?;

    let mut command = daemon.cli()?;
    command
        .args(["logs", "-f", "--since", "0s"])
        .arg(format!("{}/writer", workload.name))
        .stdout(Stdio::piped());
    let jaco = command.spawn().context("start jaco")?;
    let outcome = measure(&daemon, engine, jaco);
    daemon.api().delete(&workload.name).await?;
    daemon.stop().await?;
    outcome
}

/// The replicas wait two seconds first, so that each is followed before it writes.
fn writer() -> Service {
    let script = format!(
        "sleep 2; n=0; while [ $n -lt {LINES} ]; do \
           i=0; while [ $i -lt {BURST} ]; do i=$((i+1)); n=$((n+1)); \
             echo \"$n of a line that is about as long as the lines of a real program are\"; \
           done; sleep 0.1; \
         done; sleep 86400"
    );
    Service::new("writer").replicas(REPLICAS).script(&script)
}

struct Cost {
    name: &'static str,
    pid: u32,
    cpu: Duration,
    rss: u64,
    most: u64,
}

impl Cost {
    fn of(name: &'static str, pid: u32) -> Result<Self> {
        let (cpu, rss) = (cpu_time(pid)?, rss_bytes(pid)?);
        let most = rss;
        Ok(Self {
            name,
            pid,
            cpu,
            rss,
            most,
        })
    }

    fn print(&self, elapsed: Duration) -> Result<()> {
        let cpu = cpu_time(self.pid)? - self.cpu;
        println!(
            "  {:<7} CPU of one core {:>6.1} %   resident {:>6.1} MB before, {:>6.1} MB at most",
            self.name,
            cpu.as_secs_f64() / elapsed.as_secs_f64() * 100.0,
            self.rss as f64 / 1e6,
            self.most as f64 / 1e6,
        );
        Ok(())
    }
}

fn measure(daemon: &Daemon, engine: u32, mut jaco: Child) -> Result<()> {
    let pid = Pid::from_child(&jaco);
    let mut costs = [
        Cost::of("jacod", daemon.pid()?)?,
        Cost::of("jaco", jaco.id())?,
        Cost::of("engine", engine)?,
    ];
    let lines = reader(&mut jaco)?;
    let (begun, mut last) = (Instant::now(), Instant::now());
    let (mut next, mut received, mut wrong) = (BTreeMap::<String, u64>::new(), 0, 0);
    let mut pause = None;
    while received < LINES * u64::from(REPLICAS) {
        let batch = match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(batch) => batch,
            Err(mpsc::RecvTimeoutError::Timeout) => Vec::new(),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("jaco ended"),
        };
        for (replica, number) in batch {
            let expected = next.entry(replica).or_insert(1);
            wrong += u64::from(number != *expected);
            *expected = number + 1;
            received += 1;
        }
        if last.elapsed() > Duration::from_millis(200) {
            last = Instant::now();
            for cost in &mut costs {
                cost.most = cost.most.max(rss_bytes(cost.pid)?);
            }
        }
        match pause {
            None if received > LINES * u64::from(REPLICAS) / 2 => {
                kill_process(pid, Signal::STOP)?;
                pause = Some((Instant::now(), true));
            }
            Some((since, true)) if since.elapsed() > STOP_DURATION => {
                kill_process(pid, Signal::CONT)?;
                pause = Some((since, false));
            }
            None | Some(_) => {}
        }
        ensure!(
            begun.elapsed() < LIMIT,
            "only {received} lines after {LIMIT:?}"
        );
    }
    let elapsed = begun.elapsed();
    println!(
        "{received} lines of {REPLICAS} replicas in {:.1} s ({:.0} a second), {wrong} out of place (goal: 0), \
         the client stopped for {:.0} s of it",
        elapsed.as_secs_f64(),
        received as f64 / elapsed.as_secs_f64(),
        STOP_DURATION.as_secs_f64(),
    );
    for cost in &costs {
        cost.print(elapsed)?;
    }
    jaco.kill()?;
    jaco.wait()?;
    Ok(())
}

/// Reads on a thread of its own, so that the benchmark does not slow the client down.
fn reader(jaco: &mut Child) -> Result<mpsc::Receiver<Vec<(String, u64)>>> {
    let output = jaco.stdout.take().context("a pipe")?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut batch = Vec::new();
        for line in BufReader::with_capacity(1 << 16, output).lines() {
            let Ok(line) = line else { return };
            batch.extend(parse(&line));
            if batch.len() == 1_000 && sender.send(std::mem::take(&mut batch)).is_err() {
                return;
            }
        }
    });
    Ok(lines)
}

/// Parses `[replica@host] number of …`.
fn parse(line: &str) -> Option<(String, u64)> {
    let (replica, rest) = line.strip_prefix('[')?.split_once('@')?;
    let (_, rest) = rest.split_once("] ")?;
    let number = rest.split_once(' ')?.0.parse().ok()?;
    Some((replica.to_owned(), number))
}

/// The process that listens on the engine's socket.
async fn engine_pid() -> Result<u32> {
    let stream = tokio::net::UnixStream::connect(engine::socket()).await?;
    let pid = stream
        .peer_cred()?
        .pid()
        .context("an engine's process id")?;
    Ok(pid.try_into()?)
}
