//! Several handles on one in-memory log; the test chooses the leader and the lagging members.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
};

use jaco_proto::v1;
use jaco_state::{Event, State, fsm};
use prost::Message as _;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};

use crate::{
    Committed, ProposeError, RaftHandle, ReadError,
    actor::{RaftLimits, msg::Msg},
    core::Role,
};

/// Members of one group, each behind a handle like that of a running node. Clones share the group.
/// Ids start at 1.
///
/// A proposal to the leader is applied at once on every member that does not lag. The other members
/// answer that they do not lead.
#[derive(Clone)]
pub struct MemoryGroup {
    shared: Arc<Mutex<Group>>,
    members: Arc<[RaftHandle]>,
}

struct Group {
    leader: Option<u64>,
    newest: Arc<State>,
    lagging: BTreeSet<u64>,
    /// Unapplied states and events of each member.
    behind: Vec<VecDeque<(Arc<State>, Vec<Event>)>>,
    committed: Vec<v1::Command>,
    lost_answers: usize,
}

impl MemoryGroup {
    /// Creates a group of `size` members on `state`; member 1 leads.
    ///
    /// # Errors
    /// If an actor does not start.
    pub async fn start(state: State, size: usize) -> Result<(Self, Vec<ActorCell>), SpawnErr> {
        let members: Vec<_> = (0..size)
            .map(|_| RaftHandle::new(state.clone(), RaftLimits::default()))
            .collect();
        let group = Self {
            shared: Arc::new(Mutex::new(Group {
                leader: None,
                newest: Arc::new(state),
                lagging: BTreeSet::new(),
                behind: vec![VecDeque::new(); size],
                committed: Vec::new(),
                lost_answers: 0,
            })),
            members: members.into(),
        };
        let mut actors = Vec::new();
        for id in 1..=size as u64 {
            let member = Member {
                group: group.clone(),
                id,
            };
            actors.push(Actor::spawn(None, member, ()).await?.0.get_cell());
        }
        group.elect(Some(1));
        Ok((group, actors))
    }

    /// Returns the handle of member `id`.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn handle(&self, id: u64) -> RaftHandle {
        self.members[Self::index_of(id)].clone()
    }

    /// Makes `leader` the leader on all members; `None` leaves the group without a leader.
    pub fn elect(&self, leader: Option<u64>) {
        self.lock().leader = leader;
        let voters: Vec<u64> = (1..=self.members.len() as u64).collect();
        for (id, handle) in (1..).zip(self.members.iter()) {
            handle.shared.status.send_modify(|status| {
                let leads = leader == Some(id);
                status.raft_id = id;
                status.term += 1;
                status.role = if leads { Role::Leader } else { Role::Follower };
                status.leading = leads;
                status.leader_id = leader;
                status.quorum_lost = false;
                status.quorum_lost_since = None;
                status.voters.clone_from(&voters);
            });
        }
    }

    /// Makes member `id` report `leader` as the leader, whichever member leads.
    pub fn set_known_leader(&self, id: u64, leader: Option<u64>) {
        let shared = &self.members[Self::index_of(id)].shared;
        shared
            .status
            .send_modify(|status| status.leader_id = leader);
    }

    /// Makes member `id` report a lost quorum, with only `reachable` in contact.
    pub fn isolate(&self, id: u64, reachable: &[u64]) {
        let shared = &self.members[Self::index_of(id)].shared;
        shared.status.send_modify(|status| {
            status.role = Role::Follower;
            status.leading = false;
            status.leader_id = None;
            status.reachable = reachable.to_vec();
            status.quorum_lost = true;
            status.quorum_lost_since = Some(std::time::Instant::now());
        });
    }

    /// Makes member `id` report that its raft makes no progress, while the others go on.
    pub fn stall(&self, id: u64) {
        let shared = &self.members[Self::index_of(id)].shared;
        shared.status.send_modify(|status| {
            status.leading = false;
            status.stalled_since = Some(std::time::Instant::now());
        });
    }

    /// Stops member `id` from applying entries, or lets it catch up.
    pub fn lag(&self, id: u64, lags: bool) {
        let mut group = self.lock();
        if lags {
            group.lagging.insert(id);
            return;
        }
        group.lagging.remove(&id);
        for (state, events) in group.behind[Self::index_of(id)].drain(..) {
            self.publish(id, state, events);
        }
    }

    /// Applies the next `n` proposals, but answers them with an unknown outcome.
    pub fn lose_next_answers(&self, n: usize) {
        self.lock().lost_answers += n;
    }

    /// Returns every command that got an index so far, rejected ones included.
    #[must_use]
    pub fn committed(&self) -> Vec<v1::Command> {
        self.lock().committed.clone()
    }

    fn index_of(id: u64) -> usize {
        usize::try_from(id - 1).unwrap_or(usize::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Group> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, id: u64, state: Arc<State>, events: Vec<Event>) {
        let shared = &self.members[Self::index_of(id)].shared;
        // State before events: a subscriber that reacts to an event reads the state.
        shared.publish(state);
        shared.hub.publish(events);
    }

    fn propose(&self, id: u64, data: &[u8]) -> Result<Committed, ProposeError> {
        let unknown = |error: &dyn std::error::Error| ProposeError::Unknown(error.to_string());
        let mut group = self.lock();
        if group.leader != Some(id) {
            return Err(ProposeError::NoLeader);
        }
        let command = v1::Command::decode(data).map_err(|error| unknown(&error))?;
        let index = group.newest.applied_index + 1;
        let applied =
            fsm::apply(&group.newest, index, &command).map_err(|error| unknown(&error))?;
        group.committed.push(command);
        group.newest = Arc::new(applied.state);
        for member in 1..=self.members.len() as u64 {
            let update = (group.newest.clone(), applied.events.clone());
            if group.lagging.contains(&member) {
                group.behind[Self::index_of(member)].push_back(update);
            } else {
                self.publish(member, update.0, update.1);
            }
        }
        if group.lost_answers > 0 {
            group.lost_answers -= 1;
            return Err(ProposeError::Unknown("the answer was lost".to_owned()));
        }
        applied.result.map_err(ProposeError::Rejected)?;
        Ok(Committed { index })
    }

    fn read(&self) -> Result<u64, ReadError> {
        let group = self.lock();
        group.leader.ok_or(ReadError::NoLeader)?;
        Ok(group.newest.applied_index)
    }
}

