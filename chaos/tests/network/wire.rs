//! Packets between the machines, as the network sees them.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use jaco_chaos::{Lab, Rng, lab::netns, test_permits, until};
use sha2::{Digest as _, Sha256};

use crate::{
    fixture::{self, LIMIT, connected},
    size,
    traffic::{Endpoint, Traffic},
};

/// Text that occurs in nothing but the payload of a container.
const MARK: &[u8] = b"nothing but ciphertext may be on the wire";
/// Number of times it is transferred.
const TIMES: usize = 10_000;
/// Ports that the documentation names: API, peers, mesh.
const DOCUMENTED: [u16; 3] = [7000, 7001, 51820];
const PORT: u16 = 9200;

/// A capture of every packet between the nodes.
struct Capture {
    process: Child,
    file: std::path::PathBuf,
}

impl Capture {
    fn start(lab: &Lab) -> Self {
        let file = lab.dir().join("capture.pcap");
        let mut process = netns::command(lab.network().namespace(), "tcpdump")
            .args([
                "-i",
                "br0",
                "--immediate-mode",
                "-U",
                "-s",
                "0",
                "-Z",
                "root",
                "-w",
            ])
            .arg(&file)
            .arg("ip")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It says when it listens.
        let mut line = [0; 10];
        process
            .stderr
            .as_mut()
            .unwrap()
            .read_exact(&mut line)
            .unwrap();
        Self { process, file }
    }

    fn stop(mut self) -> std::path::PathBuf {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.file
    }
}

/// Sends `bytes` from one container to another; returns whether they arrived unchanged.
fn transfer(from: &Endpoint, to: &Endpoint, bytes: &[u8]) -> bool {
    let bind = || TcpListener::bind(("0.0.0.0", PORT));
    let listener = to.namespace.within(bind).unwrap().unwrap();
    let address = SocketAddr::from((to.address, PORT));
    let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(10));
    let mut client = from.namespace.within(connect).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    std::thread::scope(|threads| {
        let received = threads.spawn(move || {
            let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
            loop {
                match server.read(&mut buffer).unwrap() {
                    0 => return hash.finalize(),
                    length => hash.update(&buffer[..length]),
                }
            }
        });
        client.write_all(bytes).unwrap();
        drop(client);
        received.join().unwrap() == Sha256::digest(bytes)
    })
}

fn on_two_nodes(found: &[Arc<Endpoint>]) -> [Arc<Endpoint>; 2] {
    let mut pairs = found
        .iter()
        .flat_map(|from| found.iter().map(move |to| (from, to)));
    let pair = pairs.find(|(from, to)| from.scope == to.scope && from.host != to.host);
    let (from, to) = pair.unwrap();
    [from.clone(), to.clone()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wire_shows_ciphertext_and_documented_ports_only() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let lab = fixture::cluster(2).await;
    let wanted = fixture::one_each(2);
    let mut traffic = Traffic::default();
    fixture::apply_all(&lab, &wanted, 0).await;
    let capture = Capture::start(&lab);
    let found = connected(&lab, &mut traffic, &wanted).await;
    let [from, to] = on_two_nodes(&found);
    // An apply, so that raft has something to send.
    fixture::apply_all(&lab, &wanted, 1).await;
    assert!(transfer(&from, &to, &MARK.repeat(TIMES)));
    connected(&lab, &mut traffic, &wanted).await;
    // The capture is written some time after the transfer.
    let least = u64::try_from(MARK.len() * TIMES).unwrap();
    until("the packets of the transfer", LIMIT, || async {
        match std::fs::metadata(&capture.file) {
            Ok(file) if file.len() > least => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    let file = capture.stop();

    let packets = std::fs::read(&file).unwrap();
    for plaintext in [MARK, b"deployment", b"alpha front"] {
        let found = packets
            .windows(plaintext.len())
            .any(|seen| seen == plaintext);
        assert!(
            !found,
            "{:?} is readable",
            String::from_utf8_lossy(plaintext)
        );
    }
    let undocumented = undocumented(&lab, &file);
    assert!(undocumented.is_empty(), "{undocumented:?}");

    let mut bytes = vec![0; size("JACO_MEBIBYTES", 64) << 20];
    bytes.chunks_mut(8).for_each(|chunk| {
        chunk.copy_from_slice(&rng.number().to_be_bytes()[..chunk.len()]);
    });
    let found = connected(&lab, &mut traffic, &wanted).await;
    let [from, to] = on_two_nodes(&found);
    let start = Instant::now();
    assert!(transfer(&from, &to, &bytes));
    println!("{} MiB in {:?}", bytes.len() >> 20, start.elapsed());
    traffic.assert_isolated();
}

/// Packets between two nodes of which neither port is documented, as tcpdump prints them.
fn undocumented(lab: &Lab, file: &std::path::Path) -> BTreeSet<String> {
    let nodes = lab.nodes().iter().map(|node| node.address().to_string());
    let hosts: Vec<String> = nodes.collect();
    let either = |side: &str| format!("({side} host {})", hosts.join(&format!(" or {side} host ")));
    let ports = DOCUMENTED.map(|port| format!("port {port}")).join(" or ");
    let filter = format!("{} and {} and not ({ports})", either("src"), either("dst"));
    let output = Command::new("tcpdump")
        .args(["-nn", "-q", "-t", "-r"])
        .arg(file)
        .arg(filter)
        .output()
        .unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}
