//! The turn of the domain among all domains of the cluster, which bounds the concurrent orders.

use super::{Action, Core};

/// Whether the domain has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    None,
    Waiting,
    Taken,
}

impl Core {
    /// Leaves the queue, or lets the next domain have its turn.
    pub(super) fn end_turn(&mut self) {
        if self.turn != Turn::None {
            self.turn = Turn::None;
            self.actions.push_back(Action::EndTurn);
        }
    }
}
