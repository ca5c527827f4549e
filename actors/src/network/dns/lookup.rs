//! Addresses of upstream servers that are configured by name.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use jaco_supervision::{Context, Failure, Worker};
use tracing::warn;

use super::upstream::Upstream;
use crate::log_dedup::LogDedup;

/// Time after which the names are resolved again.
const REFRESH: Duration = Duration::from_secs(60);
/// The same, if one could not be resolved.
const RETRY: Duration = Duration::from_secs(5);

/// Resolves the names at the start and from time to time, so that no question waits for it. The
/// addresses of a name that cannot be resolved any more stay in use.
pub(super) struct UpstreamLookup {
    upstreams: Arc<[Upstream]>,
    errors: LogDedup,
}

/// Messages of an [`UpstreamLookup`].
pub(super) enum Msg {
    /// The names are to be resolved.
    Resolve,
    /// All have been tried; names of those that failed.
    Resolved(Vec<String>),
}

impl Worker for UpstreamLookup {
    type Msg = Msg;
    type Args = Arc<[Upstream]>;
    const KIND: &'static str = "UpstreamLookup";

    async fn start(ctx: &Context<Self>, upstreams: Self::Args) -> Result<Self, Failure> {
        ctx.send_to_self(Msg::Resolve);
        Ok(Self {
            upstreams,
            errors: LogDedup::default(),
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Resolve => {
                let upstreams = Arc::clone(&self.upstreams);
                ctx.spawn(async move {
                    let failed = join_all(upstreams.iter().map(resolve)).await;
                    Msg::Resolved(failed.into_iter().flatten().collect())
                });
            }
            Msg::Resolved(failed) if failed.is_empty() => {
                self.errors.clear();
                ctx.send_after(REFRESH, Msg::Resolve);
            }
            Msg::Resolved(failed) => {
                let failed = failed.join("; ");
                if self.errors.is_new(&failed) {
                    warn!(
                        subsystem = "dns.forwarder",
                        failed, "upstream server not resolved"
                    );
                }
                ctx.send_after(RETRY, Msg::Resolve);
            }
        }
        Ok(())
    }
}

/// Resolves the name of a server, if it has one; returns the failure.
async fn resolve(upstream: &Upstream) -> Option<String> {
    let server = upstream.named()?;
    let found = tokio::net::lookup_host((server.host.as_str(), server.port)).await;
    let found = found.and_then(|found| {
        let mut found: Vec<SocketAddr> = found.collect();
        // Hosts of a cluster have IPv4 addresses, but not necessarily others.
        found.sort_by_key(SocketAddr::is_ipv6);
        let none = || io::Error::other("no address");
        (!found.is_empty()).then_some(found).ok_or_else(none)
    });
    match found {
        Ok(addresses) => {
            upstream.set_addresses(addresses.into());
            None
        }
        Err(error) => Some(format!("{upstream}: {error}")),
    }
}
