//! Conditions under which a node reports itself `ready`. Pure.

use jaco_proto::{
    mark,
    v1::{Node, NodeStatus, NodeStatusUpdate},
};
use jaco_state::State;

use super::isolation;
use crate::{
    membership::{leaving, timed_out},
    network::readiness::Readiness,
};

/// Conditions of a node, as known to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyConditions {
    /// Whether it has caught up with the log.
    pub current: bool,
    /// Whether it is in the leader's live set; otherwise it would soon be `unhealthy` again.
    pub seen_by_leader: bool,
    /// Whether the engine has shown no container of a row that moved away since the node caught up.
    pub orphans_cleared: bool,
    /// Whether it was never ready since its process started.
    pub never_ready: bool,
}

/// Returns the status update that `host` proposes about itself once its engine responds, if any;
/// `network` is the verdict on its network.
///
/// A joining node meets the same conditions as one that was down. A drain that timed out ends when
/// the daemon restarts, which also clears the drain mark; otherwise a mark stays. A node that could
/// not isolate deployments returns as such; while it leaves, the details of its status say so.
#[must_use]
pub fn update(
    state: &State,
    host: &str,
    conditions: ReadyConditions,
    network: &Readiness,
) -> Option<NodeStatusUpdate> {
    let node = state.nodes.get(host)?;
    let clears = conditions.never_ready && timed_out(node);
    let unisolated = unisolated(node, network).filter(|_| !leaving(node));
    match node.status() {
        // The firewall reports the loss itself.
        NodeStatus::Joining if unisolated.is_some() => return None,
        NodeStatus::Joining | NodeStatus::Unhealthy | NodeStatus::Offline => {}
        NodeStatus::DrainTimeout if clears => {}
        // It was to leave, and stays.
        NodeStatus::Ready if isolation::lost(node).is_some() && unisolated.is_some() => {}
        NodeStatus::IsolationUnavailable if network.waives_isolation() => {}
        NodeStatus::DrainTimeout
        | NodeStatus::Unspecified
        | NodeStatus::Ready
        // Ended by the firewall, once it isolates deployments.
        | NodeStatus::IsolationUnavailable => return None,
    }
    let details = match network {
        Readiness::Ready(details) => &details[..],
        Readiness::Waits(_) if unisolated.is_none() && !leaving(node) => return None,
        Readiness::Waits(_) | Readiness::Unisolated(_) => &[],
    };
    let passed = conditions.current && conditions.seen_by_leader && conditions.orphans_cleared;
    let (status, details) = match unisolated {
        Some(reason) => {
            let reason = ("reason".to_owned(), reason.to_owned());
            (NodeStatus::IsolationUnavailable, vec![reason])
        }
        None => {
            let details = details
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let kept = isolation::kept_detail(node).filter(|_| !network.waives_isolation());
            (NodeStatus::Ready, details.chain(kept).collect())
        }
    };
    passed.then(|| NodeStatusUpdate {
        hostname: host.to_owned(),
        status: status.into(),
        details: details.into_iter().collect(),
        drain_mark: if clears { mark::CLEAR } else { mark::KEEP },
        ..Default::default()
    })
}

