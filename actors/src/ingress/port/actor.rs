//! Keeps one published port open while a replica can serve it.

use std::time::Duration;

use jaco_net::l4::Ports;
use jaco_policy::ingress::ports::PortKey;
use jaco_supervision::{Context, Failure, TaskHandle, Worker};
use tokio::sync::watch;

use super::{PortTable, backends, port_of};
use crate::log_dedup::LogDedup;

/// Delay between attempts to bind the port.
const BIND_RETRY: Duration = Duration::from_secs(30);

/// Arguments of a [`PortActor`].
#[derive(Clone, Debug)]
pub struct PortArgs {
    /// The port.
    pub key: PortKey,
    /// Ports to serve; this actor reads its own.
    pub table: watch::Receiver<PortTable>,
    /// Data plane of the node, which keeps the port open when the actor dies.
    pub ports: Ports,
}

/// Messages of a [`PortActor`].
#[derive(Debug)]
pub enum Msg {
    /// The upstreams of the port changed.
    Changed,
    /// The bind retry is due.
    Bind,
    /// The listener closed.
    Closed,
}

/// Owns the listener of one published port.
///
/// The listener and its connections live in the data plane, so they survive the death of the actor;
/// the next instance adopts them. An orderly stop closes the port and leaves its TCP connections.
pub struct PortActor {
    args: PortArgs,
    /// Retry of a bind that failed.
    retry: Option<TaskHandle>,
    /// Watches the listener that is open.
    listener: Option<TaskHandle>,
    bind_errors: LogDedup,
}

impl Worker for PortActor {
    type Msg = Msg;
    type Args = PortArgs;
    const KIND: &'static str = "PortActor";

    async fn start(ctx: &Context<Self>, args: PortArgs) -> Result<Self, Failure> {
        let mut table = args.table.clone();
        let seen = table.borrow_and_update().clone();
        let key = args.key;
        let mut actor = Self {
            args,
            retry: None,
            listener: None,
            bind_errors: LogDedup::default(),
        };
        actor.apply(ctx).await;
        let differs = move |seen: &PortTable, next: &PortTable| seen.get(&key) != next.get(&key);
        ctx.watch_if(table, seen, differs, |_| Msg::Changed);
        Ok(actor)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Changed => self.apply(ctx).await,
            Msg::Bind => {
                self.retry = None;
                self.apply(ctx).await;
            }
            Msg::Closed => {
                self.listener = None;
                self.apply(ctx).await;
            }
        }
        Ok(())
    }

    async fn stop(&mut self, _ctx: &Context<Self>) {
        self.args.ports.close(port_of(self.args.key));
    }
}

impl PortActor {
    /// Opens the port with the upstreams of the table, or closes it without any.
    async fn apply(&mut self, ctx: &Context<Self>) {
        let (key, port) = (self.args.key, port_of(self.args.key));
        let served = self.args.table.borrow().get(&key).map(backends);
        let Some(backends) = served else {
            if let Some(retry) = self.retry.take() {
                retry.abort();
            }
            self.bind_errors.clear();
            if self.args.ports.close(port) {
                tracing::info!(subsystem = "ingress", port = %key, "published port closed: no replica serves it");
            }
            return;
        };
        // A change of the upstreams does not make the port free any sooner.
        if self.retry.is_some() {
            return;
        }
        let was_open = self.args.ports.local_addr(port).is_some();
        match self.args.ports.open(port, backends).await {
            Ok(_) => {
                self.bind_errors.clear();
                if !was_open {
                    tracing::info!(subsystem = "ingress", port = %key, "published port listens");
                }
                if self.listener.is_none() || !was_open {
                    self.watch_listener(ctx);
                }
            }
            Err(error) => {
                if self.bind_errors.is_new(&error) {
                    tracing::error!(subsystem = "ingress", port = %key, %error, "failed to bind a published port");
                }
                self.retry = Some(ctx.send_after(BIND_RETRY, Msg::Bind));
            }
        }
    }

    fn watch_listener(&mut self, ctx: &Context<Self>) {
        if let Some(earlier) = self.listener.take() {
            earlier.abort();
        }
        let (ports, port) = (self.args.ports.clone(), port_of(self.args.key));
        self.listener = Some(ctx.spawn(async move {
            ports.closed(port).await;
            Msg::Closed
        }));
    }
}