struct Member {
    group: MemoryGroup,
    id: u64,
}

impl Actor for Member {
    type Msg = Msg;
    type State = RaftHandle;
    type Arguments = ();

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        (): (),
    ) -> Result<RaftHandle, ActorProcessingErr> {
        let handle = self.group.handle(self.id);
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
                    waiting.answer(begun.and_then(|()| self.group.propose(self.id, &data)));
                }
            }
            Msg::Read(reply) => {
                let lost = handle.status().quorum_lost;
                let answer = if lost {
                    Err(ReadError::QuorumLost)
                } else {
                    self.group.read()
                };
                let _ = reply.send(answer); // the reader may be gone
            }
            // Messages that only a real group handles.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1::command::Payload;
    use jaco_state::command;
    use prost_types::Timestamp;

    use super::*;
    use crate::{LeaderProposer as _, StateReader as _};

    fn revoke() -> v1::Command {
        let payload = Payload::TokenRevoke(v1::TokenRevoke::default());
        command("tester", Timestamp::default(), payload)
    }

    #[tokio::test]
    async fn leader_writes_replicate_except_to_lagging_members() {
        let (group, _actors) = MemoryGroup::start(State::default(), 3).await.unwrap();
        group.lag(3, true);
        let committed = group.handle(1).propose(revoke()).await.unwrap();
        assert_eq!(committed.index, 1);
        let applied = |id| group.handle(id).state().applied_index;
        assert_eq!([applied(1), applied(2), applied(3)], [1, 1, 0]);
        group.lag(3, false);
        assert_eq!(applied(3), 1);
        let refused = group.handle(2).propose(revoke()).await;
        assert_eq!(refused, Err(ProposeError::NoLeader));
        group.elect(Some(2));
        assert!(group.handle(2).propose(revoke()).await.is_ok());
        assert_eq!(group.handle(1).read_index().await.unwrap().applied_index, 2);
        group.elect(None);
        assert_eq!(
            group.handle(1).read_index().await.unwrap_err(),
            ReadError::NoLeader
        );
    }
}
