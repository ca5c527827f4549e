//! Bridges on a real container engine: the one at `JACO_DOCKER_SOCKET`, or at the usual place.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

use std::{
    net::Ipv4Addr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use jaco_actors::network::{
    SharedEngine,
    bridge::{self, BridgeReady, DesiredNetwork, Error},
    interfaces,
};
use jaco_engine::{EngineError, cidr::Cidr, docker::DockerEngine};
use jaco_policy::network::{
    bridge::{Removal, plan},
    names::NetworkId,
    probe,
};

/// Everything a test creates in the engine, under one name; removed on drop.
struct Lab {
    name: String,
    /// First of the two address blocks of this lab.
    blocks: u32,
    engine: SharedEngine,
}

impl Lab {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self {
            name: format!("nettest{process}x{next}"),
            blocks: process.wrapping_mul(16) + next * 2,
            engine: Arc::new(DockerEngine::new(socket())),
        }
    }

    /// The network `front` of this lab's deployment; `part` 0 or 1 selects its block.
    fn wanted(&self, part: u32) -> DesiredNetwork {
        let block = self.blocks + part;
        let cidr = format!("10.{}.{}.0/24", 200 + (block >> 8) % 40, block % 256);
        DesiredNetwork {
            id: NetworkId::new(&self.name, "front"),
            cluster_id: format!("cluster-{}", self.name),
            cidr: cidr.parse().unwrap(),
        }
    }

    async fn ensure(&self, wanted: &DesiredNetwork) -> Result<BridgeReady, Error> {
        bridge::ensure(&self.engine, &*interfaces::of_this_host(), wanted).await
    }

    fn network(&self) -> String {
        format!("jaco_{}_front", self.name)
    }

    fn image(&self) -> String {
        format!("jaco-{}:test", self.name)
    }

    /// Creates a container on the network that runs until it is stopped.
    fn container(&self, run: bool) -> String {
        let import = format!(
            "tar -C / -ch bin/busybox | docker -H unix://{} import - {}",
            socket(),
            self.image()
        );
        must(Command::new("sh").args(["-c", &import]));
        let verb: &[&str] = if run { &["run", "-d"] } else { &["create"] };
        must(&mut self.start(verb, "c"))
    }

    /// Command that creates a container of the lab's image.
    fn start(&self, verb: &[&str], name: &str) -> Command {
        let name = format!("{}-{name}", self.name);
        let args = ["--name", &name, "--network", &self.network(), &self.image()];
        let mut command = docker();
        let program = ["/bin/busybox", "sleep", "600"];
        command.args(verb).args(args).args(program);
        command
    }

    fn inspect(&self, format: &str) -> String {
        must(docker().args(["network", "inspect", "-f", format, &self.network()]))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let filter = format!("name={}-", self.name);
        let listed = docker().args(["ps", "-aq", "--filter", &filter]).output();
        let listed = listed.map_or(Vec::new(), |output| output.stdout);
        for id in String::from_utf8_lossy(&listed).split_whitespace() {
            let _ = docker().args(["rm", "-f", id]).output();
        }
        for args in [
            ["network", "rm", &self.network()].as_slice(),
            &["rmi", "-f", &self.image()],
        ] {
            // Most of them do not exist.
            let _ = docker().args(args).output();
        }
    }
}

fn socket() -> String {
    std::env::var("JACO_DOCKER_SOCKET").unwrap_or_else(|_| "/var/run/docker.sock".to_owned())
}

fn docker() -> Command {
    let mut docker = Command::new("docker");
    docker.args(["-H", &format!("unix://{}", socket())]);
    docker
}

