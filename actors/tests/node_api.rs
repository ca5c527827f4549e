//! Whole nodes in this process, driven by real clients over the unix socket and over TLS.
//!
//! No engine listens at the configured socket: the control plane must serve without one.

#[path = "node_api/backup.rs"]
mod backup;
#[path = "node_api/crash.rs"]
mod crash;
#[path = "node_api/deploy.rs"]
mod deploy;
#[path = "node_api/embed.rs"]
mod embed;
#[path = "node_api/lab.rs"]
mod lab;
#[path = "node_api/lifecycle.rs"]
mod lifecycle;
#[path = "node_api/metrics.rs"]
mod metrics;
#[path = "node_api/migration.rs"]
mod migration;
#[path = "node_api/restore.rs"]
mod restore;
#[path = "node_api/security.rs"]
mod security;
#[path = "node_api/streams.rs"]
mod streams;
