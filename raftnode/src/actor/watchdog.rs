//! Watches raft's thread from a thread of its own, which no runtime and no disk can hold up.

use std::{
    io,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use super::{
    RaftArgs, RaftHandle,
    stall::{Action, StallDetector, TICK},
};

/// Raft's thread has made no progress for so long that its disk will not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("raft has made no progress for {} s: the disk of the data directory does not answer", .0.as_secs())]
pub struct Hung(Duration);

/// The watching thread; dropping this value ends it.
pub(super) struct Watchdog {
    _until_dropped: mpsc::Sender<()>,
}

impl Watchdog {
    /// Watches the calling thread, raft's thread behind `args.handle`, until the watchdog is
    /// dropped. While it makes no progress the status says so, and that this node does not lead,
    /// which lasts until raft's next status. After
    /// [`RaftLimits::give_up`](super::RaftLimits::give_up), calls `on_fatal` with [`Hung`].
    pub(super) fn start(args: &RaftArgs) -> io::Result<Self> {
        // An earlier thread may have left the allowance of a step that it did not finish.
        args.handle.shared.note_progress();
        let (until_dropped, dropped) = mpsc::channel();
        let (handle, on_fatal) = (args.handle.clone(), args.on_fatal.clone());
        let alive = args.handle.thread();
        let mut detector = StallDetector::new(args.limits.stall, args.limits.give_up);
        let watch = move || {
            while dropped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let (progress, allowance) = handle.shared.progress();
                detector.handle_tick(Instant::now(), progress, allowance);
                while let Some(action) = detector.poll_action() {
                    match action {
                        Action::Stalled(idle) => mark_stalled(&handle, idle),
                        // The load of a large state goes on for long without a status.
                        Action::Resumed => clear_stalled(&handle),
                        Action::GiveUp(idle) => {
                            let hung = Hung(idle);
                            tracing::error!(subsystem = "raft", "{hung}");
                            on_fatal(&hung);
                        }
                    }
                }
            }
            // The thread may have ended before raft published a status.
            clear_stalled(&handle);
            // It may hold what has to be released before raft counts as closed.
            drop(on_fatal);
            drop(alive);
        };
        thread::Builder::new()
            .name("raft-watchdog".into())
            .spawn(watch)?;
        Ok(Self {
            _until_dropped: until_dropped,
        })
    }
}

fn clear_stalled(handle: &RaftHandle) {
    let status = &handle.shared.status;
    status.send_if_modified(|status| status.stalled_since.take().is_some());
}

fn mark_stalled(handle: &RaftHandle, idle: Duration) {
    tracing::warn!(
        subsystem = "raft",
        ?idle,
        "raft makes no progress: this node does not lead until its disk answers"
    );
    let now = Instant::now();
    let since = now.checked_sub(idle).unwrap_or(now);
    handle.shared.status.send_modify(|status| {
        status.stalled_since = Some(since);
        status.leading = false;
    });
}
