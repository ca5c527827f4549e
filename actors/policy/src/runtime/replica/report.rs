//! Observation of a replica by the host that owns it.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub use jaco_proto::replica_code as code;
use jaco_proto::{
    replica_code::finished,
    v1::{ReplicaObserved, ReplicaState},
};
use prost_types::Timestamp;

/// Observation without host and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Lifecycle state of the replica.
    pub state: ReplicaState,
    /// Reason code, when the state alone is not enough.
    pub code: String,
    /// One sentence for operators.
    pub message: String,
    /// Details of the reason, and `ip.<engine network>` for every address.
    pub details: BTreeMap<String, String>,
    /// Container it describes; empty when there is none.
    pub container_id: String,
    /// Time at which this container was first observed running.
    pub started_at: Option<SystemTime>,
    /// Row the container was made from, or the row being started.
    pub raft_index: u64,
    /// A container of an earlier row serves on, as reported before.
    pub keeps_serving: bool,
}

/// Detail of a report: id of the container whose network namespace the replica's container shares.
/// Its addresses are those of that container.
pub const LENDER: &str = "lender_container_id";

/// Detail of a report of a running container: its start, as the engine writes its time.
pub const START: &str = "start";

/// Detail of a report: start of the container, as the engine writes its time, for which the commands
/// of `post_start` have succeeded.
pub const POST_START: &str = "post_start";

impl Report {
    /// Creates a report of `state` for row `raft_index`, without a container.
    #[must_use]
    pub fn new(state: ReplicaState, raft_index: u64) -> Self {
        Self {
            state,
            code: String::new(),
            message: String::new(),
            details: BTreeMap::new(),
            container_id: String::new(),
            started_at: None,
            raft_index,
            keeps_serving: false,
        }
    }

    /// Sets the reason.
    #[must_use]
    pub fn because(mut self, code: &str, message: impl Into<String>) -> Self {
        code.clone_into(&mut self.code);
        self.message = message.into();
        self
    }

    /// Adds one detail.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.details.insert(key.to_owned(), value.to_string());
        self
    }

    /// Sets the container.
    #[must_use]
    pub fn of(mut self, container_id: &str) -> Self {
        container_id.clone_into(&mut self.container_id);
        self
    }

    /// Returns the exit code of a container that has ended and does not start again.
    #[must_use]
    pub fn finished(&self) -> Option<i64> {
        finished(self.state, &self.code, &self.details)
    }

    /// Whether the reports differ at most in message and start time, which are not worth a
    /// proposal.
    #[must_use]
    pub fn is_equivalent_to(&self, other: &Self) -> bool {
        self.state == other.state
            && self.code == other.code
            && self.details == other.details
            && self.container_id == other.container_id
            && self.raft_index == other.raft_index
            && self.keeps_serving == other.keeps_serving
    }

    /// Converts the report into the replicated row.
    #[must_use]
    pub fn observed(&self, id: &str, host: &str, now: Timestamp) -> ReplicaObserved {
        ReplicaObserved {
            id: id.to_owned(),
            state: self.state.into(),
            code: self.code.clone(),
            message: self.message.clone(),
            details: self.details.clone().into_iter().collect(),
            container_id: self.container_id.clone(),
            host: host.to_owned(),
            started_at: self.started_at.map(Timestamp::from),
            last_health_at: Some(now),
            desired_raft_index: self.raft_index,
            observed_raft_index: 0, // set by the apply
            keeps_serving: self.keeps_serving,
        }
    }
}

impl From<&ReplicaObserved> for Report {
    fn from(row: &ReplicaObserved) -> Self {
        Self {
            state: row.state(),
            code: row.code.clone(),
            message: row.message.clone(),
            details: row.details.clone().into_iter().collect(),
            container_id: row.container_id.clone(),
            started_at: row.started_at.as_ref().and_then(wall),
            raft_index: row.desired_raft_index,
            keeps_serving: row.keeps_serving,
        }
    }
}

fn wall(at: &Timestamp) -> Option<SystemTime> {
    let seconds = u64::try_from(at.seconds).ok()?;
    let nanos = u32::try_from(at.nanos).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds) + Duration::from_nanos(nanos.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_round_trips_through_state() {
        let report = Report {
            started_at: Some(UNIX_EPOCH + Duration::from_millis(1_500)),
            ..Report::new(ReplicaState::Failed, 7)
        }
        .because(code::CONTAINER_EXITED, "exited with 3")
        .with("exit_code", 3)
        .of("c1");
        let row = report.observed("web-0", "node-1", Timestamp::default());
        assert_eq!(row.host, "node-1");
        assert_eq!(row.last_health_at, Some(Timestamp::default()));
        assert_eq!(Report::from(&row), report);
    }

    #[test]
    fn message_alone_does_not_make_reports_differ() {
        let a = Report::new(ReplicaState::Running, 1).of("c1");
        let b = a.clone().because("", "other words");
        assert!(a.is_equivalent_to(&b));
        assert!(!a.is_equivalent_to(&b.with("ip.n", "10.0.0.1")));
    }
}
