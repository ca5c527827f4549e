//! Actor that owns the key file of this member.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jaco_net::secrets::SecretsKey;
use jaco_policy::{
    node::writers::SECRETS,
    secrets_key::{Action, Core, NotRotated, Status, View},
};
use jaco_proto::{
    Error, ErrorCode, chain,
    v1::{self, command::Payload},
};
use jaco_raftnode::State;
use jaco_state::{batch, command};
use jaco_supervision::{Context, Failure, Reply, Worker};
use tokio::{sync::watch, time::Instant};

use super::{Args, KeyFile, not_rotated};
use crate::log_dedup::LogDedup;

/// Limit of a proposal, which waits for others that seal.
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages of a [`SecretsActor`].
pub(crate) enum Msg {
    /// The replicated state changed.
    State(Arc<State>),
    /// This member began or ended to lead.
    Leading,
    /// The core's deadline passed.
    Wake,
    /// The answer of a member that was to store a key.
    Stored {
        host: String,
        id: String,
        answer: Result<(), String>,
    },
    /// The answer of a member that was asked for a key.
    Fetched {
        host: String,
        id: String,
        answer: Result<SecretsKey, String>,
    },
    /// A proposal ended.
    Proposed {
        id: String,
        outcome: Result<(), String>,
    },
    /// The leader gives this member a key.
    Store(SecretsKey, Reply<Result<(), Error>>),
    /// A member asks for a key.
    Fetch(String, Reply<Option<SecretsKey>>),
    /// The operator gives the cluster its key back; answered with the key's id.
    Import(SecretsKey, Reply<Result<String, Error>>),
    /// The operator of this identity asks for a new key; answered with its id.
    Rotate(String, Reply<Result<String, Error>>),
}

/// Keeps the secrets key of this member, and as the leader that of the cluster.
pub(crate) struct SecretsActor {
    args: Args,
    file: KeyFile,
    core: Core,
    keys: BTreeMap<String, SecretsKey>,
    state: Arc<State>,
    in_force: watch::Sender<Option<Arc<SecretsKey>>>,
    /// Identity and reply of the rotation under way.
    rotation: Option<(String, Reply<Result<String, Error>>)>,
    problems: LogDedup,
}

impl Worker for SecretsActor {
    type Msg = Msg;
    type Args = (Args, watch::Sender<Option<Arc<SecretsKey>>>);
    const KIND: &'static str = "SecretsActor";

    async fn start(ctx: &Context<Self>, args: Self::Args) -> Result<Self, Failure> {
        let (args, in_force) = args;
        let mut states = args.raft.follow();
        let state = states.borrow_and_update().clone();
        let file = KeyFile::new(&args.file);
        let read = file.clone();
        let keys = match blocking(move || read.read()).await {
            Ok(keys) => keys,
            Err(error) => {
                // The other members have the key, or the operator does.
                tracing::error!(subsystem = "state", error = %error, "key file is not used");
                Vec::new()
            }
        };
        let mut actor = Self {
            core: Core::new(keys.iter().map(SecretsKey::id)),
            keys: keys.into_iter().map(|key| (key.id(), key)).collect(),
            file,
            state,
            in_force,
            rotation: None,
            problems: LogDedup::default(),
            args,
        };
        ctx.watch(states, Msg::State);
        ctx.watch(actor.args.is_leader.clone(), |_| Msg::Leading);
        actor.drive(ctx).await;
        Ok(actor)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Instant::now().into_std();
        match msg {
            Msg::State(state) => self.state = state,
            Msg::Leading => {}
            Msg::Wake => self.core.handle_timeout(now),
            Msg::Stored { host, id, answer } => {
                if let Err(reason) = &answer {
                    tracing::debug!(subsystem = "state", %host, reason, "key not stored");
                }
                self.core.handle_stored(now, &host, &id, answer.is_ok());
            }
            Msg::Fetched { host, id, answer } => {
                let written = match answer {
                    Ok(key) => self.write(key).await.is_ok(),
                    Err(reason) => {
                        tracing::debug!(subsystem = "state", %host, reason, "key not fetched");
                        false
                    }
                };
                self.core.handle_fetched(now, &host, &id, written);
            }
            Msg::Proposed { id, outcome } => self.core.handle_proposed(now, &id, outcome),
            Msg::Store(key, reply) => {
                let stored = self.accept(key).await;
                reply.send(stored.map(drop));
            }
            Msg::Fetch(id, reply) => reply.send(self.keys.get(&id).cloned()),
            Msg::Import(key, reply) => {
                let imported = self.import(key).await;
                reply.send(imported);
            }
            Msg::Rotate(identity, reply) => {
                self.show();
                match self.core.handle_rotate(now) {
                    Ok(()) => self.rotation = Some((identity, reply)),
                    Err(why) => reply.send(Err(not_rotated(&why))),
                }
            }
        }
        self.drive(ctx).await;
        Ok(())
    }
}

