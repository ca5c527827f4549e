//! Networks of a container and names on them, and shared namespaces.

use jaco_proto::v1::{ReplicaObserved, ReplicaState};

use super::fixture::{EngineFixture, FOREVER, is_podman};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn networks_join_in_order_and_names_resolve() {
    let fixture = EngineFixture::new("names").await;
    // Order: by priority, then by name; an override has its own order.
    let byfile = "networks: {aaa: {}, zzz: {priority: 9}}";
    let services = [
        fixture.service("byfile", FOREVER, byfile),
        fixture.service("override", FOREVER, byfile),
        fixture.service("alone", FOREVER, ""),
        fixture.service("neighbour", FOREVER, ""),
    ]
    .concat();
    let compose = format!("services:\n{services}networks: {{aaa: {{}}, mmm: {{}}, zzz: {{}}}}\n");
    let rows: [(&str, &[&str]); 4] = [
        ("byfile", &[]),
        ("override", &["mmm", "aaa"]),
        ("alone", &[]),
        ("neighbour", &[]),
    ];
    fixture.apply(&compose, &rows).await;
    for (service, order) in [
        ("byfile", ["zzz", "aaa"].as_slice()),
        ("override", &["mmm", "aaa"]),
        ("alone", &["_default"]),
    ] {
        let seen = fixture.running(service).await;
        let engine_name = |network: &str| format!("jaco_{}_{network}", fixture.deployment);
        let mut addresses: Vec<&str> = Vec::new();
        for network in order {
            addresses.push(&seen.details[&format!("ip.{}", engine_name(network))]);
        }
        assert_eq!(
            seen.details
                .keys()
                .filter(|key| key.starts_with("ip."))
                .count(),
            order.len(),
            "{service}: {:?}",
            seen.details
        );
        let first = fixture.inspect(service, "{{.HostConfig.NetworkMode}}");
        if !is_podman() {
            assert_eq!(first, engine_name(order[0]), "{service}");
        }
        let own = fixture.exec(
            service,
            "busybox ip -4 -o addr | busybox awk '!/ lo / {print $4}'",
        );
        let own: Vec<&str> = own
            .lines()
            .map(|a| a.split('/').next().unwrap_or(a))
            .collect();
        let (mut a, mut b) = (own.clone(), addresses.clone());
        a.sort_unstable();
        b.sort_unstable();
        assert_eq!(a, b, "{service}");
        // Resolvers are the gateways, in the same order.
        let gateways: Vec<String> = addresses
            .iter()
            .map(|address| format!("{}.1", address.rsplit_once('.').expect("an address").0))
            .collect();
        assert_eq!(
            fixture.inspect(service, "{{.HostConfig.Dns}}"),
            format!("[{}]", gateways.join(" "))
        );
    }
    if is_podman() {
        // Its name server must not take the port of the node's responder.
        let found = fixture.exec("alone", "busybox nslookup neighbour 2>&1");
        assert!(found.contains("refused"), "{found}");
        return fixture.close().await;
    }
    let address = fixture.running("neighbour").await;
    let address = &address.details[&format!("ip.jaco_{}__default", fixture.deployment)];
    let (deployment, mut wrong) = (&fixture.deployment, Vec::new());
    for name in [
        "neighbour".to_owned(),
        format!("neighbour.{deployment}"),
        format!("neighbour.{deployment}.jaco.internal"),
    ] {
        let found = fixture.exec("alone", &format!("busybox nslookup {name} 2>&1"));
        if !found.lines().any(|line| line.ends_with(address.as_str())) {
            wrong.push(format!("{name}: {found}"));
        }
        let reached = fixture.exec(
            "alone",
            &format!("busybox ping -c 1 -W 5 {name} >/dev/null && echo yes"),
        );
        if reached != "yes" {
            wrong.push(format!("{name} not reached: {reached}"));
        }
    }
    // Names are scoped to a network: those of other networks do not resolve.
    let found = fixture.exec("byfile", "busybox nslookup neighbour 2>&1");
    if found.contains(address.as_str()) {
        wrong.push(format!("a name leads out of its network: {found}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_come_from_the_lenders_running_replica() {
    let fixture = EngineFixture::new("borrow").await;
    // Borrowers precede the lender by name, so they have to wait for it.
    let borrow = |kind: &str| format!("{kind}: service:lender");
    let lender = "hostname: lent\nipc: shareable";
    let services = [
        fixture.service("a-net", FOREVER, &borrow("network_mode")),
        fixture.service("b-pid", FOREVER, &borrow("pid")),
        fixture.service("c-ipc", FOREVER, &borrow("ipc")),
        fixture.service("d-uts", FOREVER, &borrow("uts")),
        fixture.service("hosts", FOREVER, "pid: host\nipc: host\nuts: host"),
        fixture.service("lender", FOREVER, lender),
    ]
    .concat();
    let names = ["a-net", "b-pid", "c-ipc", "d-uts", "hosts", "lender"];
    fixture
        .apply(
            &format!("services:\n{services}"),
            &names.map(|name| (name, [].as_slice())),
        )
        .await;
    let lender = fixture.running("lender").await;
    for (service, namespace) in [
        ("a-net", "net"),
        ("b-pid", "pid"),
        ("c-ipc", "ipc"),
        ("d-uts", "uts"),
    ] {
        let link = format!("busybox readlink /proc/self/ns/{namespace}");
        let seen = fixture.running(service).await;
        let shared = fixture.exec(service, &link) == fixture.exec("lender", &link);
        // Docker shares no UTS namespace, and ignores the request.
        assert_eq!(shared, namespace != "uts" || is_podman(), "{service}");
        let addresses = |seen: &ReplicaObserved| -> Vec<String> {
            let addresses = seen
                .details
                .iter()
                .filter(|(key, _)| key.starts_with("ip."));
            addresses
                .map(|(key, address)| format!("{key}={address}"))
                .collect()
        };
        assert_eq!(addresses(&seen).len(), 1, "{service}");
        let borrowed = addresses(&seen) == addresses(&lender);
        assert_eq!(borrowed, namespace == "net", "{service}");
    }

    fixture.running("hosts").await;
    for namespace in ["pid", "ipc", "uts"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{namespace}")).expect("a namespace");
        let link = format!("busybox readlink /proc/self/ns/{namespace}");
        assert_eq!(fixture.exec("hosts", &link), own.display().to_string());
    }
    if is_podman() {
        return fixture.close().await; // Podman keeps a lender while it has borrowers
    }

    // The borrower of the network is replaced with its lender.
    let lender = lender.container_id;
    let old = fixture.containers("a-net");
    super::fixture::docker(&["kill", &lender]);
    let next = fixture
        .observed("lender", "another lender", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != lender
        })
        .await
        .container_id;
    fixture
        .observed("a-net", "joined anew", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != old[0]
        })
        .await;
    let mode = fixture.inspect("a-net", "{{.HostConfig.NetworkMode}}");
    assert_eq!(mode, format!("container:{next}"));
    fixture.close().await;
}
