//! Sealed values in the replicated state, which a rotation seals anew.

use jaco_net::secrets::SecretsKey;
use jaco_proto::{Error, ErrorCode, v1::command::Payload};
use jaco_raftnode::State;

use super::{files, values};
use crate::ingress::certificate;

/// Returns the commands that replace every sealed value of one kind of row: opened with the old key,
/// which is absent if this member lacks it, and sealed with the new one.
///
/// # Errors
/// `secrets_key_missing` if there are values and no old key; the rotation changes nothing then.
pub(crate) type Reseal =
    fn(state: &State, old: Option<&SecretsKey>, new: &SecretsKey) -> Result<Vec<Payload>, Error>;

/// One function per kind of row with sealed values.
pub(crate) static RESEALERS: &[Reseal] = &[certificate::reseal, files::reseal, values::reseal];

/// Error of a rotation on a member that lacks the old key.
pub(super) fn key_missing() -> Error {
    let message = "this node does not have the key that seals the secrets";
    Error::new(ErrorCode::SecretsKeyMissing, message)
}
