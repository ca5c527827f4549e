//! Containers on several machines reach those of their own network, and no others.
//!
//! The environment scales the tests: `make test` runs a short form.
//!
//! | variable | meaning | short | full |
//! |---|---|---|---|
//! | `JACO_STEPS` | random changes of the cluster | 6 | 1000 |
//! | `JACO_MEBIBYTES` | size of a transfer between two machines | 64 | 1024 |
//! | `JACO_LIMITS` | `1` asserts limits of times | printed | 1 |

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests print measurements"
)]

mod engine;
mod fixture;
mod further_names;
mod gate;
mod held;
mod internal;
mod path_mtu;
mod published;
mod repair;
mod resolver;
mod restart;
mod scopes;
mod shared;
mod traffic;
mod transfer;
mod two_networks;
mod wire;
