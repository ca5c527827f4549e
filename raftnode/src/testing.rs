//! A test double of the replicated state: proposals are applied at once, in this process.
//!
//! [`MemoryRaft`] runs the real state machine, so its answers and events are those of a cluster. It
//! has no log on disk, no peers and no elections. It is meant for tests of code that proposes and
//! watches.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jaco_proto::v1::{self, NodeStatus, command::Payload};
use jaco_state::{State, batch, command, fsm};
use prost_types::Timestamp;
use ractor::{ActorCell, SpawnErr};
use tokio::sync::watch;

use crate::{
    Committed, ForwardingProposer, LeaderProposer, ProposeError, RaftHandle, StateReader, WatchHub,
    actor::{RaftLimits, serve_in_memory},
    propose::{ProposalGuard, ProposeFuture},
};

pub use crate::actor::MemoryGroup;

/// An in-memory stand-in for a raft group; clones share the group.
#[derive(Clone, Debug)]
pub struct MemoryRaft {
    shared: Arc<MemoryInner>,
}

#[derive(Debug)]
struct MemoryInner {
    log: Mutex<Log>,
    state: watch::Sender<Arc<State>>,
    hub: WatchHub,
}

#[derive(Debug, Default)]
struct Log {
    committed: Vec<v1::Command>,
    faults: VecDeque<Fault>,
}

#[derive(Clone, Debug)]
enum Fault {
    /// Fails with this error without applying the proposal.
    Refuse(ProposeError),
    /// Applies the proposal, and answers that the outcome is unknown.
    LoseAnswer,
}

impl Default for MemoryRaft {
    fn default() -> Self {
        Self::new(State::default())
    }
}

impl MemoryRaft {
    /// Creates a group on `state`; the first command gets the next index after it.
    #[must_use]
    pub fn new(state: State) -> Self {
        let hub = WatchHub::new(state.applied_index);
        Self {
            shared: Arc::new(MemoryInner {
                log: Mutex::default(),
                state: watch::Sender::new(Arc::new(state)),
                hub,
            }),
        }
    }

    /// Creates a handle like the one of a running node. It is a separate group, which starts from a
    /// copy of this state and runs until the returned actor is stopped.
    ///
    /// # Errors
    ///
    /// If the actor does not start.
    pub async fn handle(&self) -> Result<(RaftHandle, ActorCell), SpawnErr> {
        let state = State::clone(&self.state());
        let handle = RaftHandle::new(state, RaftLimits::default());
        let actor = serve_in_memory(handle.clone(), 1).await?;
        Ok((handle, actor))
    }

    /// Creates an initialised cluster whose members, named by `hosts`, are all ready.
    ///
    /// # Panics
    ///
    /// If `hosts` is empty or has duplicates.
    #[must_use]
    pub fn with_ready_nodes(hosts: &[&str]) -> Self {
        let raft = Self::default();
        for (host, raft_id) in hosts.iter().zip(1..) {
            let hostname = (*host).to_owned();
            let setup = if raft_id == 1 {
                vec![Payload::ClusterInit(v1::ClusterInit {
                    cluster_id: "00000000-0000-4000-8000-000000000001".to_owned(),
                    self_hostname: hostname,
                    self_address: format!("{host}:7947"),
                    self_raft_id: raft_id,
                    self_grpc_address: format!("{host}:7946"),
                    self_server_cert_fingerprint: vec![1; 32],
                    ..v1::ClusterInit::default()
                })]
            } else {
                vec![
                    Payload::NodeJoin(v1::NodeJoin {
                        hostname: hostname.clone(),
                        address: format!("{host}:7947"),
                        grpc_address: format!("{host}:7946"),
                        server_cert_fingerprint: vec![u8::try_from(raft_id).unwrap_or(0); 32],
                        raft_id,
                        ..v1::NodeJoin::default()
                    }),
                    Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
                        hostname,
                        status: NodeStatus::Ready.into(),
                        ..v1::NodeStatusUpdate::default()
                    }),
                ]
            };
            let ts = Timestamp::default();
            let children = setup
                .into_iter()
                .map(|p| command("bootstrap", ts, p))
                .collect();
            if let Err(error) = raft.apply(batch("bootstrap", ts, children)) {
                panic!("set-up of host {host:?} failed: {error}");
            }
        }
        assert!(!hosts.is_empty(), "a cluster has at least one member");
        raft
    }

    /// Applies a command now; does not consume injected faults.
    ///
    /// # Errors
    ///
    /// [`ProposeError::Rejected`] by the state machine; a command without a payload is rejected
    /// before it gets an index.
    pub fn apply(&self, command: v1::Command) -> Result<Committed, ProposeError> {
        self.commit(&mut self.log(), command)
    }

    /// Fails the next `n` proposals with `error`; they are not applied.
    pub fn fail_next(&self, n: usize, error: ProposeError) {
        let faults = std::iter::repeat_n(Fault::Refuse(error), n);
        self.log().faults.extend(faults);
    }

    /// Applies the next `n` proposals, but answers that their outcome is unknown.
    pub fn lose_next_answers(&self, n: usize) {
        let faults = std::iter::repeat_n(Fault::LoseAnswer, n);
        self.log().faults.extend(faults);
    }

    /// Returns every command that got an index so far, rejected ones included.
    #[must_use]
    pub fn committed(&self) -> Vec<v1::Command> {
        self.log().committed.clone()
    }

    /// The hub that publishes events.
    #[must_use]
    pub fn hub(&self) -> &WatchHub {
        &self.shared.hub
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.shared
            .log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn propose_now(&self, command: v1::Command) -> Result<Committed, ProposeError> {
        let mut log = self.log();
        match log.faults.pop_front() {
            None => self.commit(&mut log, command),
            Some(Fault::Refuse(error)) => Err(error),
            Some(Fault::LoseAnswer) => {
                let _ = self.commit(&mut log, command); // the outcome is reported as unknown
                Err(ProposeError::Unknown("the answer was lost".to_owned()))
            }
        }
    }

    fn commit(&self, log: &mut Log, command: v1::Command) -> Result<Committed, ProposeError> {
        fsm::check(&command).map_err(ProposeError::Rejected)?;
        let before = self.state();
        let index = before.applied_index + 1;
        let applied = fsm::apply(&before, index, &command)
            .map_err(|unknown| ProposeError::Unknown(unknown.to_string()))?;
        log.committed.push(command);
        // State before events: a subscriber that reacts to an event reads the state.
        self.shared.state.send_replace(Arc::new(applied.state));
        self.shared.hub.publish(applied.events);
        match applied.result {
            Ok(()) => Ok(Committed { index }),
            Err(error) => Err(ProposeError::Rejected(error)),
        }
    }
}

