//! The whole state as one message, for raft snapshots and backups.

use std::sync::Arc;

use imbl::OrdMap;
use jaco_proto::v1;

use super::{LoadError, State, entity::Entity, rows::add};

fn values<E: Entity + Clone>(map: &OrdMap<E::Key, Arc<E>>) -> Vec<E> {
    map.values().map(|entity| E::clone(entity)).collect()
}

fn fill<E: Entity>(state: &mut State, entities: Vec<E>) -> Result<(), LoadError> {
    entities
        .into_iter()
        .try_for_each(|entity| add(state, entity))
}

impl State {
    /// Everything but the applied index, in key order.
    #[must_use]
    pub fn to_snapshot(&self) -> v1::FsmSnapshot {
        v1::FsmSnapshot {
            cluster: self.cluster.as_deref().cloned(),
            nodes: values(&self.nodes),
            deployments: values(&self.deployments),
            replicas_desired: values(&self.replicas_desired),
            replicas_observed: values(&self.replicas_observed),
            routes: values(&self.routes),
            certs: values(&self.certs),
            challenge_tokens: values(&self.challenge_tokens),
            tokens: values(&self.tokens),
            join_tokens: values(&self.join_tokens),
            subnets: values(&self.subnets),
            rollout_plans: values(&self.rollout_plans),
            replica_counters: values(&self.replica_counters),
            restart_counters: values(&self.restart_counters),
            audit_events: values(&self.audit),
            cert_blobs: values(&self.cert_blobs),
            tcp_routes: values(&self.tcp_routes),
            registry_credentials: values(&self.registry_credentials),
        }
    }

    /// The state that a snapshot taken at `applied_index` describes.
    ///
    /// # Errors
    ///
    /// [`LoadError::BadKey`] if an entity has no usable key or shares it with another.
    pub fn from_snapshot(applied_index: u64, snapshot: v1::FsmSnapshot) -> Result<Self, LoadError> {
        let v1::FsmSnapshot {
            cluster,
            nodes,
            deployments,
            replicas_desired,
            replicas_observed,
            routes,
            certs,
            challenge_tokens,
            tokens,
            join_tokens,
            subnets,
            rollout_plans,
            replica_counters,
            restart_counters,
            audit_events,
            cert_blobs,
            tcp_routes,
            registry_credentials,
        } = snapshot;
        let mut state = Self {
            applied_index,
            cluster: cluster.map(Arc::new),
            ..Self::default()
        };
        fill(&mut state, nodes)?;
        fill(&mut state, deployments)?;
        fill(&mut state, replicas_desired)?;
        fill(&mut state, replicas_observed)?;
        fill(&mut state, routes)?;
        fill(&mut state, certs)?;
        fill(&mut state, challenge_tokens)?;
        fill(&mut state, tokens)?;
        fill(&mut state, join_tokens)?;
        fill(&mut state, subnets)?;
        fill(&mut state, rollout_plans)?;
        fill(&mut state, replica_counters)?;
        fill(&mut state, restart_counters)?;
        fill(&mut state, audit_events)?;
        fill(&mut state, cert_blobs)?;
        fill(&mut state, tcp_routes)?;
        fill(&mut state, registry_credentials)?;
        Ok(state)
    }
}
