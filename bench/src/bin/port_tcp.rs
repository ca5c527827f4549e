//! A published TCP port beside haproxy in TCP mode: bytes and connections per second, and the CPU
//! time that they cost.
//!
//! Each proxy is a process of its own with two threads, in front of the same server on the loopback
//! interface, and they take turns in several rounds. `direct` is the server without a proxy. haproxy
//! comes from `apt-get install haproxy`; without it, only the other two are measured.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use jaco_net::l4::{Backends, Port, Ports, Protocol, Settings, Upstream};

/// Rounds, in each of which every proxy is measured.
const ROUNDS: usize = 5;
/// Time of one measurement.
const TIME: Duration = Duration::from_secs(1);
/// Threads of each proxy.
const PROXY_THREADS: usize = 2;
/// Connections over which bytes are received.
const STREAMS: usize = 4;
/// Clients that connect one after another.
const CONNECTORS: usize = 4;
/// First byte of a connection that asks for bytes without end; others are echoed.
const ENDLESS: u8 = b'+';
/// Clock ticks per second of `/proc/<pid>/stat`.
const TICKS: f64 = 100.0;

/// Figures of one proxy.
#[derive(Default)]
struct Figures {
    gigabits: Vec<f64>,
    cpu_per_gigabyte: Vec<f64>,
    connections: Vec<f64>,
    cpu_per_thousand: Vec<f64>,
}

/// A proxy, or the server itself.
struct Target {
    name: &'static str,
    addr: SocketAddr,
    process: Option<Child>,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill(); // it may have ended
            let _ = process.wait();
        }
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, serve, port, upstream] = &arguments[..]
        && serve == "serve"
    {
        return proxy(port.parse()?, upstream.parse()?);
    }
    let server = server()?;
    let directory = tempfile::tempdir()?;
    let mut targets = vec![
        Target {
            name: "direct",
            addr: server,
            process: None,
        },
        jaco(server)?,
    ];
    match haproxy(server, directory.path()) {
        Ok(target) => targets.push(target),
        Err(error) => println!("without haproxy: {error:#}"),
    }
    for target in &targets {
        wait_open(target)?;
    }
    println!(
        "{ROUNDS} rounds of {TIME:?}; {STREAMS} streams, {CONNECTORS} clients that connect; medians"
    );
    let mut figures: Vec<Figures> = targets.iter().map(|_| Figures::default()).collect();
    for _ in 0..ROUNDS {
        for (target, figures) in targets.iter().zip(&mut figures) {
            measure(target, figures)?;
        }
    }
    for (target, figures) in targets.iter().zip(&mut figures) {
        println!(
            "{:<8} {:>7.1} Gbit/s, {:>5.2} CPU s/GB; {:>7.0} connections/s, {:>5.3} CPU s/1000",
            target.name,
            median(&mut figures.gigabits),
            median(&mut figures.cpu_per_gigabyte),
            median(&mut figures.connections),
            median(&mut figures.cpu_per_thousand),
        );
    }
    Ok(())
}

fn measure(target: &Target, figures: &mut Figures) -> Result<()> {
    let (bytes, seconds, cpu) = run(target, STREAMS, receive)?;
    figures.gigabits.push(bytes * 8.0 / seconds / 1e9);
    figures.cpu_per_gigabyte.push(cpu / (bytes / 1e9));
    let (connections, seconds, cpu) = run(target, CONNECTORS, connect)?;
    figures.connections.push(connections / seconds);
    figures.cpu_per_thousand.push(cpu / (connections / 1e3));
    Ok(())
}

