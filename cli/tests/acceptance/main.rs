//! The contract of the command line, check by check, with the real binaries on both transports.
//!
//! The daemon mostly runs without a container engine: what it stores and answers needs none.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod cluster;
mod connecting;
mod credentials;
mod deploying;
mod engine;
mod lab;
mod local;
mod packaging;
mod streams;
