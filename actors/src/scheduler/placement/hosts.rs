//! Members and their eligibility for replicas.

use std::collections::BTreeMap;

use jaco_proto::v1::{self, NodeStatus};
use jaco_state::State;

/// Reason why replicas stay on a host on which they cannot run properly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stuck {
    /// The node is offline.
    NodeOffline,
    /// The node cannot isolate deployments from each other.
    IsolationUnavailable,
}

impl Stuck {
    /// Returns the value of `status_details.reason` of a deployment.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeOffline => "node_offline",
            Self::IsolationUnavailable => "isolation_unavailable",
        }
    }
}

/// Eligibility of a member for replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Ready: accepts new replicas.
    Eligible,
    /// Unhealthy: accepts no new replicas, keeps its own.
    Holding,
    /// Alive but draining or unusable: movable replicas move. Holds the reason why the others are
    /// stuck, if they cannot run properly.
    Leaving(Option<Stuck>),
    /// Offline: movable replicas move, and its containers are not expected to serve.
    Lost,
}

impl Standing {
    fn of(node: &v1::Node) -> Self {
        match node.status() {
            NodeStatus::Offline => Self::Lost,
            NodeStatus::IsolationUnavailable => Self::Leaving(Some(Stuck::IsolationUnavailable)),
            NodeStatus::Ready | NodeStatus::Unhealthy if node.draining => Self::Leaving(None),
            NodeStatus::Ready => Self::Eligible,
            NodeStatus::Unhealthy => Self::Holding,
            NodeStatus::Unspecified | NodeStatus::Joining | NodeStatus::DrainTimeout => {
                Self::Leaving(None)
            }
        }
    }

    /// Reason why a replica that cannot move from such a host is stuck, if it is.
    pub(super) fn stuck(self) -> Option<Stuck> {
        match self {
            Self::Eligible | Self::Holding => None,
            Self::Leaving(why) => why,
            Self::Lost => Some(Stuck::NodeOffline),
        }
    }
}

/// All members and their eligibility.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    eligible: Vec<String>,
    standing: BTreeMap<String, Standing>,
}

impl Hosts {
    /// Derives the eligibility of the members of `state`.
    #[must_use]
    pub fn of(state: &State) -> Self {
        state
            .nodes
            .iter()
            .map(|(host, node)| (host.clone(), Standing::of(node)))
            .collect()
    }

    /// Hostnames that accept new replicas, in ascending byte order.
    #[must_use]
    pub fn eligible(&self) -> &[String] {
        &self.eligible
    }

    /// Eligibility of `host`; `None` if it is not a member.
    #[must_use]
    pub fn standing(&self, host: &str) -> Option<Standing> {
        self.standing.get(host).copied()
    }

    /// Whether a container on `host` is expected to serve while its successor starts elsewhere. An
    /// offline host may still run the container, but peers cannot reach it; nothing waits for it,
    /// and the host stops the container once it is back.
    #[must_use]
    pub fn serves(&self, host: &str) -> bool {
        match self.standing(host) {
            Some(Standing::Eligible | Standing::Holding | Standing::Leaving(_)) => true,
            Some(Standing::Lost) | None => false,
        }
    }
}

impl FromIterator<(String, Standing)> for Hosts {
    fn from_iter<T: IntoIterator<Item = (String, Standing)>>(members: T) -> Self {
        let standing: BTreeMap<_, _> = members.into_iter().collect();
        let eligible = standing
            .iter()
            .filter(|(_, standing)| **standing == Standing::Eligible)
            .map(|(host, _)| host.clone())
            .collect();
        Self { eligible, standing }
    }
}
