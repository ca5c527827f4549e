//! Actor that exports the metrics of a node.

use std::{net::SocketAddr, time::Duration};

use jaco_supervision::{Context, Failure, Reply, Worker};

use super::{Metrics, server};
use crate::log_dedup::LogDedup;

/// Interval of sweeps; a series is dropped at the second sweep after its object was removed.
const SWEEP: Duration = Duration::from_secs(60);
/// Delay between attempts to bind.
const BIND_RETRY: Duration = Duration::from_secs(30);

/// Arguments of a [`TelemetryActor`].
#[derive(Clone, Debug)]
pub struct TelemetryArgs {
    /// Metrics to export.
    pub metrics: Metrics,
    /// Listener address; `None` disables the listener.
    pub addr: Option<SocketAddr>,
}

/// Messages of a [`TelemetryActor`].
#[derive(Debug)]
pub enum Msg {
    /// Drop the series of removed objects.
    Sweep,
    /// Bind the listener.
    Bind,
    /// Requests the address of the listener.
    ListenAddr(Reply<Option<SocketAddr>>),
}

/// Owns the metrics listener and drops the series of removed objects.
pub struct TelemetryActor {
    args: TelemetryArgs,
    listening: Option<SocketAddr>,
    bind_errors: LogDedup,
}

impl Worker for TelemetryActor {
    type Msg = Msg;
    type Args = TelemetryArgs;
    const KIND: &'static str = "TelemetryActor";

    async fn start(ctx: &Context<Self>, args: TelemetryArgs) -> Result<Self, Failure> {
        ctx.send_after(SWEEP, Msg::Sweep);
        ctx.send_to_self(Msg::Bind);
        Ok(Self {
            args,
            listening: None,
            bind_errors: LogDedup::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Sweep => {
                if let Some(state) = self.args.metrics.state() {
                    self.args.metrics.sweep(&state);
                }
                ctx.send_after(SWEEP, Msg::Sweep);
            }
            Msg::Bind => self.bind(ctx),
            Msg::ListenAddr(reply) => reply.send(self.listening),
        }
        Ok(())
    }
}

impl TelemetryActor {
    /// Binds the listener; retries a failure, because metrics must not fail the node.
    fn bind(&mut self, ctx: &Context<Self>) {
        let Some(addr) = self.args.addr else {
            return;
        };
        let bound = server::bind(addr).and_then(|listener| {
            let addr = listener.local_addr()?;
            Ok((listener, addr))
        });
        match bound {
            Ok((listener, addr)) => {
                tracing::info!(subsystem = "jacod", address = %addr, "metrics are served");
                self.listening = Some(addr);
                let metrics = self.args.metrics.clone();
                ctx.spawn(async move { match server::serve(listener, metrics).await {} });
            }
            Err(error) => {
                if self.bind_errors.is_new(&error) {
                    tracing::error!(subsystem = "jacod", address = %addr, %error, "failed to bind metrics_addr");
                }
                ctx.send_after(BIND_RETRY, Msg::Bind);
            }
        }
    }
}
