//! Faults that a single node survives, injected into real daemons on a real engine.
//!
//! Every test has a daemon and a cluster of its own. Random choices are drawn from a seed that the
//! test prints; `JACO_SEED` repeats them.

mod backup;
mod bad_disk;
mod bad_manifests;
mod container_budget;
mod daemon_kills;
mod engine_away;
mod every_actor;
mod full_disk;
mod random_failures;
mod replica_actor;
mod script;
mod secrets;
