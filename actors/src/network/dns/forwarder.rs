//! Forwards questions to the upstream servers.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use jaco_net::dns::{exchange_tcp, exchange_udp};
use jaco_policy::network::dns::{
    cache::Cache,
    chain::{Action, Chain, Servers},
    message::Request,
    wire::{answers, verdict},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use tracing::{info, warn};

use super::{FORWARDER_TIMEOUT, upstream::Upstream};
use crate::{lock::lock, log_dedup::LogDedup};

/// Questions that are forwarded at a time; each holds a socket.
const MAX_QUESTIONS: usize = 512;
/// Size of the cache, in answers and in bytes.
const CACHE_ENTRIES: usize = 10_000;
const CACHE_BYTES: usize = 8 << 20;

/// Answer of the upstream servers; `None` if all failed.
type Reply = Option<Arc<[u8]>>;
type Question = BoxFuture<'static, Reply>;

/// Forwarder and cache of a node.
///
/// Equal questions that arrive while one of them is forwarded share its answer: a client that
/// repeats its question while a server is slow costs nothing.
pub(super) struct Forwarder {
    upstreams: Vec<Upstream>,
    timeout: Duration,
    servers: Mutex<Servers>,
    /// Last failure of each server.
    failures: Mutex<Vec<LogDedup>>,
    cache: Mutex<Cache>,
    questions: Mutex<BTreeMap<Vec<u8>, WeakShared<Question>>>,
    permits: Arc<Semaphore>,
}

impl Forwarder {
    pub(super) fn new(upstreams: Vec<Upstream>, timeout: Duration) -> Self {
        let count = upstreams.len();
        let timeout = if timeout.is_zero() {
            FORWARDER_TIMEOUT
        } else {
            timeout
        };
        Self {
            upstreams,
            timeout,
            servers: Mutex::new(Servers::new(count)),
            failures: Mutex::new(vec![LogDedup::default(); count]),
            cache: Mutex::new(Cache::new(CACHE_ENTRIES, CACHE_BYTES)),
            questions: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_QUESTIONS)),
        }
    }

    /// Returns the answer that the cache has.
    pub(super) fn cached(&self, request: &Request) -> Option<Vec<u8>> {
        let now = Instant::now().into_std();
        let reply = lock(&self.cache).get(now, &request.cache_key())?;
        Some(request.relay(&reply))
    }

    /// Forwards a question; `None` if there are too many.
    pub(super) fn ask(
        self: &Arc<Self>,
        request: Request,
    ) -> Option<impl Future<Output = Vec<u8>> + Send + 'static + use<>> {
        let question = self.join(&request)?;
        Some(async move {
            match question.await {
                Some(reply) => request.relay(&reply),
                None => request.server_failure(),
            }
        })
    }

    /// Joins the same question, or starts it.
    fn join(self: &Arc<Self>, request: &Request) -> Option<Shared<Question>> {
        let key = request.cache_key();
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

    /// Asks the servers one after another.
    async fn run(&self, request: &Request) -> Option<Vec<u8>> {
        let now = Instant::now().into_std();
        let order = lock(&self.servers).order(now);
        let mut chain = Chain::new(now, order, self.timeout);
        let mut last = None;
        loop {
            let action = chain.poll_action(Instant::now().into_std())?;
            let (server, tcp) = match action {
                Action::Ask { server, tcp } => (server, tcp),
                Action::Relay => return last,
                Action::Fail => return None,
            };
            let until = chain.poll_timeout()?;
            match timeout_at(until.into(), self.exchange(server, tcp, request)).await {
                Ok(Ok(reply)) => {
                    self.answered(server);
                    chain.handle_answer(verdict(&reply), tcp);
                    last = Some(reply);
                }
                Ok(Err(error)) => {
                    self.failed(server, &error.to_string());
                    chain.handle_error();
                }
                Err(_) => {
                    self.failed(server, "no answer in time");
                    chain.handle_timeout(Instant::now().into_std().max(until));
                }
            }
        }
    }

    async fn exchange(&self, server: usize, tcp: bool, request: &Request) -> io::Result<Vec<u8>> {
        let upstream = self.upstreams.get(server);
        let upstream = upstream.ok_or(io::ErrorKind::NotFound)?;
        let address = upstream.address().await?;
        let mut id = [0; 2];
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        let query = request.upstream_query(u16::from_be_bytes(id));
        let accept = |reply: &[u8]| answers(&query, reply);
        if tcp {
            exchange_tcp(address, &query, accept).await
        } else {
            exchange_udp(address, &query, accept).await
        }
    }

    fn answered(&self, server: usize) {
        lock(&self.servers).handle_answer(server);
        let repaired = lock(&self.failures)
            .get_mut(server)
            .is_some_and(LogDedup::clear);
        if repaired && let Some(upstream) = self.upstreams.get(server) {
            info!(subsystem = "dns.forwarder", %upstream, "upstream server answers again");
        }
    }

    fn failed(&self, server: usize, error: &str) {
        lock(&self.servers).handle_failure(Instant::now().into_std(), server);
        let is_new = lock(&self.failures)
            .get_mut(server)
            .is_some_and(|failures| failures.is_new(error));
        if is_new && let Some(upstream) = self.upstreams.get(server) {
            warn!(subsystem = "dns.forwarder", %upstream, error, "upstream server failed");
        }
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
