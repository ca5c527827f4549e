//! Requests through the ingress to a small web server.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jaco_chaos::{Lab, engine::IMAGE, lab::netns, lab::node::HTTP_PORT, until};
use jaco_proto::v1;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};

use crate::setup::LIMIT;

const DOMAIN: &str = "load.example";
const REQUEST_INTERVAL: Duration = Duration::from_millis(20);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than the start of a daemon, for which requests wait in the accept queue.
const PATIENCE: Duration = Duration::from_secs(60);

/// Replicas of a web server, which is killed when it is stopped. They have no health check. `settings`
/// are those of the service in `jaco.yaml`.
pub(crate) fn web(deployment: &str, settings: &str, replicas: u32) -> v1::ApplyRequest {
    let jaco = format!(
        "deployment: {deployment}\nacme: \"off\"\nservices: [{{name: web, {settings}}}]\n\
         routes: [{{domain: {DOMAIN}, service: web, port: 8080, tls: \"off\"}}]\n"
    );
    let compose = format!(
        "services:\n  web:\n    image: {IMAGE}\n    pull_policy: never\n    \
         deploy: {{replicas: {replicas}}}\n    \
         stop_signal: SIGKILL\n    command: [/bin/busybox, httpd, -f, -p, '8080', -h, /]\n"
    );
    v1::ApplyRequest {
        jaco_yaml: jaco.into_bytes(),
        compose_yaml: compose.into_bytes(),
        ..Default::default()
    }
}

/// Requests to the ingress of one node, one after another.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    /// Start and success of each request.
    task: JoinHandle<Vec<(Instant, bool)>>,
}

impl Load {
    /// Sends them to node `index`, each of which may take two seconds.
    pub(crate) fn start(lab: &Lab, index: u8) -> Self {
        Self::with_timeout(lab, index, REQUEST_TIMEOUT)
    }

    /// Sends them to node `index`, however long each takes.
    pub(crate) fn patient(lab: &Lab, index: u8) -> Self {
        Self::with_timeout(lab, index, PATIENCE)
    }

    fn with_timeout(lab: &Lab, index: u8, limit: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let from = lab.network().namespace().to_owned();
        let to = SocketAddr::from((lab.node(index).address(), HTTP_PORT));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut outcomes = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                let answer = tokio::time::timeout(limit, get(&from, to)).await;
                outcomes.push((start, matches!(answer, Ok(Ok(true)))));
                tokio::time::sleep(REQUEST_INTERVAL).await;
            }
            outcomes
        });
        Self { stop, task }
    }

    /// Ends the load and returns the start and the success of each request.
    pub(crate) async fn stop(self) -> Vec<(Instant, bool)> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// Waits until a container answers at the ingress of node `index`.
pub(crate) async fn serves(lab: &Lab, index: u8) {
    let own = SocketAddr::from((lab.node(index).address(), HTTP_PORT));
    until("it serves", LIMIT, || async {
        match get(lab.network().namespace(), own).await {
            Ok(true) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
}

/// Whether a container answers at this ingress: the server has no index page, but the ingress would
/// say that it has no replica.
pub(crate) async fn get(from: &str, to: SocketAddr) -> anyhow::Result<bool> {
    let mut stream = netns::connect(from, to).await?;
    let request = format!("GET /bin/ HTTP/1.1\r\nhost: {DOMAIN}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    Ok(answer.starts_with("HTTP/1.1 404") || answer.starts_with("HTTP/1.1 200"))
}
