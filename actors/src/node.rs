//! A node: the state its actors share, its data directory, and its membership.
//!
//! The API and the assembly of a [`Node`](crate::Node) import this module; it imports neither.
//!
//! Offline, without a daemon, [`restore()`] creates a node from a backup and [`Export`] reads a
//! backup from the data directory of a stopped node.

mod actor;
mod announce;
pub(crate) mod authority;
mod config;
mod context;
mod export;
mod files;
mod init;
mod join;
pub(crate) mod leader;
mod lock;
mod msg;
mod platforms;
mod removed;
mod renew;
mod restore;
mod restore_marker;
pub(crate) mod submit;
mod subnets;

pub use actor::NodeActor;
pub use config::{MeshSettings, NodeConfig};
pub use context::{MemberContext, NodeContext};
pub use export::Export;
pub use files::FilesError;
pub use init::ClusterBootstrap;
pub use jaco_raftnode::{archive, offline::Replay};
pub use msg::Msg as NodeMsg;
pub use restore::{Prepared, RestoreError, RestoreStep, Restored, restore};

pub(crate) use actor::Args as NodeArgs;
#[cfg(any(test, feature = "testing"))]
pub(crate) use context::MemberParts;
pub(crate) use context::{EndOfService, NodeParts, removed, uninitialized};
pub(crate) use files::Layout;
pub(crate) use init::already;
pub(crate) use join::JoinToken;
pub(crate) use lock::DirectoryLock;
pub(crate) use subnets::LeaderAllocator;
