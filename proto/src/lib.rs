//! Contracts of JACO: what clients, operators and peers may rely on.
//!
//! - [`v1`]: the protobuf package `jaco.v1` (messages, gRPC clients and servers).
//! - [`error`]: the typed error every call answers with, and its wire encoding.
//! - [`manifest`]: `jaco.yaml` and compose files: parsing, validation, resolution, hashing.
//! - [`config`]: `jacod.yaml`, the advertised address and the log filter of a daemon.
//! - [`duration`]: durations as operators write them.
//! - [`secret`]: values that never show, and are zeroed.
//! - [`yaml`]: positioned, bounded YAML trees, the ground the manifests stand on.
//!
//! Nothing here does I/O: every function maps bytes to values or to a typed error. Without the
//! feature `grpc` only messages are left of [`v1`], and errors know no gRPC status: then this
//! crate depends on no runtime.

mod chain;
pub mod config;
pub mod duration;
pub mod error;
pub mod manifest;
mod redacted;
pub mod secret;
pub mod yaml;

pub use chain::chain;
pub use error::{Error, ErrorCode};

/// The protobuf package `jaco.v1`.
#[expect(
    missing_docs,
    reason = "generated; the .proto files carry the documentation"
)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/jaco.v1.rs"));
}

/// Encoded `FileDescriptorSet` of the contract and its imports.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/jaco.v1.bin"));
