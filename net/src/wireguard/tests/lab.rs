//! Two nodes with a router between them, each in a namespace of its own.

use std::{
    net::{SocketAddrV4, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Instant,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, ipproto, recv, sendto,
    socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::netns::Namespace;

/// Content of every datagram.
pub(super) const MARK: &[u8] = b"plaintext-plaintext";

/// A namespace with a device, or with another implementation.
pub(super) struct Node {
    namespace: Namespace,
    pub(super) key: PrivateKey,
    pub(super) port: u16,
    address: &'static str,
    inner: &'static str,
    interface: String,
    device: Option<Device>,
    settings: Settings,
}

pub(super) struct Lab {
    pub(super) left: Node,
    pub(super) right: Node,
    pub(super) router: Node,
}

/// Checksums of what went in and came out.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) sent: [u8; 32],
    pub(super) received: [u8; 32],
}

pub(super) fn ip(namespace: &Namespace, arguments: &str) {
    let mut words = arguments.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    let output = namespace
        .within(|| command.args(words).output().unwrap())
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {text}");
}

pub(super) fn peer(key: PublicKey, endpoint: Option<SocketAddr>, number: u8) -> Peer {
    Peer {
        public_key: key,
        endpoint,
        allowed_ips: vec![([10, 99, 0, number].into(), 32)],
        keepalive: Some(Duration::from_secs(25)),
    }
}

impl Node {
    fn new(address: &'static str, inner: &'static str) -> Self {
        let namespace = Namespace::create().unwrap();
        ip(&namespace, "ip link set lo up");
        Self {
            namespace,
            key: PrivateKey::generate().unwrap(),
            port: 0,
            address,
            inner,
            interface: "jt0".to_owned(),
            device: None,
            settings: Settings::default(),
        }
    }

    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.within(work).unwrap()
    }

    /// Runs a command that has to succeed.
    pub(super) fn run(&self, command: &str) {
        ip(&self.namespace, command);
    }

    /// Whether a command succeeds.
    pub(super) fn runs(&self, command: &str) -> bool {
        let mut words = command.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        command
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.within(|| command.status().unwrap().success())
    }

    pub(super) fn device(&self) -> &Device {
        self.device.as_ref().unwrap()
    }

    pub(super) fn endpoint(&self) -> SocketAddr {
        format!("{}:{}", self.address, self.port).parse().unwrap()
    }

    /// Opens another device with the same key and no peers.
    pub(super) fn reopen(&mut self) {
        self.device = None;
        self.open();
    }

    /// Ends the device as its process would; `meanwhile`, nothing carries packets. Then another device
    /// takes the interface and the port over.
    pub(super) fn hand_over(&mut self, meanwhile: impl FnOnce()) {
        let descriptors = self.device().descriptors().unwrap();
        self.device = None;
        meanwhile();
        let config = self.config(self.port);
        let device = self.within(|| Device::resume(&config, descriptors));
        self.device = Some(device.unwrap());
    }

    pub(super) fn config(&self, port: u16) -> Config {
        Config {
            name: self.interface.clone(),
            mtu: 1420,
            private_key: self.key.clone(),
            port,
            workers: NonZero::new(2),
        }
    }

    fn open(&mut self) {
        let config = self.config(0);
        let device = self.within(|| Device::open_with(config, self.settings));
        let device = device.unwrap();
        self.port = device.port();
        self.device = Some(device);
        self.configure();
    }

    fn configure(&self) {
        let interface = &self.interface;
        self.run(&format!("ip addr add {}/32 dev {interface}", self.inner));
        self.run(&format!("ip link set {interface} up"));
        self.run(&format!("ip route add 10.99.0.0/24 dev {interface}"));
    }

    /// Frames that pass through the namespace while `work` runs.
    pub(super) fn capture(&self, work: impl FnOnce()) -> Vec<Vec<u8>> {
        // ETH_P_ALL in network byte order.
        let all = rustix::net::Protocol::from_raw(NonZero::new(0x0300).unwrap());
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            self.within(|| socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(all)));
        let socket = socket.unwrap();
        work();
        let mut frames = Vec::new();
        let mut buffer = vec![0; 70_000];
        while let Ok((len, _)) = recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            frames.push(buffer[..len].to_vec());
        }
        frames
    }
}

