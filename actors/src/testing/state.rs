//! Replicated state without raft.

use std::sync::Arc;

use jaco_raftnode::{State, StateReader};
use tokio::sync::watch;

/// A state that a test changes; readers follow it as they follow raft.
#[derive(Debug, Default)]
pub struct FakeState(watch::Sender<Arc<State>>);

impl FakeState {
    /// Creates a reader of `state`.
    #[must_use]
    pub fn new(state: State) -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(Arc::new(state))))
    }

    /// Replaces the state.
    pub fn set(&self, state: &State) {
        self.0.send_replace(Arc::new(state.clone()));
    }
}

impl StateReader for FakeState {
    fn state(&self) -> Arc<State> {
        self.0.borrow().clone()
    }

    fn subscribe(&self) -> watch::Receiver<Arc<State>> {
        self.0.subscribe()
    }
}
