//! Load through a tunnel, and what it costs.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use jaco_bench::Samples;

use super::tunnel::Ends;

/// Payload of a small packet, in bytes.
const SMALL: usize = 64;
/// Bytes of one write or read of a stream.
const BLOCK: usize = 128 << 10;
/// Units of CPU time in a second, as `/proc` counts it on every architecture (`USER_HZ`).
const TICKS: u64 = 100;
/// Time until a flow has found its rate.
const WARM_UP: Duration = Duration::from_millis(400);
/// Time limit of a lost packet's wait, and of the end of a load.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Rate of TCP flows together.
pub(super) struct Flow {
    pub(super) gigabits_per_second: f64,
    /// CPU seconds for each gigabit, of both sides and the load itself.
    pub(super) cpu_per_gigabit: f64,
}

/// Round trips of single packets.
pub(super) struct Trips {
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

/// Sends as much as `count` TCP flows carry from the first side to the second.
pub(super) fn streams(ends: &Ends<'_>, count: usize, length: Duration) -> Result<Flow> {
    let listener = ends.sides[1].within(|| TcpListener::bind((ends.addresses[1], 0)))??;
    let address = listener.local_addr()?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let sender =
            ends.sides[0].within(|| TcpStream::connect_timeout(&address, 10 * TIMEOUT))??;
        // The default of Linux; with one that paces, its timers would be measured.
        rustix::net::sockopt::set_tcp_congestion(&sender, "cubic")?;
        pairs.push((sender, listener.accept()?.0));
    }
    let bytes = AtomicU64::new(0);
    thread::scope(|scope| {
        for (sender, receiver) in &pairs {
            scope.spawn(|| {
                let block = vec![7; BLOCK];
                while (&*sender).write_all(&block).is_ok() {}
            });
            scope.spawn(|| {
                let mut block = vec![0; BLOCK];
                while let Ok(read @ 1..) = (&*receiver).read(&mut block) {
                    bytes.fetch_add(read as u64, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(WARM_UP);
        let begin = (
            Instant::now(),
            bytes.load(Ordering::Relaxed),
            cpu_time(&ends.programs),
        );
        thread::sleep(length);
        let end = (
            Instant::now(),
            bytes.load(Ordering::Relaxed),
            cpu_time(&ends.programs),
        );
        for (sender, receiver) in &pairs {
            let _ = sender.shutdown(Shutdown::Both);
            let _ = receiver.shutdown(Shutdown::Both);
        }
        let gigabits = (end.1 - begin.1) as f64 * 8.0 / 1e9;
        ensure!(gigabits > 0.0, "nothing arrived");
        Ok(Flow {
            gigabits_per_second: gigabits / (end.0 - begin.0).as_secs_f64(),
            cpu_per_gigabit: (end.2? - begin.2?).as_secs_f64() / gigabits,
        })
    })
}

/// Small UDP packets that arrive in a second, of as many as one thread sends.
pub(super) fn packets(ends: &Ends<'_>, length: Duration) -> Result<f64> {
    let (sender, receiver) = sockets(ends)?;
    let (arrived, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // A full queue is no error: the packet is lost.
                let _ = sender.send(&[7; SMALL]);
            }
        });
        scope.spawn(|| {
            let mut buffer = [0; 2 * SMALL];
            while !stop.load(Ordering::Relaxed) {
                if receiver.recv(&mut buffer).is_ok() {
                    arrived.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        thread::sleep(WARM_UP);
        let begin = (Instant::now(), arrived.load(Ordering::Relaxed));
        thread::sleep(length);
        let count = arrived.load(Ordering::Relaxed) - begin.1;
        let elapsed = begin.0.elapsed();
        stop.store(true, Ordering::Relaxed);
        Ok(count as f64 / elapsed.as_secs_f64())
    })
}

/// Sends packets one at a time, each after the echo of the one before.
pub(super) fn round_trips(ends: &Ends<'_>, length: Duration) -> Result<Trips> {
    let (client, server) = sockets(ends)?;
    let stop = AtomicBool::new(false);
    let samples = thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2 * SMALL];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((len, from)) = server.recv_from(&mut buffer) {
                    let _ = server.send_to(&buffer[..len], from);
                }
            }
        });
        let (mut samples, began) = (Vec::new(), Instant::now());
        let mut buffer = [0; 2 * SMALL];
        // The handshake may take the first second.
        while began.elapsed() < length || (samples.is_empty() && began.elapsed() < 20 * TIMEOUT) {
            let sent = Instant::now();
            if client.send(&[7; SMALL]).is_ok() && client.recv(&mut buffer).is_ok() {
                samples.push(sent.elapsed());
            }
        }
        stop.store(true, Ordering::Relaxed);
        samples
    });
    ensure!(!samples.is_empty(), "no packet came back");
    let samples = Samples::new(samples);
    Ok(Trips {
        p50: samples.percentile(50),
        p99: samples.percentile(99),
    })
}

fn sockets(ends: &Ends<'_>) -> Result<(UdpSocket, UdpSocket)> {
    let bind = |at: usize| -> io::Result<UdpSocket> {
        let socket = ends.sides[at].within(|| UdpSocket::bind((ends.addresses[at], 0)))??;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        Ok(socket)
    };
    let (client, server) = (bind(0)?, bind(1)?);
    client.connect(server.local_addr()?)?;
    Ok((client, server))
}

/// Time that the cores worked for this process, the programs and soft interrupts (proc_stat(5)).
fn cpu_time(programs: &[u32]) -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let soft_interrupts = stat.split_whitespace().nth(7);
    let mut ticks: u64 = soft_interrupts.context("/proc/stat is empty")?.parse()?;
    for pid in programs.iter().copied().chain([std::process::id()]) {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name of the program, in parentheses, may hold spaces.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let times = fields.split_whitespace().skip(11).take(2);
        ticks += times.flat_map(str::parse::<u64>).sum::<u64>();
    }
    Ok(Duration::from_millis(ticks * 1000 / TICKS))
}
