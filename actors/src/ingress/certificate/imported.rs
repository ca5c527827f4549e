//! Opens the certificates of operators for the data plane, and warns before they expire.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use jaco_net::secrets::SecretsKey;
use jaco_policy::ingress::certificate::{
    Chain, Slot, expiry,
    imported::{DIRECTORY, sealed_as},
};
use jaco_proto::{
    Error, ErrorCode,
    secret::SecretString,
    v1::{self, command::Payload},
};
use jaco_raftnode::LeaderProposer;
use jaco_state::State;
use jaco_supervision::{ChildSpec, Context, Failure, Worker};
use tokio::{sync::watch, time::Instant};
use tracing::{debug, warn};

use super::{Material, commit_payloads, key_missing};
use crate::clock::Clock;

/// The secrets key of the cluster, while this node has it.
pub type SecretsKeys = watch::Receiver<Option<Arc<SecretsKey>>>;

/// Longest sleep: the wall clock may be set meanwhile.
const CHECK: Duration = Duration::from_secs(3600);
/// Wait before a write is repeated.
const RETRY: Duration = Duration::from_secs(60);

/// Arguments of the manager of a node; clones share everything.
#[derive(Clone)]
pub struct ImportArgs {
    /// Reads the state, and changes it while this node leads.
    pub raft: Arc<dyn LeaderProposer>,
    /// Whether this node leads and has applied an entry of its own term.
    pub is_leader: watch::Receiver<bool>,
    /// Source of timestamps, and of the time that certificates are judged by.
    pub clock: Clock,
    /// Opens the keys.
    pub secrets_key: SecretsKeys,
    /// Receives the opened certificates.
    pub imported: watch::Sender<Imported>,
}

/// Certificates of operators that this node can present; clones share the maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Certificate by name, which is a domain or `*.domain`.
    pub by_name: Arc<BTreeMap<String, Arc<Material>>>,
}

/// Child specification of the manager, to be placed under the ingress supervisor.
#[must_use]
pub fn child(args: ImportArgs) -> ChildSpec {
    ChildSpec::worker::<ImportManager>("imported", args).0
}

/// Messages of an [`ImportManager`].
pub enum Msg {
    /// The state changed.
    Changed(Arc<State>),
    /// The secrets key came, changed or went.
    Key(Option<Arc<SecretsKey>>),
    /// Leadership of this node changed.
    Leadership(bool),
    /// A write of warnings ended.
    Written(Result<(), String>),
    /// A warning is due.
    Wake,
}

/// Publishes [`Imported`]; on the leader it also writes the warnings.
pub struct ImportManager {
    args: ImportArgs,
    state: Arc<State>,
    key: Option<Arc<SecretsKey>>,
    leads: bool,
    /// Opened certificates with the rows they came from.
    opened: BTreeMap<String, (Arc<v1::ImportedCert>, Option<Arc<Material>>)>,
    /// Whether the key is another one than that which opened them.
    reopen: bool,
    writing: bool,
    retry: Option<Instant>,
}

impl Worker for ImportManager {
    type Msg = Msg;
    type Args = ImportArgs;
    const KIND: &'static str = "ImportManager";

    async fn start(ctx: &Context<Self>, args: ImportArgs) -> Result<Self, Failure> {
        let mut states = args.raft.follow();
        let state = states.borrow_and_update().clone();
        ctx.send_to_self(Msg::Wake);
        ctx.watch_if(
            states,
            state.clone(),
            |last, next| !last.imported_certs.ptr_eq(&next.imported_certs),
            Msg::Changed,
        );
        let mut is_leader = args.is_leader.clone();
        is_leader.mark_changed();
        ctx.watch(is_leader, Msg::Leadership);
        let mut key = args.secrets_key.clone();
        key.mark_changed();
        ctx.watch(key, Msg::Key);
        Ok(Self {
            args,
            state,
            key: None,
            leads: false,
            opened: BTreeMap::new(),
            reopen: false,
            writing: false,
            retry: None,
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Changed(state) => self.state = state,
            Msg::Key(key) => {
                if key.is_none() {
                    self.opened.clear();
                }
                self.key = key;
                self.reopen = true;
            }
            Msg::Leadership(leads) => self.leads = leads,
            Msg::Written(written) => {
                self.writing = false;
                self.retry = written.err().map(|error| {
                    debug!(subsystem = "ingress", error, "warning not written");
                    Instant::now() + RETRY
                });
            }
            Msg::Wake => {}
        }
        let now = self.args.clock.now();
        self.publish();
        let next = self.warn(ctx, now);
        let wait = next.map(|next| next.duration_since(now).unwrap_or_default().min(CHECK));
        let due = wait.map(|wait| Instant::now() + wait);
        let due = due.into_iter().chain(self.retry).min();
        ctx.set_deadline(due, Msg::Wake);
        Ok(())
    }
}

impl ImportManager {
    /// Opens what changed, and publishes it.
    fn publish(&mut self) {
        let mut before = std::mem::take(&mut self.opened);
        let reopen = std::mem::take(&mut self.reopen);
        for (name, cert) in &self.state.imported_certs {
            let known = before.remove(name);
            let unchanged = |(row, _): &&(Arc<_>, _)| !reopen && Arc::ptr_eq(row, cert);
            let material = match known.as_ref().filter(unchanged) {
                Some((_, material)) => material.clone(),
                None => {
                    // A rotation changes the row and the key one after the other.
                    let last = known.and_then(|(_, material)| material);
                    let last = last.filter(|last| is_of(last, cert));
                    self.open(cert, last.is_none()).map(Arc::new).or(last)
                }
            };
            self.opened
                .insert(name.clone(), (Arc::clone(cert), material));
        }
        let opened = self.opened.iter().filter_map(|(name, (_, material))| {
            let material = material.as_ref()?;
            Some((name.clone(), Arc::clone(material)))
        });
        let by_name: BTreeMap<_, _> = opened.collect();
        let by_name = Arc::new(by_name);
        let imported = Imported { by_name };
        self.args.imported.send_if_modified(|last| {
            let differs = *last != imported;
            *last = imported;
            differs
        });
    }

