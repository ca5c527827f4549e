//! Workers, and the ractor actor that runs one.

use std::{
    fmt,
    future::Future,
    iter,
    marker::PhantomData,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures::{FutureExt, future::BoxFuture};
use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use tokio::sync::watch;

use super::{
    context::Context,
    handle::{Handle, Route, Unavailable},
    instance_lock::InstanceLock,
    report::Control,
    spec::{self, SpawnContext, SpawnedChild},
};

/// Reason of an end that the actor requested itself.
pub(crate) const FINISHED: &str = "finished";

/// An actor with one mailbox that owns one resource.
///
/// The value is the state of a single instance. It is dropped when the instance ends for any
/// reason; a restart creates a new one with [`Worker::start`].
pub trait Worker: Sized + Send + 'static {
    /// Message type; requests carry a [`super::Reply`].
    type Msg: Send + 'static;
    /// Arguments of every start, restarts included.
    type Args: Clone + Send + Sync + 'static;
    /// Kind of actor, such as `ReplicaActor`.
    const KIND: &'static str;

    /// Starts the instance from the present state of its resource. Until it returns, messages wait
    /// and the handle is unavailable.
    ///
    /// # Errors
    /// An error or a panic counts as a failure of the instance, as in [`Worker::handle`].
    fn start(
        ctx: &Context<Self>,
        args: Self::Args,
    ) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// Handles one message. A kill drops the future at its next await point.
    ///
    /// An error or a panic ends the instance: return one only if its state cannot be trusted any
    /// more. A caller's mistake belongs into the reply.
    fn handle(
        &mut self,
        ctx: &Context<Self>,
        msg: Self::Msg,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Cleans up on a graceful stop by the supervisor; messages still in the mailbox are dropped.
    /// Not called after a failure, a kill or [`Context::finish`], so it must never be the only
    /// cleanup.
    fn stop(&mut self, _ctx: &Context<Self>) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Reason an instance cannot be trusted any more.
///
/// Converts from any error and any string, so `?` works in a worker.
pub struct Failure(Box<dyn std::error::Error + Send + Sync>);

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(reason: E) -> Self {
        Self(reason.into())
    }
}

impl Failure {
    pub(crate) fn into_inner(self) -> Box<dyn std::error::Error + Send + Sync> {
        // Flattens the chain of causes: a supervisor keeps failures as text.
        self.to_string().into()
    }

    pub(crate) fn panic(payload: &(dyn std::any::Any + Send)) -> Self {
        let what = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Self(format!("panicked: {what}").into())
    }
}

/// The reason and its causes in one line, without a cause that the text ends with already.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let causes = iter::successors(self.0.source(), |cause| cause.source());
        let text = causes.fold(self.0.to_string(), |text, cause| {
            let cause = cause.to_string();
            if text.ends_with(&cause) {
                text
            } else {
                format!("{text}: {cause}")
            }
        });
        f.write_str(&text)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({self})")
    }
}

/// Runs `future` and turns a panic into a failure.
pub(crate) async fn guarded<T>(
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let outcome = AssertUnwindSafe(future).catch_unwind().await;
    outcome.unwrap_or_else(|payload| Err(Failure::panic(&*payload)))
}

/// Entry of a worker's mailbox.
pub(crate) enum Envelope<M> {
    Msg(M),
    /// Makes the message when the worker takes it; `None` if it is obsolete by then.
    Deferred(Box<dyn FnOnce() -> Option<M> + Send>),
    /// A task of the instance panicked, which fails the instance.
    Crash(Failure),
    /// Fault injection.
    Panic,
}

/// Sender of one instance's mailbox.
pub(crate) struct Mailbox<M> {
    actor: ActorRef<Envelope<M>>,
    depth: Arc<AtomicUsize>,
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self {
            actor: self.actor.clone(),
            depth: Arc::clone(&self.depth),
        }
    }
}

impl<M: Send + 'static> Mailbox<M> {
    pub(crate) fn put(&self, envelope: Envelope<M>) -> Result<(), Unavailable> {
        self.depth.fetch_add(1, Ordering::Relaxed);
        self.actor.send_message(envelope).map_err(|_| {
            self.depth.fetch_sub(1, Ordering::Relaxed);
            Unavailable
        })
    }

    pub(crate) fn close(&self, reason: &str) {
        self.actor.stop(Some(reason.to_owned()));
    }
}

/// State shared by all instances of one child.
pub(crate) struct ChildSlot<M> {
    instance_lock: InstanceLock,
    route: watch::Sender<Option<Route<M>>>,
}

pub(crate) struct ChildFactory<W: Worker> {
    slot: Arc<ChildSlot<W::Msg>>,
    args: W::Args,
}

impl<W: Worker> ChildFactory<W> {
    pub(crate) fn new(args: W::Args) -> Self {
        let slot = ChildSlot {
            instance_lock: InstanceLock::new(),
            route: watch::Sender::new(None),
        };
        Self {
            slot: Arc::new(slot),
            args,
        }
    }

    pub(crate) fn handle(&self) -> Handle<W::Msg> {
        Handle::new(self.slot.route.subscribe())
    }
}

