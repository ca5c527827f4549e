//! A router between two hosts, each a network namespace: cost of forwarding a packet.
//!
//! One thread sends small UDP packets. The kernel carries each one through the router to the
//! receiving socket within the call that sends it, so the processor time of the thread is the cost of
//! the path, whatever else the machine does.

use std::{
    fs,
    io::Write as _,
    net::{Ipv4Addr, UdpSocket},
    os::fd::AsRawFd as _,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use jaco_net::netns::Namespace;
use rustix::time::{ClockId, clock_gettime};

/// Port of the receiving socket.
const PORT: u16 = 9;
/// Address of the router on both links.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);
/// Bytes in a packet, without headers.
const PAYLOAD: usize = 18;
/// Packets of a round.
const ROUND: u32 = 20_000;
/// Rounds; the cheapest counts, because other programs may evict the caches.
const ROUNDS: usize = 15;
/// Processor time after which no further round begins.
const LONGEST: Duration = Duration::from_secs(5);
/// Packets sent until one arrives.
const ATTEMPTS: u32 = 10;
/// Wait for a packet that arrives.
const ARRIVAL: Duration = Duration::from_millis(500);

/// Packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The receiver has never answered, so conntrack regards every packet as the first one.
    New,
    /// The receiver has answered.
    Established,
}

/// Two hosts and the router between them. The namespaces end with the value.
#[derive(Debug)]
pub struct Router {
    sender: Namespace,
    router: Namespace,
    receiver: Namespace,
    from: Ipv4Addr,
    to: Ipv4Addr,
}

impl Router {
    /// Creates the namespaces; the sender has the address `from`, the receiver has `to`.
    ///
    /// # Errors
    /// Without root or iproute2.
    pub fn create(from: Ipv4Addr, to: Ipv4Addr) -> Result<Self> {
        let [sender, router, receiver] = [
            Namespace::create()?,
            Namespace::create()?,
            Namespace::create()?,
        ];
        for (host, name, address) in [(&sender, "jaco-left", from), (&receiver, "jaco-right", to)] {
            let process = std::process::id();
            let host_path = format!("/proc/{process}/fd/{}", host.file().as_raw_fd());
            run(
                &router,
                &["ip", "-batch", "-"],
                &format!(
                    "link add {name} type veth peer name eth0 netns {host_path}\n\
                     link set lo up\n\
                     link set {name} up\n\
                     address add {GATEWAY}/32 dev {name}\n\
                     route add {address}/32 dev {name}\n"
                ),
            )?;
            run(
                host,
                &["ip", "-batch", "-"],
                &format!(
                    "link set lo up\n\
                     address add {address}/32 dev eth0\n\
                     link set eth0 up\n\
                     route add default via {GATEWAY} dev eth0 onlink\n"
                ),
            )?;
        }
        let forward = || fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        router.within(forward)?.context("settings of the router")?;
        Ok(Self {
            sender,
            router,
            receiver,
            from,
            to,
        })
    }

    /// Runs `work` inside the router.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(self.router.within(work)?)
    }

    /// Replaces all rules of the router by those of a script of nft.
    ///
    /// # Errors
    /// When nft refuses it.
    pub fn load(&self, script: &str) -> Result<()> {
        let script = format!("flush ruleset\n{script}");
        run(&self.router, &["nft", "-f", "-"], &script)
    }

    /// Processor time per packet of a flow whose packets the router lets through.
    ///
    /// # Errors
    /// When a packet is lost.
    pub fn cost(&self, flow: Flow) -> Result<Duration> {
        let (sender, _receiver) = self.connect(flow)?;
        let (mut best, mut spent) = (Duration::MAX, Duration::ZERO);
        for _ in 0..ROUNDS {
            let before = self.received()?;
            let start = processor_time();
            for _ in 0..ROUND {
                sender.send(&[0; PAYLOAD])?;
            }
            let time = processor_time() - start;
            best = best.min(time / ROUND);
            spent += time;
            let arrived = self.received()? - before;
            ensure!(
                arrived >= u64::from(ROUND) * 99 / 100,
                "{arrived} of {ROUND} packets arrive"
            );
            if spent >= LONGEST {
                break;
            }
        }
        Ok(best)
    }

    /// Whether a packet from another address of the sender passes.
    ///
    /// # Errors
    /// When the address cannot be added.
    pub fn passes(&self, from: Ipv4Addr) -> Result<bool> {
        run(
            &self.sender,
            &["ip", "-batch", "-"],
            &format!("address replace {from}/32 dev eth0\n"),
        )?;
        let receiver = self.receiver()?;
        let to = self.to;
        let sent = self.sender.within(|| {
            let socket = UdpSocket::bind((from, 0))?;
            socket.send_to(&[0; PAYLOAD], (to, PORT))
        })?;
        sent?;
        Ok(receiver.recv_from(&mut [0; PAYLOAD]).is_ok())
    }

    fn receiver(&self) -> Result<UdpSocket> {
        let to = self.to;
        let receiver = self.receiver.within(|| UdpSocket::bind((to, PORT)))??;
        receiver.set_read_timeout(Some(ARRIVAL))?;
        Ok(receiver)
    }

    fn connect(&self, flow: Flow) -> Result<(UdpSocket, UdpSocket)> {
        let (from, to) = (self.from, self.to);
        let receiver = self.receiver()?;
        let sender = self.sender.within(|| {
            let socket = UdpSocket::bind((from, 0))?;
            socket.connect((to, PORT))?;
            Ok::<_, std::io::Error>(socket)
        })??;
        sender.set_read_timeout(Some(ARRIVAL))?;
        // The first packets may be lost while the links come up.
        let mut attempts = 0..ATTEMPTS;
        let peer = loop {
            attempts.next().context("no packet arrives")?;
            sender.send(&[0; PAYLOAD])?;
            if let Ok((_, peer)) = receiver.recv_from(&mut [0; PAYLOAD]) {
                break peer;
            }
        };
        if flow == Flow::Established {
            receiver.send_to(&[0; PAYLOAD], peer)?;
            sender.recv(&mut [0; PAYLOAD]).context("the answer")?;
        }
        Ok((sender, receiver))
    }

    /// Packets that the interface of the receiver has received.
    fn received(&self) -> Result<u64> {
        let table = self
            .receiver
            .within(|| fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = table.lines().find_map(|l| l.trim().strip_prefix("eth0:"));
        let count = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(count.context("no counter of packets")?.parse()?)
    }
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Runs a program in a namespace with `input`.
fn run(namespace: &Namespace, words: &[&str], input: &str) -> Result<()> {
    let (program, arguments) = words.split_first().context("a program")?;
    let outcome = namespace.within(|| -> Result<std::process::Output> {
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{program} is needed"))?;
        let mut stdin = process.stdin.take().context("a pipe")?;
        stdin.write_all(input.as_bytes())?;
        drop(stdin);
        Ok(process.wait_with_output()?)
    })??;
    let why = String::from_utf8_lossy(&outcome.stderr);
    ensure!(outcome.status.success(), "{words:?}: {why:.500}");
    Ok(())
}
