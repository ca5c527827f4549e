//! Replicated writes of three JACO nodes compared with three etcd members: same namespaces, same
//! disk.
//!
//! Runs `replicated_writes` on the leader of each in turn, twice, because the disk of a shared
//! machine changes from minute to minute. Also prints the CPU time of each process per write, and
//! the bytes that the leader's machine sent and received. Needs root and Debian's `etcd-server`.

#![expect(clippy::print_stdout, reason = "figures are its purpose")]

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use jaco_chaos::{
    Lab,
    lab::{Node, netns},
};

/// Timeout of starting the etcd members.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Client socket in the member's directory; etcd requires a host and a port in the name.
const ETCD_SOCKET: &str = "etcd:1";

#[derive(Parser)]
#[command(about = "Compares replicated writes with etcd's")]
struct Options {
    /// Seconds per measurement.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Measurements of each.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Numbers of clients.
    #[arg(long, default_value = "1,64,512")]
    clients: String,
    /// Measure only one of the two.
    #[arg(long, value_parser = ["jaco", "etcd"])]
    only: Option<String>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    for round in 1..=options.rounds {
        if wanted("jaco") {
            println!("round {round}: JACO, three nodes");
            runtime.block_on(jaco(&options))?;
        }
        if wanted("etcd") {
            println!("round {round}: etcd, three members");
            runtime.block_on(etcd(&options))?;
        }
    }
    Ok(())
}

async fn jaco(options: &Options) -> Result<()> {
    let mut lab = Lab::builder().nodes(3).quiet().start().await?;
    lab.join_all().await?;
    lab.wait_voters(3).await?;
    let leader = lab.node(lab.leader().await?);
    let processes = lab.nodes().iter().map(|node| (node, node.pid()));
    let processes = processes.map(|(node, pid)| Ok((node, pid?)));
    let processes: Vec<_> = processes.collect::<Result<_>>()?;
    load("jaco", &leader.socket(), leader, &processes, options)
}

async fn etcd(options: &Options) -> Result<()> {
    let mut lab = Lab::builder().nodes(3).quiet().start().await?;
    for index in 1..=3 {
        lab.node_mut(index).kill()?;
    }
    let cluster: Vec<String> = lab
        .nodes()
        .iter()
        .map(|node| format!("{}=http://{}:2380", node.host(), node.address()))
        .collect();
    let mut members = Members(Vec::new());
    for node in lab.nodes() {
        members.0.push(member(node, &cluster.join(","))?);
    }
    let leader = leader_of(lab.nodes())?;
    let processes = lab.nodes().iter().zip(members.0.iter().map(Child::id));
    let socket = leader.path(ETCD_SOCKET);
    load(
        "etcd",
        &socket,
        leader,
        &processes.collect::<Vec<_>>(),
        options,
    )
}

/// Child processes that are killed with their owner.
struct Members(Vec<Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.0 {
            // A process that has ended must be waited for, too.
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

fn member(node: &Node, cluster: &str) -> Result<Child> {
    let address = node.address();
    let dir = node.path("");
    let log = File::create(node.path("etcd.log"))?;
    let mut command = netns::command(node.namespace(), "etcd");
    command
        .current_dir(&dir)
        .args(["--name", node.host(), "--data-dir", "etcd"])
        .args([
            "--listen-client-urls",
            &format!("unix://{ETCD_SOCKET},http://{address}:2379"),
        ])
        .args(["--advertise-client-urls", &format!("http://{address}:2379")])
        .args(["--listen-peer-urls", &format!("http://{address}:2380")])
        .args([
            "--initial-advertise-peer-urls",
            &format!("http://{address}:2380"),
        ])
        .args(["--initial-cluster", cluster])
        .args(["--max-concurrent-streams", "1024"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    command
        .spawn()
        .context("start etcd; is etcd-server installed?")
}

/// The node whose etcd reports in its metrics that it leads.
fn leader_of(nodes: &[Node]) -> Result<&Node> {
    let start = Instant::now();
    while start.elapsed() < START_TIMEOUT {
        for node in nodes {
            let url = format!("http://{}:2379/metrics", node.address());
            let mut curl = netns::command(node.namespace(), "curl");
            let metrics = curl.args(["-fsS", "--max-time", "2", &url]).output()?;
            if String::from_utf8_lossy(&metrics.stdout).contains("\netcd_server_is_leader 1\n") {
                return Ok(node);
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bail!("etcd elected no leader within {START_TIMEOUT:?}")
}

fn load(
    target: &str,
    socket: &Path,
    leader: &Node,
    processes: &[(&Node, u32)],
    options: &Options,
) -> Result<()> {
    let program = sibling("replicated_writes")?;
    let before = traffic(leader)?;
    let status = Command::new(program)
        .args([
            "--target",
            target,
            "--seconds",
            &options.seconds.to_string(),
        ])
        .args(["--clients", &options.clients])
        .arg("--socket")
        .arg(socket)
        .args(processes.iter().map(|(node, pid)| {
            let leads = node.host() == leader.host();
            format!(
                "--process={}={pid}",
                if leads { "leader" } else { "follower" }
            )
        }))
        .status()?;
    ensure!(status.success(), "the measurement failed");
    let after = traffic(leader)?;
    println!(
        "      the leader's machine sent {:.1} MB and received {:.1} MB",
        (after.1 - before.1) / 1e6,
        (after.0 - before.0) / 1e6,
    );
    Ok(())
}

/// Bytes received and sent by the interfaces of a node's namespace, without loopback.
fn traffic(node: &Node) -> Result<(f64, f64)> {
    let mut cat = netns::command(node.namespace(), "cat");
    let text = cat.arg("/proc/net/dev").output()?.stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut total = (0.0, 0.0);
    for line in text.lines() {
        let Some((name, counters)) = line.split_once(':') else {
            continue;
        };
        if name.trim() == "lo" {
            continue;
        }
        let counters: Vec<f64> = counters
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        total.0 += counters.first().copied().unwrap_or(0.0);
        total.1 += counters.get(8).copied().unwrap_or(0.0);
    }
    Ok(total)
}

fn sibling(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let path = here.with_file_name(name);
    ensure!(
        fs::exists(&path)?,
        "{} is not built; `make bench` builds it",
        path.display()
    );
    Ok(path)
}
