//! Planted bugs: the simulator must find each of them.
//!
//! They are planted in the simulated drivers around the cores, never in the cores, so no production
//! build contains them.

use std::{
    fmt,
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use jaco_policy::{
    ingress::certificate::{Facts, LEASE, Lock},
    scheduler::reconcile::Pass,
};
use jaco_proto::v1::{self, command::Payload};
use jaco_state::State;

use super::{
    contents::of_revisions,
    fault::{BenignFault, Often},
    run::Options,
};

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mutation {
    /// Writes that must be on disk before they are reported are left in the page cache.
    SkipSync,
    /// A vote of an earlier term counts for the current one.
    StaleVote,
    /// Entries count as persisted, and are applied, before they are written.
    ApplyBeforePersist,
    /// The state machine loses the highest revision, so a revision is assigned again.
    ReuseRevision,
    /// A container is adopted without checking which row it was made from.
    AdoptAnyRow,
    /// The vote is not persisted, so a restarted node may vote twice in a term.
    ForgetVote,
    /// Recovery accepts a half-written record as complete.
    AcceptTornWrite,
    /// A proposal whose leadership was lost is reported as committed.
    AcknowledgeUnknown,
    /// A consistent read is answered from the local state at once.
    ReadWithoutQuorum,
    /// A snapshot is installed without deleting the existing rows, so deleted ones survive.
    InstallOverRows,
    /// Applying takes the time from the clock of the node that applies.
    ApplyWithLocalClock,
    /// A proposal that was lost after it was appended is proposed again.
    RetryUnknown,
    /// Containers keep running when their row moves away or is deleted, and no sweep stops them.
    KeepMovedContainers,
    /// Every learner is promoted, regardless of the number of voters.
    PromoteEverybody,
    /// The state machine loses the next raft id, so a removed node's id is assigned again.
    ReuseRaftId,
    /// A node that comes back reports itself ready without having caught up or cleared its orphans.
    ReadyTooSoon,
    /// The scheduler never places the second replica of a service.
    ForgetReplica,
    /// The scheduler never places one of the deployments.
    ForgetDeployment,
    /// The scheduler ignores what services ask of nodes.
    IgnoreConstraints,
    /// The scheduler ignores how many replicas a node may have.
    ForgetLimit,
    /// The scheduler does not see new values of secrets.
    KeepOldSecrets,
    /// A leader considers its own host offline, so replicas move with every change of leadership.
    LeaderMistrustsItself,
    /// The scheduler plans again once its last pass has taken too long, though that may still be
    /// appended.
    ReplanEarly,
    /// The commit lock is released once a proposal has taken too long, though that may still be
    /// appended.
    FreeCommitLockEarly,
    /// A member that drains always finds a replica left.
    NeverDrained,
    /// A container that exists is started without checking whether the start still holds.
    StartUnchecked,
    /// A node whose disk does not answer goes on as if it applied the log.
    ActWhileStalled,
    /// A container starts before the ruleset in the kernel isolates its networks.
    StartBeforeRules,
    /// Networks share a set if their names are equal once some characters are replaced.
    MergeEqualNames,
    /// A freed block is handed out again at once, and is part of its new network even where a
    /// container of the former one runs.
    StaleBlocksKept,
    /// The state machine loses the freed blocks, so a leader hands them out again at once.
    ForgetFreedBlocks,
    /// The state machine removes contents that only replicas mount.
    ForgetMountedContents,
    /// A job that has finished is started again.
    RunJobsAgain,
    /// Dependents do not wait until a job has completed.
    StartBeforeJobs,
    /// A container with ports counts as running without a connection to them.
    RunBeforePorts,
    /// A report about the former container ends a step of a rollout.
    AdvanceOnOldReports,
    /// A container makes way for its successor before the image of that one is there.
    StopBeforePull,
    /// The rollouts replace all replicas of a service at once.
    ReplaceAtOnce,
    /// The scheduler does not see pauses of rollouts.
    IgnoreHold,
    /// The scheduler does not see cordons.
    IgnoreCordon,
    /// A rollback restores the number of the revision, and not its content.
    RestoreNumbersOnly,
    /// The scheduler moves finished jobs away from lost nodes.
    MoveFinishedJobs,
    /// A mesh keeps the peers that it no longer wants.
    KeepOldPeers,
    /// The firewall is shown its own ruleset, regardless of what is in the kernel.
    NoDriftRepair,
    /// The rules that verify sources are not loaded, though the firewall is shown them.
    AdmitAnySource,
    /// The rule that keeps packets of internal networks in the cluster is not loaded, though the firewall
    /// is shown it.
    LetInternalOut,
    /// Containers join the shared network in place of one of their deployment.
    JoinUnnamed,
    /// The state machine frees the blocks of shared networks with the deployment `app-0`.
    FreeSharedBlocks,
    /// The engine's rules exempt the packets of containers though no ruleset is in force.
    AcceptWithoutDrop,
    /// The rule that drops what foreign routes lead out of a machine is not loaded, though the firewall
    /// is shown it.
    PassOutside,
    /// The mesh is not shown foreign routes.
    IgnoreForeignRoutes,
    /// Blackholes are not installed, though the mesh is shown them.
    ForgetBlackhole,
    /// Connections that the rules forbid stay tracked, though the request to end them succeeds.
    KeepFlows,
    /// A container counts as withdrawn from routing at once.
    StopWithoutWithdrawal,
    /// A leader orders certificates as if it held every lock.
    OrderWithoutLock,
    /// The first certificate of a domain is ordered from production.
    SkipStaging,
    /// The authority validates a domain once its token is committed, before all nodes have applied it.
    ValidateBeforeSpread,
    /// The class of a failed order and its `Retry-After` are lost.
    ForgetRetryAfter,
    /// A node goes on to present the first certificate of a domain.
    KeepServedCertificate,
    /// Certificates seem to expire a year later than they do.
    NeverRenew,
    /// A granted turn does not count, so all domains order at once.
    ForgetTurns,
    /// The turn of a domain never ends.
    KeepTurn,
    /// The ports of a node are derived again only when other ones are published.
    KeepPortTable,
}

impl Mutation {
    /// All mutations.
    pub const ALL: [Self; 63] = [
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
        Self::IgnoreConstraints,
        Self::ForgetLimit,
        Self::KeepOldSecrets,
        Self::LeaderMistrustsItself,
        Self::ReplanEarly,
        Self::FreeCommitLockEarly,
        Self::NeverDrained,
        Self::StartUnchecked,
        Self::ActWhileStalled,
        Self::StartBeforeRules,
        Self::MergeEqualNames,
        Self::StaleBlocksKept,
        Self::ForgetFreedBlocks,
        Self::ForgetMountedContents,
        Self::RunJobsAgain,
        Self::StartBeforeJobs,
        Self::RunBeforePorts,
        Self::AdvanceOnOldReports,
        Self::ReplaceAtOnce,
        Self::IgnoreHold,
        Self::IgnoreCordon,
        Self::StopBeforePull,
        Self::RestoreNumbersOnly,
        Self::MoveFinishedJobs,
        Self::KeepOldPeers,
        Self::NoDriftRepair,
        Self::AdmitAnySource,
        Self::LetInternalOut,
        Self::JoinUnnamed,
        Self::FreeSharedBlocks,
        Self::AcceptWithoutDrop,
        Self::PassOutside,
        Self::IgnoreForeignRoutes,
        Self::ForgetBlackhole,
        Self::KeepFlows,
        Self::StopWithoutWithdrawal,
        Self::OrderWithoutLock,
        Self::SkipStaging,
        Self::ValidateBeforeSpread,
        Self::ForgetRetryAfter,
        Self::KeepServedCertificate,
        Self::NeverRenew,
        Self::ForgetTurns,
        Self::KeepTurn,
        Self::KeepPortTable,
    ];

    /// Other properties that the bug breaks, so that a run may fail before the bug is found.
    #[must_use]
    pub fn also_breaks(self) -> &'static [&'static str] {
        match self {
            // Containers of moved rows never go, at the latest when everything should be at rest.
            Self::KeepMovedContainers => &["ready when settled", "convergence"],
            // A member that leaves is promoted over and over.
            Self::PromoteEverybody => &["convergence", "drains end"],
            // A drop before the rules that accept keeps allowed pairs apart.
            Self::NoDriftRepair => &["convergence"],
            // A service with a list of hosts finds too few. A rollout does not wait for the leader's own
            // replicas, and changes them at once, as those of a host that is out of contact.
            Self::LeaderMistrustsItself => &[
                "rows as asked for",
                "convergence",
                "steps follow new containers",
                "one replica at a time",
            ],
            // No block is allocated while no deployment names the network.
            Self::JoinUnnamed => &["convergence"],
            // No block stays, and the freed ones have no quarantine.
            Self::FreeSharedBlocks => &["convergence", "freed blocks rest"],
            _ => &[],
        }
    }

    /// Properties by which the bug is found.
    #[must_use]
    pub fn found_by(self) -> &'static [&'static str] {
        match self {
            Self::SkipSync | Self::StaleVote | Self::ApplyBeforePersist | Self::ForgetVote => &[
                "election safety",
                "leader completeness",
                "log matching",
                "state machine safety",
                "committed is durable",
                "applied is durable",
                "state on disk",
                // A log that a second leader cut off lacks what the first one has committed.
                "messages are accepted",
                "no panic",
            ],
            // Half a record is entries without their vote, or rows without all of their entries.
            Self::AcceptTornWrite => &[
                "election safety",
                "leader completeness",
                "log matching",
                "state machine safety",
                "committed is durable",
                "applied is durable",
                "state on disk",
                "equal states",
                "log is continuous",
                "no panic",
            ],
            Self::ReuseRevision => &["revisions are unique"],
            Self::AdoptAnyRow => &["reports are true"],
            Self::AcknowledgeUnknown => &["acknowledged writes"],
            Self::ReadWithoutQuorum => &["consistent reads"],
            Self::InstallOverRows | Self::ApplyWithLocalClock => &["equal states"],
            Self::RetryUnknown => &["at most once", "not appended"],
            Self::KeepMovedContainers => &["one container per replica"],
            Self::PromoteEverybody => &["voters as in the table"],
            Self::ReuseRaftId => &["raft ids are unique"],
            Self::ReadyTooSoon => &["ready when settled"],
            Self::ForgetReplica
            | Self::ForgetDeployment
            | Self::IgnoreConstraints
            | Self::ForgetLimit
            | Self::KeepOldSecrets => &["rows as asked for"],
            Self::LeaderMistrustsItself => &["nuisances move nothing"],
            Self::ReplanEarly => &["passes build on each other"],
            Self::FreeCommitLockEarly => &["one owner per route"],
            Self::NeverDrained => &["drains end"],
            Self::StartUnchecked | Self::ActWhileStalled => &["starts wait for the cluster"],
            Self::MergeEqualNames
            | Self::StaleBlocksKept
            | Self::KeepOldPeers
            | Self::KeepFlows => &["no forbidden connection"],
            // Packets meet no ruleset, or a part of one.
            Self::StartBeforeRules | Self::NoDriftRepair | Self::AcceptWithoutDrop => &[
                "no forbidden connection",
                "no forged source",
                "no plaintext",
                "internal networks lead nowhere",
            ],
            Self::AdmitAnySource => &["no forged source"],
            Self::LetInternalOut => &["internal networks lead nowhere"],
            Self::JoinUnnamed => &["containers join their own networks"],
            Self::FreeSharedBlocks => &["shared blocks stay"],
            Self::ForgetBlackhole | Self::PassOutside => &["no plaintext"],
            Self::IgnoreForeignRoutes => &["foreign routes are known"],
            Self::StopWithoutWithdrawal => &["withdrawn before the stop"],
            Self::OrderWithoutLock => &["one order at a time", "one certificate lands"],
            Self::SkipStaging => &["staging before production"],
            Self::ValidateBeforeSpread => &["tokens before validation"],
            Self::ForgetRetryAfter => &["waits are kept"],
            Self::KeepServedCertificate => &["newest certificate is served"],
            Self::NeverRenew => &["renewed before expiry", "certificates land"],
            Self::ForgetTurns => &["orders take turns"],
            Self::KeepTurn => &["certificates land", "renewed before expiry"],
            Self::KeepPortTable => &[
                "ports lead to running replicas",
                "withdrawn before the stop",
            ],
            Self::ForgetFreedBlocks => &["freed blocks rest"],
            Self::ForgetMountedContents => &["files have their contents"],
            Self::RunJobsAgain => &["finished jobs stay"],
            // A rollout waits for jobs whose ends the scheduler does not see.
            Self::MoveFinishedJobs => &["finished jobs stay", "rows as asked for"],
            Self::StartBeforeJobs => &["dependents wait for jobs"],
            Self::RunBeforePorts => &["ready before running"],
            Self::AdvanceOnOldReports => &["steps follow new containers"],
            Self::ReplaceAtOnce => &["one replica at a time"],
            Self::IgnoreHold => &["paused rollouts replace nothing"],
            Self::IgnoreCordon => &["cordoned nodes receive nothing"],
            Self::StopBeforePull => &["pulled before the stop"],
            Self::RestoreNumbersOnly => &["failed revisions are rolled back"],
        }
    }

    /// Options of the runs in which the bug is looked for.
    #[must_use]
    pub fn options(self) -> Options {
        Options {
            mutation: Some(self),
            benign_fault: (self == Self::LeaderMistrustsItself).then_some(BenignFault::ShortPauses),
            often: match self {
                Self::StaleVote | Self::ReuseRaftId | Self::NeverDrained | Self::KeepOldPeers => {
                    Some(Often::Churn)
                }
                Self::ReplanEarly | Self::ActWhileStalled => Some(Often::Stalls),
                Self::FreeCommitLockEarly => Some(Often::Contention),
                Self::StartUnchecked => Some(Often::PausedCreates),
                Self::OrderWithoutLock
                | Self::SkipStaging
                | Self::ValidateBeforeSpread
                | Self::ForgetRetryAfter
                | Self::KeepServedCertificate
                | Self::NeverRenew
                | Self::ForgetTurns
                | Self::KeepTurn => Some(Often::Issuance),
                _ => None,
            },
            keep_trace: false,
        }
    }
}

