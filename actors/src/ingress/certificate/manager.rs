//! Keeps one actor per domain, and publishes what the data plane serves.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_policy::ingress::certificate::{
    Chain, Facts, Lock, Slot, domains,
    store::{self, CertificateKeys, directory_name, lock_name},
};
use jaco_proto::secret::SecretString;
use jaco_state::State;
use jaco_supervision::{ChildDone, ChildEvent, ChildSpec, Context, Failure, KeyedChildren, Worker};
use tokio::sync::watch;
use tracing::warn;

use super::{
    Args, CertActor, Certificates, Material, Token,
    actor::ActorArgs,
    material::{Materials, best},
    selection::{Selection, time},
};

/// Delay before restarting an actor that exhausted its restarts.
const RETRY: Duration = Duration::from_secs(60);

/// Messages of a [`CertManager`].
pub enum Msg {
    /// Routes, deployments, locks, certificates or tokens changed.
    Changed(Arc<State>),
    /// Certificates of operators changed.
    Imported,
    /// A certificate expires.
    Expired,
    /// A request about an actor has ended, or the actor exhausted its restarts.
    Done(ChildDone),
    /// Restart the actor with this child id, if it is exhausted.
    Restart(String),
    /// The copies on disk were written.
    Copied,
}

/// Starts and stops the sibling certificate actors, and publishes [`Certificates`].
pub struct CertManager {
    args: Args,
    /// Facts of each domain, which its actor follows.
    actors: KeyedChildren<Self, watch::Sender<Facts>>,
    materials: Materials,
    /// Changes of the copies on disk that wait for earlier ones.
    copies: Vec<DiskChange>,
    copying: bool,
}

/// Change of a copy on disk.
enum DiskChange {
    Write(String, SecretString),
    Remove(String),
}

impl Worker for CertManager {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "CertManager";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        // Actors that an earlier instance started follow facts that nothing updates any more.
        let mut actors = KeyedChildren::new("cert:", Msg::Done).report_exhausted();
        actors.adopt(ctx, |_, _| None);
        ctx.watch(args.imported.clone(), |_| Msg::Imported);
        let mut states = args.raft.follow();
        let last = states.borrow_and_update().clone();
        ctx.send_to_self(Msg::Changed(Arc::clone(&last)));
        ctx.watch_if(
            states,
            last,
            |last, next| !same_input(last, next),
            Msg::Changed,
        );
        Ok(Self {
            args,
            actors,
            materials: Materials::default(),
            copies: Vec::new(),
            copying: false,
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Changed(state) => self.reconcile(ctx, state),
            Msg::Imported | Msg::Expired => {
                let state = self.args.raft.state();
                self.reconcile(ctx, state);
            }
            Msg::Restart(id) => self.actors.restart(ctx, &id),
            Msg::Copied => self.copying = false,
            Msg::Done(done) => match self.actors.handle_done(ctx, done) {
                Some(ChildEvent::Exhausted(domain, reason)) => {
                    warn!(
                        subsystem = "stagefirst",
                        domain, reason, "actor exhausted its restarts"
                    );
                    ctx.send_after(RETRY, Msg::Restart(domain));
                }
                Some(ChildEvent::NotStarted(_, error)) => return Err(error.into()),
                Some(ChildEvent::Started(_) | ChildEvent::Stopped(_)) | None => {}
            },
        }
        self.copy(ctx);
        Ok(())
    }
}

/// Whether two states agree on everything about certificates.
fn same_input(a: &State, b: &State) -> bool {
    a.routes.ptr_eq(&b.routes)
        && a.route_tls_overrides.ptr_eq(&b.route_tls_overrides)
        && a.deployments.ptr_eq(&b.deployments)
        && a.certs.ptr_eq(&b.certs)
        && a.cert_blobs.ptr_eq(&b.cert_blobs)
        && a.challenge_tokens.ptr_eq(&b.challenge_tokens)
        && a.imported_certs.ptr_eq(&b.imported_certs)
}

impl CertManager {
    fn reconcile(&mut self, ctx: &Context<Self>, newest: Arc<State>) {
        let state = &*newest;
        let wanted = domains::wanted(state, &self.args.contact);
        // A domain without a route keeps its actor until everything of it is deleted.
        let mut all = store::domains(state);
        all.extend(wanted.keys().cloned());
        let held = state.certs.values();
        let held = held.filter(|lock| lock.lessee == self.args.host);
        let held: BTreeSet<&str> = held.map(|lock| lock.domain.as_str()).collect();
        let known = self.actors.iter().map(|(domain, _)| domain.to_owned());
        let known: Vec<String> = known.collect();
        let locked = |domain: &&String| held.contains(lock_name(domain).as_str());
        all.extend(known.iter().filter(locked).cloned());

        let now = self.args.clock.now();
        let imported = self.args.imported.borrow().clone();
        let mut selection = Selection::new(now, &imported);
        for domain in &all {
            let contact = wanted.get(domain);
            let materials = self.update(state, domain, contact.is_some());
            if contact.is_some() {
                selection.add(domain, &materials);
            }
            let facts = self.facts(state, domain, contact, &materials);
            let facts = Facts {
                imported: selection.is_valid_import(state, domain),
                ..facts
            };
            match self.actors.get(domain) {
                Some(sender) => {
                    sender.send_if_modified(|last| {
                        let local = last.local;
                        let facts = Facts { local, ..facts };
                        let differs = *last != facts;
                        *last = facts;
                        differs
                    });
                }
                None => self.start_actor(ctx, domain, facts),
            }
        }
        for domain in known.iter().filter(|domain| !all.contains(*domain)) {
            self.update(state, domain, false);
            self.actors.stop(ctx, domain);
        }
        self.args.certificates.send_replace(Certificates {
            by_domain: selection.finish(ctx, Msg::Expired),
            tokens: (!wanted.is_empty()).then(|| Arc::new(tokens(state))),
            state: Some(newest),
        });
    }

