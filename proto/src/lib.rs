//! Contracts of JACO with clients, operators and peers.
//!
//! - [`v1`]: the protobuf package `jaco.v1` (messages, gRPC clients and servers).
//! - [`error`]: the typed error of all API calls, and its wire encoding.
//! - [`manifest`]: `jaco.yaml` and compose files: parsing, validation, resolution, hashing.
//! - [`config`]: `jacod.yaml`, the advertised address and the log filter of a daemon.
//! - [`duration`]: durations in text form.
//! - [`mark`]: values of the marks of a node that leaves, or that receives no replicas.
//! - [`quote`]: text in double quotes.
//! - [`replica_code`]: codes of the reasons for a replica's state.
//! - [`secret`]: values that are redacted in output and zeroed on drop.
//! - [`yaml`]: bounded YAML trees with positions, used by the manifests.
//!
//! This crate does no I/O: its functions convert bytes to values or to a typed error. Without the
//! feature `grpc`, [`v1`] has the messages only, errors have no gRPC status, and the crate depends
//! on no async runtime.

mod chain;
pub mod config;
pub mod duration;
pub mod error;
pub mod manifest;
pub mod mark;
pub mod node_labels;
pub mod quote;
mod redacted;
pub mod replica_code;
pub mod secret;
mod timestamp;
pub mod yaml;

pub use chain::chain;
pub use error::{Error, ErrorCode};
pub use timestamp::timestamp;

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
