//! Digest of the state at a log index.

use std::{sync::Arc, time::Duration};

use jaco_state::State;
use tokio::{
    sync::oneshot,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use super::{RaftHandle, msg::Msg};
use crate::StateReader as _;

impl RaftHandle {
    /// Returns the digest of the state right after entry `index` (see [`State::digest`]) and the
    /// index of that state. `None` selects the newest state.
    ///
    /// A node that is past `index`, or does not reach it within `wait`, returns the digest of its
    /// newest state; the returned index differs then. Nodes with equal indexes must have equal
    /// digests.
    pub async fn digest_at(&self, index: Option<u64>, wait: Duration) -> (u64, [u8; 32]) {
        let deadline = Instant::now() + wait;
        let mut state = self.state();
        if let Some(index) = index {
            let captured = timeout_at(deadline, self.state_at(index)).await;
            state = captured.ok().flatten().unwrap_or_else(|| self.state());
        }
        let index = state.applied_index;
        let hashed = Arc::clone(&state);
        let digest = spawn_blocking(move || hashed.digest()).await;
        // The blocking task fails only while the runtime shuts down.
        (index, digest.unwrap_or_else(|_| state.digest()))
    }

    async fn state_at(&self, index: u64) -> Option<Arc<State>> {
        let (reply, answer) = oneshot::channel();
        self.cast(Msg::StateAt(index, reply)).ok()?;
        answer.await.ok()
    }
}
