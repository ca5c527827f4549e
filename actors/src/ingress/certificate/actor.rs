//! Runs the actions of one domain's core.

use std::time::Duration;

use jaco_net::acme::Issued;
use jaco_policy::{
    ingress::certificate::{
        Action, Chain, Core, Facts, FailureClass, OrderFailure, RenewalWindow, Settings, Slot,
        audit, jitter,
        store::{self, CertificateKeys, account_key, directory_name, lock_name, removal},
    },
    runtime::replica::core::Now,
};
use jaco_proto::{
    secret::SecretBytes,
    timestamp,
    v1::{self, command::Payload},
};
use jaco_state::State;
use jaco_supervision::{Context, Failure, TaskHandle, Worker};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

use super::{Args, OrderError, Publish, SPREAD, TOKEN_LIFETIME, material, turns::Turn, write};

/// Arguments of one [`CertActor`]; kept across restarts.
#[derive(Clone)]
pub struct ActorArgs {
    /// Arguments shared with the other domains.
    pub env: Args,
    /// The domain.
    pub domain: String,
    /// Facts about it, which the manager updates.
    pub facts: watch::Receiver<Facts>,
}

/// Mailbox of a [`CertActor`].
pub enum Msg {
    /// The facts changed.
    Facts(Box<Facts>),
    /// Leadership of this node changed.
    Leadership(bool),
    /// The turn of the domain has come.
    Turn(Turn),
    /// A preflight ended.
    Preflighted(u64, Result<(), String>),
    /// An order ended.
    Ordered(u64, Result<Issued, OrderFailure>),
    /// The directory was asked about the renewal.
    RenewalWindow(Option<(RenewalWindow, Duration)>),
    /// A write ended; the state shows whether it took effect.
    Written(Result<(), String>),
    /// The deadline passed.
    Wake,
}

/// Obtains and renews the certificate of one domain while this node leads.
pub struct CertActor {
    args: ActorArgs,
    core: Core,
    /// Wait for a turn.
    queued: Option<TaskHandle>,
    turn: Option<Turn>,
    /// Order under way.
    order: Option<TaskHandle>,
    /// Issued certificate that the state does not show yet.
    issued: Option<(u64, Issued)>,
}

impl Worker for CertActor {
    type Msg = Msg;
    type Args = ActorArgs;
    const KIND: &'static str = "CertActor";

