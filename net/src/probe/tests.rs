use std::{fs, net::Ipv4Addr, process::Command};

use super::*;
use crate::netns::Namespace;

const PORT: u16 = 7002;
const LIMIT: Duration = Duration::from_secs(30);
/// Time in which an answer would arrive, for paths that must not answer.
const SHORT: Duration = Duration::from_millis(300);

/// Runs `work` inside a new namespace, which stands for a host.
fn on_host<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send) {
    let host = Namespace::create().unwrap();
    let done = host.within(|| {
        run("ip", "link set lo up");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(work());
    });
    done.unwrap();
}

fn run(program: &str, arguments: &str) -> String {
    let done = Command::new(program)
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(done.status.success(), "{program} {arguments}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Makes bridge number `network` and returns the endpoint on it.
fn spec(network: u8) -> Spec {
    Spec {
        label: format!("cluster/host/app/net{network}"),
        bridge: format!("br{network}"),
        address: [10, 244, network, 254].into(),
        prefix: 24,
        gateway: [10, 244, network, 1].into(),
        mtu: 1420,
    }
}

fn add_bridge(spec: &Spec) {
    let Spec {
        bridge, gateway, ..
    } = spec;
    run("ip", &format!("link add {bridge} type bridge"));
    run("ip", &format!("address add {gateway}/24 dev {bridge}"));
    run("ip", &format!("link set {bridge} up"));
}

async fn open(network: u8) -> Endpoint {
    let spec = spec(network);
    add_bridge(&spec);
    let endpoint = Endpoint::open(spec, Binder::default()).await.unwrap();
    tokio::spawn(respond(endpoint.bind(PORT).await.unwrap()));
    endpoint
}

async fn probe(from: &Endpoint, to: Ipv4Addr, limit: Duration) -> Option<Duration> {
    let socket = from.bind(0).await.unwrap();
    let target = SocketAddrV4::new(to, PORT);
    exchange(socket, target, limit).await.unwrap()
}

#[test]
fn probes_are_forwarded_like_those_of_containers() {
    on_host(async || {
        let (one, two) = (open(1).await, open(2).await);
        let (a, b) = (one.spec().address, two.spec().address);
        // Without rules the host forwards between the networks.
        assert!(probe(&one, b, LIMIT).await.is_some());
        run("nft", "add table inet t");
        run(
            "nft",
            "add chain inet t forward { type filter hook forward priority 0 ; }",
        );
        run(
            "nft",
            "add rule inet t forward ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 drop",
        );
        assert_eq!(probe(&one, b, SHORT).await, None);
        assert_eq!(probe(&two, a, SHORT).await, None);
        // A socket of the host passes, since its packets are not forwarded.
        let host = UdpSocket::bind((one.spec().gateway, 0)).await.unwrap();
        let passed = exchange(host, SocketAddrV4::new(b, PORT), LIMIT).await;
        assert!(passed.unwrap().is_some());
        // Its own gateway is no forwarded path either.
        let gateway = one.spec().gateway;
        let socket = UdpSocket::bind((gateway, PORT)).await.unwrap();
        tokio::spawn(respond(socket));
        assert!(probe(&one, gateway, LIMIT).await.is_some());
    });
}

#[test]
fn dropped_endpoint_leaves_nothing_and_reopens() {
    on_host(async || {
        let spec = spec(1);
        add_bridge(&spec);
        run("ip", "link add jacop-foreign type bridge");
        for _ in 0..3 {
            // The kernel may still be removing the last link.
            let endpoint = Endpoint::open(spec.clone(), Binder::default())
                .await
                .unwrap();
            assert!(
                probe(&endpoint, endpoint.spec().address, SHORT)
                    .await
                    .is_none()
            );
            let shown = run("ip", &format!("link show {}", link_name(&spec.label)));
            assert!(
                shown.contains("master br1") && shown.contains(&spec.label),
                "{shown}"
            );
            drop(endpoint);
        }
        let left = tokio::time::timeout(LIMIT, async {
            while run("ip", "-br link show type veth").contains(PREFIX) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        left.await.unwrap();
        assert!(run("ip", "-br link").contains("jacop-foreign"));
    });
}

#[test]
fn foreign_link_is_not_touched() {
    on_host(async || {
        let spec = spec(1);
        let missing = Endpoint::open(spec.clone(), Binder::default())
            .await
            .unwrap_err();
        assert!(matches!(missing, Error::NoBridge(_)), "{missing:?}");
        add_bridge(&spec);
        let name = link_name(&spec.label);
        run("ip", &format!("link add {name} type bridge"));
        let error = Endpoint::open(spec, Binder::default()).await.unwrap_err();
        assert!(matches!(error, Error::Foreign(_)), "{error:?}");
        assert!(run("ip", "-br link").contains(&name));
    });
}

#[test]
fn replaced_bridge_gets_its_endpoint_back() {
    on_host(async || {
        let endpoint = open(1).await;
        let gateway = endpoint.spec().gateway;
        assert!(!endpoint.repair().await.unwrap());
        run("ip", "link del br1");
        let error = endpoint.repair().await.unwrap_err();
        assert!(matches!(error, Error::NoBridge(_)), "{error:?}");
        add_bridge(endpoint.spec());
        assert!(endpoint.repair().await.unwrap());
        assert!(!endpoint.repair().await.unwrap());
        let socket = UdpSocket::bind((gateway, PORT)).await.unwrap();
        tokio::spawn(respond(socket));
        assert!(probe(&endpoint, gateway, LIMIT).await.is_some());
        let name = link_name(&endpoint.spec().label);
        run("ip", &format!("link del {name}"));
        let error = endpoint.repair().await.unwrap_err();
        assert!(matches!(error, Error::Gone(_)), "{error:?}");
    });
}

#[test]
fn responder_ignores_other_datagrams() {
    on_host(async || {
        let responder = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let target = responder.local_addr().unwrap();
        tokio::spawn(respond(responder));
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(target).await.unwrap();
        let request = Message::Request([7; message::NONCE]);
        for noise in [
            b"".as_slice(),
            b"x",
            &[0; 100],
            &Message::Answer([1; message::NONCE]).encode(),
            &request.encode()[1..],
        ] {
            client.send(noise).await.unwrap();
        }
        client.send(&request.encode()).await.unwrap();
        let mut buffer = [0; 64];
        // The first answer is that of the only request.
        let length = client.recv(&mut buffer).await.unwrap();
        let answer = Message::decode(&buffer[..length]);
        assert_eq!(answer, Some(Message::Answer([7; message::NONCE])));
    });
}
