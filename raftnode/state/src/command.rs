//! Constructors and names of commands.

use jaco_proto::v1::{self, command::Payload};
use prost_types::Timestamp;

/// Creates a command of `identity` at `ts`, which is the only time that applying it uses.
pub fn command(identity: impl Into<String>, ts: Timestamp, payload: Payload) -> v1::Command {
    v1::Command {
        ts: Some(ts),
        identity: identity.into(),
        payload: Some(payload),
        ..v1::Command::default()
    }
}

/// Creates a command that applies `children` in order, all or none.
///
/// The children keep their own identities and timestamps.
pub fn batch(
    identity: impl Into<String>,
    ts: Timestamp,
    children: Vec<v1::Command>,
) -> v1::Command {
    command(identity, ts, Payload::Batch(v1::Batch { children }))
}

/// Returns the name of the command's variant, for logs. The content is not logged: it may be
/// secret.
#[must_use]
pub fn command_name(command: &v1::Command) -> &'static str {
    command.payload.as_ref().map_or("none", Payload::op)
}
