//! What a tree says about itself.
//!
//! Every place in the tree has an entry that its supervisor keeps up to date. Reading the
//! entries needs no actor to answer, so a tree can be described while its actors are busy.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::window::{Intensity, Window};

/// Where an actor is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActorState {
    /// Not up yet: starting, or waiting for the actors before it.
    Starting,
    /// Up.
    Running,
    /// Failed, and waiting to be started again.
    Backoff,
    /// Ended, or ending because it was told to.
    Stopped,
    /// Failed more often than its restarts allow, and left down.
    Exhausted,
}

/// One actor of a tree.
#[derive(Clone, Debug)]
pub struct ActorInfo {
    /// Keys from the root down, joined by `/`.
    pub path: String,
    /// [`super::Worker::KIND`], the kind given to a foreign actor, or `Supervisor`.
    pub kind: &'static str,
    /// Where it is in its life.
    pub state: ActorState,
    /// Restarts that still count against the limit.
    pub restarts_in_window: usize,
    /// How long the current instance has been up.
    pub uptime: Option<Duration>,
    /// Why an earlier instance failed; kept until the next failure.
    pub last_failure: Option<String>,
    /// Messages waiting to be handled; 0 for supervisors and foreign actors, which are not
    /// counted.
    pub mailbox_depth: usize,
}

/// What a child that used up its restarts is reported with.
#[derive(Clone, Debug)]
pub struct ChildReport {
    /// The key of the child.
    pub key: String,
    /// The path of the child.
    pub path: String,
    /// The kind of the child.
    pub kind: &'static str,
    /// The failure that was one too many.
    pub last_failure: String,
}

/// The controls of a running instance.
pub(crate) trait Control: Send + Sync {
    /// Asks it to end; one that is not up yet and would not listen is killed.
    fn stop(&self);
    fn kill(&self);
    /// Makes it panic; false if it cannot take messages.
    fn panic(&self) -> bool;
    fn mailbox_depth(&self) -> usize;
}

/// One place in the tree.
pub(crate) struct Entry {
    pub(crate) path: Arc<str>,
    pub(crate) kind: &'static str,
    status: Mutex<Status>,
    children: Mutex<Vec<Arc<Entry>>>,
}

pub(crate) struct Status {
    pub(crate) state: ActorState,
    pub(crate) window: Window,
    pub(crate) intensity: Intensity,
    pub(crate) up_since: Option<std::time::Instant>,
    pub(crate) last_failure: Option<String>,
    pub(crate) control: Option<Arc<dyn Control>>,
}

impl Entry {
    pub(crate) fn new(path: Arc<str>, kind: &'static str) -> Arc<Self> {
        let status = Status {
            state: ActorState::Starting,
            window: Window::default(),
            intensity: Intensity::default(),
            up_since: None,
            last_failure: None,
            control: None,
        };
        Arc::new(Self {
            path,
            kind,
            status: Mutex::new(status),
            children: Mutex::default(),
        })
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        lock(&self.status)
    }

    pub(crate) fn set_children(&self, children: Vec<Arc<Self>>) {
        *lock(&self.children) = children;
    }

    /// Notes that everything below is gone, because the supervisor here is.
    pub(crate) fn clear_below(&self) {
        for child in self.children() {
            let mut status = child.status();
            if status.state != ActorState::Exhausted {
                status.state = ActorState::Stopped;
            }
            status.up_since = None;
            status.control = None;
            drop(status);
            child.clear_below();
        }
    }

    /// This place and everything below it, parents first, siblings in start order.
    pub(crate) fn describe(&self) -> Vec<ActorInfo> {
        let mut infos = vec![self.info()];
        for child in self.children() {
            infos.extend(child.describe());
        }
        infos
    }

    /// The place at `path`, if it is this one or below it.
    pub(crate) fn find(self: &Arc<Self>, path: &str) -> Option<Arc<Self>> {
        if *self.path == *path {
            return Some(Arc::clone(self));
        }
        let below = path
            .strip_prefix(&*self.path)
            .is_some_and(|rest| rest.starts_with('/'));
        if below {
            self.children().iter().find_map(|child| child.find(path))
        } else {
            None
        }
    }

    fn children(&self) -> Vec<Arc<Self>> {
        lock(&self.children).clone()
    }

    fn info(&self) -> ActorInfo {
        let status = self.status();
        let now = Instant::now().into_std();
        ActorInfo {
            path: self.path.to_string(),
            kind: self.kind,
            state: status.state,
            restarts_in_window: status.window.count(status.intensity, now),
            uptime: status
                .up_since
                .map(|since| now.saturating_duration_since(since)),
            last_failure: status.last_failure.clone(),
            mailbox_depth: status
                .control
                .as_ref()
                .map_or(0, |control| control.mailbox_depth()),
        }
    }
}

/// The data behind these locks is replaced, never half-written, so a panic spoils nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
