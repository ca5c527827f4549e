//! Packets between the machines, as the network sees them.

use std::{
    collections::BTreeSet,
    io::Read as _,
    process::{Child, Command, Stdio},
    time::Instant,
};

use jaco_chaos::{Lab, Rng, lab::netns, size, until};

use crate::{
    fixture::{LIMIT, Running},
    transfer::{random_bytes, transfer},
};

/// Text that occurs in nothing but the payload of a container.
const MARK: &[u8] = b"nothing but ciphertext may be on the wire";
/// Number of times it is transferred.
const TIMES: usize = 10_000;
/// Ports that the documentation names: API, peers, mesh.
const DOCUMENTED: [u16; 3] = [7000, 7001, 51820];

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wire_shows_ciphertext_and_documented_ports_only() {
    let mut rng = Rng::announced();
    let mut running = Running::start(2).await;
    let capture = Capture::start(&running.lab);
    // An apply that changes nothing, so that raft has something to send.
    running.apply(running.wanted.clone(), 0).await;
    let [from, to] = running.pair([1, 2]);
    assert!(transfer(&from, &to, &MARK.repeat(TIMES)));
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
    let undocumented = undocumented(&running.lab, &file);
    assert!(undocumented.is_empty(), "{undocumented:?}");

    let bytes = random_bytes(&mut rng, size("JACO_MEBIBYTES", 64));
    let start = Instant::now();
    assert!(transfer(&from, &to, &bytes));
    println!("{} MiB in {:?}", bytes.len() >> 20, start.elapsed());
    running.traffic.assert_isolated().await;
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
