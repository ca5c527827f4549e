//! A proxy in front of a registry that records every request, and can inject faults into answers.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Result;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use super::fault::{Fault, Faults, RequestKind, has_path_prefix, repository};
use crate::daemon::free_ports;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not answered yet, or the answer stalled.
    Open,
    /// Answered with this HTTP status.
    Answered(u16),
    /// The client disconnected before the answer was complete.
    Abandoned,
}

/// A recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// HTTP method.
    pub method: String,
    /// Path, without the query.
    pub path: String,
    /// Account of the request; `None` if anonymous.
    pub user: Option<String>,
    /// Its outcome so far.
    pub outcome: Outcome,
}

impl RecordedRequest {
    /// Whether it requests a manifest.
    #[must_use]
    pub fn is_manifest(&self) -> bool {
        repository(&self.path).1 == RequestKind::Manifests
    }

    /// Whether it requests a layer or a configuration.
    #[must_use]
    pub fn is_blob(&self) -> bool {
        repository(&self.path).1 == RequestKind::Blobs
    }
}

/// A proxy on the loopback interface.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyState>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ProxyState {
    registry: SocketAddr,
    faults: watch::Sender<Faults>,
    requests: Mutex<BTreeMap<u64, RecordedRequest>>,
    next_request: AtomicU64,
    /// Repositories that only one account may access, and that account.
    owners: Mutex<Vec<(String, String)>>,
}

