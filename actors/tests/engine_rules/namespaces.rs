//! Networks of a container and names on them, and shared namespaces.

use jaco_proto::v1::ReplicaState;

use super::world::{FOREVER, World, is_podman};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn networks_join_in_order_and_names_resolve() {
    let world = World::new("names").await;
    // Order: by priority, then by name; an override has its own order.
    let byfile = "networks: {aaa: {}, zzz: {priority: 9}}";
    let services = [
        world.service("byfile", FOREVER, byfile),
        world.service("override", FOREVER, byfile),
        world.service("alone", FOREVER, ""),
        world.service("neighbour", FOREVER, ""),
    ]
    .concat();
    let compose = format!("services:\n{services}networks: {{aaa: {{}}, mmm: {{}}, zzz: {{}}}}\n");
    let rows: [(&str, &[&str]); 4] = [
        ("byfile", &[]),
        ("override", &["mmm", "aaa"]),
        ("alone", &[]),
        ("neighbour", &[]),
    ];
    world.apply(&compose, &rows).await;
    for (service, order) in [
        ("byfile", ["zzz", "aaa"].as_slice()),
        ("override", &["mmm", "aaa"]),
        ("alone", &["_default"]),
    ] {
        let seen = world.running(service).await;
        let engine_name = |network: &str| format!("jaco_{}_{network}", world.deployment);
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
        let first = world.inspect(service, "{{.HostConfig.NetworkMode}}");
        if !is_podman() {
            assert_eq!(first, engine_name(order[0]), "{service}");
        }
        let own = world.exec(
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
            world.inspect(service, "{{.HostConfig.Dns}}"),
            format!("[{}]", gateways.join(" "))
        );
    }
    let address = world.running("neighbour").await;
    let address = &address.details[&format!("ip.jaco_{}__default", world.deployment)];
    let (deployment, mut wrong) = (&world.deployment, Vec::new());
    for name in [
        "neighbour".to_owned(),
        format!("neighbour.{deployment}"),
        format!("neighbour.{deployment}.jaco.internal"),
    ] {
        let found = world.exec("alone", &format!("busybox nslookup {name} 2>&1"));
        if !found.lines().any(|line| line.ends_with(address.as_str())) {
            wrong.push(format!("{name}: {found}"));
        }
        let reached = world.exec(
            "alone",
            &format!("busybox ping -c 1 -W 5 {name} >/dev/null && echo yes"),
        );
        if reached != "yes" {
            wrong.push(format!("{name} not reached: {reached}"));
        }
    }
    // Names are scoped to a network: those of other networks do not resolve.
    let found = world.exec("byfile", "busybox nslookup neighbour 2>&1");
    if found.contains(address.as_str()) {
        wrong.push(format!("a name leads out of its network: {found}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_come_from_the_lenders_running_replica() {
    let world = World::new("borrow").await;
    // Borrowers precede the lender by name, so they have to wait for it.
    let borrow = |kind: &str| format!("{kind}: service:lender");
    let lender = "hostname: lent\nipc: shareable";
    let services = [
        world.service("a-net", FOREVER, &borrow("network_mode")),
        world.service("b-pid", FOREVER, &borrow("pid")),
        world.service("c-ipc", FOREVER, &borrow("ipc")),
        world.service("d-uts", FOREVER, &borrow("uts")),
        world.service("hosts", FOREVER, "pid: host\nipc: host\nuts: host"),
        world.service("lender", FOREVER, lender),
    ]
    .concat();
    let names = ["a-net", "b-pid", "c-ipc", "d-uts", "hosts", "lender"];
    world
        .apply(
            &format!("services:\n{services}"),
            &names.map(|name| (name, [].as_slice())),
        )
        .await;
    let lender = world.running("lender").await.container_id;
    for (service, namespace) in [
        ("a-net", "net"),
        ("b-pid", "pid"),
        ("c-ipc", "ipc"),
        ("d-uts", "uts"),
    ] {
        let link = format!("busybox readlink /proc/self/ns/{namespace}");
        let seen = world.running(service).await;
        let shared = world.exec(service, &link) == world.exec("lender", &link);
        // Docker shares no UTS namespace, and ignores the request.
        assert_eq!(shared, namespace != "uts" || is_podman(), "{service}");
        // Podman shows the lender's addresses as the borrower's.
        let addressed = seen.details.keys().any(|key| key.starts_with("ip."));
        assert_eq!(addressed, namespace != "net" || is_podman(), "{service}");
    }

    world.running("hosts").await;
    for namespace in ["pid", "ipc", "uts"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{namespace}")).expect("a namespace");
        let link = format!("busybox readlink /proc/self/ns/{namespace}");
        assert_eq!(world.exec("hosts", &link), own.display().to_string());
    }
    if is_podman() {
        return world.close().await; // Podman keeps a lender while it has borrowers
    }

    // A replica that restarts joins the lender's current container.
    super::world::docker(&["kill", &lender]);
    let next = world
        .observed("lender", "another lender", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != lender
        })
        .await
        .container_id;
    let old = world.containers("a-net");
    super::world::try_docker(&["kill", &old[0]]).ok();
    world
        .observed("a-net", "joined anew", |seen| {
            seen.state() == ReplicaState::Running && seen.container_id != old[0]
        })
        .await;
    let mode = world.inspect("a-net", "{{.HostConfig.NetworkMode}}");
    assert_eq!(mode, format!("container:{next}"));
    world.close().await;
}
