//! Keeps the route table and the listeners of the data plane up to date with the state.

use std::{
    collections::BTreeSet,
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jaco_net::{
    handover::Inherited,
    ingress::{AffinityKey, DatagramSockets, ListenSockets, Proxy, Scheme},
    secrets::SecretsKey,
};
use jaco_policy::ingress::table::{NodeFacts, is_settled, opens_ingress};
use jaco_raftnode::State;
use jaco_supervision::{Context, Failure, Reply, Worker};
use tokio::{sync::watch, time::Instant};

use super::{
    table::{route_table, same_input},
    view::{Event, ServingInput, View},
};
use crate::{log_dedup::LogDedup, serving::Installed};

/// Use of the secrets key that the key of sticky sessions is derived for.
const AFFINITY_LABEL: &str = "affinity/v1";
/// Delay between attempts to bind the port.
const BIND_RETRY: Duration = Duration::from_secs(30);
/// Time for requests in flight when the node stops; shorter than a worker's shutdown timeout.
pub(crate) const DRAIN: Duration = Duration::from_secs(4);

/// Longest time for which requests wait in the queues of inherited sockets: a few heartbeats, and
/// the handshakes of the mesh.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Arguments of a [`ProxyActor`]; clones share the data plane.
#[derive(Clone)]
pub struct ProxyArgs {
    input: ServingInput,
    installed: Installed,
    secrets_key: Option<watch::Receiver<Option<Arc<SecretsKey>>>>,
    ports: Vec<(Scheme, u16)>,
    proxy: Proxy,
    inherited: Inherited,
    /// Whether there ever was a route or a published TCP port; from then on the ports stay open for
    /// the lifetime of the node.
    opened: Arc<AtomicBool>,
}

impl ProxyArgs {
    /// Creates arguments for the data plane `proxy` of a node that listens on `http_port` of all
    /// addresses; port 0 lets the system choose. `installed` records the states of its tables.
    #[must_use]
    pub fn new(input: ServingInput, installed: Installed, http_port: u16, proxy: Proxy) -> Self {
        let opened = Arc::new(AtomicBool::new(false));
        Self {
            input,
            installed,
            secrets_key: None,
            ports: vec![(Scheme::Http, http_port)],
            proxy,
            inherited: Inherited::default(),
            opened,
        }
    }

    /// Listens on the sockets that an earlier process left. They are not accepted on before every
    /// route has a replica again that may have one, or ten seconds have passed.
    #[must_use]
    pub fn with_inherited(mut self, sockets: Inherited) -> Self {
        self.inherited = sockets;
        self
    }

    /// Serves TLS as well, on `port` of all addresses, and HTTP/3 on the UDP port of that number.
    #[must_use]
    pub fn with_https(mut self, port: u16) -> Self {
        self.ports.push((Scheme::Https, port));
        self
    }

    /// Keeps clients on their replicas with cookies under a key derived from the cluster's secrets
    /// key; while there is none, each request gets a random replica.
    #[must_use]
    pub fn with_secrets_key(mut self, key: watch::Receiver<Option<Arc<SecretsKey>>>) -> Self {
        self.secrets_key = Some(key);
        self
    }
}

impl fmt::Debug for ProxyArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyArgs")
            .field("input", &self.input)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

/// Messages of a [`ProxyActor`].
#[derive(Debug)]
pub enum Msg {
    /// The state or the reachable hosts changed.
    Changed(Event),
    /// The cluster's secrets key changed.
    SecretsKey,
    /// The listeners are due: the instance has started, or inherited sockets wait no longer for the
    /// routes.
    Open,
    /// The bind retry is due.
    Bind,
    /// Requests the address of a listener.
    ListenAddr(Scheme, Reply<Option<SocketAddr>>),
}

/// Decides on the route table and the listeners of one node.
///
/// The data plane lives in the actor's arguments and owns both: when the actor dies, it keeps
/// accepting and serving with the last table until the next instance replaces it. Only an orderly
/// stop closes the listeners.
pub struct ProxyActor {
    args: ProxyArgs,
    view: View<Self>,
    /// Time at which inherited sockets are served even if routes lack replicas.
    settles_by: Option<Instant>,
    /// Whether the last attempt to bind failed and a retry is scheduled.
    retrying: bool,
    ports: Vec<Port>,
    /// Errors of binding the UDP port of HTTP/3.
    http3_errors: LogDedup,
}

/// A port to listen on.
struct Port {
    scheme: Scheme,
    number: u16,
    errors: LogDedup,
}

impl Worker for ProxyActor {
    type Msg = Msg;
    type Args = ProxyArgs;
    const KIND: &'static str = "ProxyActor";

    async fn start(ctx: &Context<Self>, args: ProxyArgs) -> Result<Self, Failure> {
        let installed = args.installed.clone();
        let view = View::follow(ctx, args.input.clone(), same_input, installed, Msg::Changed);
        let port = |&(scheme, number): &(Scheme, u16)| Port {
            scheme,
            number,
            errors: LogDedup::default(),
        };
        let actor = Self {
            ports: args.ports.iter().map(port).collect(),
            args,
            view,
            settles_by: None,
            retrying: false,
            http3_errors: LogDedup::default(),
        };
        actor.publish();
        // Not here: a starting instance is killed when the node stops, and drains nothing.
        ctx.send_to_self(Msg::Open);
        if let Some(mut key) = actor.args.secrets_key.clone() {
            key.mark_unchanged();
            ctx.watch(key, |_| Msg::SecretsKey);
        }
        Ok(actor)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Changed(event) => {
                if self.view.handle(ctx, event) {
                    self.publish();
                    self.open(ctx);
                }
            }
            Msg::SecretsKey => self.publish(),
            Msg::Open => self.open(ctx),
            Msg::Bind => {
                self.retrying = false;
                self.open(ctx);
            }
            Msg::ListenAddr(scheme, reply) => reply.send(self.args.proxy.listening(scheme)),
        }
        Ok(())
    }

    async fn stop(&mut self, _ctx: &Context<Self>) {
        self.args.proxy.drain(DRAIN).await;
    }
}

