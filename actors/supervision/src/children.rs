//! Dynamic children that a worker keeps by id.

use std::{collections::BTreeMap, fmt};

use super::{
    context::Context, report::ActorInfo, spec::ChildSpec, supervisor::StartChildError,
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
    entries: BTreeMap<String, Entry<T>>,
}

struct Entry<T> {
    /// `None` if the child is not wanted.
    value: Option<T>,
    /// Specification of a wanted child that is not started yet.
    next: Option<ChildSpec>,
    /// Whether the supervisor has a child with the key.
    present: bool,
    /// Whether a request to the supervisor is in progress.
    busy: bool,
}

impl<T> Entry<T> {
    /// Whether the child that the supervisor has is not the wanted one.
    fn is_outdated(&self) -> bool {
        self.present && (self.value.is_none() || self.next.is_some())
    }
}

/// Outcome of a request to the supervisor, for [`KeyedChildren::handle_done`].
#[derive(Debug)]
pub struct ChildDone {
    id: String,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Started(Result<(), StartChildError>),
    Stopped,
}

/// Change of a set of children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChildEvent {
    /// The supervisor has begun to start the child with this id.
    Started(String),
    /// The supervisor refused to start the child with this id, which is not wanted any more. A
    /// child that has its key, such as one whose start an earlier instance of the manager
    /// requested last, is stopped; [`ChildEvent::Stopped`] follows.
    NotStarted(String, StartChildError),
    /// The child with this id was stopped, and nothing of it is left.
    Stopped(String),
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
            entries: BTreeMap::new(),
        }
    }

    /// Adds the children that an earlier instance of the manager left: `keep` returns the value of
    /// a child that stays, `None` for one to stop. To be called from [`Worker::start`].
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
            let entry = Entry {
                value: keep(id, &info),
                next: None,
                present: true,
                busy: false,
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

    /// Starts a child with the key [`KeyedChildren::key`], once an earlier one with the same id is
    /// removed. A wanted child with this id stays as it is, and `spec` and `value` are dropped.
    pub fn start(&mut self, ctx: &Context<W>, id: &str, spec: ChildSpec, value: T) {
        let entry = self.entries.entry(id.to_owned()).or_insert(Entry {
            value: None,
            next: None,
            present: false,
            busy: false,
        });
        if entry.value.is_none() {
            entry.value = Some(value);
            entry.next = Some(spec);
            self.reconcile(ctx, id);
        }
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

    /// Requests the restart of a child that exhausted its restarts. Does nothing if it is being
    /// started or stopped.
    pub fn restart(&self, ctx: &Context<W>, id: &str) {
        let entry = self.entries.get(id);
        if !entry.is_some_and(|entry| entry.present && !entry.busy) {
            return;
        }
        let (supervisor, key) = (ctx.supervisor(), self.key(id));
        ctx.run(async move {
            // Fails if the child has been stopped meanwhile.
            let _ = supervisor.restart_child(&key).await;
        });
    }

    /// Records the outcome of a request, and makes the next one for the same child.
    pub fn handle_done(&mut self, ctx: &Context<W>, done: ChildDone) -> Option<ChildEvent> {
        let ChildDone { id, outcome } = done;
        let entry = self.entries.get_mut(&id)?;
        entry.busy = false;
        entry.present = matches!(
            outcome,
            Outcome::Started(Ok(()) | Err(StartChildError::AlreadyExists(_)))
        );
        // The child may have been stopped, and even started again, meanwhile.
        let current = entry.value.is_some() && entry.next.is_none();
        let event = match outcome {
            Outcome::Started(Ok(())) => current.then(|| ChildEvent::Started(id.clone())),
            Outcome::Started(Err(error)) if current => {
                entry.value = None;
                Some(ChildEvent::NotStarted(id.clone(), error))
            }
            Outcome::Started(Err(_)) => None,
            Outcome::Stopped => Some(ChildEvent::Stopped(id.clone())),
        };
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
        } else if let Some(spec) = entry.next.take() {
            entry.busy = true;
            ctx.spawn(async move {
                let outcome = Outcome::Started(supervisor.start_child(spec).await);
                make(ChildDone { id, outcome })
            });
        } else if !entry.present {
            self.entries.remove(&id);
        }
    }
}
