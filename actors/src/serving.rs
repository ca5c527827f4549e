//! How far the data planes of a node have followed the state.
//!
//! A raft entry that a node has applied is not yet in force there: the route table, the published
//! ports and the answers to DNS queries are derived from the state later. Each of them records the
//! state it was derived from once the data plane uses it.
//!
//! A container is stopped only after every ready node has its withdrawal in force ([`Spread`]).

mod cluster;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, join_all};
use jaco_policy::ingress::view::{SameInput, covers};
use jaco_raftnode::{State, StateReader};
use tokio::sync::watch;

pub(crate) use cluster::ClusterRouting;

/// Reports when an entry of the log is in force on all nodes.
pub trait Spread: Send + Sync + 'static {
    /// Resolves once every ready node has applied the entry at `index` and routes accordingly; may
    /// never do so.
    fn reached(&self, index: u64) -> BoxFuture<'static, ()>;
}

/// Every entry is in force everywhere at once: for actors without data planes.
#[derive(Clone, Copy, Debug)]
pub struct Everywhere;

impl Spread for Everywhere {
    fn reached(&self, _: u64) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

/// The parts of a node's routing; clones share them.
#[derive(Clone, Default)]
pub struct Serving(Arc<Mutex<Vec<Part>>>);

/// One part of the routing.
#[derive(Clone)]
struct Part {
    installed: watch::Receiver<Option<Arc<State>>>,
    same_input: SameInput,
}

/// Records the state that a part of the routing was derived from; clones record the same part. It
/// outlives the actors, as the data plane does.
#[derive(Clone, Debug, Default)]
pub struct Installed(watch::Sender<Option<Arc<State>>>);

impl Installed {
    /// Records that the data plane uses what was derived from `state`.
    pub(crate) fn set(&self, state: Arc<State>) {
        self.0.send_replace(Some(state));
    }

    /// The states, as they are recorded.
    #[cfg(test)]
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<State>>> {
        self.0.subscribe()
    }
}

impl Serving {
    /// Adds a part of the routing, which depends on the inputs that `same_input` compares. Until it
    /// records its first state, [`Serving::reached`] does not resolve.
    #[must_use]
    pub fn part(&self, same_input: SameInput) -> Installed {
        let installed = Installed::default();
        let part = Part {
            installed: installed.0.subscribe(),
            same_input,
        };
        self.parts().push(part);
        installed
    }

    /// Resolves once this node has applied the entry at `index` and every part of its routing
    /// agrees with it; never if `raft` ends before. Returns the index of the state that is in force.
    ///
    /// # Cancel safety
    /// Cancelled, it has no effect.
    pub fn reached(&self, raft: &dyn StateReader, index: u64) -> BoxFuture<'static, u64> {
        let parts: Vec<Part> = self.parts().clone();
        let mut states = raft.subscribe();
        Box::pin(async move {
            let target = states.wait_for(|state| state.applied_index >= index);
            let Ok(target) = target.await.map(|state| Arc::clone(&state)) else {
                return std::future::pending().await;
            };
            let installed = parts.into_iter().map(|mut part| {
                let target = Arc::clone(&target);
                async move {
                    let covered = |installed: &Option<Arc<State>>| {
                        let installed = installed.as_ref();
                        installed.is_some_and(|state| covers(state, &target, part.same_input))
                    };
                    if part.installed.wait_for(covered).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            });
            join_all(installed).await;
            target.applied_index
        })
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Part>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
