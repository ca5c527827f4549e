//! The sockets of one bridge's responder.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use jaco_engine::cidr::Cidr;
use jaco_net::dns::{Limits, Server};
use jaco_policy::network::{dns::admission::PER_DEPLOYMENT, names::NetworkId};
use jaco_supervision::{Context, Failure, Worker};
use tracing::{info, warn};

use super::{
    directory::Directory,
    names::{Names, NetworkNames},
};
use crate::log_dedup::LogDedup;

/// First and longest delay between two attempts to bind.
const RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// Limits of one responder. Pending answers are limited by client and deployment before.
const LIMITS: Limits = Limits {
    pending: PER_DEPLOYMENT,
    connections: 64,
    connections_per_client: 16,
    idle: Duration::from_secs(10),
};

/// Arguments of a [`ResponderActor`].
#[derive(Clone)]
pub(super) struct Args {
    pub(super) network: NetworkId,
    pub(super) block: Cidr,
    pub(super) port: u16,
    pub(super) names: Arc<Names>,
    pub(super) directory: Directory,
}

impl Args {
    fn address(&self) -> SocketAddr {
        (self.block.gateway(), self.port).into()
    }
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
            Msg::Bind => match Server::bind(self.args.address()).await {
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
        let Args { network, names, .. } = &self.args;
        let address = self.args.address();
        info!(subsystem = "dns", %network, %address, "responder listens");
        self.errors.clear();
        self.delay = RETRY;
        let handler = Arc::new(NetworkNames::new(
            Arc::clone(names),
            network.clone(),
            self.args.block,
        ));
        let listens = self.args.directory.listens(address);
        ctx.spawn(async move {
            let closed = server.serve(handler, LIMITS).await;
            drop(listens);
            Msg::Closed(closed)
        });
    }

    fn retry(&mut self, ctx: &Context<Self>, event: &str, error: &io::Error) {
        let (network, address) = (&self.args.network, self.args.address());
        if self.errors.is_new(error) {
            warn!(subsystem = "dns", %network, %address, %error, "{event}");
        }
        ctx.send_after(self.delay, Msg::Bind);
        self.delay = (self.delay * 2).min(LONGEST_RETRY);
    }
}
