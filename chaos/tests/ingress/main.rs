//! Certificates of a cluster, from pebble in place of Let's Encrypt to the handshakes of clients.
//!
//! The environment scales the tests: `make test` runs a short form.
//!
//! | variable | meaning | short | full |
//! |---|---|---|---|
//! | `JACO_STEPS` | kills of the leader while it orders | 2 | 1000, at most 20 |

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod authority;
mod balancer;
mod certificates;
mod client;
mod fixture;
mod leader_kills;
