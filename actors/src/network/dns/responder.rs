//! The sockets of one bridge's responder.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use jaco_net::dns::{Limits, Server};
use jaco_policy::network::names::NetworkId;
use jaco_supervision::{Context, Failure, Worker};
use tracing::{info, warn};

use super::names::{Names, NetworkNames};
use crate::log_dedup::LogDedup;

/// First and longest delay between two attempts to bind.
const RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// Limits of one responder. Containers of one network cannot use up the forwarder of the node.
const LIMITS: Limits = Limits {
    pending: 128,
    connections: 64,
    connections_per_client: 16,
    idle: Duration::from_secs(10),
};

/// Arguments of a [`ResponderActor`].
#[derive(Clone)]
pub(super) struct Args {
    pub(super) network: NetworkId,
    pub(super) address: SocketAddr,
    pub(super) names: Arc<Names>,
}

/// Messages of a [`ResponderActor`].
pub(super) enum Msg {
    /// An attempt to bind is due.
    Bind,
    /// A socket failed.
    Closed(io::Error),
}

/// Serves the names of one network at the gateway of its bridge.
///
/// Queries do not pass through its mailbox. The gateway may not exist yet, or be away while the
/// bridge is repaired, so binding is retried.
pub(super) struct ResponderActor {
    args: Args,
    delay: Duration,
    errors: LogDedup,
}

impl Worker for ResponderActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "ResponderActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        ctx.send_to_self(Msg::Bind);
        Ok(Self {
            args,
            delay: RETRY,
            errors: LogDedup::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Bind => match Server::bind(self.args.address).await {
                Ok(server) => self.serve(ctx, server),
                Err(error) => self.retry(ctx, "responder not bound", &error),
            },
            Msg::Closed(error) => self.retry(ctx, "responder closed", &error),
        }
        Ok(())
    }
}

impl ResponderActor {
    fn serve(&mut self, ctx: &Context<Self>, server: Server) {
        let Args {
            network,
            address,
            names,
        } = &self.args;
        info!(subsystem = "dns", %network, %address, "responder listens");
        self.errors.clear();
        self.delay = RETRY;
        let handler = Arc::new(NetworkNames::new(Arc::clone(names), network.clone()));
        ctx.spawn(async move { Msg::Closed(server.serve(handler, LIMITS).await) });
    }

    fn retry(&mut self, ctx: &Context<Self>, event: &str, error: &io::Error) {
        let Args {
            network, address, ..
        } = &self.args;
        if self.errors.is_new(error) {
            warn!(subsystem = "dns", %network, %address, %error, "{event}");
        }
        ctx.send_after(self.delay, Msg::Bind);
        self.delay = (self.delay * 2).min(LONGEST_RETRY);
    }
}
