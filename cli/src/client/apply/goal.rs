//! The expected result of an apply, and a snapshot of the cluster's progress.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::{
    replica_code,
    v1::{self, ReplicaState},
};

use crate::client::{manifests::Manifests, replica::Reason};

/// The expected result of an apply.
#[derive(Debug, Default)]
pub(super) struct Goal {
    pub(super) deployment: String,
    pub(super) revision: u64,
    /// Image by service.
    pub(super) images: BTreeMap<String, String>,
    /// Replicas that the apply adds.
    pub(super) added: BTreeSet<String>,
    /// Replicas that the apply replaces, with their old generation.
    pub(super) replaced: BTreeMap<String, u64>,
    /// Replicas that the apply removes.
    pub(super) removed: BTreeSet<String>,
}

impl Goal {
    /// Computes the goal from the daemon's diff and the replicas before the apply.
    pub(super) fn new(
        manifests: &Manifests,
        revision: u64,
        diff: &v1::Diff,
        before: &[v1::ReplicaDetail],
    ) -> Self {
        let replicas = |names: &[String]| -> Vec<String> {
            names
                .iter()
                .filter_map(|name| Some(name.strip_prefix("replica ")?.to_owned()))
                .collect()
        };
        let generation = |id: &String| {
            before
                .iter()
                .find(|old| old.id == *id)
                .map_or(0, |old| old.revision)
        };
        Self {
            deployment: manifests.deployment.clone(),
            revision,
            images: manifests.images.clone(),
            added: replicas(&diff.adds).into_iter().collect(),
            replaced: replicas(&diff.updates)
                .into_iter()
                .map(|id| (id.clone(), generation(&id)))
                .collect(),
            removed: replicas(&diff.removes).into_iter().collect(),
        }
    }
}

/// State of the cluster at one moment.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) deployment: Option<v1::Deployment>,
    pub(super) replicas: Vec<Replica>,
    /// Last rollout of each service that had one.
    pub(super) rollouts: Vec<v1::RolloutPlan>,
}

/// The parts of a replica that progress depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) id: String,
    pub(super) service: String,
    pub(super) host: String,
    pub(super) image: String,
    pub(super) state: ReplicaState,
    pub(super) reason: Reason,
    /// Desired generation.
    pub(super) wanted: u64,
    /// Generation that the state was observed for; 0 if the daemon reports none.
    pub(super) seen: u64,
}

impl Replica {
    /// Exit code of a replica that has finished.
    pub(super) fn finished(&self) -> Option<i64> {
        replica_code::finished(self.state, &self.reason.code, &self.reason.details)
    }

    /// Whether it has failed, and will not run by itself.
    pub(super) fn has_failed(&self) -> bool {
        self.state == ReplicaState::Failed || self.finished().is_some_and(|code| code != 0)
    }
}

impl Snapshot {
    /// Combines the two responses of a daemon.
    pub(super) fn new(
        deployment: &str,
        status: v1::DeployStatusResponse,
        replicas: Vec<v1::ReplicaDetail>,
    ) -> Self {
        let seen: BTreeMap<String, u64> = status
            .replicas
            .into_iter()
            .map(|seen| (seen.id, seen.desired_raft_index))
            .collect();
        let replicas = replicas.into_iter().map(|detail| Replica {
            seen: seen.get(&detail.id).copied().unwrap_or(0),
            state: detail.state(),
            id: detail.id,
            service: detail.service,
            host: detail.host,
            image: detail.image,
            wanted: detail.revision,
            reason: Reason {
                code: detail.code,
                message: detail.message,
                details: detail.details,
            },
        });
        Self {
            replicas: replicas.collect(),
            rollouts: status.rollouts,
            deployment: status
                .deployments
                .into_iter()
                .find(|found| found.name == deployment),
        }
    }
}
