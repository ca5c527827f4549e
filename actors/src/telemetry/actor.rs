//! The actor that shows the metrics of a node.

use std::{net::SocketAddr, time::Duration};

use jaco_supervision::{Context, Failure, Reply, Worker};

use super::{Metrics, server};
use crate::repeat::Repeats;

/// Time between looks for series whose objects are gone; they go at the second one.
const SWEEP: Duration = Duration::from_secs(60);
/// Time between attempts to bind.
const BIND_RETRY: Duration = Duration::from_secs(30);

/// What a [`TelemetryActor`] starts from.
#[derive(Clone, Debug)]
pub struct TelemetryArgs {
    /// What is shown.
    pub metrics: Metrics,
    /// Where; `None` to serve nobody.
    pub addr: Option<SocketAddr>,
}

/// What a [`TelemetryActor`] is told.
#[derive(Debug)]
pub enum Msg {
    /// It is time to forget series.
    Sweep,
    /// It is time to bind.
    Bind,
    /// Where does it listen?
    Listening(Reply<Option<SocketAddr>>),
}

/// Owns the listener of the metrics, and forgets series whose objects are gone.
pub struct TelemetryActor {
    args: TelemetryArgs,
    listening: Option<SocketAddr>,
    refusals: Repeats,
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
            refusals: Repeats::default(),
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
            Msg::Listening(reply) => reply.send(self.listening),
        }
        Ok(())
    }
}

impl TelemetryActor {
    /// Metrics are no reason for a node to fail, so a port that is taken is tried again.
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
                if self.refusals.is_news(&error) {
                    tracing::error!(subsystem = "jacod", address = %addr, %error, "failed to bind metrics_addr");
                }
                ctx.send_after(BIND_RETRY, Msg::Bind);
            }
        }
    }
}
