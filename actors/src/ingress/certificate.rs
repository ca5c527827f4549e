//! Certificates: one actor per domain obtains them on the leader, every node publishes them to its
//! data plane.
//!
//! [`jaco_policy::ingress::certificate`] decides.
//!
//! - [`CertManager`]: reads the state, keeps one [`CertActor`] per domain, and publishes
//!   [`Certificates`].
//! - [`CertActor`]: runs the actions of one domain's core.
//! - [`Authority`]: the ACME directory as the actors see it.
//! - [`ImportManager`]: opens the certificates of operators, and warns before they expire.
//! - [`ImportFeed`]: serves those alone on a node that obtains no certificates.
//! - [`DomainCheck`]: checks whether the addresses of a domain lead to this cluster.
//! - [`Cache`]: copies of the certificates on the disk of this node.
//! - [`Turns`]: how many domains order at once.
//! - `serving`: hands certificates and challenges to the data plane.

mod actor;
mod authority;
mod cache;
mod domain_check;
mod feed;
mod imported;
mod manager;
mod material;
mod selection;
pub(crate) mod serving;
mod settings;
#[cfg(test)]
mod tests;
mod turns;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::BoxFuture;
use jaco_net::acme::not_after;
use jaco_policy::{
    COMMIT_BUDGET,
    ingress::certificate::{audit, status},
};
use jaco_proto::{
    secret::SecretString,
    v1::{self, command::Payload},
};
use jaco_raftnode::{Committed, LeaderProposer, State, batch, command};
use jaco_supervision::ChildSpec;
use tokio::{sync::watch, time::timeout};

use crate::{clock::Clock, commit::commit, serving::Spread, telemetry::Metrics};

pub use jaco_policy::ingress::certificate::store::Directories;

pub use actor::CertActor;
pub use authority::{AcmeAuthority, Authority, Challenge, OrderError, Publish};
pub use cache::Cache;
pub(crate) use domain_check::key_missing;
pub use domain_check::{DomainCheck, probe_key};
pub use feed::{FeedArgs, ImportFeed, child as feed_child};
pub use imported::{ImportArgs, ImportManager, Imported, SecretsKeys, child as import_child};
pub(crate) use imported::{open, reseal, seal};
pub use manager::CertManager;
pub use material::Material;
pub use settings::CertificateSettings;
pub use turns::Turns;

/// Lifetime of a challenge's token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Longest wait until all ready nodes have a token.
const SPREAD: Duration = Duration::from_secs(5);

/// Checks before a first order whether a domain leads to this cluster.
pub trait Preflight: Send + Sync + 'static {
    /// Resolves the domain and asks its addresses; `Err` has the reason for operators.
    fn check(&self, domain: String) -> BoxFuture<'static, Result<(), String>>;
}

/// Arguments of the certificate actors of a node; clones share everything.
#[derive(Clone)]
pub struct Args {
    /// Hostname of this node, the lessee of its locks.
    pub host: String,
    /// Reads the state, and changes it while this node leads.
    pub raft: Arc<dyn LeaderProposer>,
    /// Whether this node leads and has applied an entry of its own term.
    pub is_leader: watch::Receiver<bool>,
    /// Source of timestamps, and of the time that certificates are judged by.
    pub clock: Clock,
    /// Directories to order from.
    pub directories: Directories,
    /// Contact for domains whose deployments have none; may be empty.
    pub contact: String,
    /// Talks to the directories.
    pub authority: Arc<dyn Authority>,
    /// Bounds the orders under way at once.
    pub turns: Turns,
    /// Reports when all nodes have an entry.
    pub spread: Arc<dyn Spread>,
    /// Checks domains before their first order; `None` to order at once.
    pub preflight: Option<Arc<dyn Preflight>>,
    /// Certificates of operators, which are presented beside those of the directories.
    pub imported: watch::Receiver<Imported>,
    /// Copies on disk.
    pub cache: Cache,
    /// Held while an account is created, so that two domains share one.
    pub account_lock: Arc<tokio::sync::Mutex<()>>,
    /// Counts the attempts of this node.
    pub metrics: Metrics,
    /// Receives what the data plane serves.
    pub certificates: watch::Sender<Certificates>,
}

/// Certificates and challenge responses that a data plane serves; clones share the maps.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// Certificate to present by domain.
    pub by_domain: Arc<BTreeMap<String, Arc<Material>>>,
    /// Responses to challenges by token; `None` while no domain asks for a certificate, so that the
    /// paths of challenges are ordinary ones.
    pub tokens: Option<Arc<BTreeMap<String, Token>>>,
    /// State that they were derived from; `None` before the first one.
    pub state: Option<Arc<State>>,
}

/// Response to a challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Body of the response.
    pub key_auth: SecretString,
    /// Time after which the token is unknown.
    pub expires_at: SystemTime,
}

/// Child specification of the manager, to be placed under the ingress supervisor.
#[must_use]
pub fn child(args: Args) -> ChildSpec {
    ChildSpec::worker::<CertManager>("certificates", args).0
}

/// Certificate rows of `jaco status` for those of `routes` that ask for a certificate.
pub(crate) fn status_rows(
    state: &State,
    routes: &[v1::Route],
    now: SystemTime,
) -> Vec<v1::CertState> {
    let routes = routes.iter().filter(|route| state.is_tls_auto(route));
    let domains = routes.map(|route| route.domain.as_str()).collect();
    status::rows(state, &domains, now, |chain| {
        not_after(std::str::from_utf8(chain).ok()?)
    })
}

/// Commits the payloads in one entry.
async fn write(args: &Args, payloads: Vec<Payload>) -> Result<Committed, String> {
    commit_payloads(args.raft.as_ref(), &args.clock, payloads).await
}

async fn commit_payloads(
    raft: &dyn LeaderProposer,
    clock: &Clock,
    payloads: Vec<Payload>,
) -> Result<Committed, String> {
    let ts = clock.timestamp();
    let children = payloads.into_iter();
    let children = children.map(|payload| command(audit::IDENTITY, ts, payload));
    let entry = batch(audit::IDENTITY, ts, children.collect());
    match timeout(COMMIT_BUDGET, commit(raft, entry)).await {
        Ok(Ok(committed)) => Ok(committed),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("not committed in time".to_owned()),
    }
}
