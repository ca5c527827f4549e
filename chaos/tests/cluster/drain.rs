//! A removed member serves until its replicas run elsewhere.
//!
//! There is no full form: `cargo test -p jaco-chaos --test cluster drain`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jaco_chaos::{
    Lab, Rng, engine::IMAGE, lab::netns, lab::node::HTTP_PORT, rng, test_permits, until,
};
use jaco_proto::v1::{self, ReplicaState};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};

use crate::setup::{LIMIT, cluster};

const DOMAIN: &str = "drain.example";
const REQUEST_INTERVAL: Duration = Duration::from_millis(20);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Two replicas of a web server, which a pass puts on one node. Without a health check they count
/// as running after 5 s.
fn request(deployment: &str) -> v1::ApplyRequest {
    let jaco = format!(
        "deployment: {deployment}\nacme: \"off\"\nservices: [{{name: web, placement: pack}}]\n\
         routes: [{{domain: {DOMAIN}, service: web, port: 8080, tls: \"off\"}}]\n"
    );
    let compose = format!(
        "services:\n  web:\n    image: {IMAGE}\n    pull_policy: never\n    deploy: {{replicas: 2}}\n    \
         stop_signal: SIGKILL\n    command: [/bin/busybox, httpd, -f, -p, '8080', -h, /]\n"
    );
    v1::ApplyRequest {
        jaco_yaml: jaco.into_bytes(),
        compose_yaml: compose.into_bytes(),
        dry_run: false,
    }
}

/// Requests to the ingress of one node, one after another.
struct Load {
    stop: Arc<AtomicBool>,
    /// Start and success of each request.
    task: JoinHandle<Vec<(Instant, bool)>>,
}

impl Load {
    fn start(lab: &Lab, index: u8) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let from = lab.network().namespace().to_owned();
        let to = SocketAddr::from((lab.node(index).address(), HTTP_PORT));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut outcomes = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                let answer = tokio::time::timeout(REQUEST_TIMEOUT, get(&from, to)).await;
                outcomes.push((start, matches!(answer, Ok(Ok(true)))));
                tokio::time::sleep(REQUEST_INTERVAL).await;
            }
            outcomes
        });
        Self { stop, task }
    }

    async fn stop(self) -> Vec<(Instant, bool)> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// Whether a container answers at this ingress: the server has no index page, but the ingress would
/// say that it has no replica.
async fn get(from: &str, to: SocketAddr) -> anyhow::Result<bool> {
    let mut stream = netns::connect(from, to).await?;
    let request = format!("GET /bin/ HTTP/1.1\r\nhost: {DOMAIN}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    Ok(answer.starts_with("HTTP/1.1 404") || answer.starts_with("HTTP/1.1 200"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_member_serves_until_others_do() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let lab = cluster(3, rng.number()).await;
    lab.wait_voters(3).await.unwrap();
    let name = format!("drain-{:08x}", rng::unique() >> 32);
    let api = lab.node(1).api();
    api.deploy().apply(request(&name)).await.unwrap();
    let host = until("both replicas on one node", LIMIT, || async {
        let replicas = api.replicas(&name).await.map_err(|e| e.to_string())?;
        let running = |r: &&v1::ReplicaDetail| r.state() == ReplicaState::Running;
        match replicas.as_slice() {
            [one, other] if one.host == other.host && replicas.iter().all(|r| running(&r)) => {
                Ok(one.host.clone())
            }
            other => Err(format!("{other:?}")),
        }
    });
    let host = host.await.unwrap();
    let indexes: Vec<u8> = lab
        .nodes()
        .iter()
        .map(jaco_chaos::lab::Node::index)
        .collect();
    let leaves = indexes
        .iter()
        .copied()
        .find(|i| lab.node(*i).host() == host);
    let leaves = leaves.unwrap();
    let stay = lab.others(&[leaves]);
    let own = SocketAddr::from((lab.node(leaves).address(), HTTP_PORT));
    until("it serves", LIMIT, || async {
        match get(lab.network().namespace(), own).await {
            Ok(true) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();

    let leaver_load = Load::start(&lab, leaves);
    let loads: Vec<(u8, Load)> = stay.iter().map(|i| (*i, Load::start(&lab, *i))).collect();
    let start = Instant::now();
    let removal = v1::NodeRemoveRequest {
        hostname: host.clone(),
        force: false,
    };
    let mut through = lab.node(stay[0]).api().cluster();
    through.node_remove(removal).await.unwrap();
    println!("removed after {:?}", start.elapsed());
    // No waiting: the replicas run elsewhere before the member is gone.
    let replicas = lab.node(stay[0]).api().replicas(&name).await.unwrap();
    for replica in &replicas {
        assert_eq!(replica.state(), ReplicaState::Running, "{replica:?}");
        assert_ne!(replica.host, host, "{replica:?}");
    }
    assert_eq!(replicas.len(), 2);

    tokio::time::sleep(Duration::from_secs(2)).await;
    let served = leaver_load.stop().await;
    // A request in a container that stops may be lost; the service goes on in the other one.
    let last = served.iter().rev().find(|(_, good)| *good);
    let end_of_service = last.expect("the leaver never served").0;
    let mut first = None;
    for (index, load) in loads {
        let outcomes = load.stop().await;
        let begin = outcomes.iter().position(|(_, good)| *good);
        let Some(begin) = begin else {
            continue;
        };
        let lost = outcomes[begin..].iter().filter(|(_, good)| !good).count();
        println!("n{index} serves after {:?}", outcomes[begin].0 - start);
        // It sends one request at a time, also to the containers of the leaver while they run.
        assert!(lost <= replicas.len(), "n{index} lost {lost} requests");
        let at = outcomes[begin].0;
        first = Some(first.map_or(at, |other: Instant| other.min(at)));
    }
    let first = first.expect("no other node serves");
    println!(
        "{host} serves until {:?}, another node from {:?}",
        end_of_service - start,
        first - start
    );
    assert!(end_of_service >= first, "nobody served in between");
}
