//! State machine: the effect of a committed command on the state.
//!
//! [`apply`] is a pure function of the state, the log index and the command: no clock, no
//! randomness, no host name, no file. All nodes that apply the same log reach byte-identical
//! states. Time is the timestamp that the proposer wrote into the command.
//!
//! A command takes effect as a whole or is rejected as a whole. A rejection changes only the
//! applied index, and is the same on every node.

mod audit;
mod batch;
mod cert;
mod cluster;
mod config;
mod counter;
mod deployment;
mod files;
mod imported;
mod node;
mod observation;
mod registry;
pub mod reject;
mod replica;
mod rollout;
mod route;
mod secret;
mod subnet;
#[cfg(test)]
mod tests;
pub(crate) mod time;
mod tls;
mod token;
mod tx;

use jaco_proto::{
    Error,
    v1::{self, command::Payload},
};
use prost::Message;
use prost_types::Timestamp;

use crate::{Event, State, state::Table};
pub use observation::{MOVE_ATTEMPT, MOVE_CODE, MOVE_REASON};
use tx::Tx;

/// Result of applying one log entry.
#[derive(Clone, Debug)]
pub struct Applied {
    /// State after the entry; after a rejection only its applied index has changed.
    pub state: State,
    /// The rejection to return to the proposer, if any.
    pub result: Result<(), Error>,
    /// Row writes, in order; a later write of a key replaces an earlier one.
    pub mutations: Vec<Mutation>,
    /// Changes in the order they were made; published to watchers once the rows are written.
    pub events: Vec<Event>,
}

/// Result of applying one log entry in place.
#[derive(Clone, Debug)]
pub struct Effects {
    /// The rejection to return to the proposer, if any.
    pub result: Result<(), Error>,
    /// Row writes, in order; a later write of a key replaces an earlier one.
    pub mutations: Vec<Mutation>,
    /// Changes in the order they were made; published to watchers once the rows are written.
    pub events: Vec<Event>,
}

/// One row to write to or delete from storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// Kind of entity.
    pub table: Table,
    /// The full row key, which starts with the tag of the table.
    pub key: Vec<u8>,
    /// The encoded entity; `None` deletes the row.
    pub value: Option<Vec<u8>>,
}

/// A committed command that this version does not understand.
///
/// Skipping it would diverge from nodes that know it, so the node must stop applying and report
/// itself unhealthy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} holds a command that this version does not know")]
pub struct UnknownVariant {
    /// Log index of the command.
    pub index: u64,
}

/// Reason why bytes are not a command of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes do not decode as a command.
    #[error("the bytes are not a command")]
    Malformed(#[source] prost::DecodeError),
    /// The command has variants or fields of a newer version.
    #[error("the command holds fields that this version does not know")]
    UnknownField,
}

/// Decodes a command; rejects fields that decoding would silently drop.
///
/// # Errors
///
/// [`DecodeError`]; on a committed entry either variant means that the node must stop applying.
pub fn decode(bytes: &[u8]) -> Result<v1::Command, DecodeError> {
    let command = v1::Command::decode(bytes).map_err(DecodeError::Malformed)?;
    // Commands are always written by this encoder, so a shorter re-encoding means dropped fields.
    if command.encoded_len() == bytes.len() {
        Ok(command)
    } else {
        Err(DecodeError::UnknownField)
    }
}

/// Checks a command before it is appended to the log.
///
/// # Errors
///
/// `validation_failed` if the command, or a child of its batch, has no payload: once committed, it
/// would stop every node like an unknown variant.
pub fn check(command: &v1::Command) -> Result<(), Error> {
    match &command.payload {
        None => Err(reject::invalid("payload", "missing")),
        Some(Payload::Batch(batch)) => batch.children.iter().try_for_each(check),
        Some(_) => Ok(()),
    }
}

/// Applies the command of log entry `index` to a copy of `state`.
///
/// # Errors
///
/// [`UnknownVariant`] if the node must stop at this entry; `state` stays the current state.
pub fn apply(state: &State, index: u64, command: &v1::Command) -> Result<Applied, UnknownVariant> {
    let mut state = state.clone();
    let effects = apply_in_place(&mut state, index, command)?;
    Ok(Applied {
        state,
        result: effects.result,
        mutations: effects.mutations,
        events: effects.events,
    })
}

/// Applies the command of log entry `index` in place; after a rejection only the applied index of
/// `state` has changed.
///
/// A run of entries applied in place copies the parts shared with older states once, instead of
/// once per entry.
///
/// # Errors
///
/// [`UnknownVariant`] if the node must stop at this entry; `state` is unchanged then.
pub fn apply_in_place(
    state: &mut State,
    index: u64,
    command: &v1::Command,
) -> Result<Effects, UnknownVariant> {
    let before = state.applied_index;
    let mut tx = Tx::begin(std::mem::take(state), index);
    match dispatch(&mut tx, command, 0) {
        Ok(()) => {
            let effects;
            (*state, effects) = tx.commit();
            Ok(effects)
        }
        Err(ApplyError::Rejected(error)) => {
            *state = tx.roll_back();
            Ok(Effects {
                result: Err(error),
                mutations: Vec::new(),
                events: Vec::new(),
            })
        }
        Err(ApplyError::Unknown) => {
            *state = tx.roll_back();
            state.applied_index = before;
            Err(UnknownVariant { index })
        }
    }
}

