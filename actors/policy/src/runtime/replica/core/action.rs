//! Actions of a replica's core.

use std::collections::BTreeSet;

use super::{Assignment, StartGate};
use crate::runtime::replica::report::Report;

/// Condition on which a start was decided.
///
/// Any time may pass between the decision and the engine's request, for example because the process
/// was paused. Immediately before each request that creates or starts a container the driver
/// derives the assignment anew and sends the request only if the condition still holds; otherwise
/// the outcome is [`StartError::Revoked`](super::StartError::Revoked).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartCondition {
    /// Log index of the row.
    pub(super) raft_index: u64,
    /// The start replaces a container that failed here, which needs no contact with the cluster.
    pub(super) restart: bool,
}

impl StartCondition {
    /// Whether the start may be made under `assignment`, the one at this moment. Dependencies are
    /// checked only once, before the start is prepared.
    #[must_use]
    pub fn holds(&self, assignment: &Assignment) -> bool {
        let Assignment::Own(wanted) = assignment else {
            return false;
        };
        wanted.raft_index == self.raft_index
            && match wanted.gate {
                StartGate::Open | StartGate::Deferred(_) => true,
                StartGate::NotCaughtUp => self.restart,
                StartGate::IsolationMissing => false,
            }
    }
}

/// Action for the driver to run. One with a generation expects an outcome, which the driver reports
/// with that generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// List the containers of this replica.
    Lookup(u64),
    /// Read the service, ensure its networks and their isolation, build the create request. Comes
    /// before every start, also that of a container that exists.
    Prepare(u64),
    /// Pull the image, one attempt.
    Pull(u64),
    /// Create from the prepared request, connect and start; on failure remove the container. Create
    /// and start only while the condition holds.
    Launch(u64, StartCondition),
    /// Start a container that exists, if the condition holds.
    Start(u64, String, StartCondition),
    /// Inspect a container, and connect once to each of these TCP ports at its own address.
    Inspect(u64, String, BTreeSet<u16>),
    /// Run the commands of `post_start` in a running container, in order until one fails.
    PostStart(u64, String),
    /// Wait until every ready node has applied that no container here serves: first the state must
    /// show it, then the routing of each node. The core waits for the outcome at most
    /// [`WITHDRAWAL_TIMEOUT`](super::WITHDRAWAL_TIMEOUT).
    Withdraw(u64),
    /// Stop each with its own signal and grace period, then remove it and its anonymous volumes.
    Discard(u64, Vec<String>),
    /// Cancel the action in flight; only ever a prepare, a pull or a withdrawal.
    Cancel,
    /// Publish the report to the cluster.
    Publish(Box<Report>),
    /// No container of this replica is left on this host.
    Finished,
}
