//! The end of a container that may still serve: withdrawn from routing first, then stopped.

use std::collections::BTreeSet;

use jaco_engine::{Found, Status};

use super::{Action, Core, Now, Phase, WITHDRAWAL_TIMEOUT};

impl Core {
    /// Stops and removes containers of which none is wanted any more; those that run, and
    /// so may still serve, only after their withdrawal from routing. The state must show already that
    /// they do not serve, or show it soon because of a report in the queue.
    pub(super) fn retire(&mut self, now: Now, containers: Vec<Found>) {
        let serving: BTreeSet<String> = containers
            .iter()
            .filter(|container| container.status == Status::Running)
            .map(|container| container.id.clone())
            .collect();
        if serving.is_subset(&self.withdrawn) {
            return self.discard(containers.into_iter().map(|it| it.id).collect());
        }
        let generation = self.next_generation();
        self.phase = Phase::Withdrawing {
            until: now.instant + WITHDRAWAL_TIMEOUT,
            containers: serving,
        };
        self.actions.push_back(Action::Withdraw(generation));
    }

    /// Handles the outcome of [`Action::Withdraw`].
    pub fn handle_withdrawn(&mut self, generation: u64) {
        if self.expects(generation) {
            self.withdrawn();
        }
    }

    /// Decides anew with the containers that are withdrawn: the assignment may have changed.
    pub(super) fn withdrawn(&mut self) {
        if let Phase::Withdrawing { containers, .. } = &mut self.phase {
            self.withdrawn = std::mem::take(containers);
            self.lookup();
        }
    }
}
