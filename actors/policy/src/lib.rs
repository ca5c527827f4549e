//! The decisions of JACO's actors: pure cores, without I/O, a clock or a runtime.
//!
//! A core is given the time with each input and returns the effects to run. `jaco-actors` runs
//! them against the engine, the kernel and the peers; the simulator of `jaco-chaos` runs the same
//! cores on virtual time.
//!
//! - [`api`]: limits of callers and connections, and answers computed from the state.
//! - [`health`]: dead members, and whether this node may act on its own state.
//! - [`ingress`]: the replicas that serve a route, and when the reverse proxy follows the routes.
//! - [`membership`]: the voters of the raft group, and when a member may leave.
//! - [`network`]: address blocks and bridges.
//! - [`node`]: the commands that a member may submit to the leader.
//! - [`peer`]: the members to connect to, duplicate connections, and members that reject this node.
//! - [`runtime`]: the replicas of this host: their containers, images and logs.
//! - [`scheduler`]: which replicas exist, and on which hosts they run.

pub mod api;
pub mod health;
pub mod ingress;
pub mod membership;
pub mod network;
pub mod node;
pub mod peer;
pub mod runtime;
pub mod scheduler;
