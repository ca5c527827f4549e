//! Values of the field `code` of [`ReplicaObserved`]: why a replica is in
//! its state.

use std::collections::BTreeMap;

use crate::v1::{ReplicaObserved, ReplicaState};

/// The first pull attempt runs.
pub const PULLING: &str = "pulling";
/// A pull attempt failed; another follows.
pub const IMAGE_PULL_FAILED: &str = "image_pull_failed";
/// The node cannot isolate tenants, so nothing is started.
pub const ISOLATION_UNAVAILABLE: &str = "isolation_unavailable";
/// The engine failed to create or start the container, or does not respond.
pub const DOCKER_ERROR: &str = "docker_error";
/// The address pool has no block for a network.
pub const SUBNET_POOL_EXHAUSTED: &str = "subnet_pool_exhausted";
/// The node cannot open a secret of the service.
pub const SECRET_DECRYPT_FAILED: &str = "secret_decrypt_failed";
/// The container's process ended.
pub const CONTAINER_EXITED: &str = "container_exited";
/// A command of `post_start` failed.
pub const POST_START_FAILED: &str = "post_start_failed";
/// The container could not be inspected.
pub const INSPECT_FAILED: &str = "inspect_failed";
/// The engine sent no state.
pub const NO_STATE: &str = "no_state";
/// The restart budget is exhausted.
pub const RESTART_EXHAUSTED: &str = "restart_exhausted";

/// Detail of a report: exit code of the container.
pub const EXIT_CODE: &str = "exit_code";

/// Returns the exit code of a replica that has finished: its container ended, and its service asks
/// for no restart. A replica that is stopped to be removed has not.
#[must_use]
pub fn finished(
    state: ReplicaState,
    code: &str,
    details: &BTreeMap<String, String>,
) -> Option<i64> {
    let ended = state == ReplicaState::Stopped && code == CONTAINER_EXITED;
    details.get(EXIT_CODE).filter(|_| ended)?.parse().ok()
}

impl ReplicaObserved {
    /// Returns the exit code of a replica that has finished; see [`finished`].
    #[must_use]
    pub fn finished(&self) -> Option<i64> {
        finished(self.state(), &self.code, &self.details)
    }

    /// Whether the replica runs, or has finished: nothing waits for it on its host any more.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        self.state() == ReplicaState::Running || self.finished().is_some()
    }
}