    fn open(&self, cert: &v1::ImportedCert, needed: bool) -> Option<Material> {
        let key = self.key.as_ref()?;
        let material = open(key, cert);
        if material.is_none() && needed {
            warn!(
                subsystem = "ingress",
                name = cert.name,
                "an imported certificate cannot be opened"
            );
        }
        material
    }

    /// Writes the warnings that are due while this node leads; returns the time of the next.
    fn warn(&mut self, ctx: &Context<Self>, now: SystemTime) -> Option<SystemTime> {
        if !self.leads {
            self.retry = None;
            return None;
        }
        // The newest state shows the warnings that were given.
        let (events, next) = expiry::due(&self.args.raft.state(), now);
        if events.is_empty() || self.writing {
            self.retry = None;
            return next;
        }
        if self.retry.is_some_and(|retry| Instant::now() < retry) {
            return next;
        }
        for event in &events {
            let text = |key: &str| event.payload.get(key).cloned().unwrap_or_default();
            let (domain, not_after) = (text("domain"), text("not_after"));
            warn!(
                subsystem = "ingress",
                domain, not_after, "an imported certificate expires soon"
            );
        }
        self.writing = true;
        self.retry = None;
        let (raft, clock) = (Arc::clone(&self.args.raft), self.args.clock.clone());
        ctx.spawn(async move {
            let payloads = events
                .into_iter()
                .map(|event| Payload::AuditAppend(v1::AuditAppend { event: Some(event) }));
            let written = commit_payloads(raft.as_ref(), &clock, payloads.collect()).await;
            Msg::Written(written.map(|_| ()))
        });
        next
    }
}

/// Whether the opened certificate is that of the row.
fn is_of(material: &Material, cert: &v1::ImportedCert) -> bool {
    material.chain.fingerprint.as_slice() == cert.fingerprint
        && material.chain_pem.as_bytes() == cert.chain_pem
}

/// Seals every key anew. One that the old key does not open stays as it is: it is unreadable.
///
/// # Errors
/// `secrets_key_missing` if there are certificates and no old key; `rand_failed`.
pub(crate) fn reseal(
    state: &State,
    old: Option<&SecretsKey>,
    new: &SecretsKey,
) -> Result<Vec<Payload>, Error> {
    let mut payloads = Vec::new();
    for cert in state.imported_certs.values() {
        let old = old.ok_or_else(key_missing)?;
        let (entity, version) = sealed_as(cert);
        let Ok(opened) = old.open(&entity, version, &cert.sealed_key) else {
            warn!(
                subsystem = "ingress",
                name = cert.name,
                "an imported certificate cannot be sealed anew"
            );
            continue;
        };
        let cert = v1::ImportedCert {
            sealed_key: seal(new, cert, opened.expose())?,
            ..v1::ImportedCert::clone(cert)
        };
        let upsert = v1::ImportedCertUpsert { cert: Some(cert) };
        payloads.push(Payload::ImportedCertUpsert(upsert));
    }
    Ok(payloads)
}

/// Seals the private key of a certificate.
///
/// # Errors
/// `rand_failed`.
pub(crate) fn seal(
    key: &SecretsKey,
    cert: &v1::ImportedCert,
    key_pem: &[u8],
) -> Result<Vec<u8>, Error> {
    let (entity, version) = sealed_as(cert);
    key.seal(&entity, version, key_pem).map_err(|error| {
        Error::new(ErrorCode::RandFailed, "the key could not be sealed").because(error)
    })
}

/// Opens a certificate; `None` if the key is another one or the row is damaged.
pub(crate) fn open(key: &SecretsKey, cert: &v1::ImportedCert) -> Option<Material> {
    let (entity, version) = sealed_as(cert);
    let opened = key.open(&entity, version, &cert.sealed_key).ok()?;
    let key_pem = std::str::from_utf8(opened.expose()).ok()?.to_owned();
    let time = |at: Option<prost_types::Timestamp>| SystemTime::try_from(at?).ok();
    Some(Material {
        directory: DIRECTORY.to_owned(),
        slot: Slot::Production,
        chain: Chain {
            fingerprint: cert.fingerprint.as_slice().try_into().ok()?,
            not_before: time(cert.not_before)?,
            not_after: time(cert.not_after)?,
            // Checked before it was stored.
            covers: true,
        },
        chain_pem: String::from_utf8(cert.chain_pem.clone()).ok()?,
        key_pem: SecretString::new(key_pem),
    })
}
