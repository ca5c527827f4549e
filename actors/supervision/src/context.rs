//! What a worker can do besides handling messages.

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
    gate::Pass,
    handle::Handle,
    report::lock,
    supervisor::SupervisorHandle,
    worker::{Envelope, FINISHED, Mailbox, Worker, guarded},
};

/// One instance of a worker, seen from inside.
pub struct Context<W: Worker> {
    path: Arc<str>,
    handle: Handle<W::Msg>,
    mailbox: Mailbox<W::Msg>,
    supervisor: SupervisorHandle,
    finished: AtomicBool,
    tasks: Mutex<JoinSet<()>>,
    // Behind the tasks: they hold it too.
    pass: Arc<Pass>,
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
        pass: Arc<Pass>,
    ) -> Self {
        let (finished, tasks) = (AtomicBool::new(false), Mutex::default());
        Self {
            path,
            handle,
            mailbox,
            supervisor,
            finished,
            tasks,
            pass,
        }
    }

    /// The keys from the root to this worker, such as `node/runtime/replica:web-0`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The handle others reach this worker by, in this instance and the next.
    #[must_use]
    pub fn handle(&self) -> Handle<W::Msg> {
        self.handle.clone()
    }

    /// The supervisor of this worker, to start and stop siblings.
    #[must_use]
    pub fn supervisor(&self) -> SupervisorHandle {
        self.supervisor.clone()
    }

    /// Runs slow work beside the mailbox; what it returns arrives as a message.
    ///
    /// The task ends with the instance, however that ends, and its message never reaches a
    /// later instance. A panic of the task fails the instance.
    pub fn spawn(&self, task: impl Future<Output = W::Msg> + Send + 'static) -> TaskHandle {
        let (mailbox, pass) = (self.mailbox.clone(), Arc::clone(&self.pass));
        let task = async move {
            let envelope = match guarded(async { Ok(task.await) }).await {
                Ok(msg) => Envelope::Msg(msg),
                Err(failure) => Envelope::Crash(failure),
            };
            // An instance that is ending has no use for it.
            let _ = mailbox.put(envelope);
            drop(pass);
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

    /// Puts `msg` behind what is already in this instance's mailbox; also during
    /// [`Worker::start`].
    pub fn send_to_self(&self, msg: W::Msg) {
        // An instance that is ending has no use for it.
        let _ = self.mailbox.put(Envelope::Msg(msg));
    }

    /// Ends this instance normally once the current message is handled, without
    /// [`Worker::stop`]. A permanent child is started again, a transient one is not.
    pub fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        self.mailbox.close(FINISHED);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }
}

/// A task of a worker; dropping the handle leaves it running.
#[derive(Clone, Debug)]
pub struct TaskHandle(AbortHandle);

impl TaskHandle {
    /// Ends the task without a message, unless it has sent it already.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}