    /// Parses the certificates of a domain, and notes changes of their copies on disk.
    fn update(&mut self, state: &State, domain: &str, wanted: bool) -> Vec<Arc<Material>> {
        let (before, now) = self.materials.update(state, domain, &self.args.directories);
        let production = best(&now, Slot::Production).is_some();
        for old in &before {
            // Copies of what the state lost are kept: they may replace it.
            let gone = !now.iter().any(|new| new.directory == old.directory);
            if gone && (!wanted || production) {
                let keys = old.keys(domain);
                self.copies
                    .extend([keys.chain, keys.key].map(DiskChange::Remove));
            }
        }
        for new in now.iter().filter(|_| wanted) {
            if !before.iter().any(|old| Arc::ptr_eq(old, new)) {
                let keys = new.keys(domain);
                let chain = SecretString::new(new.chain_pem.clone());
                self.copies
                    .push(DiskChange::Write(keys.key, new.key_pem.clone()));
                self.copies.push(DiskChange::Write(keys.chain, chain));
            }
        }
        now
    }

    fn facts(
        &self,
        state: &State,
        domain: &str,
        contact: Option<&String>,
        materials: &[Arc<Material>],
    ) -> Facts {
        let chain = |slot| best(materials, slot).map(|material| material.chain);
        let lock = state.certs.get(&lock_name(domain));
        let lock = lock.filter(|lock| !lock.lessee.is_empty());
        Facts {
            wanted: contact.is_some(),
            contact: contact.cloned().unwrap_or_default(),
            staging: chain(Slot::Staging),
            production: chain(Slot::Production),
            stored: store::keys(state, domain).next().is_some(),
            lock: lock.and_then(|lock| {
                Some(Lock {
                    ours: lock.lessee == self.args.host,
                    until: time(lock.lock_until.as_ref()?)?,
                })
            }),
            ..Facts::default()
        }
    }

    /// Starts the actor of a domain, with the copies on disk as they are now.
    fn start_actor(&mut self, ctx: &Context<Self>, domain: &str, mut facts: Facts) {
        if facts.wanted && facts.production.is_none() {
            facts.local.production = self.local(domain, Slot::Production);
            if facts.staging.is_none() && self.args.directories.staging.is_some() {
                facts.local.staging = self.local(domain, Slot::Staging);
            }
        }
        let (sender, facts) = watch::channel(facts);
        let args = ActorArgs {
            env: self.args.clone(),
            domain: domain.to_owned(),
            facts,
        };
        let (spec, _) = ChildSpec::worker::<CertActor>(self.actors.key(domain), args);
        self.actors.start(ctx, domain, spec, sender);
    }

    /// Facts about the copy on disk.
    fn local(&self, domain: &str, slot: Slot) -> Option<Chain> {
        let directory = directory_name(self.args.directories.address(slot));
        let keys = CertificateKeys::new(domain, &directory);
        let cache = &self.args.cache;
        let (chain, key) = cache.read(&keys.chain).zip(cache.read(&keys.key))?;
        let directories = &self.args.directories;
        let material = Material::parse(domain, &directory, directories, &chain, &key)?;
        Some(material.chain)
    }

    /// Changes the copies on disk, one batch at a time.
    fn copy(&mut self, ctx: &Context<Self>) {
        if self.copying || self.copies.is_empty() {
            return;
        }
        self.copying = true;
        let (copies, cache) = (std::mem::take(&mut self.copies), self.args.cache.clone());
        ctx.spawn(async move {
            let done = tokio::task::spawn_blocking(move || {
                for copy in copies {
                    match copy {
                        DiskChange::Write(key, value) => {
                            cache.write(&key, value.expose().as_bytes())
                        }
                        DiskChange::Remove(key) => cache.remove(&key),
                    }
                }
            });
            let _ = done.await; // best effort
            Msg::Copied
        });
    }
}

fn tokens(state: &State) -> BTreeMap<String, Token> {
    let rows = state.challenge_tokens.iter();
    let usable = rows.filter_map(|(token, row)| {
        let token_row = Token {
            key_auth: SecretString::new(row.key_auth.clone()),
            expires_at: time(row.expires_at.as_ref()?)?,
        };
        Some((token.clone(), token_row))
    });
    usable.collect()
}
