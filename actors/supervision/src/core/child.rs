//! State of one child.

use std::time::Instant;

use super::{ChildId, Plan};
use crate::window::Window;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No instance; starts once its predecessors have started, or stay down.
    Pending,
    /// The instance is starting.
    Starting,
    /// The instance is running.
    Running,
    /// The instance was asked to stop, and is killed at the given time.
    Stopping { kill_at: Option<Instant> },
    /// Failed; restarts at the given time.
    Backoff { until: Instant },
    /// Ended, and is not restarted.
    Down,
    /// Failed more often than allowed; stays down until revived.
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
    /// Whether it takes part in the ordered start and stop.
    pub(crate) ordered: bool,
    /// Whether it has started, or stays down, since it was last pending; later children may then
    /// start.
    pub(crate) start_done: bool,
    /// Whether to forget it once it has ended.
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
            start_done: false,
            removing: false,
            window: Window::default(),
            up_since: None,
            last_failure: None,
        }
    }

    /// Marks the instance as stopping; false if there is none, or if it is stopping already.
    pub(crate) fn begin_stop(&mut self, now: Instant) -> bool {
        match self.phase {
            Phase::Starting | Phase::Running => {
                let kill_at = self
                    .plan
                    .stop_timeout
                    .map(|stop_timeout| now + stop_timeout);
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
