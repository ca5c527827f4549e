//! Operations of a worker besides handling messages.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::task::{AbortHandle, JoinSet};

use super::{
    handle::Handle,
    instance_lock::InstanceGuard,
    report::lock,
    supervisor::SupervisorHandle,
    worker::{Envelope, FINISHED, Mailbox, Worker, guarded},
};

/// Context of one worker instance.
pub struct Context<W: Worker> {
    path: Arc<str>,
    handle: Handle<W::Msg>,
    mailbox: Mailbox<W::Msg>,
    supervisor: SupervisorHandle,
    finished: AtomicBool,
    tasks: Mutex<JoinSet<()>>,
    // Declared after `tasks`, because drop order matters: the tasks hold the guard too.
    instance_guard: Arc<InstanceGuard>,
}

impl<W: Worker> fmt::Debug for Context<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<W: Worker> Context<W> {
    pub(crate) fn new(
        path: Arc<str>,
        handle: Handle<W::Msg>,
        mailbox: Mailbox<W::Msg>,
        supervisor: SupervisorHandle,
        instance_guard: Arc<InstanceGuard>,
    ) -> Self {
        let (finished, tasks) = (AtomicBool::new(false), Mutex::default());
        Self {
            path,
            handle,
            mailbox,
            supervisor,
            finished,
            tasks,
            instance_guard,
        }
    }

    /// Path of keys from the root to this worker, such as `node/runtime/replica:web-0`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Handle of this worker, valid across restarts.
    #[must_use]
    pub fn handle(&self) -> Handle<W::Msg> {
        self.handle.clone()
    }

    /// Handle of the worker's supervisor, to start and stop siblings.
    #[must_use]
    pub fn supervisor(&self) -> SupervisorHandle {
        self.supervisor.clone()
    }

    /// Runs a slow task beside the mailbox; its result arrives as a message.
    ///
    /// The task is aborted when the instance ends, and its message never reaches a later instance.
    /// A panic of the task fails the instance.
    pub fn spawn(&self, task: impl Future<Output = W::Msg> + Send + 'static) -> TaskHandle {
        let (mailbox, instance_guard) = (self.mailbox.clone(), Arc::clone(&self.instance_guard));
        let task = async move {
            let envelope = match guarded(async { Ok(task.await) }).await {
                Ok(msg) => Envelope::Msg(msg),
                Err(failure) => Envelope::Crash(failure),
            };
            // An error means that the instance is ending.
            let _ = mailbox.put(envelope);
            drop(instance_guard);
        };
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        TaskHandle(tasks.spawn(task))
    }

    /// Sends `msg` to this instance after `delay`.
    pub fn send_after(&self, delay: Duration, msg: W::Msg) -> TaskHandle {
        self.spawn(async move {
            tokio::time::sleep(delay).await;
            msg
        })
    }

    /// Appends `msg` to the mailbox of this instance; also during [`Worker::start`].
    pub fn send_to_self(&self, msg: W::Msg) {
        // An error means that the instance is ending.
        let _ = self.mailbox.put(Envelope::Msg(msg));
    }

    /// Ends this instance normally after the current message, without [`Worker::stop`]. A permanent
    /// child is restarted, a transient one is not.
    pub fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        self.mailbox.close(FINISHED);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }
}

/// Handle of a task of a worker; dropping it leaves the task running.
#[derive(Clone, Debug)]
pub struct TaskHandle(AbortHandle);

impl TaskHandle {
    /// Aborts the task. Its message is not sent, unless it was already.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}
