//! `jaco.yaml` and compose files: from bytes to validated values.
//!
//! Parsing is pure: bytes in, typed values or a located [`Error`](crate::Error) out. A client runs
//! [`interpolate`](interpolate()) and [`env_file::fold`], a daemon calls [`resolve`] on the
//! received files, and `jaco validate` calls [`validate`].

pub mod compose;
pub mod env_file;
mod fault;
mod grammar;
mod hash;
pub mod interpolate;
pub mod jaco;
pub mod project;
mod resolve;
mod template;

pub use hash::SpecHasher;
pub use interpolate::interpolate;
pub use jaco::{json_schema, secrets::MAX_SECRETS};
pub use resolve::{Bind, ClusterView, Privileged, Resolved, resolve, validate};

/// Maximum of bytes of a config, a secret or a shipped file.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// Maximum of files of a directory that a client ships; it has [`MAX_FILE_BYTES`] in all.
pub const MAX_DIRECTORY_FILES: usize = 100;

/// Maximum of replicas per service; far above real clusters, and far below the number that one pass
/// of the scheduler can write.
pub const MAX_REPLICAS: i32 = 10_000;
