//! Acceptance checks of the command line contract, with the real binaries on both transports.
//!
//! Most tests run the daemon without a container engine, because they only need its API.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod cluster;
mod connecting;
mod credentials;
mod deploying;
mod docker;
mod engine;
mod lab;
mod local;
mod packaging;
mod readme;
mod streams;