impl Lab {
    pub(super) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(super) fn with(settings: Settings) -> Self {
        let mut lab = Self::cabled();
        for node in [&mut lab.left, &mut lab.right] {
            node.settings = settings;
            node.open();
        }
        let other = |node: &Node, number| peer(node.key.public(), Some(node.endpoint()), number);
        lab.left
            .device()
            .set_peers(vec![other(&lab.right, 2)])
            .unwrap();
        lab.right
            .device()
            .set_peers(vec![other(&lab.left, 1)])
            .unwrap();
        lab
    }

    pub(super) fn without_peers() -> Self {
        let mut lab = Self::cabled();
        lab.left.open();
        lab.right.open();
        lab
    }

    fn cabled() -> Self {
        let left = Node::new("192.0.2.1", "10.99.0.1");
        let right = Node::new("192.0.2.129", "10.99.0.2");
        let router = Node::new("192.0.2.126", "");
        for (node, name, gateway) in [
            (&left, "left", "192.0.2.126"),
            (&right, "right", "192.0.2.254"),
        ] {
            router.within(|| {
                // The other end moves to its namespace by the file of that namespace.
                let file = format!(
                    "/proc/{}/fd/{}",
                    std::process::id(),
                    std::os::fd::AsRawFd::as_raw_fd(node.namespace.file())
                );
                let arguments = [
                    "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", &file,
                ];
                let status = Command::new("ip").args(arguments).status().unwrap();
                assert!(status.success());
            });
            router.run(&format!("ip addr add {gateway}/25 dev {name}"));
            router.run(&format!("ip link set {name} up"));
            node.run(&format!("ip addr add {}/25 dev eth0", node.address));
            node.run("ip link set eth0 up");
            node.run(&format!("ip route add default via {gateway}"));
        }
        router.within(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        Self {
            left,
            right,
            router,
        }
    }
}

/// Whether the address answers within five attempts: the first may wait for the handshake.
pub(super) fn ping(from: &Node, to: &str) -> bool {
    (0..5).any(|_| echo(from, from.inner, to))
}

/// Whether an echo request (RFC 792) from the source address is answered within a second.
pub(super) fn echo(from: &Node, source: &str, to: &str) -> bool {
    let flags = SocketFlags::CLOEXEC;
    let kind = (AddressFamily::INET, SocketType::RAW);
    let socket = from
        .within(|| socket_with(kind.0, kind.1, flags, Some(ipproto::ICMP)))
        .unwrap();
    bind(&socket, &SocketAddrV4::new(source.parse().unwrap(), 0)).unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1))).unwrap();
    let mut request = [8, 0, 0, 0, 0x12, 0x34, 0, 1];
    let sum = super::checksum::Sum::default().add(&request).checksum();
    request[2..4].copy_from_slice(&sum);
    let to = SocketAddrV4::new(to.parse().unwrap(), 0);
    if sendto(&socket, &request, SendFlags::empty(), &to).is_err() {
        return false;
    }
    let mut buffer = [0; 2000];
    while let Ok((len, _)) = recv(&socket, &mut buffer[..], RecvFlags::empty()) {
        let message = &buffer[20.min(len)..len];
        if message.first() == Some(&0) && message[4..] == request[4..] {
            return true;
        }
    }
    false
}

pub(super) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{what} did not come"
        );
        thread::park_timeout(Duration::from_millis(20));
    }
}

/// Sends one datagram through the tunnel and returns the length of its echo.
pub(super) fn udp_echo(lab: &Lab, len: usize) -> usize {
    let (server, client) = udp_pair(lab);
    let content: Vec<u8> = MARK.iter().copied().cycle().take(len).collect();
    let mut buffer = vec![0; 65_536];
    client.send(&content).unwrap();
    let (received, from) = server.recv_from(&mut buffer).unwrap();
    server.send_to(&buffer[..received], from).unwrap();
    let received = client.recv(&mut buffer).unwrap();
    assert!(buffer[..received] == content);
    received
}