impl Mutation {
    /// Whether the bug concerns the state machine: see [`Mutation::patch`].
    pub(super) fn patches(self) -> bool {
        matches!(
            self,
            Self::ReuseRevision
                | Self::ReuseRaftId
                | Self::StaleBlocksKept
                | Self::ForgetFreedBlocks
                | Self::ForgetMountedContents
                | Self::FreeSharedBlocks
                | Self::RestoreNumbersOnly
        )
    }

    /// State that a state machine with this bug leaves instead of `state`, if it differs.
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
            Self::StaleBlocksKept | Self::ForgetFreedBlocks => {
                patched.freed_subnets = Default::default();
            }
            Self::ForgetMountedContents => {
                let used = of_revisions(state);
                for key in state
                    .file_contents
                    .keys()
                    .filter(|key| !used.contains(*key))
                {
                    patched.file_contents.remove(key);
                }
            }
            Self::FreeSharedBlocks => patched = Self::without_shared_blocks(state),
            Self::RestoreNumbersOnly => patched = Self::with_failed_revisions(state),
            _ => return None,
        }
        (patched != *state).then_some(patched)
    }
}

impl Mutation {
    /// State that a scheduler with this bug on `host` sees instead of `state`, if it differs.
    pub(super) fn patch_view(self, state: &State, host: &str) -> Option<State> {
        let node = state.nodes.get(host)?;
        if matches!(self, Self::IgnoreConstraints | Self::ForgetLimit) {
            return Some(self.without_requirements(state));
        }
        if self == Self::KeepOldSecrets {
            return Some(Self::without_secrets(state));
        }
        if self == Self::AdvanceOnOldReports {
            return Some(Self::with_old_reports(state));
        }
        if self == Self::IgnoreHold {
            return Some(Self::without_holds(state));
        }
        if self == Self::IgnoreCordon {
            return Some(Self::without_cordons(state));
        }
        if self == Self::MoveFinishedJobs {
            return Some(Self::without_ends(state));
        }
        (self == Self::LeaderMistrustsItself && state.nodes.len() > 1).then(|| {
            let mut seen = state.clone();
            let mut lost = node.as_ref().clone();
            lost.set_status(v1::NodeStatus::Offline);
            seen.nodes.insert(host.to_owned(), Arc::new(lost));
            seen
        })
    }

    fn without_requirements(self, state: &State) -> State {
        let mut seen = state.clone();
        for (name, deployment) in &state.deployments {
            let mut patched = deployment.as_ref().clone();
            for spec in &mut patched.services {
                if self == Self::IgnoreConstraints {
                    spec.constraints.clear();
                    spec.platform.clear();
                } else {
                    spec.max_replicas_per_node = 0;
                }
            }
            seen.deployments.insert(name.clone(), Arc::new(patched));
        }
        seen
    }

    /// Changes the facts that the core of a domain decides on.
    pub(super) fn patch_facts(self, facts: &mut Facts, wall: SystemTime) {
        match self {
            Self::OrderWithoutLock => {
                let until = wall + LEASE;
                facts.lock = Some(Lock { ours: true, until });
            }
            Self::NeverRenew => {
                if let Some(chain) = &mut facts.production {
                    chain.not_after += Duration::from_secs(365 * 24 * 3600);
                }
            }
            _ => {}
        }
    }

    /// Pass that a scheduler with this bug makes instead of `pass`.
    pub(super) fn patch_pass(self, mut pass: Pass) -> Pass {
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
