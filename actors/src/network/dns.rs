//! Names of the containers: one responder per bridge, and what they share.
//!
//! [`jaco_policy::network::dns`] decides; [`jaco_net::dns`] has the sockets.
//!
//! - [`Directory`]: the responders that the bridges request.
//! - `records`: keeps the index of names up to date with the state.
//! - `manager`: one responder per requested address.
//! - `responder`: binds the sockets of one bridge.
//! - `names`: answers of all responders; reads the newest index, so no query waits for an actor.
//! - `forwarder`: asks upstream servers; its cache serves all networks.
//! - `lookup`: resolves the upstream servers that are configured by name.

mod directory;
mod forwarder;
mod lookup;
mod manager;
mod names;
mod records;
mod responder;
mod upstream;

use std::{path::PathBuf, sync::Arc, time::Duration};

use jaco_policy::network::ipam::Pool;
use jaco_proto::config::HostPort;
use jaco_raftnode::StateReader;
use jaco_supervision::ChildSpec;
use tokio::sync::watch;

pub use directory::Directory;
pub use records::same_input;

use crate::{health::Hosts, serving::Installed, telemetry::Metrics};
use forwarder::Forwarder;
use lookup::UpstreamLookup;
use manager::ResponderManager;
use names::Names;
use records::RecordsActor;
use upstream::Upstream;

/// Name resolution for the containers of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfig {
    /// Upstream servers for external names, in order; those of `resolv_conf` if empty.
    pub forwarders: Vec<HostPort>,
    /// Time that each upstream server has for its answer, TCP included; zero is the default. All
    /// together have 3.5 s, so that clients get an answer before they give up.
    pub forwarder_timeout: Duration,
    /// File with the upstream servers of the host; read once, at the start.
    pub resolv_conf: PathBuf,
    /// Port of the responders, UDP and TCP.
    pub port: u16,
}

/// Default of [`DnsConfig::forwarder_timeout`].
const FORWARDER_TIMEOUT: Duration = Duration::from_secs(2);

impl Default for DnsConfig {
    fn default() -> Self {
        Self {
            forwarders: Vec::new(),
            forwarder_timeout: FORWARDER_TIMEOUT,
            resolv_conf: "/etc/resolv.conf".into(),
            port: 53,
        }
    }
}

/// Arguments of a node's name resolution.
#[derive(Clone)]
pub struct Args {
    /// This host.
    pub host: String,
    /// Reads the replicated state.
    pub raft: Arc<dyn StateReader>,
    /// Hosts whose replicas count.
    pub fresh: watch::Receiver<Hosts>,
    /// Address pool of a cluster whose state names none.
    pub pool: Pool,
    /// Settings.
    pub config: DnsConfig,
    /// Counts queries.
    pub metrics: Metrics,
    /// Requests of the bridges.
    pub directory: Directory,
    /// Records the states that the answers are derived from.
    pub installed: Installed,
}

/// Creates the actors of a node's name resolution.
#[must_use]
pub fn children(args: Args) -> Vec<ChildSpec> {
    let upstreams = upstream::configured(&args.config, args.pool);
    children_with(args, upstreams)
}

fn children_with(args: Args, upstreams: Arc<[Upstream]>) -> Vec<ChildSpec> {
    let named = upstreams.iter().any(|upstream| upstream.named().is_some());
    let lookup = named
        .then(|| ChildSpec::worker::<UpstreamLookup>("dns-upstreams", Arc::clone(&upstreams)).0);
    let timeout = args.config.forwarder_timeout;
    let forwarder = Forwarder::new(upstreams, timeout, Arc::clone(&args.raft), args.pool);
    let names = Names::new(args.host, args.fresh, Arc::new(forwarder), args.metrics);
    let records = records::Args {
        raft: args.raft,
        names: Arc::clone(&names),
        installed: args.installed,
    };
    let (records, _) = ChildSpec::worker::<RecordsActor>("dns-records", records);
    let manager = manager::Args {
        directory: args.directory,
        names,
        port: args.config.port,
    };
    let (manager, _) = ChildSpec::worker::<ResponderManager>("responders", manager);
    [records, manager].into_iter().chain(lookup).collect()
}

#[cfg(test)]
mod tests;
