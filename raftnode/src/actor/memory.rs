//! The raft actor without raft: proposals are applied at once in memory and are always committed.

mod group;

use std::sync::{Arc, atomic::Ordering};

use jaco_proto::v1;
use jaco_state::fsm;
use prost::Message as _;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};

use super::{RaftHandle, msg::Msg};

pub use group::MemoryGroup;

use crate::{Committed, ProposeError, StateReader as _, core::Role};

/// Serves `handle` as the leader and only voter of a group, until the actor is stopped.
///
/// Nothing is persisted; messages of peers and membership changes are ignored.
///
/// # Errors
/// If the actor does not start.
pub(crate) async fn serve(handle: RaftHandle, raft_id: u64) -> Result<ActorCell, SpawnErr> {
    let (actor, _) = Actor::spawn(None, MemoryActor, (handle, raft_id)).await?;
    Ok(actor.get_cell())
}

struct MemoryActor;

impl Actor for MemoryActor {
    type Msg = Msg;
    type State = RaftHandle;
    type Arguments = (RaftHandle, u64);

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        (handle, raft_id): (RaftHandle, u64),
    ) -> Result<RaftHandle, ActorProcessingErr> {
        handle.shared.status.send_modify(|status| {
            status.role = Role::Leader;
            status.leading = true;
            status.leader_id = Some(raft_id);
            status.voters = vec![raft_id];
        });
        handle.shared.mailbox.store(0, Ordering::Relaxed);
        drop(handle.shared.take_proposals());
        handle.shared.actor.send_replace(Some(myself));
        Ok(handle)
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        msg: Msg,
        handle: &mut RaftHandle,
    ) -> Result<(), ActorProcessingErr> {
        handle.count_received(&msg);
        match msg {
            Msg::Propose => {
                for (data, mut waiting) in handle.shared.take_proposals() {
                    let term = handle.with_status(|status| status.term);
                    let begun = waiting.begin(term);
                    waiting.answer(begun.and_then(|()| apply(handle, &data)));
                }
            }
            Msg::Read(reply) => {
                let _ = reply.send(Ok(handle.state().applied_index)); // the receiver may be gone
            }
            Msg::StateAt(_, reply) => {
                let _ = reply.send(handle.state()); // the receiver may be gone
            }
            Msg::Flush
            | Msg::HoldTimeout
            | Msg::Deliver(_)
            | Msg::Install(_)
            | Msg::Unreachable(_)
            | Msg::SnapshotSent(..)
            | Msg::ChangeMembers(..)
            | Msg::Transfer(_)
            | Msg::UnknownSnapshot { .. }
            | Msg::Tick => {}
        }
        Ok(())
    }
}

fn apply(handle: &RaftHandle, data: &[u8]) -> Result<Committed, ProposeError> {
    let unknown = |error: &dyn std::error::Error| ProposeError::Unknown(error.to_string());
    let command = v1::Command::decode(data).map_err(|error| unknown(&error))?;
    let before = handle.state();
    let index = before.applied_index + 1;
    let applied = fsm::apply(&before, index, &command).map_err(|error| unknown(&error))?;
    // State before events: a subscriber that reacts to an event reads the state.
    handle.shared.publish(Arc::new(applied.state));
    handle.shared.hub.publish(applied.events);
    applied.result.map_err(ProposeError::Rejected)?;
    Ok(Committed { index })
}
