//! Dynamic children that a worker keeps by id.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{
    context::Context,
    report::{ActorInfo, ActorState},
    spec::{ChildSpec, OnExhausted},
    supervisor::{ChildError, StartChildError},
    worker::Worker,
};

/// Dynamic siblings of one kind that a worker, their manager, starts and stops by id; each has a
/// value of type `T`, such as its handle.
///
/// No method waits. A request to the supervisor runs in a task of the manager, and its outcome
/// arrives as a message that the manager passes to [`KeyedChildren::handle_done`]. Requests for the
/// same id run one after another: a child that is started again while its predecessor stops begins
/// its start when the predecessor is removed.
pub struct KeyedChildren<W: Worker, T> {
    prefix: &'static str,
    make: fn(ChildDone) -> W::Msg,
    report_exhausted: bool,
    entries: BTreeMap<String, Entry<T>>,
}

struct Entry<T> {
    /// `None` if the child is not wanted.
    value: Option<T>,
    /// Request that the wanted child waits for.
    next: Option<Request>,
    /// Whether the supervisor has a child with the key.
    present: bool,
    /// Whether a request to the supervisor is in progress.
    busy: bool,
    /// Identity of the wanted child; `None` if it was adopted.
    identity: Option<Identity>,
}

enum Request {
    Start(ChildSpec),
    Restart,
}

impl<T> Entry<T> {
    /// Whether the child that the supervisor has is not the wanted one.
    fn is_outdated(&self) -> bool {
        let replaced = matches!(self.next, Some(Request::Start(_)));
        self.present && (self.value.is_none() || replaced)
    }

    /// Whether the wanted child is the one with this identity. A child that sends reports to a
    /// manager that adopted it has an identity that the manager does not know.
    fn is_wanted(&self, identity: &Identity) -> bool {
        let known = self.identity.as_ref();
        self.value.is_some() && known.is_none_or(|known| known == identity)
    }
}

/// Identity of one child, different from that of every earlier child with the same key.
#[derive(Clone, Debug, Default)]
struct Identity(Arc<()>);

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Outcome of a request to the supervisor, or report of a child, for
/// [`KeyedChildren::handle_done`].
#[derive(Debug)]
pub struct ChildDone {
    id: String,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Started(Result<(), StartChildError>),
    Restarted(Result<(), ChildError>),
    Stopped,
    /// The child with this identity exhausted its restarts, for this reason.
    Exhausted(Identity, String),
}

/// Change of a set of children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChildEvent {
    /// The supervisor has begun to start the child with this id, or to start it again after
    /// [`KeyedChildren::restart`].
    Started(String),
    /// The supervisor refused to start the child with this id, which is not wanted any more. A
    /// child that has its key, such as one whose start an earlier instance of the manager
    /// requested last, is stopped; [`ChildEvent::Stopped`] follows.
    NotStarted(String, StartChildError),
    /// The child with this id was stopped, and nothing of it is left.
    Stopped(String),
    /// The child with this id exhausted its restarts and stays down; with the failure that exceeded
    /// the limit. Only with [`KeyedChildren::report_exhausted`].
    Exhausted(String, String),
}

impl<W: Worker, T: fmt::Debug> fmt::Debug for KeyedChildren<W, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<W: Worker, T> KeyedChildren<W, T> {
    /// Creates an empty set of children whose keys are `prefix` and their id; `make` makes the
    /// message that carries an outcome.
    #[must_use]
    pub fn new(prefix: &'static str, make: fn(ChildDone) -> W::Msg) -> Self {
        Self {
            prefix,
            make,
            report_exhausted: false,
            entries: BTreeMap::new(),
        }
    }

    /// Lets every child that exhausts its restarts stay down, and reports it as
    /// [`ChildEvent::Exhausted`]; by default the specification of the child decides.
    ///
    /// A report that finds no running manager is lost: [`KeyedChildren::adopt`] shows the next
    /// instance that the child is exhausted.
    #[must_use]
    pub fn report_exhausted(mut self) -> Self {
        self.report_exhausted = true;
        self
    }

    /// Adds the children that an earlier instance of the manager left: `keep` returns the value of
    /// a child that stays, which may be exhausted, and `None` for one to stop. A child that was
    /// being stopped is stopped without a call of `keep`, since the outcome of the earlier request
    /// is lost. To be called from [`Worker::start`].
    pub fn adopt(&mut self, ctx: &Context<W>, mut keep: impl FnMut(&str, &ActorInfo) -> Option<T>) {
        let prefix = match ctx.path().rsplit_once('/') {
            Some((parent, _)) => format!("{parent}/{}", self.prefix),
            None => self.prefix.to_owned(),
        };
        for info in ctx.supervisor().describe() {
            // A further `/` belongs to a descendant of a child.
            let id = info.path.strip_prefix(&prefix);
            let Some(id) = id.filter(|id| !id.contains('/')) else {
                continue;
            };
            let value = match info.state {
                ActorState::Stopped => None,
                ActorState::Starting
                | ActorState::Running
                | ActorState::Backoff
                | ActorState::Exhausted => keep(id, &info),
            };
            let entry = Entry {
                value,
                next: None,
                present: true,
                busy: false,
                identity: None,
            };
            self.entries.insert(id.to_owned(), entry);
            self.reconcile(ctx, id);
        }
    }

    /// Key of the child with this id.
    #[must_use]
    pub fn key(&self, id: &str) -> String {
        format!("{}{id}", self.prefix)
    }