/// Runs `work` on threads for [`TIME`]; returns their count, the seconds, and the CPU seconds of the
/// proxy.
fn run(
    target: &Target,
    threads: usize,
    work: fn(SocketAddr, &AtomicBool, &AtomicU64) -> io::Result<()>,
) -> Result<(f64, f64, f64)> {
    let (ended, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let (start, before) = (Instant::now(), cpu_seconds(target)?);
    let results: Vec<io::Result<()>> = thread::scope(|scope| {
        let run = || work(target.addr, &ended, &count);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        thread::sleep(TIME);
        ended.store(true, Ordering::Relaxed);
        let joined = running.into_iter().map(|thread| thread.join());
        joined
            .map(|result| result.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
            .collect()
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds(target)? - before);
    for result in results {
        result.with_context(|| format!("a client of {}", target.name))?;
    }
    let count = count.load(Ordering::Relaxed);
    ensure!(count > 0, "nothing passed through {}", target.name);
    Ok((count as f64, seconds, cpu))
}

/// Receives bytes and counts them.
fn receive(from: SocketAddr, ended: &AtomicBool, count: &AtomicU64) -> io::Result<()> {
    let mut stream = TcpStream::connect(from)?;
    stream.write_all(&[ENDLESS])?;
    let mut buffer = vec![0; 256 * 1024];
    while !ended.load(Ordering::Relaxed) {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        count.fetch_add(len as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Connects, has one byte echoed and closes, again and again; counts the connections.
fn connect(to: SocketAddr, ended: &AtomicBool, count: &AtomicU64) -> io::Result<()> {
    while !ended.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(to)?;
        // A reset leaves no port in TIME_WAIT.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        stream.write_all(b".")?;
        stream.read_exact(&mut [0])?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Starts the server of all measurements.
fn server() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    let bytes: Arc<[u8]> = vec![7; 256 * 1024].into();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let bytes = bytes.clone();
            thread::spawn(move || {
                let mut first = [0];
                while stream.read_exact(&mut first).is_ok() {
                    if first != [ENDLESS] {
                        let _ = stream.write_all(&first); // the client may have gone
                    } else {
                        while stream.write_all(&bytes).is_ok() {}
                    }
                }
            });
        }
    });
    Ok(addr)
}

/// The data plane of a node, in this process.
fn proxy(port: u16, upstream: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(PROXY_THREADS)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let ports = Ports::new(Settings::default(), Arc::new(|_: &str| true));
        let port = Port {
            number: port,
            protocol: Protocol::Tcp,
        };
        let upstream = Upstream {
            replica: "web-0".into(),
            host: "here".into(),
            addr: upstream,
        };
        let backends = Backends {
            upstreams: vec![upstream],
            proxy_v2: false,
        };
        ports.open(port, backends).await?;
        ports.closed(port).await;
        Ok(())
    })
}

fn jaco(upstream: SocketAddr) -> Result<Target> {
    let addr = free()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve", &addr.port().to_string(), &upstream.to_string()]);
    Ok(Target {
        name: "jaco",
        addr,
        process: Some(command.spawn()?),
    })
}

fn haproxy(upstream: SocketAddr, directory: &std::path::Path) -> Result<Target> {
    let addr = free()?;
    let path = directory.join("haproxy.cfg");
    let config = format!(
        "global\n  nbthread {PROXY_THREADS}\n  maxconn 4096\n\
         defaults\n  mode tcp\n  option splice-auto\n  timeout connect 3s\n  timeout client 1h\n  timeout server 1h\n\
         listen port\n  bind {addr}\n  server one {upstream}\n"
    );
    fs::write(&path, config)?;
    let mut command = Command::new("haproxy");
    command.arg("-q").arg("-db").arg("-f").arg(&path);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let process = command.spawn().context("haproxy")?;
    Ok(Target {
        name: "haproxy",
        addr,
        process: Some(process),
    })
}

fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn wait_open(target: &Target) -> Result<()> {
    let start = Instant::now();
    while TcpStream::connect(target.addr).is_err() {
        ensure!(
            start.elapsed() < Duration::from_secs(10),
            "{} is closed",
            target.name
        );
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// User and system time of the proxy so far.
fn cpu_seconds(target: &Target) -> Result<f64> {
    let Some(process) = &target.process else {
        return Ok(0.0);
    };
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id()))?;
    let (_, fields) = stat.rsplit_once(") ").context("stat")?;
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: Result<Vec<f64>, _> = ticks.map(str::parse).collect();
    Ok(ticks?.iter().sum::<f64>() / TICKS)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
