//! Actions of a replica's core.

use crate::runtime::replica::report::Report;

/// Action for the driver to run. One with a generation expects an outcome, which the driver reports
/// with that generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// List the containers of this replica.
    Lookup(u64),
    /// Read the service, ensure its networks, build the create request.
    Prepare(u64),
    /// Pull the image, one attempt.
    Pull(u64),
    /// Create from the prepared request, connect and start; on failure remove the container.
    Launch(u64),
    /// Start a container that exists.
    Start(u64, String),
    /// Inspect a container.
    Inspect(u64, String),
    /// Stop each with its own signal and grace period, then remove it and its anonymous volumes.
    Discard(u64, Vec<String>),
    /// Cancel the action in flight; only ever a prepare or a pull.
    Cancel,
    /// Publish the report to the cluster.
    Publish(Box<Report>),
    /// No container of this replica is left on this host.
    Finished,
}
