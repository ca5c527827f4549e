//! Forwards questions to the upstream servers.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    FutureExt, StreamExt as _,
    future::{BoxFuture, Shared, WeakShared},
    stream::FuturesUnordered,
};
use jaco_net::dns::{exchange_tcp, exchange_udp};
use jaco_policy::network::{
    dns::{
        admission::Admission,
        cache::Cache,
        chain::{Action, Attempt, Chain},
        forwarders::loops_back,
        message::Request,
        relay::Relayed,
        servers::Servers,
        wire::{answers, verdict},
    },
    ipam::Pool,
};
use jaco_raftnode::StateReader;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::{FORWARDER_TIMEOUT, upstream::Upstream};
use crate::{lock::lock, log_dedup::LogDedup};

/// Different questions that are forwarded at a time; each holds a socket for every server asked.
const MAX_QUESTIONS: usize = 1024;
/// Size of the cache, in answers and in bytes.
const CACHE_ENTRIES: usize = 10_000;
const CACHE_BYTES: usize = 8 << 20;

/// Answer of the upstream servers; `None` if all failed.
type Reply = Option<Arc<Relayed>>;
type Question = BoxFuture<'static, Reply>;

/// Forwarder and cache of a node.
///
/// Equal questions that arrive while one of them is forwarded share its answer: a client that
/// repeats its question while a server is slow costs nothing.
pub(super) struct Forwarder {
    upstreams: Arc<[Upstream]>,
    timeout: Duration,
    raft: Arc<dyn StateReader>,
    /// Address pool of a cluster whose state names none.
    pool: Pool,
    servers: Mutex<Servers>,
    /// Last failure of each server.
    failures: Mutex<Vec<LogDedup>>,
    cache: Mutex<Cache>,
    questions: Mutex<BTreeMap<Vec<u8>, WeakShared<Question>>>,
    admission: Mutex<Admission>,
    permits: Arc<Semaphore>,
}

