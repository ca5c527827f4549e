//! Malformed messages, over both transports.

use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::{
    external::{SHORT, forwarding, host_port},
    *,
};

const PACKETS: u64 = 10_000;
/// Memory that the process may use more than before, in bytes; other tests run beside this one.
const GROWTH: u64 = 64 << 20;

/// Memory of the process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Deterministic numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits ^= bits >> 27;
        usize::try_from(bits % u64::try_from(limit).unwrap()).unwrap()
    }
}

/// A query that is cut, changed in some bytes, or extended.
fn malformed(random: &mut Random) -> Vec<u8> {
    let names = [
        "web",
        "a.very.long.name.example.com",
        "web.jaco.internal",
        ".",
    ];
    let mut message = query(names[random.below(names.len())], RecordType::A);
    message.set_edns(hickory_proto::op::Edns::new());
    let mut bytes = message.to_vec().unwrap();
    match random.below(4) {
        0 => bytes.truncate(random.below(bytes.len() + 1)),
        1 => bytes.extend((0..random.below(600)).map(|n| u8::try_from(n % 256).unwrap())),
        2 => {
            bytes = (0..random.below(700))
                .map(|_| u8::try_from(random.below(256)).unwrap())
                .collect()
        }
        _ => {}
    }
    for _ in 0..random.below(6) {
        if !bytes.is_empty() {
            let at = random.below(bytes.len());
            bytes[at] = u8::try_from(random.below(256)).unwrap();
        }
    }
    bytes
}

#[tokio::test]
async fn malformed_packets_harm_nothing() {
    // Questions that are well-formed by chance wait for a server that never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = host_port(silent.local_addr().unwrap());
    let world = forwarding(vec![server], SHORT).await;
    let before = resident();
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(world.at(FRONT)).await.unwrap();
    let mut random = Random(7);
    let mut buffer = [0; 2048];
    for number in 0..PACKETS {
        client.send(&malformed(&mut random)).await.unwrap();
        while let Ok(length) = client.try_recv(&mut buffer) {
            assert!(length >= 12 && buffer[2] & 0x80 != 0, "not an answer");
        }
        if number % 100 == 0 {
            assert_eq!(world.addresses(FRONT, "web").await, ["10.1.0.2"]);
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes more");
    let started = world.tree.describe();
    let restarts: Vec<_> = started
        .iter()
        .filter(|actor| actor.restarts_in_window > 0)
        .collect();
    assert!(restarts.is_empty(), "{restarts:?}");
}

#[tokio::test]
async fn malformed_streams_harm_nothing() {
    let world = world().await;
    world.ensure("front", FRONT);
    world.resolves(FRONT, "web", &["10.1.0.2"]).await;
    let mut random = Random(8);
    for _ in 0..300 {
        let mut stream = TcpStream::connect(world.at(FRONT)).await.unwrap();
        let message = malformed(&mut random);
        let length = u16::try_from(message.len() + random.below(3)).unwrap();
        let framed = [&length.to_be_bytes()[..], &message].concat();
        // The server may have closed the connection already.
        let _ = stream.write_all(&framed).await;
    }
    let reply = world.ask(FRONT, &query("web", RecordType::A), true).await;
    assert_eq!(reply.answers.len(), 1);
}
