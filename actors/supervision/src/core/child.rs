//! Where one child is in its life.

use std::time::Instant;

use super::{ChildId, Plan};
use crate::window::Window;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Has no instance, and starts when its turn comes.
    Pending,
    /// Has an instance that is not up yet.
    Starting,
    /// Has an instance that is up.
    Running,
    /// Has an instance that was asked to stop, and is killed at the given time.
    Stopping { kill_at: Option<Instant> },
    /// Failed, and starts at the given time.
    Backoff { until: Instant },
    /// Ended, and stays so.
    Down,
    /// Failed more often than allowed, and stays down until revived.
    Exhausted,
}

impl Phase {
    /// Whether there is an instance.
    pub(crate) fn is_alive(self) -> bool {
        match self {
            Self::Starting | Self::Running | Self::Stopping { .. } => true,
            Self::Pending | Self::Backoff { .. } | Self::Down | Self::Exhausted => false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) id: ChildId,
    pub(crate) plan: Plan,
    pub(crate) phase: Phase,
    /// Takes part in ordered start and stop.
    pub(crate) ordered: bool,
    /// Came up, or came to rest, since it was last put in line; later children may start.
    pub(crate) settled: bool,
    /// To be forgotten once it has ended.
    pub(crate) removing: bool,
    pub(crate) window: Window,
    pub(crate) up_since: Option<Instant>,
    pub(crate) last_failure: Option<String>,
}

impl Child {
    pub(crate) fn new(id: ChildId, plan: Plan, ordered: bool) -> Self {
        Self {
            id,
            plan,
            phase: Phase::Pending,
            ordered,
            settled: false,
            removing: false,
            window: Window::default(),
            up_since: None,
            last_failure: None,
        }
    }

    /// Notes that the instance is asked to stop; false if it already was.
    pub(crate) fn begin_stop(&mut self, now: Instant) -> bool {
        match self.phase {
            Phase::Starting | Phase::Running => {
                let kill_at = self.plan.patience.map(|patience| now + patience);
                self.phase = Phase::Stopping { kill_at };
                true
            }
            Phase::Pending
            | Phase::Stopping { .. }
            | Phase::Backoff { .. }
            | Phase::Down
            | Phase::Exhausted => false,
        }
    }
}