/// Sends datagrams one after the other, and counts the echoes.
pub(super) fn udp_echoes(lab: &Lab, count: usize) -> usize {
    let (server, client) = udp_pair(lab);
    let mut buffer = vec![0; 65_536];
    let mut echoes = 0;
    for _ in 0..count {
        client.send(&[7; 100]).unwrap();
        let Ok((received, from)) = server.recv_from(&mut buffer) else {
            continue;
        };
        server.send_to(&buffer[..received], from).unwrap();
        echoes += usize::from(client.recv(&mut buffer).is_ok());
    }
    echoes
}

fn udp_pair(lab: &Lab) -> (UdpSocket, UdpSocket) {
    let bind = |node: &Node| {
        let socket = node.within(|| UdpSocket::bind((node.inner, 0))).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        socket
    };
    let (server, client) = (bind(&lab.right), bind(&lab.left));
    client.connect(server.local_addr().unwrap()).unwrap();
    (server, client)
}

/// Sends pseudo-random bytes over TCP through the tunnel.
pub(super) fn send_stream(from: &Node, to: &Node, len: usize) -> Transfer {
    let listener = to.within(|| TcpListener::bind((to.inner, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut sum, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
            loop {
                match stream.read(&mut buffer).unwrap() {
                    0 => return sum.finalize().into(),
                    read => sum.update(&buffer[..read]),
                }
            }
        });
        let mut stream = from.within(|| TcpStream::connect(address)).unwrap();
        let (mut sum, mut left, mut state) = (Sha256::new(), len, 1_u64);
        while left > 0 {
            let mut block = [0; 1 << 16];
            for word in block.chunks_exact_mut(8) {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                word.copy_from_slice(&state.to_le_bytes());
            }
            let block = &block[..left.min(block.len())];
            sum.update(block);
            stream.write_all(block).unwrap();
            left -= block.len();
        }
        drop(stream);
        Transfer {
            sent: sum.finalize().into(),
            received: receiver.join().unwrap(),
        }
    })
}

/// Runs with `wireguard-go` on the right. The packages `wireguard-go` and `wireguard-tools` of
/// Debian have to be installed.
pub(super) fn with_wireguard_go(work: impl FnOnce(&Lab)) {
    let mut lab = Lab::cabled();
    lab.left.open();
    lab.right.port = 51_820;
    // Its control socket is a file by the name of the interface, which all namespaces share.
    lab.right.interface = format!("jt{}", std::process::id());
    let name = &lab.right.interface;
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, lab.right.key.to_base64().as_bytes()).unwrap();
    let child = lab.right.within(|| {
        let mut command = Command::new("wireguard-go");
        command
            .args(["--foreground", name])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
            .spawn()
            .expect("the package wireguard-go is installed")
    });
    let _program = Program(child, format!("/var/run/wireguard/{name}.sock"));
    eventually("wireguard-go", || {
        lab.right.runs(&format!("wg show {name}"))
    });
    let public = lab.left.key.public();
    let (endpoint, key) = (lab.left.endpoint(), key.display());
    lab.right.run(&format!(
        "wg set {name} listen-port 51820 private-key {key}"
    ));
    lab.right.run(&format!(
        "wg set {name} peer {public} endpoint {endpoint} allowed-ips 10.99.0.1/32"
    ));
    lab.right.run(&format!("ip link set {name} mtu 1420"));
    lab.right.configure();
    let right = peer(lab.right.key.public(), Some(lab.right.endpoint()), 2);
    lab.left.device().set_peers(vec![right]).unwrap();
    work(&lab);
}

/// A program that ends with the test, and its control socket.
struct Program(Child, String);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        let _ = std::fs::remove_file(&self.1);
    }
}
