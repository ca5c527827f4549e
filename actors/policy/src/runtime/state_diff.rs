//! Determines which replicas of a host a change of the replicated state can affect. Pure.

use std::{collections::BTreeSet, sync::Arc};

use imbl::{OrdMap, ordmap::DiffItem};
use jaco_proto::v1::ReplicaState;
use jaco_state::State;

/// Difference between two states, as far as replicas depend on it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StateDiff {
    /// Something changed that all replicas of the host depend on.
    pub all_replicas: bool,
    /// Replicas whose own row or observation changed.
    pub replicas: BTreeSet<String>,
    /// Deployments that changed, so that their documents may have changed too.
    pub documents: BTreeSet<String>,
    /// Deployments in which a change may satisfy a deferred start.
    pub dependencies_changed: BTreeSet<String>,
}

impl StateDiff {
    /// Compares two states for `host`.
    #[must_use]
    pub fn between(before: &State, after: &State, host: &str) -> Self {
        let mut state_diff = Self {
            all_replicas: before.cluster.is_some() != after.cluster.is_some()
                || before.nodes.get(host) != after.nodes.get(host),
            ..Self::default()
        };
        if state_diff.all_replicas {
            return state_diff;
        }
        for (name, _) in changes(&before.deployments, &after.deployments) {
            state_diff.documents.insert(name.clone());
        }
        for (id, row) in changes(&before.replicas_desired, &after.replicas_desired) {
            if let Some(row) = row {
                state_diff
                    .dependencies_changed
                    .insert(row.deployment.clone());
            }
            state_diff.replicas.insert(id.clone());
        }
        for (id, seen) in changes(&before.replicas_observed, &after.replicas_observed) {
            let up = seen.is_some_and(|seen| {
                matches!(seen.state(), ReplicaState::Running | ReplicaState::Degraded)
                    || seen.finished().is_some()
            });
            if let (true, Some(row)) = (up, after.replicas_desired.get(id)) {
                state_diff
                    .dependencies_changed
                    .insert(row.deployment.clone());
            }
            state_diff.replicas.insert(id.clone());
        }
        state_diff
    }
}

/// Keys whose value differs, with the new value.
fn changes<'a, V: PartialEq>(
    before: &'a OrdMap<String, Arc<V>>,
    after: &'a OrdMap<String, Arc<V>>,
) -> impl Iterator<Item = (&'a String, Option<&'a Arc<V>>)> {
    before.diff(after).map(|change| match change {
        DiffItem::Add(key, value)
        | DiffItem::Update {
            new: (key, value), ..
        } => (key, Some(value)),
        DiffItem::Remove(key, _) => (key, None),
    })
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1::{ClusterMeta, Deployment, Node, ReplicaDesired, ReplicaObserved};
    use proptest::prelude::*;

    use super::*;

    fn state(replicas: u64) -> State {
        let mut state = State::default();
        for name in ["a", "b"] {
            let deployment = Deployment {
                name: name.into(),
                ..Default::default()
            };
            state.deployments.insert(name.into(), Arc::new(deployment));
            for index in 0..replicas {
                put(&mut state, name, index, 1);
            }
        }
        state
    }

    fn put(state: &mut State, deployment: &str, index: u64, raft_index: u64) {
        let row = ReplicaDesired {
            id: format!("{deployment}-web-{index}"),
            deployment: deployment.into(),
            raft_index,
            ..Default::default()
        };
        state.replicas_desired.insert(row.id.clone(), Arc::new(row));
    }

    fn observe(state: &mut State, id: &str, seen: ReplicaState) {
        let row = ReplicaObserved {
            id: id.into(),
            state: seen.into(),
            ..Default::default()
        };
        state.replicas_observed.insert(id.into(), Arc::new(row));
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn change_affects_only_related_replicas() {
        let before = state(100);
        let between = |change: &dyn Fn(&mut State)| {
            let mut after = before.clone();
            after.applied_index += 1;
            change(&mut after);
            StateDiff::between(&before, &after, "n1")
        };
        assert_eq!(between(&|_| {}), StateDiff::default());
        let all_replicas = StateDiff {
            all_replicas: true,
            ..StateDiff::default()
        };
        let node = || Arc::new(Node::default());
        assert_eq!(
            between(&|state| drop(state.nodes.insert("n1".into(), node()))),
            all_replicas
        );
        assert_eq!(
            between(&|state| drop(state.nodes.insert("n2".into(), node()))),
            StateDiff::default()
        );
        assert_eq!(
            between(&|state| state.cluster = Some(Arc::new(ClusterMeta::default()))),
            all_replicas
        );
        for (seen, dependencies_changed) in [
            (ReplicaState::Pending, names(&[])),
            (ReplicaState::Degraded, names(&["a"])),
            (ReplicaState::Running, names(&["a"])),
        ] {
            let expected = StateDiff {
                replicas: names(&["a-web-7"]),
                dependencies_changed,
                ..StateDiff::default()
            };
            assert_eq!(between(&|state| observe(state, "a-web-7", seen)), expected);
        }
        let expected = StateDiff {
            replicas: names(&["b-web-3"]),
            dependencies_changed: names(&["b"]),
            ..StateDiff::default()
        };
        assert_eq!(between(&|state| put(state, "b", 3, 9)), expected);
        let expected = StateDiff {
            replicas: names(&["b-web-3"]),
            ..StateDiff::default()
        };
        assert_eq!(
            between(&|state| drop(state.replicas_desired.remove("b-web-3"))),
            expected
        );
        let expected = StateDiff {
            documents: names(&["a"]),
            ..StateDiff::default()
        };
        assert_eq!(
            between(&|state| drop(state.deployments.remove("a"))),
            expected
        );
    }

    proptest! {
        #[test]
        fn no_change_is_missed(
            steps in prop::collection::vec((0_u64..300, 0_u64..4, any::<bool>()), 0..200),
            size in 0_u64..300,
        ) {
            let before = state(size);
            let mut after = before.clone();
            for (index, raft_index, remove) in steps {
                if remove {
                    after.replicas_desired.remove(&format!("a-web-{index}"));
                } else {
                    put(&mut after, "a", index, raft_index);
                }
            }
            let ids = before.replicas_desired.keys().chain(after.replicas_desired.keys());
            let changed: BTreeSet<String> = ids
                .filter(|id| before.replicas_desired.get(*id) != after.replicas_desired.get(*id))
                .cloned()
                .collect();
            prop_assert_eq!(StateDiff::between(&before, &after, "n1").replicas, changed);
        }
    }
}
