//! Load on the ingress that accounts for every request.
//!
//! A closed loop measures the capacity, an open loop sends a share of it. Requests are a seeded mix:
//! plain, TLS and HTTP/2, on kept and on new connections, GET and POST, answered at once, late or
//! slowly; and lines that a published port echoes.

mod account;
mod client;
mod mix;

use std::{
    net::Ipv4Addr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use jaco_chaos::{Rng, lab::netns, until};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::{sync::oneshot, task::LocalSet};

use self::{account::Ledger, client::Client, mix::Request};
pub(crate) use self::{
    account::{Account, Failure},
    mix::{Kind, Way},
};
use crate::fixture::LIMIT;

/// Clients of the closed loop.
const CLIENTS: usize = 48;
/// Requests at once, beyond which the open loop leaves out arrivals.
const OUTSTANDING_MAX: usize = 2000;
/// Interval at which the open loop starts requests.
const TICK: Duration = Duration::from_millis(2);

/// Destination of a load.
#[derive(Clone)]
pub(crate) struct Target {
    /// Namespace of the clients.
    pub(crate) hub: String,
    pub(crate) nodes: Vec<Ipv4Addr>,
    /// Domain without TLS.
    pub(crate) plain: &'static str,
    /// Domain with TLS.
    pub(crate) secure: &'static str,
    /// Published port that names the container in a line, then echoes.
    pub(crate) port: u16,
    /// Roots that its certificates verify under.
    pub(crate) roots: Arc<RootCertStore>,
}

impl Target {
    /// Offers these protocols (ALPN).
    fn tls(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        let names = protocols.iter().map(|name| name.as_bytes().to_vec());
        config.alpn_protocols = names.collect();
        Arc::new(config)
    }
}

/// Runs `work` on a thread in the namespace of the clients, whose sockets belong there.
fn inside<T: Send + 'static>(
    target: Target,
    work: impl AsyncFnOnce(Rc<Client>) -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let hub = target.hub.clone();
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let tasks = LocalSet::new();
            tasks.block_on(&runtime, async { work(Rc::new(Client::new(target))).await })
        };
        netns::within(&hub, run).unwrap()
    })
}

/// Answers per second of a closed loop, and its account.
pub(crate) async fn capacity(target: Target, seed: u64, time: Duration) -> (f64, Account) {
    let work = async move |client: Rc<Client>| {
        let ledger = Ledger::default();
        let start = Instant::now();
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let mut rng = Rng::new(seed ^ u64::try_from(number).unwrap());
            let (client, ledger) = (client.clone(), ledger.clone());
            clients.push(tokio::task::spawn_local(async move {
                while start.elapsed() < time {
                    let all = u32::MAX;
                    let request = Request::draw(&mut rng, client.nodes(), all).unwrap();
                    client.send(request, &ledger).await;
                }
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
        let account = ledger.take();
        (
            account.answered as f64 / start.elapsed().as_secs_f64(),
            account,
        )
    };
    let thread = inside(target, work);
    tokio::task::spawn_blocking(|| thread.join().unwrap())
        .await
        .unwrap()
}

/// A running open loop.
pub(crate) struct Load {
    ledger: Ledger,
    /// Nodes that clients connect to, as bits.
    used: Arc<AtomicU32>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Load {
    /// Starts `rate` requests per second.
    pub(crate) fn start(target: Target, seed: u64, rate: f64) -> Self {
        let (ledger, used) = (Ledger::default(), Arc::new(AtomicU32::new(u32::MAX)));
        let (stop, stopped) = oneshot::channel();
        let (entries, nodes) = (ledger.clone(), used.clone());
        let thread = inside(target, async move |client: Rc<Client>| {
            tokio::select! {
                () = open_loop(client, seed, rate, &entries, &nodes) => {}
                // Also when the load is dropped.
                _ = stopped => {}
            }
        });
        Self {
            ledger,
            used,
            stop,
            thread,
        }
    }

    /// Sends no new request to a node, as a balancer that sees it fail. Nodes count from 1.
    pub(crate) fn exclude(&self, node: u8) {
        self.used.fetch_and(!bit(node), Ordering::Relaxed);
    }

    /// Sends requests to the node again.
    pub(crate) fn include(&self, node: u8) {
        self.used.fetch_or(bit(node), Ordering::Relaxed);
    }

    /// Number of requests without an answer yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.ledger.outstanding()
    }

    /// Waits for the ends of all requests that began before this call, and takes the account.
    pub(crate) async fn account(&self) -> Account {
        let before = Instant::now();
        until("requests end", LIMIT, || async {
            match self.ledger.oldest() {
                Some(oldest) if oldest <= before => {
                    Err(format!("one began {:?} ago", oldest.elapsed()))
                }
                _ => Ok(()),
            }
        })
        .await
        .unwrap();
        self.ledger.take()
    }

    /// Ends the load.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(()); // the thread may have panicked, which the join reports
        tokio::task::spawn_blocking(|| self.thread.join().unwrap())
            .await
            .unwrap();
    }
}

fn bit(node: u8) -> u32 {
    1 << (node - 1)
}

async fn open_loop(client: Rc<Client>, seed: u64, rate: f64, ledger: &Ledger, used: &AtomicU32) {
    let mut rng = Rng::new(seed);
    let mut tick = tokio::time::interval(TICK);
    let (mut last, mut due) = (Instant::now(), 0.0);
    let mut before = u32::MAX;
    loop {
        tick.tick().await;
        let nodes = used.load(Ordering::Relaxed);
        let left = before & !nodes;
        for node in (1..=client.nodes()).filter(|node| left & bit(*node) != 0) {
            client.forget(node);
        }
        before = nodes;
        let now = Instant::now();
        due += rate * (now - last).as_secs_f64();
        last = now;
        while due >= 1.0 {
            due -= 1.0;
            let Some(request) = Request::draw(&mut rng, client.nodes(), nodes) else {
                continue;
            };
            if ledger.outstanding() >= OUTSTANDING_MAX {
                ledger.left_out();
                continue;
            }
            let (client, ledger) = (client.clone(), ledger.clone());
            tokio::task::spawn_local(async move { client.send(request, &ledger).await });
        }
    }
}
