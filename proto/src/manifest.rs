//! `jaco.yaml` and compose files: from bytes to validated values.
//!
//! Reading a manifest is pure: bytes in, typed values or a located [`Error`](crate::Error) out.
//! A client runs [`interpolate`](interpolate()) and [`env_file::fold`], a daemon calls [`resolve`]
//! on what it receives, and `jaco validate` calls [`validate`].

pub mod compose;
pub mod env_file;
mod fault;
mod grammar;
mod hash;
pub mod interpolate;
pub mod jaco;
mod resolve;
mod template;

pub use hash::SpecHasher;
pub use interpolate::interpolate;
pub use jaco::json_schema;
pub use resolve::{ClusterView, Privileged, Resolved, resolve, validate};

/// Most replicas of one service; far above what one cluster runs, far below what one pass of the
/// scheduler cannot write.
pub const MAX_REPLICAS: i32 = 10_000;
