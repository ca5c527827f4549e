//! Two namespaces, and an implementation of WireGuard in each.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use jaco_net::{
    netns::Namespace,
    wireguard::{Config, Device, Peer, PrivateKey, PublicKey},
};

use super::MTU;

/// Addresses of the veth, which carries the datagrams.
const OUTER: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// Addresses inside the tunnel.
const INNER: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
/// Port of the tunnels, in both namespaces.
const PORT: u16 = 51_820;
/// Time limit of a program's start.
const PATIENCE: Duration = Duration::from_secs(5);

/// A way from one namespace to the other.
pub(super) enum Implementation {
    /// The veth itself.
    Bare,
    /// The device of this workspace.
    Jaco,
    /// A program with the control socket that all user-space implementations have.
    Program {
        name: &'static str,
        path: Option<PathBuf>,
        arguments: &'static [&'static str],
    },
}

/// Two namespaces with a veth between them.
pub(super) struct Wire {
    sides: [Namespace; 2],
}

/// A running implementation; it ends when this is dropped.
pub(super) struct Tunnel<'a> {
    wire: &'a Wire,
    addresses: [&'static str; 2],
    _devices: Vec<Device>,
    programs: Vec<Program>,
}

/// Where to make sockets, and their addresses.
pub(super) struct Ends<'a> {
    pub(super) sides: &'a [Namespace; 2],
    pub(super) addresses: [&'static str; 2],
    /// Processes that carry the packets, besides this one.
    pub(super) programs: Vec<u32>,
}

/// A program that is killed when this is dropped, and its control socket.
struct Program(Child, PathBuf);

impl Implementation {
    /// All that can be compared, whether installed or not.
    pub(super) fn all(peers: Option<&Path>) -> Vec<Self> {
        let stay: &[_] = &["--foreground"];
        let keep_rights: &[_] = &["--foreground", "--disable-drop-privileges"];
        let programs = [
            ("boringtun-cli", keep_rights),
            ("gotatun", keep_rights),
            ("wireguard-go", stay),
            ("wireguard-go-latest", stay),
        ];
        let programs = programs.map(|(name, arguments)| Self::Program {
            name,
            path: find(name, peers),
            arguments,
        });
        [Self::Bare, Self::Jaco]
            .into_iter()
            .chain(programs)
            .collect()
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Bare => "veth",
            Self::Jaco => "jaco",
            Self::Program { name, .. } => name,
        }
    }

    pub(super) fn is_bare(&self) -> bool {
        matches!(self, Self::Bare)
    }

    pub(super) fn is_present(&self) -> bool {
        !matches!(self, Self::Program { path: None, .. })
    }
}

fn find(name: &str, peers: Option<&Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = peers.map(Path::to_owned).into_iter();
    let mut files = directories
        .chain(std::env::split_paths(&path))
        .map(|directory| directory.join(name));
    files.find(|file| file.is_file())
}

