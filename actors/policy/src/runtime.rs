//! Runtime: what this host must do for its replicas.
//!
//! - [`assignment`]: the part of the replicated state that concerns one replica on this host.
//! - [`documents`]: cache of parsed compose documents.
//! - [`logs`]: the log tail of a replica.
//! - [`publisher`]: the order in which observations are proposed.
//! - [`registry_key`]: image references, and the credential an image is pulled with.
//! - [`replica`]: state machine of one container, from pull to removal.
//! - [`state_diff`]: the replicas that a change of the state can affect.
//! - [`sweep`]: containers without a row.

pub mod assignment;
pub mod documents;
pub mod logs;
pub mod publisher;
pub mod registry_key;
pub mod replica;
pub mod state_diff;
pub mod sweep;
