//! The decisions of JACO's actors: pure cores, without I/O, a clock or a runtime.
//!
//! A core has one `handle_*` method per event, which takes the time first, `poll_action` for the
//! actions to run, and `poll_timeout` for the time of the next `handle_timeout`. `jaco-actors` runs
//! the actions against the engine, the kernel and the peers; the simulator of `jaco-chaos` runs the
//! same cores on virtual time.
//!
//! - [`api`]: limits of callers and connections, and answers computed from the state.
//! - [`debounce`]: when to act on a burst of changes; used by the scheduler and the ingress.
//! - [`health`]: dead members, and whether this node may act on its own state.
//! - [`ingress`]: the replicas that serve a route.
//! - [`membership`]: the voters of the raft group, and when a member may leave.
//! - [`network`]: address blocks and bridges.
//! - [`node`]: the commands that a member may submit to the leader.
//! - [`peer`]: the members to connect to, duplicate connections, and members that reject this node.
//! - [`runtime`]: the replicas of this host: their containers, images and logs.
//! - [`scheduler`]: which replicas exist, and on which hosts they run.
//! - [`secrets_key`]: how the cluster gets its secrets key, and every member that key.
//! - [`settings`]: the cluster configuration, typed.

pub mod api;
pub mod debounce;
pub mod health;
pub mod ingress;
pub mod membership;
pub mod network;
pub mod node;
pub mod peer;
pub mod runtime;
pub mod scheduler;
pub mod secrets_key;
pub mod settings;

/// Time limit of a commit, after which its outcome counts as unknown, and time during which such a
/// proposal may still commit: a decision before that could be made twice.
pub const COMMIT_BUDGET: std::time::Duration = std::time::Duration::from_secs(5);
