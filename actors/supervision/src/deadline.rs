//! The one deadline of a worker.

use tokio::time::Instant;

use super::context::TaskHandle;

/// Deadline of one worker instance, and the timer that waits for it.
pub(crate) struct Deadline<M> {
    /// Counts the timers; the envelope of an earlier timer delivers nothing.
    generation: u64,
    armed: Option<Armed<M>>,
}

struct Armed<M> {
    at: Instant,
    msg: M,
    timer: TaskHandle,
}

impl<M> Default for Deadline<M> {
    fn default() -> Self {
        Self {
            generation: 0,
            armed: None,
        }
    }
}

impl<M> Deadline<M> {
    /// Replaces the deadline; `start` starts the timer of the given generation. An armed timer is
    /// kept if the time is the same.
    pub(crate) fn set(&mut self, at: Instant, msg: M, start: impl FnOnce(u64) -> TaskHandle) {
        if let Some(armed) = self.armed.as_mut().filter(|armed| armed.at == at) {
            armed.msg = msg;
            return;
        }
        self.clear();
        self.generation += 1;
        let timer = start(self.generation);
        self.armed = Some(Armed { at, msg, timer });
    }

    pub(crate) fn clear(&mut self) {
        if let Some(armed) = self.armed.take() {
            armed.timer.abort();
        }
    }

    /// Takes the message once the timer of `generation` has fired; `None` if the deadline was
    /// replaced or cleared meanwhile.
    pub(crate) fn take(&mut self, generation: u64) -> Option<M> {
        let current = generation == self.generation;
        let armed = self.armed.take_if(|_| current)?;
        Some(armed.msg)
    }
}
