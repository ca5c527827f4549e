//! A node: the daemon's supervision tree and the state its actors share.
//!
//! [`Node::builder`] collects the settings; [`NodeBuilder::start`] inspects the data directory.
//! Without raft state in it, the node serves the API and waits for an init or a join; with raft
//! state, it resumes its membership.
//!
//! Offline, without a daemon, [`restore()`] creates a node from a backup and [`Export`] reads a
//! backup from the data directory of a stopped node.

mod actor;
mod announce;
pub(crate) mod authority;
mod builder;
mod config;
mod context;
mod export;
mod files;
mod init;
mod join;
pub(crate) mod leader;
mod lock;
mod msg;
mod removed;
mod renew;
mod restore;
mod restore_marker;
mod start;
pub(crate) mod submit;
mod subnets;

pub use actor::NodeActor;
pub use builder::{ConfigError, NodeBuilder};
pub use config::NodeConfig;
pub use context::{MemberContext, NodeContext};
pub use export::Export;
pub use files::FilesError;
pub use init::ClusterBootstrap;
pub use jaco_raftnode::archive;
pub use msg::Msg as NodeMsg;
pub use restore::{Prepared, RestoreError, RestoreStep, Restored, restore};
pub use start::{Node, StartError};

pub(crate) use config::is_dialable;
pub(crate) use context::{EndOfService, removed, uninitialized};
#[cfg(any(test, feature = "testing"))]
pub(crate) use context::{MemberParts, NodeParts};
pub(crate) use init::already;
pub(crate) use join::JoinToken;
