//! `jaco.yaml` and compose files: from bytes to validated values.
//!
//! Reading a manifest is pure: bytes in, typed values or a located [`Error`](crate::Error) out.
//! A daemon calls [`resolve`] on what it receives; `jaco validate` calls [`validate`].

pub mod compose;
mod fault;
mod grammar;
mod hash;
pub mod jaco;
mod resolve;

pub use hash::SpecHasher;
pub use resolve::{ClusterView, Privileged, Resolved, resolve, validate};
