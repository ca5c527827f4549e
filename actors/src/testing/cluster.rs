//! Several members in one process: one log in memory, and calls that are function calls.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::{Duration, UNIX_EPOCH},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, Request, Response};
use jaco_net::pki::Fingerprint;
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::{
    State, Storage, command, storage,
    testing::{MemoryGroup, MemoryRaft},
};
use prost_types::Timestamp;
use ractor::ActorCell;
use tonic::body::Body;
use tower::{Service, ServiceExt as _};

use super::Lab;
use crate::{
    api::{
        self, ApiContext,
        admission::{self, Transport},
    },
    clock::Clock,
    node::NodeContext,
    peer::{CallError, Link, Peers, Sender},
};

/// Members `n1`, `n2` and so on, of which the first leads.
///
/// The state holds an operator `ci` with the token `secret`, and a deployment `app`.
pub(crate) struct Cluster {
    pub(crate) group: MemoryGroup,
    pub(crate) network: Arc<TestTransport>,
    apis: Vec<Arc<ApiContext>>,
    _actors: Vec<ActorCell>,
    _dir: tempfile::TempDir,
}

/// Transport between members, with fault injection.
#[derive(Default)]
pub(crate) struct TestTransport {
    apis: Mutex<Vec<Weak<ApiContext>>>,
    faults: Mutex<VecDeque<Fault>>,
    calls: Mutex<Vec<RecordedCall>>,
}

/// Fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not sent.
    NotSent,
    /// Served, but the answer is lost.
    Lose,
    /// Never arrives, and gets no answer.
    Hang,
    /// Served, but the answer ends before its status.
    Break,
}

/// A call that a member made.
#[derive(Clone, Debug)]
pub(crate) struct RecordedCall {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) method: String,
    pub(crate) headers: HeaderMap,
}

/// Member `raft_id`, with the certificate in the state.
fn member(raft_id: u64) -> Sender {
    let print = Fingerprint::from_bytes([u8::try_from(raft_id).unwrap(); 32]);
    Sender::new(&format!("n{raft_id}"), raft_id, [print])
}

impl Cluster {
    pub(crate) async fn start(size: usize) -> Self {
        let hosts: Vec<String> = (1..=size).map(|n| format!("n{n}")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let raft = MemoryRaft::with_ready_nodes(&hosts);
        for payload in [
            Payload::TokenIssue(v1::TokenIssue {
                identity: "ci".to_owned(),
                hashed_secret: admission::hash(b"secret").to_vec(),
                allows_privileged: false,
            }),
            Payload::DeploymentApply(v1::DeploymentApply {
                deployment: "app".to_owned(),
                revision: 1,
                services: vec![v1::ServiceSpec {
                    name: "web".to_owned(),
                    ..Default::default()
                }],
                ..Default::default()
            }),
        ] {
            let command = command("bootstrap", Timestamp::default(), payload);
            raft.apply(command).unwrap();
        }
        let state = State::clone(&jaco_raftnode::StateReader::state(&raft));
        let (group, actors) = MemoryGroup::start(state, size).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        storage::bootstrap(dir.path(), 1, &[1]).unwrap();
        let storage = Storage::open(dir.path()).unwrap();
        let clock = Clock::from_fn(|| UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let lab = Lab::new(clock).unwrap();
        let network = Arc::new(TestTransport::default());
        let apis: Vec<Arc<ApiContext>> = (1..)
            .zip(&hosts)
            .map(|(raft_id, host)| {
                let api = lab.uninitialized();
                let link = FakeLink {
                    sender: member(raft_id),
                    network: network.clone(),
                };
                let peers = Peers::new(Arc::new(link));
                api.become_member(host, group.handle(raft_id), storage.clone(), peers);
                api.context
            })
            .collect();
        *network.apis.lock().unwrap() = apis.iter().map(Arc::downgrade).collect();
        Self {
            group,
            network,
            apis,
            _actors: actors,
            _dir: dir,
        }
    }

    pub(crate) fn node(&self, id: u64) -> Arc<NodeContext> {
        self.api(id).node().clone()
    }

    fn api(&self, id: u64) -> Arc<ApiContext> {
        self.apis[usize::try_from(id - 1).unwrap()].clone()
    }

    /// Returns the API of member `id` on `transport`.
    pub(crate) fn member_api(&self, id: u64, transport: Transport) -> MemberApi {
        MemberApi {
            api: self.api(id),
            transport,
            sender: None,
        }
    }

    /// Returns the API of member `id` for calls of the member `sender`.
    pub(crate) fn peer_api(&self, id: u64, sender: u64) -> MemberApi {
        MemberApi {
            api: self.api(id),
            transport: Transport::Peer,
            sender: Some(member(sender)),
        }
    }

    /// Returns the newest state of member `id`.
    pub(crate) fn state(&self, id: u64) -> Arc<State> {
        jaco_raftnode::StateReader::state(&self.group.handle(id))
    }
}

impl TestTransport {
    /// Queues faults for the next calls, one each.
    pub(crate) fn faults(&self, faults: &[Fault]) {
        self.faults.lock().unwrap().extend(faults);
    }

    /// Returns the calls so far, failed ones included.
    pub(crate) fn calls(&self) -> Vec<RecordedCall> {
        self.calls.lock().unwrap().clone()
    }

    fn deliver(
        &self,
        sender: &Sender,
        host: &str,
        request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, CallError>> {
        self.calls.lock().unwrap().push(RecordedCall {
            from: sender.hostname.clone(),
            to: host.to_owned(),
            method: request.uri().path().to_owned(),
            headers: request.headers().clone(),
        });
        let fault = self
            .faults
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front();
        let place: Option<usize> = host.strip_prefix('n').and_then(|n| n.parse().ok());
        let api = place
            .and_then(|place| self.apis.lock().unwrap().get(place - 1).cloned())
            .and_then(|api| api.upgrade());
        let (sender, host) = (sender.clone(), host.to_owned());
        async move {
            let reason = String::from("fault");
            let Some(api) = api.filter(|_| fault != Some(Fault::NotSent)) else {
                return Err(CallError::NotSent { host, reason });
            };
            if fault == Some(Fault::Hang) {
                std::future::pending::<()>().await;
            }
            let member_api = MemberApi {
                api,
                transport: Transport::Peer,
                sender: Some(sender),
            };
            let response = member_api
                .oneshot(request)
                .await
                .unwrap_or_else(|e| match e {});
            match fault {
                Some(Fault::Lose) => Err(CallError::Unanswered { host, reason }),
                Some(Fault::Break) => {
                    let (head, _) = response.into_parts();
                    Ok(Response::from_parts(head, Body::empty()))
                }
                Some(Fault::NotSent | Fault::Hang) | None => Ok(response),
            }
        }
        .boxed()
    }
}

struct FakeLink {
    sender: Sender,
    network: Arc<TestTransport>,
}

impl Link for FakeLink {
    fn call(
        &self,
        host: &str,
        request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, CallError>> {
        self.network.deliver(&self.sender, host, request)
    }
}

/// The API of one member on one transport, for the generated clients.
#[derive(Clone)]
pub(crate) struct MemberApi {
    api: Arc<ApiContext>,
    transport: Transport,
    sender: Option<Sender>,
}

impl Service<Request<Body>> for MemberApi {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(sender) = &self.sender {
            request.extensions_mut().insert(sender.clone());
        }
        api::service(&self.api, self.transport)
            .oneshot(request)
            .boxed()
    }
}

/// A request with metadata.
pub(crate) fn with<T>(message: T, metadata: &[(&'static str, &str)]) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    for (name, value) in metadata {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    request
}
