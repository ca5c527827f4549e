//! The ingress of a cluster: certificates, from pebble in place of Let's Encrypt to the handshakes of
//! clients; sticky sessions, limits, and listening sockets across restarts.
//!
//! The environment scales the tests: `make test` runs a short form.
//!
//! | variable | meaning | short | full |
//! |---|---|---|---|
//! | `JACO_STEPS` | kills of the leader while it orders | 2 | 1000, at most 20 |
//! | `JACO_REPLICA_KILLS` | replicas killed under load | 3 | 100 |
//! | `JACO_NODE_KILLS` | power cuts of a node under load | 1 | 20 |
//! | `JACO_SWAPS` | certificates replaced under load | 5 | 100 |
//! | `JACO_RESTARTS` | daemons replaced under load | 2 | 20 |
//! | `JACO_LOAD_PERCENT` | requests sent of those that the cluster can answer, in percent | 30 | 80 |
//! | `JACO_WITHDRAWALS` | replicas stopped on purpose under load | 4 | 100 |
//! | `JACO_ACTOR_KILLS` | actors of the ingress killed | 12 | 300 |
//! | `JACO_REPLACEMENTS` | restarts of a daemon by its service manager | 3 | 3 |

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests print measurements"
)]

mod actor_kills;
mod authority;
mod balancer;
mod certificates;
mod client;
mod client_limits;
mod descriptor_store;
mod disruptions;
mod domains;
mod fixture;
mod imported;
mod leader_kills;
mod load;
mod plain;
mod service;
mod sticky;