/// Reason why `node` cannot isolate deployments: now, or when it was last in contact.
fn unisolated<'a>(node: &'a Node, network: &'a Readiness) -> Option<&'a str> {
    match network {
        Readiness::Unisolated(reason) => Some(reason),
        Readiness::Ready(_) if network.waives_isolation() => None,
        Readiness::Ready(_) | Readiness::Waits(_) => isolation::lost(node),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jaco_proto::v1::NodeDrain;

    use super::*;

    const PASSED: ReadyConditions = ReadyConditions {
        current: true,
        seen_by_leader: true,
        orphans_cleared: true,
        never_ready: false,
    };

    fn state(status: NodeStatus) -> State {
        let mut state = State::default();
        let node = Node {
            hostname: "n1".into(),
            status: status.into(),
            draining: true,
            ..Default::default()
        };
        state.nodes.insert("n1".into(), Arc::new(node));
        state
    }

    #[test]
    fn every_condition_is_required_for_ready() {
        let state = state(NodeStatus::Offline);
        let said = update_of(&state, PASSED).unwrap();
        assert_eq!(said.status(), NodeStatus::Ready);
        assert_eq!(said.drain_mark, mark::KEEP, "the drain mark stays");
        for missing in [
            ReadyConditions {
                current: false,
                ..PASSED
            },
            ReadyConditions {
                seen_by_leader: false,
                ..PASSED
            },
            ReadyConditions {
                orphans_cleared: false,
                ..PASSED
            },
        ] {
            assert_eq!(update_of(&state, missing), None, "{missing:?}");
        }
        let enforced = Readiness::Ready(Vec::new());
        assert_eq!(update(&state, "n2", PASSED, &enforced), None, "no member");
    }

    #[test]
    fn update_depends_on_status() {
        let never_ready = ReadyConditions {
            never_ready: true,
            ..PASSED
        };
        let says =
            |status, conditions| update_of(&state(status), conditions).map(|said| said.drain_mark);
        for (status, later, at_start) in [
            (NodeStatus::Unspecified, None, None),
            (NodeStatus::Joining, Some(0), Some(0)),
            (NodeStatus::Ready, None, None),
            (NodeStatus::Unhealthy, Some(0), Some(0)),
            (NodeStatus::Offline, Some(0), Some(0)),
            (NodeStatus::IsolationUnavailable, None, None),
            (NodeStatus::DrainTimeout, None, Some(mark::CLEAR)),
        ] {
            assert_eq!(says(status, PASSED), later, "{status:?}");
            assert_eq!(says(status, never_ready), at_start, "{status:?}");
        }
        // A restart that takes long makes the node offline first.
        let mut offline = state(NodeStatus::Offline);
        let row = Arc::make_mut(offline.nodes.get_mut("n1").unwrap());
        row.drain = Some(NodeDrain {
            timed_out: true,
            ..Default::default()
        });
        for (conditions, mark) in [(PASSED, mark::KEEP), (never_ready, mark::CLEAR)] {
            let update = update_of(&offline, conditions).unwrap();
            assert_eq!(
                (update.status(), update.drain_mark),
                (NodeStatus::Ready, mark)
            );
        }
    }

    #[test]
    fn node_without_isolation_returns_as_such() {
        let mut state = state(NodeStatus::IsolationUnavailable);
        let node = |state: &mut State, change: &dyn Fn(&mut Node)| {
            change(Arc::make_mut(state.nodes.get_mut("n1").unwrap()));
        };
        node(&mut state, &|node| {
            node.draining = false;
            node.status_details = [("reason".to_owned(), "ruleset".to_owned())].into();
        });
        // The failure detector writes both statuses, one after the other.
        for status in [NodeStatus::Unhealthy, NodeStatus::Offline] {
            node(&mut state, &|node| {
                node.status_details = isolation::kept_detail(node).into_iter().collect();
                node.set_status(status);
            });
            let said = update_of(&state, PASSED).unwrap();
            assert_eq!(said.status(), NodeStatus::IsolationUnavailable);
            assert_eq!(said.details["reason"], "ruleset");
        }
        // A leaving node reports no other status, until it stays after all.
        node(&mut state, &|node| node.draining = true);
        let said = update_of(&state, PASSED).unwrap();
        assert_eq!(said.status(), NodeStatus::Ready);
        node(&mut state, &|node| {
            node.set_status(NodeStatus::Ready);
            node.status_details.clone_from(&said.details);
        });
        assert_eq!(isolation::lost(&state.nodes["n1"]), Some("ruleset"));
        assert!(update_of(&state, PASSED).is_none());
        node(&mut state, &|node| node.draining = false);
        let said = update_of(&state, PASSED).unwrap();
        assert_eq!(said.status(), NodeStatus::IsolationUnavailable);
    }

    fn update_of(state: &State, conditions: ReadyConditions) -> Option<NodeStatusUpdate> {
        update(state, "n1", conditions, &Readiness::Ready(Vec::new()))
    }

    fn of_network(status: NodeStatus, network: &Readiness) -> Option<NodeStatusUpdate> {
        let mut state = state(status);
        Arc::make_mut(state.nodes.get_mut("n1").unwrap()).draining = false;
        update(&state, "n1", PASSED, network)
    }

    #[test]
    fn node_waits_for_its_network() {
        use NodeStatus::{IsolationUnavailable, Joining, Offline, Ready, Unhealthy};
        let waits = Readiness::Waits("no mesh".to_owned());
        let lost = Readiness::Unisolated("no CAP_NET_ADMIN".to_owned());
        let enforced = Readiness::Ready(vec![("mesh", "unavailable")]);
        for (status, network, expected) in [
            (Joining, &waits, None),
            (Offline, &waits, None),
            (Joining, &lost, None),
            (Unhealthy, &lost, Some(IsolationUnavailable)),
            (Offline, &lost, Some(IsolationUnavailable)),
            (Ready, &lost, None),
            (IsolationUnavailable, &enforced, None),
            (Joining, &enforced, Some(Ready)),
            (Offline, &enforced, Some(Ready)),
        ] {
            let found = of_network(status, network).map(|said| said.status());
            assert_eq!(found, expected, "{status:?} {network:?}");
        }
        let said = of_network(Joining, &enforced).unwrap();
        assert_eq!(said.details["mesh"], "unavailable");
        let said = of_network(Offline, &lost).unwrap();
        assert_eq!(said.details["reason"], "no CAP_NET_ADMIN");
    }

    #[test]
    fn waived_isolation_ends_its_loss() {
        let off = Readiness::default();
        for status in [NodeStatus::IsolationUnavailable, NodeStatus::Joining] {
            let said = of_network(status, &off).unwrap();
            assert_eq!(said.status(), NodeStatus::Ready);
            assert_eq!(said.details["isolation"], "off");
            assert_eq!(said.details.len(), 1);
        }
        assert_eq!(of_network(NodeStatus::Ready, &off), None);
    }
}
