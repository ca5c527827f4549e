//! Keeps the index of names up to date with the state.

use std::sync::Arc;

use jaco_policy::network::dns::records::Records;
use jaco_raftnode::{State, StateReader};
use jaco_supervision::{Context, Failure, Worker};

use super::names::Names;

/// Arguments of a [`RecordsActor`].
#[derive(Clone)]
pub(super) struct Args {
    pub(super) raft: Arc<dyn StateReader>,
    pub(super) names: Arc<Names>,
}

/// Publishes the index of the newest state.
///
/// The published index outlives the actor: while it restarts, names are answered as before.
pub(super) struct RecordsActor {
    names: Arc<Names>,
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
        ctx.watch_if(states, Arc::clone(&state), differs, Changed);
        Ok(Self {
            names: args.names,
            state,
            records,
        })
    }

    async fn handle(&mut self, _: &Context<Self>, Changed(state): Changed) -> Result<(), Failure> {
        self.records.update(&self.state, &state);
        self.state = state;
        self.names.publish(self.records.clone());
        Ok(())
    }
}

/// Whether the index of two states may differ.
fn differs(a: &Arc<State>, b: &Arc<State>) -> bool {
    !(a.deployments.ptr_eq(&b.deployments)
        && a.replicas_desired.ptr_eq(&b.replicas_desired)
        && a.replicas_observed.ptr_eq(&b.replicas_observed))
}