impl SecretsActor {
    fn named(&self) -> &str {
        let cluster = self.state.cluster.as_deref();
        cluster.map_or("", |cluster| &cluster.secrets_key_id)
    }

    /// Shows the core the cluster as it is.
    fn show(&mut self) {
        // The term comes first: the state read afterwards includes every earlier term.
        let leading = self.args.raft.leading_term();
        if leading.is_some() {
            self.state = self.args.raft.state();
        }
        let nodes = &self.state.nodes;
        let own = nodes.get(&self.args.host);
        let view = View {
            named: self.named().to_owned(),
            others: nodes
                .keys()
                .filter(|host| **host != self.args.host)
                .cloned()
                .collect(),
            leading,
            same_version: own
                .is_some_and(|own| nodes.values().all(|node| node.version == own.version)),
        };
        self.core.handle_view(Instant::now().into_std(), view);
    }

    /// Carries out every action of the core, then publishes the key in force.
    async fn drive(&mut self, ctx: &Context<Self>) {
        self.show();
        while let Some(action) = self.core.poll_action() {
            self.act(ctx, action).await;
        }
        let timeout = self.core.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(timeout, Msg::Wake);
        self.publish();
    }

    async fn act(&mut self, ctx: &Context<Self>, action: Action) {
        let now = Instant::now().into_std();
        match action {
            Action::Make => {
                let made = self.make().await;
                self.core.handle_made(now, made);
            }
            Action::Store { host, id } => {
                let Some(key) = self.keys.get(&id) else {
                    return self.core.handle_stored(now, &host, &id, false);
                };
                let call = self.args.peers.store(&host, key);
                ctx.spawn(async move {
                    let answer = call.await;
                    Msg::Stored { host, id, answer }
                });
            }
            Action::Fetch { host, id } => {
                let call = self.args.peers.fetch(&host, &id);
                ctx.spawn(async move {
                    let answer = call.await;
                    Msg::Fetched { host, id, answer }
                });
            }
            Action::Propose { id, replaces } => {
                let proposal = Proposal {
                    identity: self
                        .rotation
                        .as_ref()
                        .map_or(SECRETS, |(identity, _)| identity.as_str())
                        .to_owned(),
                    old: self.keys.get(&replaces).cloned(),
                    new: self.keys.get(&id).cloned(),
                    args: self.args.clone(),
                    id: id.clone(),
                    replaces,
                };
                ctx.spawn(async move {
                    let outcome = tokio::time::timeout(PROPOSE_TIMEOUT, proposal.commit()).await;
                    let outcome = match outcome {
                        Ok(outcome) => outcome.map_err(|error| error.to_string()),
                        Err(_) => Err("no outcome in time".to_owned()),
                    };
                    Msg::Proposed { id, outcome }
                });
            }
            Action::Keep(keep) => {
                let kept = self.save(&keep).await.is_ok().then_some(keep);
                self.core.handle_kept(now, kept);
            }
            Action::Rotated(result) => self.rotated(result),
        }
    }

    fn rotated(&mut self, result: Result<String, NotRotated>) {
        match &result {
            Ok(id) => tracing::info!(subsystem = "state", key_id = %id, "secrets key rotated"),
            Err(why) => tracing::warn!(subsystem = "state", %why, "secrets key not rotated"),
        }
        if let Some((_, reply)) = self.rotation.take() {
            reply.send(result.map_err(|why| not_rotated(&why)));
        }
    }

    async fn make(&mut self) -> Result<String, String> {
        let key = SecretsKey::generate().map_err(|error| error.to_string())?;
        let id = key.id();
        self.write(key).await?;
        tracing::info!(subsystem = "state", key_id = %id, "secrets key made");
        Ok(id)
    }