impl Proxy {
    /// Starts a proxy on a port of its own.
    pub(super) async fn open(registry: SocketAddr) -> Result<Self> {
        // Not an ephemeral port, so that the port is still free after the proxy was closed for a
        // while.
        let [port] = free_ports()?;
        let mut proxy = Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            shared: Arc::new(ProxyState {
                registry,
                faults: watch::Sender::default(),
                requests: Mutex::default(),
                next_request: AtomicU64::default(),
                owners: Mutex::default(),
            }),
            task: None,
        };
        proxy.reopen().await?;
        Ok(proxy)
    }

    /// Listening address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes every connection and refuses new ones.
    pub async fn close(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // The listener is closed once the task has ended.
            let _ = task.await;
        }
    }

    /// Listens again.
    ///
    /// # Errors
    /// When another process has taken the port.
    pub async fn reopen(&mut self) -> Result<()> {
        self.close().await;
        let listener = TcpListener::bind(self.address).await?;
        self.task = Some(tokio::spawn(serve(listener, Arc::clone(&self.shared))));
        Ok(())
    }

    /// Injects a fault into requests for part of a repository and all below it, of all repositories
    /// if it is empty.
    ///
    /// A newer fault takes precedence over an older one.
    pub fn inject(&self, part: RequestKind, repository: &str, fault: Fault) {
        self.shared
            .faults
            .send_modify(|faults| faults.add(part, repository, fault));
    }

    /// Ends all faults; delayed requests continue.
    pub fn clear_faults(&self) {
        self.shared.faults.send_replace(Faults::default());
    }

    /// Answers 403 to all accounts but `user` for `repository` and all below it, unless a
    /// repository below it is reserved for another account.
    pub fn restrict(&self, repository: &str, user: &str) {
        lock(&self.shared.owners).push((repository.to_owned(), user.to_owned()));
    }

    /// The requests since the last [`Proxy::clear_requests`], in the order of their arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<RecordedRequest> {
        lock(&self.shared.requests).values().cloned().collect()
    }

    /// Clears the recorded requests.
    pub fn clear_requests(&self) {
        lock(&self.shared.requests).clear();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// A request in progress; its outcome is recorded on drop.
struct RequestGuard {
    shared: Arc<ProxyState>,
    id: u64,
    outcome: Outcome,
}

impl RequestGuard {
    fn new(shared: &Arc<ProxyState>, request: &Request<Incoming>) -> Self {
        let id = shared.next_request.fetch_add(1, Ordering::Relaxed);
        let seen = RecordedRequest {
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            user: user(request),
            outcome: Outcome::Open,
        };
        lock(&shared.requests).insert(id, seen);
        Self {
            shared: Arc::clone(shared),
            id,
            outcome: Outcome::Abandoned,
        }
    }

    /// Waits until no fault applies to `path`.
    async fn wait_fault_cleared(&self, path: &str) {
        let mut faults = self.shared.faults.subscribe();
        // `shared` holds the sender, so the channel cannot close.
        let _ = faults.wait_for(|faults| faults.of(path).is_none()).await;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if let Some(seen) = lock(&self.shared.requests).get_mut(&self.id) {
            seen.outcome = self.outcome;
        }
    }
}

/// Accepts connections; they belong to the set, so they end with this task.
async fn serve(listener: TcpListener, shared: Arc<ProxyState>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                let shared = Arc::clone(&shared);
                let service = service_fn(move |request| answer(Arc::clone(&shared), request));
                let connection = http1::Builder::new().serve_connection(TokioIo::new(client), service);
                connections.spawn(async move { drop(connection.await) });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn answer(
    shared: Arc<ProxyState>,
    request: Request<Incoming>,
) -> Result<Response<Body>, BoxError> {
    let mut guard = RequestGuard::new(&shared, &request);
    let path = request.uri().path().to_owned();
    let fault = shared.faults.borrow().of(&path).cloned();
    if fault == Some(Fault::Hang) {
        guard.wait_fault_cleared(&path).await;
    }
    let response = match fault {
        Some(Fault::Answer {
            status,
            content_type,
            body,
        }) => response(status, content_type, body),
        _ if !allowed(&shared, &path, user(&request).as_deref()) => {
            let body = r#"{"errors":[{"code":"DENIED","message":"requested access is denied"}]}"#;
            response(403, "application/json", body.into())
        }
        fault => {
            let mut response = forward(shared.registry, request).await?;
            if let Some(Fault::ContentType(kind)) = fault {
                let kind = HeaderValue::from_static(kind);
                response.headers_mut().insert(CONTENT_TYPE, kind);
            }
            guard.outcome = Outcome::Answered(response.status().as_u16());
            return Ok(response.map(|body| faulty_body(body, fault, path, guard)));
        }
    };
    guard.outcome = Outcome::Answered(response.status().as_u16());
    Ok(response)
}

fn response(status: u16, content_type: &'static str, body: Bytes) -> Response<Body> {
    let body = Full::new(body).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let kind = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Forwards a request to the registry.
async fn forward(
    registry: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Incoming>, BoxError> {
    let stream = TokioIo::new(TcpStream::connect(registry).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

/// The body of an answer on its way to the client.
struct FaultyBody {
    from: Incoming,
    rest: Bytes,
    passed: usize,
    fault: Option<Fault>,
    path: String,
    guard: RequestGuard,
}

fn faulty_body(from: Incoming, fault: Option<Fault>, path: String, guard: RequestGuard) -> Body {
    let passage = FaultyBody {
        from,
        rest: Bytes::new(),
        passed: 0,
        fault,
        path,
        guard,
    };
    let chunks = futures::stream::try_unfold(passage, |mut passage| async move {
        let chunk = passage.next().await?;
        Ok::<_, BoxError>(chunk.map(|chunk| (Frame::data(chunk), passage)))
    });
    StreamBody::new(chunks).boxed_unsync()
}

impl FaultyBody {
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        while self.rest.is_empty() {
            match self.from.frame().await.transpose()? {
                Some(frame) => self.rest = frame.into_data().unwrap_or_default(),
                None => return Ok(None),
            }
        }
        let ahead = |at: usize| at.saturating_sub(self.passed).min(self.rest.len());
        let length = match self.fault {
            Some(Fault::StallAt(at)) if self.passed >= at => {
                let status = std::mem::replace(&mut self.guard.outcome, Outcome::Abandoned);
                self.guard.wait_fault_cleared(&self.path).await;
                self.guard.outcome = status;
                self.fault = None;
                self.rest.len()
            }
            Some(Fault::CutAt(at)) if self.passed >= at => return Err("cut".into()),
            Some(Fault::StallAt(at) | Fault::CutAt(at)) => ahead(at),
            _ => self.rest.len(),
        };
        let mut chunk = self.rest.split_to(length);
        if let Some(Fault::CorruptAt(at)) = self.fault
            && (self.passed..self.passed + length).contains(&at)
        {
            let mut bytes = chunk.to_vec();
            bytes[at - self.passed] ^= 0xff;
            chunk = bytes.into();
        }
        self.passed += length;
        Ok(Some(chunk))
    }
}

/// The account in a request's `Authorization` header.
fn user(request: &Request<Incoming>) -> Option<String> {
    let header = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let login = BASE64.decode(header.strip_prefix("Basic ")?).ok()?;
    let login = String::from_utf8(login).ok()?;
    Some(login.split(':').next()?.to_owned())
}

fn allowed(shared: &ProxyState, path: &str, user: Option<&str>) -> bool {
    let Some(name) = repository(path).0 else {
        return true;
    };
    let owners = lock(&shared.owners);
    let covering = owners
        .iter()
        .filter(|(under, _)| has_path_prefix(name, under));
    let owner = covering.max_by_key(|(under, _)| under.len());
    owner.is_none_or(|(_, owner)| user == Some(owner))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