impl Forwarder {
    pub(super) fn new(
        upstreams: Arc<[Upstream]>,
        timeout: Duration,
        raft: Arc<dyn StateReader>,
        pool: Pool,
    ) -> Self {
        let count = upstreams.len();
        let timeout = if timeout.is_zero() {
            FORWARDER_TIMEOUT
        } else {
            timeout
        };
        Self {
            upstreams,
            timeout,
            raft,
            pool,
            servers: Mutex::new(Servers::new(count)),
            failures: Mutex::new(vec![LogDedup::default(); count]),
            cache: Mutex::new(Cache::new(CACHE_ENTRIES, CACHE_BYTES)),
            questions: Mutex::default(),
            admission: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_QUESTIONS)),
        }
    }

    /// Writes the answer that the cache has; whether it has one.
    pub(super) fn cached(&self, request: &Request, answer: &mut Vec<u8>) -> bool {
        let now = Instant::now().into_std();
        let found = lock(&self.cache).get(now, request.cache_key().as_ref());
        let Some((reply, age)) = found else {
            return false;
        };
        request.relay(&reply, age, answer);
        true
    }

    /// Forwards a question of `client`, a container of `deployment`; `None` if too many wait.
    pub(super) fn ask(
        self: &Arc<Self>,
        request: Request,
        client: Ipv4Addr,
        deployment: &str,
    ) -> Option<impl Future<Output = Vec<u8>> + Send + 'static + use<>> {
        let admitted = Admitted::new(self, client, deployment)?;
        let question = self.join(&request)?;
        Some(async move {
            let _admitted = admitted;
            let mut answer = Vec::new();
            match question.await {
                Some(reply) => request.relay(&reply, 0, &mut answer),
                None => request.server_failure(&mut answer),
            }
            answer
        })
    }

    /// Joins the same question, or starts it.
    fn join(self: &Arc<Self>, request: &Request) -> Option<Shared<Question>> {
        let key = request.cache_key().as_ref().to_vec();
        let mut questions = lock(&self.questions);
        if let Some(question) = questions.get(&key).and_then(WeakShared::upgrade) {
            return Some(question);
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let entry = QuestionEntry {
            forwarder: Arc::clone(self),
            key: key.clone(),
        };
        let request = request.clone();
        let run = async move {
            let _permit = permit;
            let reply = entry.forwarder.run(&request).await?;
            let now = Instant::now().into_std();
            lock(&entry.forwarder.cache).insert(now, &entry.key, &reply);
            Some(reply.into())
        };
        let question = run.boxed().shared();
        questions.extend(question.downgrade().map(|weak| (key, weak)));
        Some(question)
    }

    /// Runs a chain over the servers.
    async fn run(&self, request: &Request) -> Option<Relayed> {
        let now = Instant::now().into_std();
        let servers = self.usable();
        let mut order = lock(&self.servers).order(now);
        order.retain(|server| servers.contains_key(server));
        let mut chain = Chain::new(now, &order, self.timeout);
        let mut exchanges = FuturesUnordered::new();
        let mut replies: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        loop {
            let now = Instant::now().into_std();
            while let Some(action) = chain.poll_action(now) {
                match action {
                    Action::Ask { server, attempt } => {
                        let address = *servers.get(&server)?;
                        let exchange = exchange(address, attempt, request);
                        exchanges.push(exchange.map(move |result| (server, attempt, result)));
                    }
                    Action::GiveUp { server, asked } => {
                        self.failed(server, "no answer in time");
                        if let Some(asked) = asked {
                            let name = request.name().to_ascii_lowercase();
                            lock(&self.servers).handle_silence(now, server, asked, &name);
                        }
                    }
                    Action::Relay { server } => return Relayed::of(replies.get(&server)?),
                    Action::Fail => return None,
                }
            }
            let until = chain.poll_timeout()?;
            tokio::select! {
                Some((server, attempt, result)) = exchanges.next() => match result {
                    Ok(reply) => {
                        self.answered(server);
                        chain.handle_answer(server, verdict(&reply, attempt.edns));
                        replies.insert(server, reply);
                    }
                    Err(error) => {
                        self.failed(server, &error.to_string());
                        chain.handle_error(server);
                    }
                },
                () = sleep_until(until.into()) => {
                    chain.handle_timeout(Instant::now().into_std().max(until));
                }
            }
        }
    }

    /// Addresses of the servers that can be asked. The pool is read for each question: a node
    /// learns it after it has joined, and a name may get another address.
    fn usable(&self) -> BTreeMap<usize, SocketAddr> {
        let pool = Pool::of_cluster(&self.raft.state()).unwrap_or(self.pool);
        let usable = |(server, upstream): (usize, &Upstream)| {
            let found = upstream.addresses();
            let address = found.iter().find(|found| !loops_back(found.ip(), pool));
            match (address, found.is_empty()) {
                (Some(address), _) => return Some((server, *address)),
                (None, true) => self.failed(server, "its name is not resolved"),
                (None, false) => self.failed(server, "its address leads back to this cluster"),
            }
            None
        };
        self.upstreams
            .iter()
            .enumerate()
            .filter_map(usable)
            .collect()
    }

    fn answered(&self, server: usize) {
        lock(&self.servers).handle_answer(Instant::now().into_std(), server);
        let repaired = lock(&self.failures)
            .get_mut(server)
            .is_some_and(LogDedup::clear);
        if repaired && let Some(upstream) = self.upstreams.get(server) {
            info!(subsystem = "dns.forwarder", %upstream, "upstream server answers again");
        }
    }

    fn failed(&self, server: usize, error: &str) {
        let is_new = lock(&self.failures)
            .get_mut(server)
            .is_some_and(|failures| failures.is_new(error));
        if is_new && let Some(upstream) = self.upstreams.get(server) {
            warn!(subsystem = "dns.forwarder", %upstream, error, "upstream server failed");
        }
    }
}

/// Asks a server once; waits without end.
async fn exchange(address: SocketAddr, attempt: Attempt, request: &Request) -> io::Result<Vec<u8>> {
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let query = request.upstream_query(u16::from_be_bytes(id), attempt.edns);
    let accept = |reply: &[u8]| answers(&query, reply);
    if attempt.tcp {
        exchange_tcp(address, &query, accept).await
    } else {
        exchange_udp(address, &query, accept).await
    }
}

/// Entry of a question in progress; removed with it, also if all clients are gone.
struct QuestionEntry {
    forwarder: Arc<Forwarder>,
    key: Vec<u8>,
}

impl Drop for QuestionEntry {
    fn drop(&mut self) {
        // At worst this removes a question that began meanwhile, which then is not shared.
        lock(&self.forwarder.questions).remove(&self.key);
    }
}

/// A question that counts towards the limits of its client until it is dropped.
struct Admitted {
    forwarder: Arc<Forwarder>,
    client: Ipv4Addr,
    deployment: String,
}

impl Admitted {
    fn new(forwarder: &Arc<Forwarder>, client: Ipv4Addr, deployment: &str) -> Option<Self> {
        let is_admitted = lock(&forwarder.admission).admit(client, deployment);
        is_admitted.then(|| Self {
            forwarder: Arc::clone(forwarder),
            client,
            deployment: deployment.to_owned(),
        })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        lock(&self.forwarder.admission).release(self.client, &self.deployment);
    }
}