    /// Takes a key that the leader gives.
    async fn accept(&mut self, key: SecretsKey) -> Result<String, Error> {
        let id = key.id();
        self.write(key).await.map_err(|reason| {
            Error::new(ErrorCode::Internal, "the secrets key was not written").because(reason)
        })?;
        self.core.handle_written(Instant::now().into_std(), &id);
        Ok(id)
    }

    async fn import(&mut self, key: SecretsKey) -> Result<String, Error> {
        self.show();
        let (id, named) = (key.id(), self.named());
        if id != named {
            let message = match named {
                "" => "the cluster has no secrets key yet",
                _ => "the cluster's values are sealed with another key",
            };
            return Err(Error::new(ErrorCode::SecretsKeyMismatch, message)
                .with("key_id", id)
                .with("expected", named));
        }
        self.accept(key).await
    }

    /// Adds a key to the file.
    async fn write(&mut self, key: SecretsKey) -> Result<(), String> {
        let id = key.id();
        let keep = self.core.to_keep(&id);
        self.keys.insert(id, key);
        self.save(&keep).await
    }

    /// Writes the keys with these ids to the file, and forgets all others. After a failure the file
    /// and the core's list are those of before.
    async fn save(&mut self, keep: &[String]) -> Result<(), String> {
        let keys: Vec<_> = keep
            .iter()
            .filter_map(|id| self.keys.get(id).cloned())
            .collect();
        let file = self.file.clone();
        let written = blocking(move || file.write(&keys)).await;
        match written {
            Ok(()) => {
                self.keys.retain(|id, _| keep.contains(id));
                Ok(())
            }
            Err(error) => {
                let held = self.core.held();
                self.keys.retain(|id, _| held.contains(id));
                let reason = chain(&*error);
                tracing::error!(subsystem = "state", reason, "key file was not written");
                Err(reason)
            }
        }
    }

    /// Publishes the key in force, and logs that it is missing.
    fn publish(&mut self) {
        let named = self.named().to_owned();
        let key = self.keys.get(&named);
        self.in_force.send_if_modified(|published| {
            let same = published.as_deref() == key;
            if !same {
                *published = key.cloned().map(Arc::new);
            }
            !same
        });
        match self.core.status() {
            Status::Missing if self.problems.is_new(&named) => {
                tracing::error!(
                    subsystem = "state",
                    key_id = named,
                    "no member has the secrets key; import it"
                );
            }
            Status::Missing | Status::Asking => {}
            Status::Held | Status::Unnamed => {
                self.problems.clear();
            }
        }
    }
}

/// A key to be named, together with every value that the old one seals.
struct Proposal {
    identity: String,
    id: String,
    replaces: String,
    old: Option<SecretsKey>,
    new: Option<SecretsKey>,
    args: Args,
}

impl Proposal {
    async fn commit(self) -> Result<(), Error> {
        let raft = &*self.args.raft;
        // No value is sealed with the old key between this read and the commit.
        let guard = self.args.sealing_lock.lock(raft).await?;
        let state = raft.state();
        let named = state
            .cluster
            .as_deref()
            .map(|cluster| cluster.secrets_key_id.as_str());
        let new = self
            .new
            .as_ref()
            .filter(|_| named == Some(self.replaces.as_str()));
        let Some(new) = new else {
            let message = "another secrets key is in force";
            return Err(Error::new(ErrorCode::SecretsKeyMismatch, message));
        };
        let mut payloads = vec![Payload::SecretsKeySet(v1::SecretsKeySet {
            key_id: self.id,
            replaces: self.replaces,
        })];
        for reseal in self.args.reseal {
            payloads.extend(reseal(&state, self.old.as_ref(), new)?);
        }
        let ts = self.args.clock.timestamp();
        let children = payloads
            .into_iter()
            .map(|payload| command(&self.identity, ts, payload));
        let command = batch(&self.identity, ts, children.collect());
        guard.commit(raft, command).await?;
        Ok(())
    }
}

/// Runs file work beside the runtime.
async fn blocking<T: Send + 'static, E: std::error::Error + Send + Sync + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Into::into),
        Err(panicked) => Err(panicked.into()),
    }
}