/// Reason why a command has no effect.
enum ApplyError {
    Rejected(Error),
    Unknown,
}

impl From<Error> for ApplyError {
    fn from(error: Error) -> Self {
        Self::Rejected(error)
    }
}

/// Identity and timestamp of a command.
struct Origin<'a> {
    identity: &'a str,
    /// A missing timestamp reads as the epoch.
    ts: Timestamp,
}

fn dispatch(tx: &mut Tx, command: &v1::Command, depth: usize) -> Result<(), ApplyError> {
    let origin = &Origin {
        identity: &command.identity,
        ts: command.ts.unwrap_or_default(),
    };
    let Some(payload) = &command.payload else {
        return Err(ApplyError::Unknown);
    };
    match payload {
        Payload::Batch(c) => return batch::apply(tx, c, depth),
        Payload::ClusterInit(c) => cluster::init(tx, origin, c),
        Payload::NodeJoin(c) => node::join(tx, origin, c),
        Payload::NodeRemove(c) => node::remove(tx, origin, c),
        Payload::NodeStatusUpdate(c) => node::update_status(tx, origin, c),
        Payload::NodeUpdateSelf(c) => node::update_self(tx, c),
        Payload::DeploymentApply(c) => deployment::apply(tx, origin, c),
        Payload::DeploymentRollback(c) => deployment::rollback(tx, origin, c),
        Payload::DeploymentDelete(c) => deployment::delete(tx, origin, c),
        Payload::DeploymentStatusUpdate(c) => deployment::update_status(tx, c),
        Payload::ReplicaDesiredUpsert(c) => replica::upsert(tx, c),
        Payload::ReplicaDesiredRemove(c) => {
            replica::remove(tx, &c.id);
            Ok(())
        }
        Payload::ReplicaObservedUpdate(c) => observation::update(tx, c),
        Payload::RolloutPlanUpdate(c) => rollout::update_plan(tx, c),
        Payload::ReplicaCounterIncrement(c) => counter::next_replica(tx, c),
        Payload::RestartCounterUpdate(c) => counter::update_restarts(tx, origin, c),
        Payload::RouteUpsert(c) => route::upsert(tx, c),
        Payload::RouteRemove(c) => {
            route::remove_domain(tx, &c.domain);
            Ok(())
        }
        Payload::CertLock(c) => cert::lock(tx, origin, c),
        Payload::CertUnlock(c) => cert::unlock(tx, c),
        Payload::ChallengeTokenStore(c) => cert::store_challenge(tx, origin, c),
        Payload::CertBlobUpsert(c) => cert::upsert_blob(tx, origin, c),
        Payload::CertBlobRemove(c) => {
            tx.remove::<v1::CertBlob>(&c.key);
            Ok(())
        }
        Payload::SubnetAllocate(c) => subnet::allocate(tx, origin, c),
        Payload::SubnetFree(c) => subnet::free(tx, origin, c),
        Payload::TokenIssue(c) => token::issue(tx, origin, c),
        Payload::TokenRevoke(c) => token::revoke(tx, origin, c),
        Payload::JoinTokenIssue(c) => token::issue_join(tx, origin, c),
        Payload::JoinTokenConsume(c) => token::consume_join(tx, origin, c),
        Payload::AuditAppend(c) => audit::append(tx, origin, c),
        Payload::RegistryCredentialUpsert(c) => registry::upsert(tx, origin, c),
        Payload::RegistryCredentialRemove(c) => registry::remove(tx, origin, c),
        Payload::ClusterConfigSet(c) => config::set(tx, origin, c),
        Payload::SecretUpsert(c) => secret::upsert(tx, origin, c),
        Payload::SecretRemove(c) => secret::remove(tx, origin, c),
        Payload::SecretsKeySet(c) => cluster::set_secrets_key(tx, origin, c),
        Payload::RouteTlsOverrideSet(c) => tls::set(tx, origin, c),
        Payload::RouteTlsOverrideRemove(c) => tls::remove(tx, origin, c),
        Payload::ImportedCertUpsert(c) => imported::upsert(tx, origin, c),
        Payload::ImportedCertRemove(c) => imported::remove(tx, origin, c),
        Payload::FileContentReseal(c) => files::reseal(tx, c),
        Payload::RolloutHoldSet(c) => rollout::set_hold(tx, origin, c),
        Payload::ClusterFilePut(c) => files::put(tx, origin, c),
        Payload::ClusterFileRemove(c) => files::remove(tx, origin, c),
        // Kept for compatibility; neither has an effect.
        Payload::ReplicaCommandIssue(_) | Payload::CertStore(_) => Ok(()),
    }
    .map_err(ApplyError::from)
}
