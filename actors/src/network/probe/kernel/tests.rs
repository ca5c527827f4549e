use std::{fs, process::Command};

use jaco_net::netns::Namespace;

use super::*;
use crate::network::gate::NoIsolation;

fn run(program: &str, arguments: &str) {
    let done = Command::new(program).args(arguments.split(' ')).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{program} {arguments}: {done:?}");
}

/// A network with its bridge.
fn network(deployment: &str, number: u8) -> LocalNetwork {
    let id = NetworkId::new(deployment, "_default");
    let bridge = id.bridge_name();
    run("ip", &format!("link add {bridge} type bridge"));
    run(
        "ip",
        &format!("address add 10.244.{number}.1/24 dev {bridge}"),
    );
    run("ip", &format!("link set {bridge} up"));
    let block = format!("10.244.{number}.0/24").parse().unwrap();
    LocalNetwork { id, block }
}

#[test]
fn host_with_two_networks_is_probed() {
    let host = Namespace::create().unwrap();
    let done = host.within(|| {
        run("ip", "link set lo up");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(probe_two_networks());
    });
    done.unwrap();
}

/// Whether one of several probes is answered: a machine under load may answer one too late.
async fn answers(prober: &KernelProber, from: &NetworkId, to: [u8; 4]) -> bool {
    for _ in 0..20 {
        if let Outcome::Answered(_) = prober.probe(from, to.into()).await {
            return true;
        }
    }
    false
}

async fn probe_two_networks() {
    let prober = KernelProber::new("c", "h", Arc::new(NoIsolation));
    let (a, b) = (network("a", 1), network("b", 2));
    let gone = LocalNetwork {
        id: NetworkId::new("c", "_default"),
        block: "10.244.3.0/24".parse().unwrap(),
    };
    assert_eq!(prober.ensure(gone.clone()).await, BridgeView::default());
    let early = prober.probe(&a.id, [10, 244, 1, 1].into()).await;
    assert_eq!(early, Outcome::NotSent);
    for network in [&a, &b] {
        // The second call finds everything in place.
        for _ in 0..2 {
            let view = prober.ensure(network.clone()).await;
            assert!(view.up, "{view:?}");
            assert_eq!(view.bridge, network.id.bridge_name());
            assert_eq!(view.endpoint, Some(endpoint(network.block)));
        }
    }
    for to in [[10, 244, 1, 1], [10, 244, 2, 254]] {
        assert!(answers(&prober, &a.id, to).await, "{to:?}");
    }
    // Not answered: no responder has the address.
    let silent = prober.probe(&a.id, [10, 244, 2, 9].into()).await;
    assert_eq!(silent, Outcome::Silent);
    // A bridge that another program replaced.
    let bridge = a.id.bridge_name();
    run("ip", &format!("link del {bridge}"));
    let view = prober.ensure(a.clone()).await;
    assert_eq!(view, BridgeView::default());
    let replaced = network("a", 1);
    assert!(prober.ensure(replaced).await.endpoint.is_some());
    assert!(answers(&prober, &a.id, [10, 244, 2, 254]).await);
    // The other network was removed while the actor was down.
    prober.retain(&[(a.id.clone(), a.clone())].into());
    let silent = prober.probe(&a.id, [10, 244, 2, 254].into()).await;
    assert_eq!(silent, Outcome::Silent);
}