fn must(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn network_is_created_once_with_its_options() {
    let lab = Lab::new();
    let wanted = lab.wanted(0);
    let ready = lab.ensure(&wanted).await.unwrap();
    assert_eq!(ready.engine_network, lab.network());
    assert_eq!(ready.gateway, wanted.cidr.gateway());

    let id = lab.inspect("{{.Id}}");
    assert_eq!(lab.inspect("{{.Driver}}"), "bridge");
    assert_eq!(
        lab.inspect("{{range .IPAM.Config}}{{.Subnet}} {{.Gateway}};{{end}}"),
        format!("{} {};", wanted.cidr, wanted.cidr.gateway())
    );
    // Podman lists the option under its own name.
    let mtu = |key: &str| lab.inspect(&format!("{{{{index .Options \"{key}\"}}}}"));
    assert_eq!(mtu("com.docker.network.driver.mtu") + &mtu("mtu"), "1420");
    for (label, value) in [
        ("jaco.cluster_id", wanted.cluster_id.clone()),
        ("jaco.deployment", lab.name.clone()),
        ("jaco.network", "front".to_owned()),
        ("jaco.subnet", wanted.cidr.to_string()),
    ] {
        assert_eq!(
            lab.inspect(&format!("{{{{index .Labels \"{label}\"}}}}")),
            value
        );
    }
    // Podman creates the bridge when the first container joins.
    lab.container(true);
    // /sys shows the network namespace in which it was mounted, and not that of the engine.
    let bridges = must(Command::new("ip").args(["-o", "link", "show", "type", "bridge"]));
    let name = wanted.id.bridge_name();
    assert!(bridges.contains(&format!(": {name}: ")), "{bridges}");

    assert_eq!(lab.ensure(&wanted).await, Ok(ready));
    assert_eq!(lab.inspect("{{.Id}}"), id);
}

#[tokio::test]
async fn no_container_gets_the_reserved_address() {
    let lab = Lab::new();
    // Eight addresses: those of network, gateway and broadcast, the reserved one and four more.
    let block = Cidr::new(lab.wanted(0).cidr.network(), 29).unwrap();
    let wanted = DesiredNetwork {
        cidr: block,
        ..lab.wanted(0)
    };
    lab.ensure(&wanted).await.unwrap();
    lab.container(true);
    for name in ["d", "e", "f"] {
        must(&mut lab.start(&["run", "-d"], name));
    }
    let format = "{{range .Containers}}{{.IPv4Address}} {{end}}";
    let given = lab.inspect(format);
    let mut given: Vec<_> = given.split_whitespace().collect();
    given.sort_unstable();
    let free = u32::from(block.gateway()) + 1..u32::from(probe::endpoint(block));
    let free: Vec<_> = free
        .map(|address| format!("{}/29", Ipv4Addr::from(address)))
        .collect();
    assert_eq!(given, free);
    let output = lab.start(&["run", "-d"], "g").output().unwrap();
    assert!(
        !output.status.success(),
        "a container got the reserved address"
    );
}

#[tokio::test]
async fn network_with_another_block_is_replaced() {
    let lab = Lab::new();
    lab.ensure(&lab.wanted(0)).await.unwrap();
    let container = lab.container(true);
    lab.ensure(&lab.wanted(1)).await.unwrap();
    let subnets = lab.inspect("{{range .IPAM.Config}}{{.Subnet}}{{end}}");
    assert_eq!(subnets, lab.wanted(1).cidr.to_string());
    let all = must(docker().args(["ps", "-aq", "--no-trunc"]));
    assert!(!all.contains(&container));
}

#[tokio::test]
async fn network_in_use_is_not_removed() {
    let lab = Lab::new();
    let wanted = lab.wanted(0);
    lab.ensure(&wanted).await.unwrap();
    let remove = || bridge::remove(&lab.engine, &wanted.cluster_id, &wanted.id);
    // Attached, although it was never started.
    let container = lab.container(false);
    assert_eq!(remove().await, Ok(Removal::InUse));
    must(docker().args(["rm", "-f", &container]));
    for _ in 0..2 {
        assert_eq!(remove().await, Ok(Removal::Gone));
    }
    let left = must(docker().args(["network", "ls", "--format", "{{.Name}}"]));
    assert!(!left.lines().any(|name| name == lab.network()));
}

#[tokio::test]
async fn network_without_our_labels_is_never_touched() {
    let lab = Lab::new();
    let id = must(docker().args(["network", "create", &lab.network()]));
    let wanted = lab.wanted(0);
    let error = lab.ensure(&wanted).await.unwrap_err();
    assert_eq!(error, Error::Plan(plan::Error::Foreign(lab.network())));
    let gone = bridge::remove(&lab.engine, &wanted.cluster_id, &wanted.id).await;
    assert_eq!(gone, Ok(Removal::Gone));
    assert_eq!(lab.inspect("{{.Id}}"), id);
}

#[tokio::test]
async fn block_of_another_network_is_reported_as_taken() {
    let (lab, other) = (Lab::new(), Lab::new());
    let wanted = lab.wanted(0);
    let range = wanted.cidr.to_string();
    must(docker().args(["network", "create", "--subnet", &range, &other.network()]));
    let error = lab.ensure(&wanted).await.unwrap_err();
    // The bridge of the other network has an address, unless the engine makes it later.
    let block = match &error {
        Error::BlockInUse(cidr, _) | Error::Plan(plan::Error::AddressInUse { cidr, .. }) => *cidr,
        other => panic!("{other:?}"),
    };
    assert_eq!(block, wanted.cidr);
    let elsewhere = lab.wanted(1);
    lab.ensure(&elsewhere).await.unwrap();
}

#[tokio::test]
async fn missing_engine_is_reported_as_unreachable() {
    let engine: SharedEngine = Arc::new(DockerEngine::new("/nonexistent/engine.sock"));
    let wanted = Lab::new().wanted(0);
    let interfaces = interfaces::of_this_host();
    let ensured = bridge::ensure(&engine, &*interfaces, &wanted).await;
    let error = ensured.unwrap_err();
    assert!(
        matches!(error, Error::Engine(EngineError::Unreachable(_))),
        "{error:?}"
    );
}
