//! Where the compose file asks for replicas: labels of nodes, limits, platforms, and the network of the
//! nodes themselves.

use std::{fs, io::Write as _, net::SocketAddr};

use jaco_chaos::{Lab, engine::IMAGE, lab::netns, until};
use jaco_proto::v1::ReplicaState;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::setup::{LIMIT, all_ready, cluster};

const SEED: u64 = 2028;
/// Port of the node that the service with its network listens on.
const PORT: u16 = 8089;

/// Restarts a daemon with the label `zone`.
async fn label(lab: &mut Lab, node: u8, zone: &str) {
    let path = lab.node(node).path("jacod.yaml");
    let config = fs::read_to_string(&path).unwrap();
    let config: Vec<&str> = config
        .lines()
        .filter(|l| !l.starts_with("labels"))
        .collect();
    let config = config.join("\n") + &format!("\nlabels: {{zone: {zone}}}\n");
    fs::write(&path, config).unwrap();
    lab.node_mut(node).stop().await.unwrap();
    lab.node_mut(node).start().await.unwrap();
    let host = lab.node(node).host();
    until("the label is known", LIMIT, || async {
        let status = lab.node(node).api().status().await;
        let status = status.map_err(|error| error.to_string())?;
        let row = status.nodes.iter().find(|row| row.hostname == host);
        let traits = row.and_then(|row| row.traits.as_ref());
        match traits.and_then(|traits| traits.labels.get("zone")) {
            Some(found) if found == zone => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .await
    .unwrap();
}

fn compose() -> String {
    let service = |name: &str, rest: &str| {
        format!(
            "  {name}:\n    image: {IMAGE}\n    pull_policy: never\n    stop_signal: SIGKILL\n{rest}"
        )
    };
    let sleep = "    command: [sleep, '86400']\n";
    let zoned = format!(
        "{sleep}    deploy: {{replicas: 2, placement: {{constraints: [node.labels.zone == eu]}}}}\n"
    );
    let limited =
        format!("{sleep}    deploy: {{replicas: 4, placement: {{max_replicas_per_node: 1}}}}\n");
    let foreign = format!("{sleep}    platform: linux/s390x\n");
    let script = "/bin/busybox mkdir /www; echo served by the node > /www/index.html; \
                  exec /bin/busybox httpd -f -p 8089 -h /www";
    let edge = format!(
        "    command: [/bin/sh, -c, '{script}']\n    network_mode: host\n    \
         labels: {{jaco.io/allow-privileged: 'true'}}\n    \
         deploy: {{placement: {{constraints: [node.hostname == n1]}}}}\n"
    );
    format!(
        "name: place\nservices:\n{}{}{}{}x-jaco:\n  acme: 'off'\n  \
         routes: [{{domain: edge.test, service: edge, port: {PORT}, tls: 'off'}}]\n",
        service("zoned", &zoned),
        service("limited", &limited),
        service("foreign", &foreign),
        service("edge", &edge),
    )
}

/// Hosts of the running replicas of a service, sorted.
async fn hosts(lab: &Lab, service: &str) -> Result<Vec<String>, String> {
    let replicas = lab.node(1).api().replicas("place").await;
    let replicas = replicas.map_err(|error| error.to_string())?;
    let prefix = format!("place-{service}-");
    let of_service = replicas.iter().filter(|r| r.id.starts_with(&prefix));
    let running = of_service.filter(|r| r.state() == ReplicaState::Running);
    let mut hosts: Vec<String> = running.map(|r| r.host.clone()).collect();
    hosts.sort_unstable();
    Ok(hosts)
}

async fn run_on(lab: &Lab, service: &str, expected: &[&str]) {
    until("replicas where they are asked for", LIMIT, || async {
        let hosts = hosts(lab, service).await?;
        match hosts == expected {
            true => Ok(()),
            false => Err(format!("{service} runs on {hosts:?}, not {expected:?}")),
        }
    })
    .await
    .unwrap();
}

/// Requests the route through the ingress of a node.
async fn get(lab: &Lab, node: u8) -> Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let from = lab.node(3).namespace();
    let at = SocketAddr::from((lab.node(node).address(), 80));
    let mut stream = netns::connect(from, at).await.map_err(|e| e.to_string())?;
    let request = "GET / HTTP/1.1\r\nHost: edge.test\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(text)?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_run_where_the_compose_file_asks() {
    let mut lab = cluster(3, SEED).await;
    for (node, zone) in [(1, "eu"), (2, "us"), (3, "EU")] {
        label(&mut lab, node, zone).await;
    }
    all_ready(&lab).await;
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    file.write_all(compose().as_bytes()).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let ended = lab.node(2).jaco(&["apply", "-f", &path]).await.unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        !ended.status.success() && said.contains("wants platform linux/s390x"),
        "{said}"
    );

    run_on(&lab, "zoned", &["n1", "n3"]).await;
    run_on(&lab, "limited", &["n1", "n2", "n3"]).await;
    run_on(&lab, "edge", &["n1"]).await;
    run_on(&lab, "foreign", &[]).await;
    let status = lab.node(1).jaco(&["status", "place"]).await.unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("linux/s390x"), "{status}");

    // Each ingress reaches the node itself, whose firewall lets its own ports pass.
    for node in 1..=3 {
        until("the route leads to the node", LIMIT, || async {
            let answer = get(&lab, node).await?;
            match answer.contains("served by the node") {
                true => Ok(()),
                false => Err(answer),
            }
        })
        .await
        .unwrap();
    }
    let engine = lab.node(1).engine().await.unwrap();
    let containers = engine.containers(lab.cluster_id()).await.unwrap();
    let edge = containers
        .iter()
        .find(|c| c.replica == "place-edge-0")
        .unwrap();
    let namespaces = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    let own = lab.node(1).pid().unwrap();
    assert_eq!(namespaces(edge.pid), namespaces(own));

    // A node that no longer fits loses its replica.
    label(&mut lab, 3, "us").await;
    all_ready(&lab).await;
    run_on(&lab, "zoned", &["n1", "n1"]).await;
    run_on(&lab, "limited", &["n1", "n2", "n3"]).await;
}
