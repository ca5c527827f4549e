//! Keeps the index of names up to date with the state.

use std::sync::Arc;

use jaco_policy::network::dns::records::Records;
use jaco_raftnode::{State, StateReader};
use jaco_supervision::{Context, Failure, Worker};

use super::names::Names;
use crate::serving::Installed;

/// Arguments of a [`RecordsActor`].
#[derive(Clone)]
pub(super) struct Args {
    pub(super) raft: Arc<dyn StateReader>,
    pub(super) names: Arc<Names>,
    pub(super) installed: Installed,
}

/// Publishes the index of the newest state.
///
/// The published index outlives the actor: while it restarts, names are answered as before.
pub(super) struct RecordsActor {
    names: Arc<Names>,
    installed: Installed,
    state: Arc<State>,
    records: Records,
}

/// The state changed.
pub(super) struct Changed(Arc<State>);

impl Worker for RecordsActor {
    type Msg = Changed;
    type Args = Args;
    const KIND: &'static str = "RecordsActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let mut states = args.raft.follow();
        let state = states.borrow_and_update().clone();
        let records = Records::of(&state);
        args.names.publish(records.clone());
        args.installed.set(Arc::clone(&state));
        let differs = |a: &Arc<State>, b: &Arc<State>| !same_input(a, b);
        ctx.watch_if(states, Arc::clone(&state), differs, Changed);
        Ok(Self {
            names: args.names,
            installed: args.installed,
            state,
            records,
        })
    }

    async fn handle(&mut self, _: &Context<Self>, Changed(state): Changed) -> Result<(), Failure> {
        self.records.update(&self.state, &state);
        self.state = state;
        self.names.publish(self.records.clone());
        self.installed.set(Arc::clone(&self.state));
        Ok(())
    }
}

/// Whether two states agree on everything that the index depends on.
pub fn same_input(a: &State, b: &State) -> bool {
    a.deployments.ptr_eq(&b.deployments)
        && a.replicas_desired.ptr_eq(&b.replicas_desired)
        && a.replicas_observed.ptr_eq(&b.replicas_observed)
}