    async fn start(ctx: &Context<Self>, mut args: ActorArgs) -> Result<Self, Failure> {
        let facts = args.facts.borrow_and_update().clone();
        let directories = &args.env.directories;
        let settings = Settings {
            stage_first: directories.staging.is_some(),
            preflight: args.env.preflight.is_some(),
            environment: store::environment(&directory_name(&directories.production)),
        };
        let core = Core::new(&args.domain, settings, jitter(&args.domain), facts);
        let mut is_leader = args.env.is_leader.clone();
        is_leader.mark_changed();
        ctx.watch(is_leader, Msg::Leadership);
        ctx.watch(args.facts.clone(), |facts| Msg::Facts(Box::new(facts)));
        Ok(Self {
            args,
            core,
            queued: None,
            turn: None,
            order: None,
            issued: None,
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = self.now();
        match msg {
            Msg::Facts(facts) => self.core.handle_facts(now, *facts),
            Msg::Leadership(leads) => self.core.handle_leadership(now, leads),
            Msg::Turn(turn) => {
                // One that comes too late ends at once.
                if self.core.handle_turn(now) {
                    self.turn = Some(turn);
                }
            }
            Msg::Preflighted(attempt, verdict) => {
                self.core.handle_preflight(now, attempt, verdict);
            }
            Msg::Ordered(attempt, outcome) => {
                let outcome = outcome.and_then(|issued| self.keep(attempt, issued));
                self.core.handle_order(now, attempt, outcome);
            }
            Msg::RenewalWindow(answer) => {
                let (window, retry_after) = answer.unzip();
                self.core.handle_renewal_window(now, window, retry_after);
            }
            Msg::Written(Ok(())) => {}
            Msg::Written(Err(error)) => {
                debug!(
                    subsystem = "stagefirst",
                    domain = self.args.domain,
                    error,
                    "not written"
                );
            }
            Msg::Wake => self.core.handle_timeout(now),
        }
        self.drive(ctx);
        Ok(())
    }
}

impl CertActor {
    fn now(&self) -> Now {
        Now {
            instant: Instant::now().into_std(),
            wall: self.args.env.clock.now(),
        }
    }

    /// Keeps an issued certificate until it is stored or discarded.
    fn keep(&mut self, attempt: u64, issued: Issued) -> Result<Chain, OrderFailure> {
        let chain = material::facts(&self.args.domain, &issued).ok_or_else(|| OrderFailure {
            class: FailureClass::Unknown,
            retry_after: None,
            reason: "the issued certificate cannot be read".to_owned(),
        });
        self.issued = Some((attempt, issued));
        chain
    }

    /// Runs the core's actions, then sets the deadline.
    fn drive(&mut self, ctx: &Context<Self>) {
        while let Some(action) = self.core.poll_action() {
            self.run(ctx, action);
        }
        let due = self.core.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(due, Msg::Wake);
    }

    fn run(&mut self, ctx: &Context<Self>, action: Action) {
        let (env, domain) = (self.args.env.clone(), self.args.domain.clone());
        let name = lock_name(&domain);
        match action {
            Action::Lock { until } => self.write(
                ctx,
                vec![Payload::CertLock(v1::CertLock {
                    name,
                    lessee: env.host,
                    until: Some(timestamp(until)),
                })],
            ),
            Action::Unlock => {
                self.write(ctx, vec![Payload::CertUnlock(v1::CertUnlock { name })]);
            }
            Action::Queue { due } => {
                let turn = env.turns.wait(due, domain);
                self.queued = Some(ctx.spawn(async move { Msg::Turn(turn.await) }));
            }
            Action::EndTurn => {
                if let Some(queued) = self.queued.take() {
                    queued.abort();
                }
                self.turn = None;
            }
            Action::Preflight { attempt } => {
                ctx.spawn(async move {
                    let verdict = match env.preflight {
                        Some(preflight) => preflight.check(domain).await,
                        None => Ok(()),
                    };
                    Msg::Preflighted(attempt, verdict)
                });
            }
            Action::Order {
                attempt,
                slot,
                contact,
                renews,
            } => {
                info!(
                    subsystem = "stagefirst",
                    domain,
                    ?slot,
                    "ordering a certificate"
                );
                let task = async move {
                    let outcome = order(env, domain, slot, contact, renews).await;
                    Msg::Ordered(attempt, outcome)
                };
                self.order = Some(ctx.spawn(task));
            }
            Action::Discard { .. } => {
                if let Some(order) = self.order.take() {
                    order.abort();
                }
                self.issued = None;
            }
            Action::Store {
                attempt,
                slot,
                event,
            } => {
                let issued = self.issued.as_ref().filter(|(held, _)| *held == attempt);
                let Some((_, issued)) = issued else {
                    return;
                };
                let directory = directory_name(env.directories.address(slot));
                let keys = CertificateKeys::new(&domain, &directory);
                let chain = issued.chain_pem.clone().into_bytes();
                let key = issued.key_pem.expose().as_bytes().to_vec();
                let mut payloads = Vec::from(keys.upserts(chain, key));
                payloads.push(append(event));
                info!(
                    subsystem = "stagefirst",
                    domain,
                    ?slot,
                    "storing a certificate"
                );
                self.write(ctx, payloads);
            }
            Action::Reseed(slot) => {
                let directory = directory_name(env.directories.address(slot));
                let keys = CertificateKeys::new(&domain, &directory);
                let copies = env.cache.read(&keys.chain).zip(env.cache.read(&keys.key));
                if let Some((chain, key)) = copies {
                    warn!(
                        subsystem = "stagefirst",
                        domain, "certificate restored from this node"
                    );
                    self.write(ctx, keys.upserts(chain, key).into());
                }
            }
            Action::DeleteStaging => {
                let state = env.raft.state();
                let stored = store::certificates(&state, &domain);
                let staging = stored
                    .filter(|stored| env.directories.slot_of(stored.directory) == Slot::Staging);
                let keys =
                    staging.flat_map(|stored| [stored.chain.key.clone(), stored.key.key.clone()]);
                let payloads = keys.map(removal).collect();
                self.write(ctx, payloads);
            }
            Action::DeleteAll => {
                let state = env.raft.state();
                let payloads = store::keys(&state, &domain).map(removal).collect();
                self.write(ctx, payloads);
            }
            Action::Audit(event) => self.write(ctx, vec![append(event)]),
            Action::QueryRenewal => {
                let contact = self.args.facts.borrow().contact.clone();
                ctx.spawn(
                    async move { Msg::RenewalWindow(renewal_window(env, domain, contact).await) },
                );
            }
        }
    }

    /// Commits payloads in one entry. The state shows whether that took effect.
    fn write(&self, ctx: &Context<Self>, payloads: Vec<Payload>) {
        if payloads.is_empty() {
            return;
        }
        let env = self.args.env.clone();
        ctx.spawn(async move {
            let outcome = payloads.iter().find_map(|payload| match payload {
                Payload::AuditAppend(append) => audit::outcome(append.event.as_ref()?),
                _ => None,
            });
            let written = write(&env, payloads).await;
            if let (Ok(_), Some(outcome)) = (&written, outcome) {
                let environment = outcome.environment.as_str();
                env.metrics
                    .certificate(&outcome.domain, environment, outcome.ok);
            }
            Msg::Written(written.map(|_| ()))
        });
    }
}

fn append(event: v1::AuditEvent) -> Payload {
    Payload::AuditAppend(v1::AuditAppend { event: Some(event) })
}

/// Orders a certificate, with the account of the contact.
async fn order(
    env: Args,
    domain: String,
    slot: Slot,
    contact: String,
    renews: bool,
) -> Result<Issued, OrderFailure> {
    let directory = env.directories.address(slot).to_owned();
    let account = account(&env, &directory, &contact).await;
    let account = account.map_err(|error| error.failure)?;
    let replaces = renews.then(|| stored_chain(&env.raft.state(), &domain, &directory));
    let replaces = replaces.flatten();
    let publish = publish(env.clone(), domain.clone());
    let ordered = env
        .authority
        .order(
            directory.clone(),
            account.clone(),
            domain,
            replaces,
            publish,
        )
        .await;
    if matches!(&ordered, Err(error) if error.account_lost) {
        let key = account_key(&directory_name(&directory), &contact);
        let _guard = env.account_lock.lock().await;
        // Another domain may have replaced it.
        let state = env.raft.state();
        let stored = state.cert_blobs.get(&key);
        if stored.is_some_and(|blob| blob.value == account.expose()) {
            let removed = write(&env, vec![removal(key)]).await;
            debug!(
                subsystem = "stagefirst",
                ?removed,
                "unknown account removed"
            );
        }
    }
    ordered.map_err(|error| error.failure)
}

/// Account of a contact: the stored one, or a new one.
async fn account(env: &Args, directory: &str, contact: &str) -> Result<SecretBytes, OrderError> {
    let key = account_key(&directory_name(directory), contact);
    let _guard = env.account_lock.lock().await;
    let state = env.raft.state();
    if let Some(blob) = state.cert_blobs.get(&key) {
        return Ok(SecretBytes::new(blob.value.clone()));
    }
    let created = env
        .authority
        .create_account(directory.to_owned(), contact.to_owned())
        .await?;
    let blob = v1::CertBlob {
        key,
        value: created.expose().to_vec(),
        updated_at: None,
    };
    let upsert = Payload::CertBlobUpsert(v1::CertBlobUpsert { blob: Some(blob) });
    let written = write(env, vec![upsert]).await;
    written.map_err(|error| OrderError {
        failure: OrderFailure {
            class: FailureClass::Transient,
            retry_after: None,
            reason: format!("account not stored: {error}"),
        },
        account_lost: false,
    })?;
    Ok(created)
}

/// Stores the response to a challenge, and waits until all ready nodes serve it.
fn publish(env: Args, domain: String) -> Publish {
    Box::new(move |challenge| {
        Box::pin(async move {
            let token = v1::ChallengeToken {
                token: challenge.token,
                domain,
                key_auth: challenge.key_auth.expose().to_owned(),
                expires_at: Some(timestamp(env.clock.now() + TOKEN_LIFETIME)),
            };
            let store = v1::ChallengeTokenStore { token: Some(token) };
            let stored = write(&env, vec![Payload::ChallengeTokenStore(store)]).await?;
            // A node that lags does not hold up the order: the directory may never ask it.
            let _ = timeout(SPREAD, env.spread.reached(stored.index)).await;
            Ok(())
        })
    })
}

/// Asks the directory of the stored certificate when to renew it.
async fn renewal_window(
    env: Args,
    domain: String,
    contact: String,
) -> Option<(RenewalWindow, Duration)> {
    let directory = env.directories.production.clone();
    let name = directory_name(&directory);
    let state = env.raft.state();
    let account = state.cert_blobs.get(&account_key(&name, &contact))?;
    let account = SecretBytes::new(account.value.clone());
    let chain = stored_chain(&state, &domain, &directory)?;
    env.authority
        .renewal_window(directory, account, chain)
        .await
}

/// Stored chain in PEM that a directory issued for a domain.
fn stored_chain(state: &State, domain: &str, directory: &str) -> Option<String> {
    let name = directory_name(directory);
    let mut stored = store::certificates(state, domain);
    let found = stored.find(|stored| stored.directory == name)?;
    String::from_utf8(found.chain.value.clone()).ok()
}
