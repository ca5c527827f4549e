//! Networks and bridges that are deleted under running containers.

use std::process::Command;

use jaco_engine::cidr::Cidr;
use jaco_policy::network::names::NetworkId;
use jaco_proto::v1::{ReplicaObserved, ReplicaState};
use jaco_raftnode::StateReader;

use super::fixture::{EngineFixture, FOREVER, HOST, docker, is_podman, try_docker};

const COMPOSE_NETWORKS: &str = "networks: {aaa: {}, zzz: {}}\n";

/// Two services on the network `aaa`, of which `left` is on `zzz` too.
async fn pair(name: &str) -> EngineFixture {
    let fixture = EngineFixture::new(name).await;
    let services = [
        fixture.service("left", FOREVER, "networks: [aaa, zzz]"),
        fixture.service("right", FOREVER, "networks: [aaa]"),
    ]
    .concat();
    let compose = format!("services:\n{services}{COMPOSE_NETWORKS}");
    fixture
        .apply(&compose, &[("left", &[]), ("right", &[])])
        .await;
    for service in ["left", "right"] {
        fixture.running(service).await;
    }
    fixture
}

fn network(fixture: &EngineFixture, name: &str) -> String {
    NetworkId::new(&fixture.deployment, name).engine_name()
}

fn address<'a>(seen: &'a ReplicaObserved, network: &str) -> Option<&'a String> {
    seen.details.get(&format!("ip.{network}"))
}

fn network_id(name: &str) -> Option<String> {
    try_docker(&["network", "inspect", "-f", "{{.Id}}", name]).ok()
}

/// Waits until both containers reach each other by address and name, and checks that they were not
/// replaced and kept their addresses.
async fn restored(fixture: &EngineFixture, before: &[ReplicaObserved; 2]) {
    let aaa = network(fixture, "aaa");
    for (service, other, before) in [("left", "right", &before[0]), ("right", "left", &before[1])] {
        let same = |seen: &ReplicaObserved| {
            seen.state() == ReplicaState::Running && seen.details == before.details
        };
        let seen = fixture.observed(service, "its addresses", same).await;
        assert_eq!(seen.container_id, before.container_id, "{service}");
        let address = address(before, &aaa).expect("an address");
        for target in [service, address.as_str()] {
            let ping = format!("busybox ping -c 1 -W 1 {target} >/dev/null && echo yes");
            let what = format!("{other} reaches {target}");
            fixture
                .until(&what, || fixture.exec(other, &ping) == "yes")
                .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_network_returns_with_its_containers() {
    if is_podman() {
        return; // Podman removes a network together with its containers
    }
    let fixture = pair("rmnet").await;
    let (aaa, zzz) = (network(&fixture, "aaa"), network(&fixture, "zzz"));
    let before = [
        fixture.running("left").await,
        fixture.running("right").await,
    ];
    let (old, other) = (network_id(&aaa), network_id(&zzz));
    for service in ["left", "right"] {
        docker(&[
            "network",
            "disconnect",
            "-f",
            &aaa,
            &fixture.container(service),
        ]);
    }
    // The node may attach them again in between.
    fixture
        .until("the network is removed", || {
            for service in ["left", "right"] {
                let container = fixture.container(service);
                try_docker(&["network", "disconnect", "-f", &aaa, &container]).ok();
            }
            try_docker(&["network", "rm", &aaa]).is_ok()
        })
        .await;
    fixture
        .until("the network returns", || {
            network_id(&aaa).is_some_and(|id| Some(id) != old)
        })
        .await;
    restored(&fixture, &before).await;
    assert_eq!(network_id(&zzz), other, "the other network is not touched");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_bridge_returns_with_its_containers() {
    if is_podman() {
        return; // Podman does not name the bridge of a network
    }
    let fixture = pair("rmlink").await;
    let before = [
        fixture.running("left").await,
        fixture.running("right").await,
    ];
    let bridge = NetworkId::new(&fixture.deployment, "aaa").bridge_name();
    let link = |verb: &str| {
        let ip = Command::new("ip").args(["link", verb, &bridge]).output();
        ip.expect("ip, of iproute2").status.success()
    };
    assert!(link("del"));
    fixture.until("the bridge returns", || link("show")).await;
    restored(&fixture, &before).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_follow_their_network_to_another_block() {
    let fixture = pair("moveblk").await;
    let aaa = network(&fixture, "aaa");
    let before = fixture.running("right").await;
    let key = (
        fixture.deployment.clone(),
        "zzz".to_owned(),
        HOST.to_owned(),
    );
    // The pool of the fixture has 16 blocks; the two networks use the lowest ones.
    let used: Cidr = fixture.raft.state().subnets[&key]
        .cidr
        .parse()
        .expect("a block");
    let next = Cidr::aligned(u32::from(used.network()) + 4 * 256, 24);
    fixture.allocate("aaa", next).await;
    let seen = fixture
        .observed("right", "an address of the other block", |seen| {
            let address = address(seen, &aaa).and_then(|address| address.parse().ok());
            seen.state() == ReplicaState::Running
                && address.is_some_and(|address: std::net::Ipv4Addr| {
                    Cidr::aligned(address.into(), 32).overlaps(next)
                })
        })
        .await;
    assert_ne!(seen.container_id, before.container_id);
    let resolver = fixture.inspect("right", "{{.HostConfig.Dns}}");
    assert_eq!(resolver, format!("[{}]", next.gateway()));
    fixture.close().await;
}
