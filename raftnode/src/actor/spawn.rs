//! The actor implementation and its thread.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    RaftArgs, RaftHandle,
    driver::{Driver, Failure, FollowUp},
    handle::ThreadGuard,
    msg::Msg,
    tick_clock::TickClock,
    watchdog::Watchdog,
};
use crate::core::Role;

/// Reason why the actor did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The system could not create a thread or an event loop.
    #[error("raft thread did not start")]
    Thread(#[source] std::io::Error),
    /// Loading failed. For a failed storage `on_fatal` was called too.
    #[error("raft actor did not start")]
    Start(#[source] Box<SpawnErr>),
    /// The thread ended before it reported its start.
    #[error("raft thread ended while starting")]
    Lost,
}

/// Starts the actor on its own thread, linked to `supervisor`.
///
/// Waits for the previous thread of the same handle to end. Returns once the state is loaded and,
/// if this node is the only voter, once it leads. If the future is dropped, the actor is stopped.
///
/// # Errors
/// [`SpawnError`]; no actor runs then.
pub async fn spawn(args: RaftArgs, supervisor: ActorCell) -> Result<ActorCell, SpawnError> {
    let thread_permit = Arc::clone(&args.handle.shared.thread_permit)
        .acquire_owned()
        .await;
    let (started, answer) = oneshot::channel();
    let alive = args.handle.thread();
    thread::Builder::new()
        .name("raft".into())
        .spawn(move || {
            run(args, supervisor, started);
            drop(alive);
            drop(thread_permit);
        })
        .map_err(SpawnError::Thread)?;
    answer.await.map_err(|_| SpawnError::Lost)?
}

fn run(
    args: RaftArgs,
    supervisor: ActorCell,
    started: oneshot::Sender<Result<ActorCell, SpawnError>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    // Started first and dropped last: a disk may hang in any use of the storage.
    let started_up = runtime.and_then(|runtime| Ok((Watchdog::start(&args)?, runtime)));
    let (_watchdog, runtime) = match started_up {
        Ok(started_up) => started_up,
        Err(error) => {
            let _ = started.send(Err(SpawnError::Thread(error)));
            return;
        }
    };
    runtime.block_on(async {
        match Actor::spawn_linked(None, RaftActor, args, supervisor).await {
            Ok((actor, ended)) => {
                if started.send(Ok(actor.get_cell())).is_err() {
                    actor.kill(); // the caller dropped its future
                }
                // The supervisor has been notified of a panic of the actor.
                let _ = ended.await;
            }
            Err(error) => {
                let _ = started.send(Err(SpawnError::Start(Box::new(error))));
            }
        }
    });
}

struct RaftActor;

struct Running {
    id: ActorId,
    driver: Driver,
    args: RaftArgs,
    clock: TickClock,
    /// Time at which the ticker sends the next [`Msg::Tick`].
    due: watch::Sender<Instant>,
    ticker: JoinHandle<()>,
    /// Dropped last. The state of an actor that ends goes to its supervisor, so the storage may be
    /// released later and on a thread other than raft's.
    _alive: ThreadGuard,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Runs whichever way the actor ends: killed, panicked or stopped.
        self.ticker.abort();
        close(&self.args.handle, self.id);
    }
}

impl Actor for RaftActor {
    type Msg = Msg;
    type State = Running;
    type Arguments = RaftArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        args: RaftArgs,
    ) -> Result<Running, ActorProcessingErr> {
        let loaded = Driver::load(args.clone(), incarnation());
        let driver = loaded.map_err(|failure| report(&args, failure))?;
        args.handle.shared.mailbox.store(0, Ordering::Relaxed);
        let id = myself.get_id();
        let alive = args.handle.thread();
        // A predecessor that ended late may have left proposals; with a non-empty queue the next
        // one would not be announced.
        drop(args.handle.shared.take_proposals());
        // Published before the status: a component that sees a leader sends to it at once.
        args.handle.shared.actor.send_replace(Some(myself));
        // Set again: a predecessor that ended late may have cleared it.
        args.handle.shared.set_storage(&args.storage);
        let clock = TickClock::new(Instant::now(), args.limits.tick);
        let due = watch::Sender::new(clock.poll_timeout());
        let ticker = tokio::spawn(tick(args.handle.clone(), due.subscribe()));
        let mut running = Running {
            id,
            driver,
            args,
            clock,
            due,
            ticker,
            _alive: alive,
        };
        match running.driver.start() {
            Ok(()) => Ok(running),
            Err(failure) => Err(report(&running.args, failure)),
        }
    }

    async fn handle(
        &self,
        _myself: ActorRef<Msg>,
        msg: Msg,
        running: &mut Running,
    ) -> Result<(), ActorProcessingErr> {
        let handle = &running.args.handle;
        handle.count_received(&msg);
        let ticks = running.clock.handle_wake(Instant::now());
        let handled = running.driver.handle(ticks, msg);
        handle.shared.note_progress();
        let quiet = running.driver.quiet_ticks();
        running.clock.handle_rest(Instant::now(), quiet);
        let due = running.clock.poll_timeout();
        running
            .due
            .send_if_modified(|last| std::mem::replace(last, due) != due);
        match handled {
            Ok(FollowUp::Nothing) => Ok(()),
            // The mailbox is this actor's own, so it is open while a message is handled.
            Ok(FollowUp::Flush) => handle
                .cast(Msg::Flush)
                .map_err(|()| "mailbox closed".into()),
            Ok(FollowUp::HoldTimeout(time)) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    // Without an actor no proposals are held.
                    let _ = handle.cast(Msg::HoldTimeout);
                });
                Ok(())
            }
            Err(failure) => Err(report(&running.args, failure)),
        }
    }
}

/// Sends a tick whenever one is due, and the next one only once that was counted: a long write delays
/// one tick instead of queueing many.
async fn tick(handle: RaftHandle, mut due: watch::Receiver<Instant>) {
    loop {
        let at = *due.borrow_and_update();
        tokio::select! {
            biased;
            changed = due.changed() => if changed.is_err() {
                return;
            },
            () = sleep_until(at) => {
                if handle.cast(Msg::Tick).is_err() || due.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Reports a storage failure to the daemon and converts the failure for the supervisor.
fn report(args: &RaftArgs, failure: Failure) -> ActorProcessingErr {
    match &failure {
        Failure::Storage(error) => (args.on_fatal)(error),
        Failure::Core(_) => {}
    }
    failure.into()
}

/// Clears the handle's address of actor `id`, unless its successor has replaced it.
fn close(handle: &RaftHandle, id: ActorId) {
    let closed = handle.shared.actor.send_if_modified(|actor| {
        let current = actor.as_ref().is_some_and(|actor| actor.get_id() == id);
        if current {
            *actor = None;
        }
        current
    });
    if !closed {
        return;
    }
    handle.shared.clear_storage();
    drop(handle.shared.take_proposals());
    handle.shared.mailbox.store(0, Ordering::Relaxed);
    handle.shared.status.send_modify(|status| {
        status.role = Role::Stopped;
        status.leading = false;
        status.leader_id = None;
        status.stalled_since = None;
    });
}

/// Returns a number that no earlier run of this node used.
fn incarnation() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}
