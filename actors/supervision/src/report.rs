//! Introspection of a tree.
//!
//! Every child has an entry that its supervisor keeps up to date. Reading entries involves no
//! actor, so a tree can be described while its actors are busy.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::window::{Intensity, Window};

/// Lifecycle state of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActorState {
    /// Starting, or waiting for the actors before it.
    Starting,
    /// Started successfully.
    Running,
    /// Failed, and waiting for its restart.
    Backoff,
    /// Ended, or stopping on request.
    Stopped,
    /// Failed more often than its restarts allow; left down.
    Exhausted,
}

/// Description of one actor of a tree.
#[derive(Clone, Debug)]
pub struct ActorInfo {
    /// Keys from the root down, joined by `/`.
    pub path: String,
    /// [`super::Worker::KIND`], the kind given to an external actor, or `Supervisor`.
    pub kind: &'static str,
    /// Lifecycle state.
    pub state: ActorState,
    /// Restarts that count against the limit now.
    pub restarts_in_window: usize,
    /// Uptime of the current instance.
    pub uptime: Option<Duration>,
    /// Failure of an earlier instance; kept until the next failure.
    pub last_failure: Option<String>,
    /// Messages waiting in the mailbox; 0 for supervisors and external actors, which are not
    /// counted.
    pub mailbox_depth: usize,
}

/// Report of a child that used up its restarts.
#[derive(Clone, Debug)]
pub struct ChildReport {
    /// Key of the child.
    pub key: String,
    /// Path of the child.
    pub path: String,
    /// Kind of the child.
    pub kind: &'static str,
    /// Failure that exceeded the limit.
    pub last_failure: String,
}

/// Control over a running instance.
pub(crate) trait Control: Send + Sync {
    /// Asks the instance to stop; kills it if it is still starting and cannot respond.
    fn stop(&self);
    fn kill(&self);
    /// Makes the instance panic; false if it has ended.
    fn panic(&self) -> bool;
    fn mailbox_depth(&self) -> usize;
}

/// Entry of one actor in the tree.
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

    /// Marks everything below as stopped, after the supervisor of this entry ended.
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

    /// Describes this actor and everything below, parents first, siblings in start order.
    pub(crate) fn describe(&self) -> Vec<ActorInfo> {
        let mut infos = vec![self.info()];
        for child in self.children() {
            infos.extend(child.describe());
        }
        infos
    }

    /// Finds the entry at `path`, here or below.
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

/// Locks `mutex`, also after a panic: the data is replaced as a whole, never half-written.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
