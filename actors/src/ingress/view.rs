//! The part of the world that the routing of one node is derived from, as its actors follow it.

use std::{collections::BTreeSet, fmt, sync::Arc};

use jaco_policy::{
    ingress::{
        table::NodeFacts,
        view::{SameInput, ServingView},
    },
    network::readiness::MeshStatus,
};
use jaco_raftnode::{State, StateReader};
use jaco_supervision::{Context, Worker};
use tokio::{sync::watch, time::Instant};

use crate::{health::Hosts, serving::Installed};

/// Input of a node's routing: the state, the fresh hosts and the mesh. Clones share it.
#[derive(Clone)]
pub struct ServingInput {
    state: Arc<dyn StateReader>,
    facts: NodeFacts,
    fresh: watch::Receiver<Hosts>,
    mesh: Option<watch::Receiver<MeshStatus>>,
}

impl ServingInput {
    /// Creates the input of a node. Only replicas of this host and of the hosts in `fresh` serve.
    #[must_use]
    pub fn new(
        state: Arc<dyn StateReader>,
        facts: NodeFacts,
        fresh: watch::Receiver<Hosts>,
    ) -> Self {
        Self {
            state,
            facts,
            fresh,
            mesh: None,
        }
    }

    /// Serves replicas of other hosts while the mesh is up.
    #[must_use]
    pub fn with_mesh(mut self, status: watch::Receiver<MeshStatus>) -> Self {
        self.mesh = Some(status);
        self
    }

    /// Properties of the node at this moment.
    fn facts(&self) -> NodeFacts {
        let mut facts = self.facts.clone();
        if let Some(mesh) = &self.mesh {
            let unreached = mesh.borrow().unreached();
            facts.mesh = unreached.is_some();
            facts.unreached = unreached.unwrap_or_default();
        }
        facts
    }
}

impl fmt::Debug for ServingInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingInput")
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

/// Changes that an actor of the routing gets; opaque to other modules.
#[derive(Debug)]
pub struct Event(EventKind);

#[derive(Debug)]
enum EventKind {
    /// The state changed.
    State(Arc<State>),
    /// The set of fresh hosts changed, or the mesh went up or down.
    Reachability,
    /// The debounce deadline passed.
    Deadline,
}

/// The view of one actor of the routing, which installs what it derives from it.
pub(super) struct View<W: Worker> {
    input: ServingInput,
    core: ServingView,
    installed: Installed,
    message: fn(Event) -> W::Msg,
}

impl<W: Worker> View<W> {
    /// Follows `input` with messages that `message` makes. The actor derives its part of the
    /// routing at once, and then whenever [`View::handle`] returns true.
    pub(super) fn follow(
        ctx: &Context<W>,
        input: ServingInput,
        same_input: SameInput,
        installed: Installed,
        message: fn(Event) -> W::Msg,
    ) -> Self {
        let mut states = input.state.follow();
        let state = states.borrow_and_update().clone();
        let event = move |kind| message(Event(kind));
        ctx.watch(states, move |state| event(EventKind::State(state)));
        let mut fresh = input.fresh.clone();
        fresh.mark_unchanged();
        ctx.watch(fresh, move |_| event(EventKind::Reachability));
        if let Some(mut mesh) = input.mesh.clone() {
            mesh.mark_unchanged();
            ctx.watch(mesh, move |_| event(EventKind::Reachability));
        }
        Self {
            input,
            core: ServingView::new(state, same_input),
            installed,
            message,
        }
    }

    /// The newest state.
    pub(super) fn state(&self) -> &Arc<State> {
        self.core.state()
    }

    /// Derives a part of the routing from the newest state and hands it to `install`, after which
    /// no new request may follow an earlier one.
    pub(super) fn install<T>(
        &self,
        derive: impl FnOnce(&State, &NodeFacts, &BTreeSet<String>) -> T,
        install: impl FnOnce(T),
    ) {
        install(self.derive(derive));
        self.installed.set(self.core.state().clone());
    }

    /// Looks at the newest state and the reachable hosts.
    pub(super) fn derive<T>(
        &self,
        derive: impl FnOnce(&State, &NodeFacts, &BTreeSet<String>) -> T,
    ) -> T {
        let fresh = self.input.fresh.borrow().clone();
        derive(self.core.state(), &self.input.facts(), &fresh)
    }

    /// Handles a change; returns whether the routing is due to be derived again.
    pub(super) fn handle(&mut self, ctx: &Context<W>, Event(kind): Event) -> bool {
        let now = Instant::now().into_std();
        match kind {
            EventKind::State(newest) => self.core.handle_state(now, newest),
            EventKind::Reachability => self.core.handle_reachability(now),
            EventKind::Deadline => self.core.handle_timeout(now),
        }
        let due = self.core.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(due, (self.message)(Event(EventKind::Deadline)));
        self.core.poll_update()
    }
}
