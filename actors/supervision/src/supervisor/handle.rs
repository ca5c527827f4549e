//! Handle of a supervisor.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use ractor::ActorRef;
use tokio::sync::watch;

use super::Msg;
use crate::{
    handle::Reply,
    instance_lock::InstanceLock,
    report::{ActorInfo, Entry, lock},
    spec::ChildSpec,
};

/// Reason a child was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartChildError {
    /// A sibling has the key; it keeps running.
    #[error("there is already a child {0}")]
    AlreadyExists(String),
    /// The supervisor is not running, or is shutting down.
    #[error("the supervisor is not running")]
    Unavailable,
}

/// Reason a child was not stopped or revived.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChildError {
    /// No child has the key.
    #[error("there is no child {0}")]
    Unknown(String),
    /// The supervisor was not running, or ended meanwhile.
    #[error("the supervisor is not running")]
    Unavailable,
}

/// Handle of a supervisor, valid across restarts.
#[derive(Clone)]
pub struct SupervisorHandle(pub(super) Arc<ChildSlot>);

impl fmt::Debug for SupervisorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = *self.0.start_done.borrow();
        f.debug_struct("SupervisorHandle")
            .field("running", &running)
            .finish()
    }
}

impl SupervisorHandle {
    /// Adds a child and begins its start; returns before it has started.
    ///
    /// Under [`crate::Strategy::OneForOne`] dynamic children start immediately and
    /// stop together, but for those with [`ChildSpec::ordered_stop`]; under the other strategies
    /// they are ordered after the present children. A restarted supervisor has its static children
    /// only: one of them should start the dynamic ones.
    ///
    /// # Errors
    /// [`StartChildError::AlreadyExists`] if the key is in use; the present child is not affected.
    pub async fn start_child(&self, spec: ChildSpec) -> Result<(), StartChildError> {
        let answer = self
            .ask(|reply| Msg::StartChild(Box::new(spec), reply))
            .await;
        answer.unwrap_or(Err(StartChildError::Unavailable))
    }

    /// Stops a child, kills it after its stop timeout, and removes it. Returns when nothing of it
    /// is left and the key is free.
    ///
    /// Works in every state of the child. A static child comes back when the supervisor is
    /// restarted.
    ///
    /// A worker must not wait for its own removal; it ends itself with
    /// [`crate::Context::finish`].
    ///
    /// # Errors
    /// [`ChildError::Unknown`] if no child has the key.
    pub async fn stop_child(&self, key: &str) -> Result<(), ChildError> {
        let answer = self
            .ask(|reply| Msg::StopChild(key.to_owned(), reply))
            .await;
        answer.unwrap_or(Err(ChildError::Unavailable))
    }

    /// Resets the restart window of a child, and starts it if it is exhausted or has ended.
    ///
    /// # Errors
    /// [`ChildError::Unknown`] if no child has the key.
    pub async fn restart_child(&self, key: &str) -> Result<(), ChildError> {
        let answer = self.ask(|reply| Msg::Restart(key.to_owned(), reply)).await;
        answer.unwrap_or(Err(ChildError::Unavailable))
    }

    /// Waits until every static child has started or stays down; without a limit.
    pub async fn running(&self) {
        // The sender lives as long as the handle.
        let _ = self
            .0
            .start_done
            .subscribe()
            .wait_for(|start_done| *start_done)
            .await;
    }

    /// Describes the supervisor and everything below, parents first, siblings in start order; empty
    /// before its first start.
    #[must_use]
    pub fn describe(&self) -> Vec<ActorInfo> {
        let entry = lock(&self.0.entry).clone();
        entry.map(|entry| entry.describe()).unwrap_or_default()
    }

    async fn ask<T>(&self, make: impl FnOnce(Reply<T>) -> Msg) -> Option<T> {
        let actor = self.0.actor.borrow().clone()?;
        let (reply, answer) = Reply::channel();
        actor.send_message(make(reply)).ok()?;
        answer.await.ok()
    }
}

/// State shared by all instances of one supervisor.
pub(super) struct ChildSlot {
    pub(super) instance_lock: InstanceLock,
    pub(super) actor: watch::Sender<Option<ActorRef<Msg>>>,
    pub(super) start_done: watch::Sender<bool>,
    pub(super) entry: Mutex<Option<Arc<Entry>>>,
}

/// The [`ChildSlot`] of a supervisor, reserved by its specification before there is an instance.
pub(crate) struct ReservedSlot(pub(super) Arc<ChildSlot>);

impl fmt::Debug for ReservedSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReservedSlot")
    }
}

impl ReservedSlot {
    pub(crate) fn new() -> Self {
        Self(Arc::new(ChildSlot {
            instance_lock: InstanceLock::new(),
            actor: watch::Sender::new(None),
            start_done: watch::Sender::new(false),
            entry: Mutex::default(),
        }))
    }

    pub(crate) fn handle(&self) -> SupervisorHandle {
        SupervisorHandle(Arc::clone(&self.0))
    }
}
