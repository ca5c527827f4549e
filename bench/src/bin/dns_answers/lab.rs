//! Two namespaces with a bridge between them, and the servers on it.

use std::{
    fs,
    io::{self, Write as _},
    net::{SocketAddr, UdpSocket},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use jaco_net::netns::Namespace;
use tempfile::TempDir;

/// A service of the deployment.
pub(crate) const SERVICE: &str = "web";
/// A name that every server asks the upstream server for, once.
pub(crate) const EXTERNAL: &str = "www.example.com";
/// Addresses of the service.
pub(crate) const ADDRESSES: [&str; 3] = ["10.244.0.11", "10.244.0.12", "10.244.0.13"];
/// Address block of the bridge; its gateway is the address of the servers.
pub(crate) const BLOCK: &str = "10.244.0.0/24";
/// Port of JACO's responder.
pub(crate) const PORT: u16 = 53;
/// The upstream server, in the servers' namespace.
pub(crate) const UPSTREAM: (&str, u16) = ("127.0.0.1", 5400);

const GATEWAY: &str = "10.244.0.1";
const CLIENT: &str = "10.244.0.2/24";
const PORTS: [u16; 2] = [5301, 5302];
/// Ticks of a second in `/proc/PID/stat`, which is fixed for programs (`sysconf(_SC_CLK_TCK)`).
const TICKS: u32 = 100;

/// The namespaces.
pub(crate) struct Lab {
    servers: Namespace,
    client: Namespace,
    dir: TempDir,
}

/// A server that runs; it ends with this value.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    process: Child,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Peer {
    /// Time that the process has spent on the processors.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let (_, fields) = stat.rsplit_once(") ").context("stat")?;
        let mut fields = fields.split(' ').skip(11).map(str::parse::<u32>);
        let mut next = || fields.next().context("stat").and_then(|field| Ok(field?));
        Ok(Duration::from_secs((next()? + next()?).into()) / TICKS)
    }
}

impl Lab {
    /// Creates the namespaces and starts the upstream server.
    pub(crate) fn start() -> Result<Self> {
        let (servers, client) = (Namespace::create()?, Namespace::create()?);
        // The peer of a pair is made in the namespace of a process: this one holds it open.
        let mut holder = client.within(|| Command::new("sleep").arg("30").spawn())??;
        let inside = holder.id().to_string();
        let made = servers.within(|| {
            ip("link set lo up")?;
            ip("link add br0 type bridge")?;
            ip(&format!("address add {GATEWAY}/24 dev br0"))?;
            ip("link set br0 up")?;
            ip(&format!(
                "link add port type veth peer name eth0 netns {inside}"
            ))?;
            ip("link set port master br0 up")
        })?;
        let made = made.and_then(|()| {
            client.within(|| {
                ip("link set lo up")?;
                ip(&format!("address add {CLIENT} dev eth0"))?;
                ip("link set eth0 up")
            })?
        });
        holder.kill()?;
        holder.wait()?;
        made?;
        let upstream = servers.within(|| UdpSocket::bind(UPSTREAM))??;
        thread::spawn(move || answer(&upstream));
        Ok(Self {
            servers,
            client,
            dir: tempfile::tempdir()?,
        })
    }

    /// The namespace of the client.
    pub(crate) fn client(&self) -> &Namespace {
        &self.client
    }

    /// Starts JACO's responder, and those of the others that are installed.
    pub(crate) fn peers(&self) -> Result<Vec<Peer>> {
        let jaco = Command::new(std::env::current_exe()?);
        let mut peers = vec![self.spawn("jaco", jaco, &["serve".to_owned()], PORT)?];
        let arguments = [
            ("dnsmasq", dnsmasq()),
            (
                "unbound",
                vec!["-d".to_owned(), "-c".to_owned(), self.unbound()?],
            ),
        ];
        for ((name, arguments), port) in arguments.into_iter().zip(PORTS) {
            match self.spawn(name, Command::new(name), &arguments, port) {
                Ok(peer) => peers.push(peer),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    println!("{name}: skipped, not installed");
                }
                Err(error) => return Err(error).context(name),
            }
        }
        Ok(peers)
    }

    fn spawn(
        &self,
        name: &'static str,
        mut command: Command,
        arguments: &[String],
        port: u16,
    ) -> io::Result<Peer> {
        let mut path = std::env::var("PATH").unwrap_or_default();
        path.push_str(":/usr/sbin");
        command.args(arguments).env("PATH", path);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(self.dir.path().join(name))?);
        let process = self.servers.within(|| command.spawn())??;
        let address = SocketAddr::new(GATEWAY.parse().map_err(io::Error::other)?, port);
        Ok(Peer {
            name,
            address,
            process,
        })
    }

    /// Writes the configuration of unbound; returns its path.
    fn unbound(&self) -> Result<String> {
        let path = self.dir.path().join("unbound.conf");
        let mut file = fs::File::create(&path)?;
        writeln!(
            file,
            "server:\n  interface: {GATEWAY}\n  port: {}\n  access-control: {BLOCK} allow\n  \
             module-config: \"iterator\"\n  do-not-query-localhost: no\n  username: \"\"\n  \
             chroot: \"\"\n  pidfile: \"\"\n  use-syslog: no\n  num-threads: 1\n  do-ip6: no\n  \
             local-zone: \"{SERVICE}.\" static",
            PORTS[1]
        )?;
        for address in ADDRESSES {
            writeln!(file, "  local-data: \"{SERVICE}. 5 IN A {address}\"")?;
        }
        let (upstream, port) = UPSTREAM;
        writeln!(
            file,
            "forward-zone:\n  name: \".\"\n  forward-addr: {upstream}@{port}\nremote-control:\n  \
             control-enable: no"
        )?;
        Ok(path.to_str().context("the directory's name")?.to_owned())
    }
}

fn dnsmasq() -> Vec<String> {
    let (upstream, port) = UPSTREAM;
    let mut arguments: Vec<_> = [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--no-daemon",
        "--bind-interfaces",
        "--user=root",
        "--pid-file",
        "--cache-size=10000",
        "--local-ttl=5",
        "--dns-forward-max=1000",
    ]
    .map(str::to_owned)
    .into();
    arguments.push(format!("--listen-address={GATEWAY}"));
    arguments.push(format!("--port={}", PORTS[0]));
    arguments.push(format!("--server={upstream}#{port}"));
    arguments.push(format!("--local=/{SERVICE}/"));
    arguments.extend(ADDRESSES.map(|address| format!("--host-record={SERVICE},{address}")));
    arguments
}

/// Answers every question with an address that may be kept for an hour.
fn answer(socket: &UdpSocket) {
    let mut message = [0; 512];
    while let Ok((length, client)) = socket.recv_from(&mut message) {
        let Some(end) = message[..length]
            .iter()
            .skip(12)
            .position(|byte| *byte == 0)
        else {
            continue;
        };
        let mut reply = message[..12 + end + 5].to_vec();
        reply[2..4].copy_from_slice(&[0x81, 0x80]);
        reply[4..12].copy_from_slice(&[0, 1, 0, 1, 0, 0, 0, 0]);
        let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4, 192, 0, 2, 1];
        // A question for another type has no such record.
        if reply[reply.len() - 3] == 1 {
            reply.extend(record);
        } else {
            reply[7] = 0;
        }
        let _ = socket.send_to(&reply, client); // asked again if it is lost
    }
}

fn ip(arguments: &str) -> Result<()> {
    let mut command = Command::new("ip");
    let status = command.args(arguments.split(' ')).status()?;
    ensure!(status.success(), "ip {arguments}: {status}");
    Ok(())
}
