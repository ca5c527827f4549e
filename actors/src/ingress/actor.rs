//! Keeps the route table and the listeners of the data plane up to date with the state.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jaco_net::ingress::{ListenSockets, Proxy, Scheme};
use jaco_policy::{
    debounce::{Action, Debounce},
    network::readiness::MeshStatus,
};
use jaco_raftnode::{State, StateReader};
use jaco_supervision::{Context, Failure, Reply, Worker};
use tokio::{sync::watch, time::Instant};

use super::table::{NodeFacts, route_table, same_input};
use crate::{health::Hosts, log_dedup::LogDedup};

/// Debounce time after the last change.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Longest delay of a table update by further changes.
const MAX_DEBOUNCE: Duration = Duration::from_secs(1);
/// Delay between attempts to bind the port.
const BIND_RETRY: Duration = Duration::from_secs(30);
/// Time for requests in flight when the node stops; shorter than a worker's shutdown timeout.
const DRAIN: Duration = Duration::from_secs(4);

/// Arguments of a [`ProxyActor`]; clones share the data plane.
#[derive(Clone)]
pub struct ProxyArgs {
    state: Arc<dyn StateReader>,
    facts: NodeFacts,
    fresh: watch::Receiver<Hosts>,
    mesh: Option<watch::Receiver<MeshStatus>>,
    ports: Vec<(Scheme, u16)>,
    proxy: Proxy,
    /// Whether there ever was a route; from then on the ports stay open for the lifetime of the
    /// node.
    opened: Arc<AtomicBool>,
}

impl ProxyArgs {
    /// Creates arguments for the data plane `proxy` of a node that listens on `http_port` of all
    /// addresses; port 0 lets the system choose. Only replicas of this host and of the hosts in
    /// `fresh` serve.
    #[must_use]
    pub fn new(
        state: Arc<dyn StateReader>,
        facts: NodeFacts,
        fresh: watch::Receiver<Hosts>,
        http_port: u16,
        proxy: Proxy,
    ) -> Self {
        let opened = Arc::new(AtomicBool::new(false));
        Self {
            state,
            facts,
            fresh,
            mesh: None,
            ports: vec![(Scheme::Http, http_port)],
            proxy,
            opened,
        }
    }

    /// Serves TLS as well, on `port` of all addresses.
    #[must_use]
    pub fn with_https(mut self, port: u16) -> Self {
        self.ports.push((Scheme::Https, port));
        self
    }

    /// Serves replicas of other hosts while the mesh is up.
    #[must_use]
    pub fn with_mesh(mut self, status: watch::Receiver<MeshStatus>) -> Self {
        self.mesh = Some(status);
        self
    }
}

impl fmt::Debug for ProxyArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyArgs")
            .field("facts", &self.facts)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

/// Messages of a [`ProxyActor`].
#[derive(Debug)]
pub enum Msg {
    /// The state changed.
    Changed(Arc<State>),
    /// The set of fresh hosts changed, or the mesh went up or down.
    Fresh,
    /// The debounce deadline passed.
    DebounceElapsed,
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
    /// Newest state processed.
    seen: Arc<State>,
    debounce: Debounce,
    /// Whether the last attempt to bind failed and a retry is scheduled.
    retrying: bool,
    ports: Vec<Port>,
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
        let mut states = args.state.follow();
        let seen = states.borrow_and_update().clone();
        let mut fresh = args.fresh.clone();
        fresh.mark_unchanged();
        let port = |&(scheme, number): &(Scheme, u16)| Port {
            scheme,
            number,
            errors: LogDedup::default(),
        };
        let mut actor = Self {
            ports: args.ports.iter().map(port).collect(),
            args,
            seen,
            debounce: Debounce::new(DEBOUNCE, MAX_DEBOUNCE),
            retrying: false,
        };
        actor.publish();
        actor.open(ctx);
        ctx.watch(states, Msg::Changed);
        ctx.watch(fresh, |_| Msg::Fresh);
        if let Some(mut mesh) = actor.args.mesh.clone() {
            mesh.mark_unchanged();
            ctx.watch(mesh, |_| Msg::Fresh);
        }
        Ok(actor)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Changed(newest) => {
                let before = std::mem::replace(&mut self.seen, newest);
                if !same_input(&before, &self.seen) {
                    self.debounce.handle_change(Instant::now().into_std());
                    self.drive(ctx);
                }
            }
            Msg::Fresh => {
                self.debounce.handle_change(Instant::now().into_std());
                self.drive(ctx);
            }
            Msg::DebounceElapsed => {
                self.debounce.handle_timeout(Instant::now().into_std());
                self.drive(ctx);
            }
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
    /// Runs the debouncer's actions, then sets the deadline.
    fn drive(&mut self, ctx: &Context<Self>) {
        while let Some(action) = self.debounce.poll_action() {
            match action {
                Action::Run => {
                    self.publish();
                    self.open(ctx);
                }
            }
        }
        let due = self.debounce.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(due, Msg::DebounceElapsed);
    }

    /// Installs the table of the current state in the proxy.
    fn publish(&self) {
        let fresh = self.args.fresh.borrow().clone();
        let mut facts = self.args.facts.clone();
        if let Some(mesh) = &self.args.mesh {
            facts.mesh = *mesh.borrow() == MeshStatus::Up;
        }
        let table = route_table(&self.seen, &facts, &fresh);
        if !table.is_empty() {
            self.args.opened.store(true, Ordering::Relaxed);
        }
        if self.args.proxy.swap(table) {
            tracing::debug!(
                subsystem = "ingress",
                index = self.seen.applied_index,
                "route table swapped"
            );
        }
    }

    /// Opens the listeners that are not open, unless there has never been a route.
    fn open(&mut self, ctx: &Context<Self>) {
        if !self.args.opened.load(Ordering::Relaxed) || self.retrying {
            return;
        }
        let proxy = &self.args.proxy;
        for port in &mut self.ports {
            if proxy.listening(port.scheme).is_some() {
                continue;
            }
            match port.bind(proxy) {
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
        if self.retrying {
            ctx.send_after(BIND_RETRY, Msg::Bind);
        }
    }
}

impl Port {
    fn bind(&self, proxy: &Proxy) -> io::Result<SocketAddr> {
        let sockets = ListenSockets::bind_all(self.number, proxy.workers())?;
        let addr = sockets.local_addr();
        proxy.listen(self.scheme, sockets)?;
        Ok(addr)
    }
}

#[cfg(test)]
mod tests;