impl ProxyActor {
    /// Installs the table of the current state in the proxy.
    fn publish(&self) {
        let key = self.args.secrets_key.as_ref();
        let key = key.and_then(|key| key.borrow().clone());
        let key = key.map(|key| AffinityKey::new(key.derive(AFFINITY_LABEL)));
        let derive = |state: &State, facts: &NodeFacts, fresh: &BTreeSet<String>| {
            route_table(state, facts, fresh, key.as_ref())
        };
        if opens_ingress(self.view.state()) {
            self.args.opened.store(true, Ordering::Relaxed);
        }
        self.view.install(derive, |table| {
            if self.args.proxy.swap(table) {
                let index = self.view.state().applied_index;
                tracing::debug!(subsystem = "ingress", index, "route table swapped");
            }
        });
    }

    /// Whether requests in the queues of inherited sockets have to wait. They would be refused
    /// because the node does not know yet which other hosts it reaches, though the process before it
    /// served them.
    fn awaits_routes(&mut self, ctx: &Context<Self>) -> bool {
        let inherited = self.args.inherited.names();
        let waits =
            |(scheme, _): &(Scheme, u16)| inherited.iter().any(|name| name == scheme.socket_name());
        if !self.args.ports.iter().any(waits) {
            return false;
        }
        let settled = self.view.derive(is_settled);
        let now = Instant::now();
        let until = *self.settles_by.get_or_insert_with(|| {
            ctx.send_after(SETTLE_TIMEOUT, Msg::Open);
            now + SETTLE_TIMEOUT
        });
        !settled && now < until
    }

    /// Opens the listeners that are not open, unless there has never been a route or a published TCP
    /// port.
    fn open(&mut self, ctx: &Context<Self>) {
        if !self.args.opened.load(Ordering::Relaxed) || self.retrying || self.awaits_routes(ctx) {
            return;
        }
        let proxy = &self.args.proxy;
        for port in &mut self.ports {
            if proxy.listening(port.scheme).is_some() {
                continue;
            }
            match port.bind(proxy, &self.args.inherited) {
                Ok(addr) => {
                    tracing::info!(subsystem = "ingress", %addr, "ingress listens");
                    port.errors.clear();
                }
                Err(why) => {
                    if port.errors.is_new(&why) {
                        tracing::error!(subsystem = "ingress", port = port.number, error = %why, "failed to bind the ingress port");
                    }
                    self.retrying = true;
                }
            }
        }
        self.open_http3();
        if self.retrying {
            ctx.send_after(BIND_RETRY, Msg::Bind);
        }
    }

    /// Serves HTTP/3 once TLS is served.
    fn open_http3(&mut self) {
        let proxy = &self.args.proxy;
        let Some(tls) = proxy.listening(Scheme::Https) else {
            return;
        };
        if proxy.listening_http3().is_some() {
            return;
        }
        let inherited = &self.args.inherited;
        let listening = inherited.adopt(|| {
            let bound = DatagramSockets::open(inherited, tls.port(), proxy.workers());
            bound.and_then(|sockets| proxy.listen_http3(sockets))
        });
        match listening {
            Ok(()) => {
                tracing::info!(subsystem = "ingress", port = tls.port(), "HTTP/3 is served");
                self.http3_errors.clear();
            }
            Err(why) => {
                if self.http3_errors.is_new(&why) {
                    tracing::error!(subsystem = "ingress", port = tls.port(), error = %why, "failed to bind the UDP port of HTTP/3");
                }
                self.retrying = true;
            }
        }
    }
}

impl Port {
    fn bind(&self, proxy: &Proxy, inherited: &Inherited) -> io::Result<SocketAddr> {
        inherited.adopt(|| {
            let name = self.scheme.socket_name();
            let sockets = ListenSockets::open(inherited, name, self.number, proxy.workers())?;
            let addr = sockets.local_addr();
            proxy.listen(self.scheme, sockets)?;
            Ok(addr)
        })
    }
}

#[cfg(test)]
mod tests;