impl<W: Worker> spec::ChildFactory for ChildFactory<W> {
    fn spawn(
        &self,
        spawn_context: SpawnContext,
    ) -> BoxFuture<'static, Result<SpawnedChild, SpawnErr>> {
        let (depth, up) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let supervisor = spawn_context.supervisor.clone();
        let init_args = InitArgs::<W> {
            spawn_context,
            slot: Arc::clone(&self.slot),
            args: self.args.clone(),
            depth: Arc::clone(&depth),
            up: Arc::clone(&up),
        };
        Box::pin(async move {
            let actor = WorkerActor::<W>(PhantomData);
            let (actor, _) = Actor::spawn_linked(None, actor, init_args, supervisor).await?;
            let mailbox = Mailbox {
                actor: actor.clone(),
                depth,
            };
            Ok(SpawnedChild {
                actor: actor.get_cell(),
                control: Arc::new(Controls { mailbox, up }),
            })
        })
    }

    fn instance_lock(&self) -> &InstanceLock {
        &self.slot.instance_lock
    }
}

struct Controls<M> {
    mailbox: Mailbox<M>,
    up: Arc<AtomicBool>,
}

impl<M: Send + 'static> Control for Controls<M> {
    fn stop(&self) {
        if self.up.load(Ordering::Acquire) {
            self.mailbox.close("stopped");
        } else {
            // A starting instance has nothing to clean up, and its start may take long.
            self.kill();
        }
    }

    fn kill(&self) {
        self.mailbox.actor.kill();
    }

    fn panic(&self) -> bool {
        self.mailbox.put(Envelope::Panic).is_ok()
    }

    fn mailbox_depth(&self) -> usize {
        self.mailbox.depth.load(Ordering::Relaxed)
    }
}

/// The ractor actor of a worker.
struct WorkerActor<W>(PhantomData<fn() -> W>);

/// Arguments of a [`WorkerActor`].
struct InitArgs<W: Worker> {
    spawn_context: SpawnContext,
    slot: Arc<ChildSlot<W::Msg>>,
    args: W::Args,
    depth: Arc<AtomicUsize>,
    up: Arc<AtomicBool>,
}

/// State of a [`WorkerActor`]. The worker starts in `post_start`: unlike in `pre_start`, the actor
/// is supervised and can be killed by then.
enum Stage<W: Worker> {
    Starting(Option<InitArgs<W>>),
    Running(RunningWorker<W>),
}

/// Drop order of the fields: the worker, its route, its tasks, and with them its guard.
struct RunningWorker<W: Worker> {
    worker: W,
    _published: Published<W::Msg>,
    ctx: Context<W>,
    depth: Arc<AtomicUsize>,
}

/// Route to the running instance, reset on drop.
struct Published<M>(Arc<ChildSlot<M>>);

impl<M> Drop for Published<M> {
    fn drop(&mut self) {
        self.0.route.send_replace(None);
    }
}

impl<W: Worker> Actor for WorkerActor<W> {
    type Msg = Envelope<W::Msg>;
    type State = Stage<W>;
    type Arguments = InitArgs<W>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        init_args: InitArgs<W>,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(Stage::Starting(Some(init_args)))
    }

    async fn post_start(
        &self,
        myself: ActorRef<Self::Msg>,
        stage: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if let Stage::Starting(init_args) = stage
            && let Some(init_args) = init_args.take()
        {
            *stage = Stage::Running(init_args.init(myself).await.map_err(Failure::into_inner)?);
        }
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        envelope: Self::Msg,
        stage: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let Stage::Running(body) = stage else {
            return Ok(());
        };
        body.depth.fetch_sub(1, Ordering::Relaxed);
        let RunningWorker { worker, ctx, .. } = body;
        let outcome = match envelope {
            Envelope::Msg(msg) => guarded(worker.handle(ctx, msg)).await,
            Envelope::Deferred(make) => {
                let handled = async {
                    match make() {
                        Some(msg) => worker.handle(ctx, msg).await,
                        None => Ok(()),
                    }
                };
                guarded(handled).await
            }
            Envelope::Crash(failure) => Err(failure),
            Envelope::Panic => guarded(async { panic!("injected fault") }).await,
        };
        outcome.map_err(Failure::into_inner)
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Self::Msg>,
        stage: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let Stage::Running(RunningWorker { worker, ctx, .. }) = stage else {
            return Ok(());
        };
        if ctx.is_finished() {
            return Ok(());
        }
        let stop = async {
            worker.stop(ctx).await;
            Ok(())
        };
        guarded(stop).await.map_err(Failure::into_inner)
    }
}

impl<W: Worker> InitArgs<W> {
    async fn init(self, actor: ActorRef<Envelope<W::Msg>>) -> Result<RunningWorker<W>, Failure> {
        let Self {
            spawn_context,
            slot,
            args,
            depth,
            up,
        } = self;
        let instance_guard = slot.instance_lock.acquire(spawn_context.parent).await?;
        let id = actor.get_id();
        let mailbox = Mailbox {
            actor,
            depth: Arc::clone(&depth),
        };
        let handle = Handle::new(slot.route.subscribe());
        let ctx = Context::new(
            spawn_context.path,
            handle,
            mailbox.clone(),
            spawn_context.handle,
            instance_guard,
        );
        let worker = guarded(W::start(&ctx, args)).await?;
        let route: Route<W::Msg> = Arc::new(move |msg| mailbox.put(Envelope::Msg(msg)));
        let published = Published(Arc::clone(&slot));
        slot.route.send_replace(Some(route));
        up.store(true, Ordering::Release);
        (spawn_context.report_up)(id);
        Ok(RunningWorker {
            worker,
            _published: published,
            ctx,
            depth,
        })
    }
}