impl Wire {
    pub(super) fn new() -> Result<Self> {
        let create = || Namespace::create().context("needs CAP_SYS_ADMIN");
        let sides = [create()?, create()?];
        let other = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            sides[1].file().as_raw_fd()
        );
        run(
            &sides[0],
            &format!("ip link add eth0 type veth peer name eth0 netns {other}"),
        )?;
        for (side, address) in sides.iter().zip(OUTER) {
            run(side, "ip link set lo up")?;
            run(side, &format!("ip addr add {address}/24 dev eth0"))?;
            run(side, "ip link set eth0 up")?;
        }
        Ok(Self { sides })
    }

    /// Starts the implementation on both sides.
    pub(super) fn connect(&self, implementation: &Implementation) -> Result<Tunnel<'_>> {
        let mut tunnel = Tunnel {
            wire: self,
            addresses: INNER,
            _devices: Vec::new(),
            programs: Vec::new(),
        };
        match implementation {
            Implementation::Bare => tunnel.addresses = OUTER,
            Implementation::Jaco => tunnel._devices = self.open_devices()?,
            Implementation::Program {
                path, arguments, ..
            } => {
                let path = path.as_deref().context("not installed")?;
                tunnel.programs = self.start_programs(path, arguments)?;
            }
        }
        Ok(tunnel)
    }

    fn open_devices(&self) -> Result<Vec<Device>> {
        let keys = [PrivateKey::generate()?, PrivateKey::generate()?];
        let mut devices = Vec::new();
        for (at, side) in self.sides.iter().enumerate() {
            let config = Config {
                name: "jaco0".to_owned(),
                mtu: MTU,
                private_key: keys[at].clone(),
                port: PORT,
                workers: None,
            };
            devices.push(side.within(|| Device::open(config))??);
            set_up(side, "jaco0", INNER[at])?;
        }
        for (at, device) in devices.iter().enumerate() {
            let other = 1 - at;
            device.set_peers(vec![Peer {
                public_key: keys[other].public(),
                endpoint: Some(SocketAddr::new(OUTER[other].parse()?, PORT)),
                allowed_ips: vec![(INNER[other].parse()?, 32)],
                keepalive: None,
            }])?;
        }
        Ok(devices)
    }

    fn start_programs(&self, path: &Path, arguments: &[&str]) -> Result<Vec<Program>> {
        let keys = [PrivateKey::generate()?, PrivateKey::generate()?];
        let mut programs = Vec::new();
        for (at, side) in self.sides.iter().enumerate() {
            // The control sockets of both sides are in one directory.
            let name = format!("jb{at}n{}", std::process::id());
            let mut command = Command::new(path);
            command
                .args(arguments)
                .arg(&name)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let child = side.within(|| command.spawn())??;
            let socket = PathBuf::from(format!("/var/run/wireguard/{name}.sock"));
            programs.push(Program(child, socket.clone()));
            let (own, other) = (&keys[at], keys[1 - at].public());
            configure(&socket, own, other, OUTER[1 - at], INNER[1 - at])?;
            set_up(side, &name, INNER[at])?;
        }
        Ok(programs)
    }
}

impl Tunnel<'_> {
    pub(super) fn ends(&self) -> Ends<'_> {
        Ends {
            sides: &self.wire.sides,
            addresses: self.addresses,
            programs: self.programs.iter().map(|one| one.0.id()).collect(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(&self.1);
    }
}

/// Gives a program its key and peer.
///
/// Source: "Cross-platform Userspace Implementation", <https://www.wireguard.com/xplatform/>.
fn configure(
    socket: &Path,
    own: &PrivateKey,
    other: PublicKey,
    endpoint: &str,
    allowed: &str,
) -> Result<()> {
    let began = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) if began.elapsed() > PATIENCE => bail!("{}: {error}", socket.display()),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    let secret = BASE64.decode(own.to_base64().as_bytes())?;
    let request = format!(
        "set=1\nprivate_key={}\nlisten_port={PORT}\nreplace_peers=true\npublic_key={}\n\
         endpoint={endpoint}:{PORT}\nallowed_ip={allowed}/32\n\n",
        hex::encode(secret),
        hex::encode(other.0),
    );
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\n\n") && stream.read(&mut byte)? == 1 {
        answer.push(byte[0]);
    }
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer.contains("errno=0\n"), "refused: {answer}");
    Ok(())
}

fn set_up(side: &Namespace, name: &str, address: &str) -> Result<()> {
    run(side, &format!("ip link set {name} mtu {MTU}"))?;
    run(side, &format!("ip addr add {address}/32 dev {name}"))?;
    run(side, &format!("ip link set {name} up"))?;
    run(side, &format!("ip route add 10.99.0.0/24 dev {name}"))
}

fn run(side: &Namespace, command: &str) -> Result<()> {
    let mut words = command.split_whitespace();
    let mut process = Command::new(words.next().unwrap_or_default());
    let status = side.within(|| process.args(words).status())??;
    ensure!(status.success(), "{command}: {status}");
    Ok(())
}
