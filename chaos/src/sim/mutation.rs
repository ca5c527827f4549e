//! Bugs on purpose: the simulator must find each of them.
//!
//! They are planted in the simulated shells around the cores, never in the cores, so nothing of
//! them is in a production build.

use std::{fmt, str::FromStr, sync::Arc};

use jaco_actors::scheduler::reconcile::Pass;
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::State;

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mutation {
    /// Writes that must be on disk before they are reported are left in the page cache.
    SkipSync,
    /// A vote of an earlier term counts for the current one.
    StaleVote,
    /// Entries count as persisted, and are applied, before they are written.
    ApplyBeforePersist,
    /// The state machine forgets the highest revision, so a number is given out again.
    ReuseRevision,
    /// A container is adopted without checking which row it was made from.
    AdoptAnyRow,
    /// The vote is not written down, so a restarted node may vote twice in a term.
    ForgetVote,
    /// Recovery takes a half-written record for a whole one.
    AcceptTornWrite,
    /// A proposal whose leadership was lost is reported as committed.
    AcknowledgeUnknown,
    /// A consistent read is answered from the local state at once.
    ReadWithoutQuorum,
    /// A received snapshot is laid over the rows that are there, so deleted ones survive.
    InstallOverRows,
    /// Applying reads the clock of the node that applies.
    ApplyWithLocalClock,
    /// A proposal that was lost after it was appended is made again.
    RetryUnknown,
    /// What runs goes on running when its row moves away or goes, and no sweep ends it.
    KeepMovedContainers,
    /// Every learner is given a vote, however many voters that makes.
    PromoteEverybody,
    /// The state machine forgets which raft ids were given out, so a removed node's is given out
    /// again.
    ReuseRaftId,
    /// A node that comes back calls itself ready without having caught up or settled.
    ReadyTooSoon,
    /// The scheduler never sees to the second replica of a service.
    ForgetReplica,
    /// The scheduler never sees to one of the deployments.
    ForgetDeployment,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::SkipSync,
        Self::StaleVote,
        Self::ApplyBeforePersist,
        Self::ReuseRevision,
        Self::AdoptAnyRow,
        Self::ForgetVote,
        Self::AcceptTornWrite,
        Self::AcknowledgeUnknown,
        Self::ReadWithoutQuorum,
        Self::InstallOverRows,
        Self::ApplyWithLocalClock,
        Self::RetryUnknown,
        Self::KeepMovedContainers,
        Self::PromoteEverybody,
        Self::ReuseRaftId,
        Self::ReadyTooSoon,
        Self::ForgetReplica,
        Self::ForgetDeployment,
    ];
}

impl Mutation {
    /// What a state machine with this bug makes of a state, if that differs.
    pub(super) fn patch(self, state: &State) -> Option<State> {
        let mut patched = state.clone();
        match self {
            Self::ReuseRevision => {
                for (name, deployment) in &state.deployments {
                    if deployment.highest_revision > deployment.applied_revision {
                        let mut forgetful = deployment.as_ref().clone();
                        forgetful.highest_revision = forgetful.applied_revision;
                        patched
                            .deployments
                            .insert(name.clone(), Arc::new(forgetful));
                    }
                }
            }
            Self::ReuseRaftId => {
                let highest = state.nodes.values().map(|node| node.raft_id).max();
                if let Some(meta) = &mut patched.cluster {
                    Arc::make_mut(meta).next_raft_id = highest.unwrap_or(0) + 1;
                }
            }
            _ => return None,
        }
        (patched != *state).then_some(patched)
    }
}

impl Mutation {
    /// What a scheduler with this bug makes of a pass.
    pub(super) fn forget(self, mut pass: Pass) -> Pass {
        let forgotten = |child: &v1::Command| {
            let Some(Payload::ReplicaDesiredUpsert(upsert)) = &child.payload else {
                return false;
            };
            upsert.replica.as_ref().is_some_and(|row| match self {
                Self::ForgetReplica => row.index == 1,
                Self::ForgetDeployment => row.deployment == "app-1",
                _ => false,
            })
        };
        if let Some(Payload::Batch(batch)) = pass.batch.as_mut().and_then(|b| b.payload.as_mut()) {
            batch.children.retain(|child| !forgotten(child));
            if batch.children.is_empty() {
                pass.batch = None;
            }
        }
        pass
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = Self::ALL.into_iter();
        let mut named = all.filter(|mutation| mutation.to_string().eq_ignore_ascii_case(name));
        named
            .next()
            .ok_or_else(|| format!("no mutation is called {name:?}"))
    }
}
