//! `jaco.yaml` and compose files: from bytes to validated values.
//!
//! Reading a manifest is pure: bytes in, typed values or a located [`Error`](crate::Error) out.

pub mod compose;
