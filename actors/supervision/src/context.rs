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

use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::{
    deadline::Deadline,
    handle::Handle,
    instance_lock::InstanceGuard,
    report::lock,
    supervisor::SupervisorHandle,
    watch::{Baseline, Watch},
    worker::{Envelope, FINISHED, Mailbox, Worker, guarded},
};

/// Context of one worker instance.
pub struct Context<W: Worker> {
    path: Arc<str>,
    handle: Handle<W::Msg>,
    mailbox: Mailbox<W::Msg>,
    supervisor: SupervisorHandle,
    finished: AtomicBool,
    deadline: Arc<Mutex<Deadline<W::Msg>>>,
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
            deadline: Arc::default(),
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
        // The future of a slow effect can be large; every wrapper below would copy it on the stack.
        let task = Box::pin(task);
        let mailbox = self.mailbox.clone();
        self.run(async move {
            let msg = task.await;
            // An error means that the instance is ending.
            let _ = mailbox.put(Envelope::Msg(msg));
        })
    }

    /// Runs a task of the instance that sends its messages itself.
    pub(crate) fn run(&self, task: impl Future<Output = ()> + Send + 'static) -> TaskHandle {
        let (mailbox, instance_guard) = (self.mailbox.clone(), Arc::clone(&self.instance_guard));
        let task = async move {
            let outcome = guarded(async {
                task.await;
                Ok(())
            });
            if let Err(failure) = outcome.await {
                // An error means that the instance is ending.
                let _ = mailbox.put(Envelope::Crash(failure));
            }
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

    /// Sends the message that `make` builds of the newest value of a watch channel whenever it
    /// changes, until the instance ends or the sender is dropped.
    ///
    /// Changes coalesce: the next message is not sent before the worker has taken the last one, and
    /// its value is read when the worker takes it. Reported are values that `receiver` has not
    /// seen; such a value at the time of the call is in the mailbox when this returns. To have the
    /// present value reported in any case, call [`watch::Receiver::mark_changed`] first.
    ///
    /// An abort of the returned task ends the reports; a message in the mailbox may still arrive.
    pub fn watch<T: Clone + Send + Sync + 'static>(
        &self,
        receiver: watch::Receiver<T>,
        make: impl FnMut(T) -> W::Msg + Send + 'static,
    ) -> TaskHandle {
        self.watch_every(Duration::ZERO, receiver, make)
    }

    /// Does the same as [`Context::watch`], with a pause of at least `interval` after each message
    /// that the worker has taken.
    pub fn watch_every<T: Clone + Send + Sync + 'static>(
        &self,
        interval: Duration,
        receiver: watch::Receiver<T>,
        make: impl FnMut(T) -> W::Msg + Send + 'static,
    ) -> TaskHandle {
        let watch = Watch {
            receiver,
            baseline: None,
            interval,
            make: Box::new(make),
        };
        self.run(watch.follow(self.mailbox.clone()))
    }

    /// Does the same as [`Context::watch`] for the values for which `differs(handled, value)`:
    /// `handled` is the given value at first, then that of the last message.
    ///
    /// `differs` is called while the channel is borrowed, so it must not block.
    pub fn watch_if<T: Clone + Send + Sync + 'static>(
        &self,
        receiver: watch::Receiver<T>,
        handled: T,
        differs: impl Fn(&T, &T) -> bool + Send + 'static,
        make: impl FnMut(T) -> W::Msg + Send + 'static,
    ) -> TaskHandle {
        let differs = Box::new(differs);
        let watch = Watch {
            receiver,
            baseline: Some(Baseline { handled, differs }),
            interval: Duration::ZERO,
            make: Box::new(make),
        };
        self.run(watch.follow(self.mailbox.clone()))
    }

    /// Sets the deadline of this instance: `msg` is delivered once `at` has passed, immediately if
    /// it already has. `None` clears the deadline.
    ///
    /// An instance has one deadline, which this replaces: the message of an earlier one is never
    /// delivered after this call, even if it is in the mailbox. Setting the time that is already
    /// set only replaces the message, so a worker can call this after each message.
    pub fn set_deadline(&self, at: Option<Instant>, msg: W::Msg) {
        let mut deadline = lock(&self.deadline);
        let Some(at) = at else {
            return deadline.clear();
        };
        deadline.set(at, msg, |generation| {
            let (mailbox, deadline) = (self.mailbox.clone(), Arc::clone(&self.deadline));
            self.run(async move {
                tokio::time::sleep_until(at).await;
                let take = move || lock(&deadline).take(generation);
                // An error means that the instance is ending.
                let _ = mailbox.put(Envelope::Deferred(Box::new(take)));
            })
        });
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