    /// Value of a wanted child, which may still be waiting for its start.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&T> {
        self.entries.get(id)?.value.as_ref()
    }

    /// Like [`KeyedChildren::get`], to change the value.
    pub fn get_mut(&mut self, id: &str) -> Option<&mut T> {
        self.entries.get_mut(id)?.value.as_mut()
    }

    /// Whether a child with this id is being stopped.
    #[must_use]
    pub fn is_stopping(&self, id: &str) -> bool {
        let entry = self.entries.get(id);
        entry.is_some_and(|entry| entry.value.is_none() || entry.is_outdated())
    }

    /// Ids and values of the wanted children.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        let entries = self.entries.iter();
        entries.filter_map(|(id, entry)| Some((id.as_str(), entry.value.as_ref()?)))
    }

    /// Ids of the wanted children and of those being stopped.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Starts a child with the key [`KeyedChildren::key`], once an earlier one with the same id is
    /// removed. A wanted child with this id stays as it is, and `spec` and `value` are dropped.
    pub fn start(&mut self, ctx: &Context<W>, id: &str, spec: ChildSpec, value: T) {
        let entry = self.entries.entry(id.to_owned()).or_insert(Entry {
            value: None,
            next: None,
            present: false,
            busy: false,
            identity: None,
        });
        if entry.value.is_some() {
            return;
        }
        let identity = Identity::default();
        entry.identity = Some(identity.clone());
        entry.value = Some(value);
        let spec = if self.report_exhausted {
            spec.on_exhausted(report_to(ctx, self.make, id, identity))
        } else {
            spec
        };
        entry.next = Some(Request::Start(spec));
        self.reconcile(ctx, id);
    }

    /// Requests the stop of a child and returns its value; [`ChildEvent::Stopped`] follows if it
    /// was started. Does nothing if no child with this id is wanted.
    pub fn stop(&mut self, ctx: &Context<W>, id: &str) -> Option<T> {
        let entry = self.entries.get_mut(id)?;
        entry.next = None;
        let value = entry.value.take();
        self.reconcile(ctx, id);
        value
    }

    /// Requests the restart of a child that exhausted its restarts; [`ChildEvent::Started`]
    /// follows. A child that cannot be restarted is stopped, and [`ChildEvent::Stopped`] follows.
    /// Does nothing if no child with this id is wanted, or if it waits for its start.
    pub fn restart(&mut self, ctx: &Context<W>, id: &str) {
        let entry = self.entries.get_mut(id);
        let Some(entry) = entry.filter(|entry| entry.value.is_some() && entry.next.is_none())
        else {
            return;
        };
        entry.next = Some(Request::Restart);
        self.reconcile(ctx, id);
    }

    /// Records the outcome of a request, and makes the next one for the same child; or records the
    /// report of a child, unless the child is not wanted any more.
    pub fn handle_done(&mut self, ctx: &Context<W>, done: ChildDone) -> Option<ChildEvent> {
        let ChildDone { id, outcome } = done;
        let entry = self.entries.get_mut(&id)?;
        // The child may have been stopped, and even started again, meanwhile.
        let replaced = matches!(entry.next, Some(Request::Start(_)));
        let current = entry.value.is_some() && !replaced;
        let event = match outcome {
            Outcome::Exhausted(identity, reason) => {
                let wanted = entry.is_wanted(&identity);
                return wanted.then_some(ChildEvent::Exhausted(id, reason));
            }
            Outcome::Started(Ok(())) | Outcome::Restarted(Ok(())) => {
                entry.present = true;
                current.then(|| ChildEvent::Started(id.clone()))
            }
            Outcome::Started(Err(error)) => {
                entry.present = matches!(error, StartChildError::AlreadyExists(_));
                current.then(|| {
                    entry.value = None;
                    entry.next = None;
                    ChildEvent::NotStarted(id.clone(), error)
                })
            }
            Outcome::Restarted(Err(_)) => {
                if current {
                    entry.value = None;
                    entry.next = None;
                }
                None
            }
            Outcome::Stopped => {
                entry.present = false;
                Some(ChildEvent::Stopped(id.clone()))
            }
        };
        entry.busy = false;
        self.reconcile(ctx, &id);
        event
    }

    /// Makes the next request for a child, unless one is in progress.
    fn reconcile(&mut self, ctx: &Context<W>, id: &str) {
        let (key, make) = (self.key(id), self.make);
        let Some(entry) = self.entries.get_mut(id).filter(|entry| !entry.busy) else {
            return;
        };
        let (supervisor, id) = (ctx.supervisor(), id.to_owned());
        if entry.is_outdated() {
            entry.busy = true;
            ctx.spawn(async move {
                // A child that the supervisor does not have counts as stopped.
                let _ = supervisor.stop_child(&key).await;
                let outcome = Outcome::Stopped;
                make(ChildDone { id, outcome })
            });
            return;
        }
        entry.busy = entry.next.is_some();
        match entry.next.take() {
            Some(Request::Start(spec)) => {
                ctx.spawn(async move {
                    let outcome = Outcome::Started(supervisor.start_child(spec).await);
                    make(ChildDone { id, outcome })
                });
            }
            Some(Request::Restart) => {
                ctx.spawn(async move {
                    let outcome = Outcome::Restarted(supervisor.restart_child(&key).await);
                    make(ChildDone { id, outcome })
                });
            }
            None if !entry.present => {
                self.entries.remove(&id);
            }
            None => {}
        }
    }
}

/// Returns the callback that reports the exhaustion of a child to its manager.
fn report_to<W: Worker>(
    ctx: &Context<W>,
    make: fn(ChildDone) -> W::Msg,
    id: &str,
    identity: Identity,
) -> OnExhausted {
    let (manager, id) = (ctx.handle(), id.to_owned());
    OnExhausted::notify(move |report| {
        let outcome = Outcome::Exhausted(identity.clone(), report.last_failure.clone());
        let id = id.clone();
        // If the cast fails, the next instance sees the exhaustion when it adopts the child.
        let _ = manager.cast(make(ChildDone { id, outcome }));
    })
}
