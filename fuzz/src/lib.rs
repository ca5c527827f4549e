//! Fuzz targets: a property of every parser of external bytes that must hold for any input.
//!
//! Each function takes one input and panics if the property does not hold. The programs in
//! `fuzz_targets/` run them under libFuzzer (`make fuzz`, or `cargo fuzz`); `tests/replay.rs` runs
//! every input of `corpus/` through them as an ordinary test.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a violated property panics"
)]

mod client_address;
mod cluster;
mod compose;
mod config;
mod dns;
mod env_file;
mod error_status;
mod grpc_server;
mod interpolate;
mod jaco_yaml;
mod log_lines;
mod manifest;
mod netfilter;
mod parts;
mod peer_frames;
mod project;
mod proxy_path;
mod registry;
mod tree;
mod wireguard;

pub use client_address::client_address;
pub use compose::compose;
pub use config::config;
pub use dns::dns;
pub use env_file::env_file;
pub use error_status::error_status;
pub use grpc_server::grpc_server;
pub use interpolate::interpolate;
pub use jaco_yaml::jaco_yaml;
pub use log_lines::log_lines;
pub use netfilter::netfilter;
pub use peer_frames::peer_frames;
pub use project::project;
pub use proxy_path::proxy_path;
pub use registry::registry;
pub use wireguard::wireguard;

/// A property of one input.
pub type Target = fn(&[u8]);

/// All targets, by the name of their program and of their directory in `corpus/`.
pub const TARGETS: [(&str, Target); 16] = [
    ("client_address", client_address),
    ("compose", compose),
    ("config", config),
    ("dns", dns),
    ("env_file", env_file),
    ("error_status", error_status),
    ("grpc_server", grpc_server),
    ("interpolate", interpolate),
    ("jaco_yaml", jaco_yaml),
    ("log_lines", log_lines),
    ("netfilter", netfilter),
    ("peer_frames", peer_frames),
    ("project", project),
    ("proxy_path", proxy_path),
    ("registry", registry),
    ("wireguard", wireguard),
];
