//! The cluster's secrets key on this member.
//!
//! [`jaco_policy::secrets_key`] decides how a key is made, spread and named. `SecretsActor` owns the
//! key file of this member and carries the decisions out. The key itself reaches members, key files
//! and the control socket; it is never logged.

mod actor;
mod file;
mod files;
mod peers;
mod reseal;
#[cfg(test)]
mod tests;
mod values;

use std::{path::PathBuf, sync::Arc, time::Duration};

use jaco_net::secrets::SecretsKey;
use jaco_policy::secrets_key::NotRotated;
use jaco_proto::{Error, ErrorCode};
use jaco_raftnode::LeaderProposer;
use jaco_supervision::{CallError, ChildSpec, Handle};
use tokio::sync::watch;

use crate::{clock::Clock, commit::CommitLock};

pub(crate) use actor::{Msg, SecretsActor};
pub use file::{KeyFile, KeyFileError};
pub(crate) use files::KeySealer;
#[cfg(test)]
pub(crate) use files::reseal as reseal_files;
pub(crate) use peers::{KeyPeers, from_message, to_message};
pub(crate) use reseal::{RESEALERS, Reseal};
pub(crate) use values::ValueSealer;

/// Time limit of the actor, which writes a file.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a rotation: that of its core, and of the proposal.
const ROTATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Arguments of a [`SecretsActor`].
#[derive(Clone)]
pub(crate) struct Args {
    /// Hostname of this member.
    pub(crate) host: String,
    /// The key file.
    pub(crate) file: PathBuf,
    pub(crate) raft: Arc<dyn LeaderProposer>,
    /// Whether this member leads.
    pub(crate) is_leader: watch::Receiver<bool>,
    pub(crate) peers: Arc<dyn KeyPeers>,
    pub(crate) clock: Clock,
    /// Held while a value is sealed and proposed, so that no rotation misses it.
    pub(crate) sealing_lock: CommitLock,
    pub(crate) reseal: &'static [Reseal],
}

/// Access to the secrets key, valid across restarts of the actor.
#[derive(Clone, Debug)]
pub struct Secrets {
    actor: Handle<Msg>,
    key: watch::Receiver<Option<Arc<SecretsKey>>>,
}

/// Creates the actor and the access to its key.
pub(crate) fn child(args: Args) -> (ChildSpec, Secrets) {
    let (sender, key) = watch::channel(None);
    let (spec, actor) = ChildSpec::worker::<SecretsActor>("secrets", (args, sender));
    (spec, Secrets { actor, key })
}

impl Secrets {
    /// Follows the key that the state names; `None` while this member does not have it.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<SecretsKey>>> {
        self.key.clone()
    }

    /// Returns the key that the state names.
    ///
    /// # Errors
    /// `secrets_key_missing` while this member does not have it.
    pub fn key(&self) -> Result<Arc<SecretsKey>, Error> {
        self.key.borrow().clone().ok_or_else(missing)
    }

    /// Writes a key to the disk of this member, for its leader.
    pub(crate) async fn store(&self, key: SecretsKey) -> Result<(), Error> {
        self.call(CALL_TIMEOUT, |reply| Msg::Store(key, reply))
            .await?
    }

    /// Returns a key that this member has, in force or not.
    pub(crate) async fn fetch(&self, id: String) -> Result<SecretsKey, Error> {
        let found = self.call(CALL_TIMEOUT, |reply| Msg::Fetch(id, reply));
        found.await?.ok_or_else(missing)
    }

    /// Gives this member the key that the state names; the others fetch it.
    ///
    /// # Errors
    /// `secrets_key_mismatch` for another key.
    pub(crate) async fn import(&self, key: SecretsKey) -> Result<String, Error> {
        self.call(CALL_TIMEOUT, |reply| Msg::Import(key, reply))
            .await?
    }

    /// Replaces the key, on the leader; returns the id of the new one.
    pub(crate) async fn rotate(&self, identity: String) -> Result<String, Error> {
        self.call(ROTATE_TIMEOUT, |reply| Msg::Rotate(identity, reply))
            .await?
    }

    async fn call<T>(
        &self,
        timeout: Duration,
        make: impl FnOnce(jaco_supervision::Reply<T>) -> Msg,
    ) -> Result<T, Error> {
        self.actor.call(timeout, make).await.map_err(|error| {
            let message = match error {
                CallError::Unavailable | CallError::NoReply => "the secrets key is being read",
                CallError::Timeout => "the secrets key's file was not written in time",
            };
            Error::new(ErrorCode::StateUnavailable, message)
        })
    }
}

fn missing() -> Error {
    Error::new(
        ErrorCode::SecretsKeyMissing,
        "this node does not have the cluster's secrets key",
    )
    .with("reason", "not on this node's disk")
}

/// Error of a failed rotation.
fn not_rotated(why: &NotRotated) -> Error {
    let code = match why {
        NotRotated::NotLeading => ErrorCode::NoLeader,
        NotRotated::NoKey => ErrorCode::SecretsKeyMissing,
        NotRotated::Busy => ErrorCode::RaftUnavailable,
        NotRotated::NoMajority => ErrorCode::QuorumLost,
        NotRotated::Replaced => ErrorCode::SecretsKeyMismatch,
        NotRotated::Failed(_) => ErrorCode::RaftApplyFailed,
    };
    Error::new(code, "the secrets key was not rotated").because(why)
}
