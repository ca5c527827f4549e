//! Members and their eligibility for replicas.

use std::collections::BTreeMap;

use jaco_proto::v1::{self, NodeStatus};
use jaco_state::State;

use super::requirements;

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
pub enum HostEligibility {
    /// Ready: accepts new replicas.
    Eligible,
    /// Cordoned by an operator: accepts no new replicas, keeps its own.
    Cordoned,
    /// Unhealthy: accepts no new replicas, keeps its own.
    Suspect,
    /// Alive but draining or unusable: movable replicas move. Holds the reason why the others are
    /// stuck, if they cannot run properly.
    Evacuating(Option<Stuck>),
    /// Offline: movable replicas move, and its containers are not expected to serve.
    Down,
}

impl HostEligibility {
    fn of(node: &v1::Node) -> Self {
        match node.status() {
            NodeStatus::Offline => Self::Down,
            NodeStatus::IsolationUnavailable => Self::Evacuating(Some(Stuck::IsolationUnavailable)),
            NodeStatus::Ready | NodeStatus::Unhealthy if node.draining => Self::Evacuating(None),
            NodeStatus::Ready if node.cordoned => Self::Cordoned,
            NodeStatus::Ready => Self::Eligible,
            NodeStatus::Unhealthy => Self::Suspect,
            NodeStatus::Unspecified | NodeStatus::Joining | NodeStatus::DrainTimeout => {
                Self::Evacuating(None)
            }
        }
    }

    /// Reason why a replica that cannot move from such a host is stuck, if it is.
    pub(super) fn stuck(self) -> Option<Stuck> {
        match self {
            Self::Eligible | Self::Cordoned | Self::Suspect => None,
            Self::Evacuating(why) => why,
            Self::Down => Some(Stuck::NodeOffline),
        }
    }
}

/// All members and their eligibility.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hosts {
    eligible: Vec<String>,
    eligibility: BTreeMap<String, HostEligibility>,
    /// Those of the members that reported them.
    traits: BTreeMap<String, v1::NodeTraits>,
}

impl Hosts {
    /// Derives the eligibility of the members of `state`.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let members = state.nodes.iter();
        let hosts: Self = members
            .map(|(host, node)| (host.clone(), HostEligibility::of(node)))
            .collect();
        let members = state.nodes.iter();
        let traits = members.filter_map(|(host, node)| Some((host.clone(), node.traits.clone()?)));
        Self {
            traits: traits.collect(),
            ..hosts
        }
    }

    /// Whether `host` has the platform and meets the constraints of a service.
    pub(super) fn fit(&self, spec: &v1::ServiceSpec, host: &str) -> bool {
        requirements::are_met(spec, host, self.traits.get(host))
    }

    /// Hostnames that accept new replicas, in ascending byte order.
    #[must_use]
    pub fn eligible(&self) -> &[String] {
        &self.eligible
    }

    /// Eligibility of `host`; `None` if it is not a member.
    #[must_use]
    pub fn eligibility(&self, host: &str) -> Option<HostEligibility> {
        self.eligibility.get(host).copied()
    }

    /// Whether `host` accepts new replicas.
    #[must_use]
    pub fn accepts(&self, host: &str) -> bool {
        self.eligibility(host) == Some(HostEligibility::Eligible)
    }

    /// Whether `host` is out of contact, though not for long.
    #[must_use]
    pub fn is_suspect(&self, host: &str) -> bool {
        self.eligibility(host) == Some(HostEligibility::Suspect)
    }

    /// Whether a container on `host` is expected to serve while its successor starts elsewhere. An
    /// offline host may still run the container, but peers cannot reach it; nothing waits for it,
    /// and the host stops the container once it is back.
    #[must_use]
    pub fn serves(&self, host: &str) -> bool {
        match self.eligibility(host) {
            Some(
                HostEligibility::Eligible
                | HostEligibility::Cordoned
                | HostEligibility::Suspect
                | HostEligibility::Evacuating(_),
            ) => true,
            Some(HostEligibility::Down) | None => false,
        }
    }
}

impl FromIterator<(String, HostEligibility)> for Hosts {
    fn from_iter<T: IntoIterator<Item = (String, HostEligibility)>>(members: T) -> Self {
        let eligibility: BTreeMap<_, _> = members.into_iter().collect();
        let eligible = eligibility
            .iter()
            .filter(|(_, eligibility)| **eligibility == HostEligibility::Eligible)
            .map(|(host, _)| host.clone())
            .collect();
        Self {
            eligible,
            eligibility,
            traits: BTreeMap::new(),
        }
    }
}