impl StateReader for MemoryRaft {
    fn state(&self) -> Arc<State> {
        Arc::clone(&self.shared.state.borrow())
    }

    fn subscribe(&self) -> watch::Receiver<Arc<State>> {
        self.shared.state.subscribe()
    }
}

impl LeaderProposer for MemoryRaft {
    fn leading_term(&self) -> Option<u64> {
        Some(1)
    }

    fn propose_in_term(
        &self,
        _term: u64,
        command: v1::Command,
        guard: ProposalGuard,
    ) -> ProposeFuture {
        let proposal = self.propose(command);
        Box::pin(async move {
            let outcome = proposal.await;
            drop(guard);
            outcome
        })
    }

    fn propose(&self, command: v1::Command) -> ProposeFuture {
        let raft = self.clone();
        Box::pin(async move { raft.propose_now(command) })
    }
}

impl ForwardingProposer for MemoryRaft {
    fn submit(&self, command: v1::Command) -> ProposeFuture {
        self.propose(command)
    }
}

#[cfg(test)]
mod tests {
    use jaco_proto::ErrorCode;
    use jaco_state::EntityType;

    use super::*;
    use crate::watch::Filter;

    fn revoke(identity: &str) -> v1::Command {
        command(
            "tester",
            Timestamp::default(),
            Payload::TokenRevoke(v1::TokenRevoke {
                identity: identity.to_owned(),
            }),
        )
    }

    #[tokio::test]
    async fn proposal_is_applied_published_and_streamed() {
        let raft = MemoryRaft::with_ready_nodes(&["a", "b"]);
        assert!(
            raft.state()
                .nodes
                .values()
                .all(|n| n.status() == NodeStatus::Ready)
        );
        let mut events = raft.hub().subscribe(Filter::of([EntityType::Audit]));
        let mut states = raft.subscribe();
        let committed = raft.propose(revoke("x")).await.unwrap();
        assert_eq!(committed.index, 3);
        assert_eq!(
            events.next().await.map(|update| update.raft_index()),
            Some(3)
        );
        states.changed().await.unwrap();
        assert_eq!(states.borrow().applied_index, 3);
    }

    #[tokio::test]
    async fn rejection_takes_an_index_and_has_a_code() {
        let raft = MemoryRaft::default();
        let remove = Payload::NodeRemove(v1::NodeRemove::default());
        let answer = raft
            .propose(command("tester", Timestamp::default(), remove))
            .await;
        let Err(ProposeError::Rejected(error)) = answer else {
            panic!("not rejected: {answer:?}");
        };
        assert_eq!(error.code, ErrorCode::NodeNotFound);
        assert_eq!(raft.state().applied_index, 1);
        let empty = raft.propose(v1::Command::default()).await;
        assert!(matches!(empty, Err(ProposeError::Rejected(_))));
        assert_eq!(raft.committed().len(), 1);
    }

    #[tokio::test]
    async fn injected_faults_apply_in_order() {
        let raft = MemoryRaft::default();
        raft.fail_next(2, ProposeError::NoLeader);
        raft.lose_next_answers(1);
        for _ in 0..2 {
            assert_eq!(raft.propose(revoke("x")).await, Err(ProposeError::NoLeader));
        }
        assert_eq!(raft.state().applied_index, 0);
        let lost = raft.propose(revoke("x")).await;
        assert!(matches!(lost, Err(ProposeError::Unknown(_))));
        assert_eq!(raft.state().applied_index, 1);
        assert!(raft.propose(revoke("x")).await.is_ok());
    }
}
