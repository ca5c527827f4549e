//! Fuzz targets: for every place where bytes from outside are read, a property that must hold
//! whatever the bytes are.
//!
//! Each function takes one input and panics if the property does not hold. The programs in
//! `fuzz_targets/` run them under libFuzzer (`make fuzz`, or `cargo fuzz`); `tests/replay.rs`
//! runs every input of `corpus/` through them as an ordinary test.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a panic is how a property says that it does not hold"
)]

mod cluster;
mod compose;
mod config;
mod env_file;
mod error_status;
mod grpc_server;
mod interpolate;
mod jaco_yaml;
mod log_lines;
mod manifest;
mod parts;
mod peer_frames;
mod proxy_path;
mod registry;
mod tree;

pub use compose::compose;
pub use config::config;
pub use env_file::env_file;
pub use error_status::error_status;
pub use grpc_server::grpc_server;
pub use interpolate::interpolate;
pub use jaco_yaml::jaco_yaml;
pub use log_lines::log_lines;
pub use peer_frames::peer_frames;
pub use proxy_path::proxy_path;
pub use registry::registry;

/// A property over one input.
pub type Target = fn(&[u8]);

/// Every target by the name of its program and of its directory in `corpus/`.
pub const TARGETS: [(&str, Target); 11] = [
    ("compose", compose),
    ("config", config),
    ("env_file", env_file),
    ("error_status", error_status),
    ("grpc_server", grpc_server),
    ("interpolate", interpolate),
    ("jaco_yaml", jaco_yaml),
    ("log_lines", log_lines),
    ("peer_frames", peer_frames),
    ("proxy_path", proxy_path),
    ("registry", registry),
];
