//! Comparison of states that grow: only entities that changed since the last one are compared.

use std::sync::Arc;

use imbl::{OrdMap, ordmap::DiffItem};
use jaco_state::State;

/// The state of a node and the equal one of the oracle.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    pub(super) known: Arc<State>,
    pub(super) state: State,
}

impl Compared {
    /// A state equal to `state`. It shares the structure of `known`, so that comparing it with a
    /// successor of `known` skips what neither has changed.
    pub(super) fn follow(&self, state: &State) -> State {
        let (known, before) = (&self.known, &self.state);
        macro_rules! follow {
            ($($table:ident)*) => {
                State {
                    applied_index: state.applied_index,
                    cluster: state.cluster.clone(),
                    $($table: follow(&known.$table, &before.$table, &state.$table),)*
                }
            };
        }
        follow!(
            nodes deployments replicas_desired replicas_observed restart_counters
            replica_counters rollout_plans routes tcp_routes certs cert_blobs challenge_tokens
            tokens join_tokens subnets freed_subnets registry_credentials cluster_config
            secrets route_tls_overrides imported_certs file_contents cluster_files audit
        )
    }
}

/// Applies the changes from `before` to `after` to `known`, which equals `before`.
fn follow<K: Clone + Ord, V: Clone + PartialEq>(
    known: &OrdMap<K, V>,
    before: &OrdMap<K, V>,
    after: &OrdMap<K, V>,
) -> OrdMap<K, V> {
    let mut followed = known.clone();
    for change in before.diff(after) {
        match change {
            DiffItem::Add(key, value)
            | DiffItem::Update {
                new: (key, value), ..
            } => {
                followed.insert(key.clone(), value.clone());
            }
            DiffItem::Remove(key, _) => {
                followed.remove(key);
            }
        }
    }
    followed
}
