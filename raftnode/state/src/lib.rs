//! The replicated state of JACO as a value: no clock, file or socket is read here.
//!
//! - [`State`]: the typed state; a snapshot is an `Arc` and costs O(1). It is encoded as rows and
//!   as one message, and decoded from both.
//! - [`mod@command`]: constructors and names of commands.
//! - [`fsm`]: the effect of a committed command on the state.
//! - [`event`]: changes of entities, typed and in their wire format.
//! - [`QUARANTINE`]: the time for which a freed address block is not assigned again.
//! - [`State::networks_in_use`]: networks that need their address blocks.
//! - [`State::secrets_of`]: the secrets of a deployment.
//! - [`mod@restore`]: the initial state of a restored cluster.
//! - [`registry`]: canonical keys of image registries.

pub mod command;
pub mod event;
pub mod fsm;
mod quarantine;
pub mod registry;
pub mod restore;
mod secrets;
mod sharing;
mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use command::{batch, command, command_name};
pub use event::{Change, Delta, EntityType, Event};
pub use quarantine::QUARANTINE;
pub use secrets::secret_not_found;
pub use sharing::{NetworksInUse, shared_networks};
pub use state::{
    DecodedSnapshot, Extent, LoadError, Row, RowName, Rules, SnapshotError, State, Table,
    cluster_file_key, join_token_key, load,
};
