//! The members, as placement sees them.

use std::collections::BTreeMap;

use jaco_proto::v1::{self, NodeStatus};
use jaco_raftnode::State;

/// Why replicas stay on a host that cannot run them as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stuck {
    /// It is not heard any more.
    NodeOffline,
    /// It cannot keep deployments apart.
    IsolationUnavailable,
}

impl Stuck {
    /// As `status_details.reason` of a deployment says it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeOffline => "node_offline",
            Self::IsolationUnavailable => "isolation_unavailable",
        }
    }
}

/// What a member does with replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Ready: takes new ones.
    Eligible,
    /// Silent, but not given up: takes none, keeps what it has.
    Holding,
    /// Alive, but to be left: what can move moves. With a reason if what cannot is in trouble.
    Leaving(Option<Stuck>),
    /// Offline: what can move moves, and nothing of it is expected to serve on.
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

    /// Why a replica that cannot move from such a host is in trouble, if it is.
    pub(super) fn stuck(self) -> Option<Stuck> {
        match self {
            Self::Eligible | Self::Holding => None,
            Self::Leaving(why) => why,
            Self::Lost => Some(Stuck::NodeOffline),
        }
    }
}

/// All members and their standing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    eligible: Vec<String>,
    standing: BTreeMap<String, Standing>,
}

impl Hosts {
    /// The members of `state`.
    #[must_use]
    pub fn of(state: &State) -> Self {
        state
            .nodes
            .iter()
            .map(|(host, node)| (host.clone(), Standing::of(node)))
            .collect()
    }

    /// Hostnames that may be given replicas, bytewise ascending.
    #[must_use]
    pub fn eligible(&self) -> &[String] {
        &self.eligible
    }

    /// Standing of `host`; `None` if it is no member.
    #[must_use]
    pub fn standing(&self, host: &str) -> Option<Standing> {
        self.standing.get(host).copied()
    }

    /// Whether a container on `host` may be expected to serve while its successor starts
    /// elsewhere. An offline host may run it still, where nobody reaches it; it stops it when it
    /// is back, and until then nothing waits for it.
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
