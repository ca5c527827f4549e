//! Transaction of one entry: the state, its row writes, its events and an undo log.

use std::sync::Arc;

use jaco_proto::{Error, v1};
use prost::Message;

use super::{Effects, Mutation, reject};
use crate::{
    Delta, Event, State,
    state::{Entity, Key as _, Table, cluster_key, row_key},
};

/// Changes of one entry, not yet visible to readers.
///
/// The state is changed in place with an undo log. A copy for rollback would share its maps, and
/// every change of a shared map copies a part of it.
pub(super) struct Tx {
    state: State,
    index: u64,
    mutations: Vec<Mutation>,
    events: Vec<Event>,
    /// Undo operations, in the order of the changes.
    undo: Vec<Undo>,
    next_ordinal: u32,
}

/// Reverts one change.
type Undo = Box<dyn FnOnce(&mut State)>;

/// Restores the row at `key` to its value `before` the change.
fn restore<E: Entity>(key: E::Key, before: Option<Arc<E>>) -> Undo {
    Box::new(move |state| {
        let map = E::map_mut(state);
        match before {
            Some(before) => map.insert(key, before),
            None => map.remove(&key),
        };
    })
}

impl Tx {
    pub(super) fn begin(state: State, index: u64) -> Self {
        Self {
            state: State {
                applied_index: index,
                ..state
            },
            index,
            mutations: Vec::new(),
            events: Vec::new(),
            undo: Vec::new(),
            next_ordinal: 0,
        }
    }

    /// Returns the state with every change, and the effects.
    pub(super) fn commit(self) -> (State, Effects) {
        let effects = Effects {
            result: Ok(()),
            mutations: self.mutations,
            events: self.events,
        };
        (self.state, effects)
    }

    /// Returns the state without the changes; only its applied index is new.
    pub(super) fn roll_back(mut self) -> State {
        for undo in self.undo.into_iter().rev() {
            undo(&mut self.state);
        }
        self.state
    }

    /// Returns the state with the changes so far.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Log index of the entry.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// Returns the row with this key.
    pub(super) fn get<E: Entity>(&self, key: &E::Key) -> Option<Arc<E>> {
        E::map(&self.state).get(key).cloned()
    }

    /// Writes a row; an unchanged row is no write and makes no event.
    pub(super) fn put<E: Entity>(&mut self, entity: E) -> Result<(), Error> {
        let deployment = entity.deployment().map(str::to_owned);
        self.put_of(deployment, entity)
    }

    /// Writes a row that belongs to `deployment` but does not name it.
    pub(super) fn put_of<E: Entity>(
        &mut self,
        deployment: Option<String>,
        entity: E,
    ) -> Result<(), Error> {
        let key = entity.key();
        if !key.is_storable() {
            return Err(reject::invalid(
                E::TABLE.as_str(),
                "a key is empty, out of range or holds a zero byte",
            ));
        }
        let before = E::map(&self.state).get(&key).cloned();
        if before.as_deref() == Some(&entity) {
            return Ok(());
        }
        self.mutations.push(Mutation {
            table: E::TABLE,
            key: row_key::<E>(&key),
            value: Some(entity.encode_to_vec()),
        });
        let after = Arc::new(entity);
        E::map_mut(&mut self.state).insert(key.clone(), Arc::clone(&after));
        self.undo.push(restore(key, before.clone()));
        self.record(deployment, before, Some(after));
        Ok(())
    }

    /// Deletes a row, if it exists.
    pub(super) fn remove<E: Entity>(&mut self, key: &E::Key) -> Option<Arc<E>> {
        let deployment = self.get::<E>(key)?.deployment().map(str::to_owned);
        self.remove_of(deployment, key)
    }

    /// Deletes a row that belongs to `deployment` but does not name it, if it exists.
    pub(super) fn remove_of<E: Entity>(
        &mut self,
        deployment: Option<String>,
        key: &E::Key,
    ) -> Option<Arc<E>> {
        let before = E::map_mut(&mut self.state).remove(key)?;
        self.mutations.push(Mutation {
            table: E::TABLE,
            key: row_key::<E>(key),
            value: None,
        });
        self.undo.push(restore(key.clone(), Some(before.clone())));
        self.record(deployment, Some(Arc::clone(&before)), None);
        Some(before)
    }

    /// Deletes every row that `matches`, in key order, and returns them.
    pub(super) fn remove_where<E: Entity>(&mut self, matches: impl Fn(&E) -> bool) -> Vec<Arc<E>> {
        let keys: Vec<E::Key> = E::map(&self.state)
            .iter()
            .filter(|(_, entity)| matches(entity))
            .map(|(key, _)| key.clone())
            .collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Writes the cluster singleton, which cannot be watched.
    pub(super) fn put_cluster(&mut self, meta: v1::ClusterMeta) {
        self.mutations.push(Mutation {
            table: Table::Cluster,
            key: cluster_key(),
            value: Some(meta.encode_to_vec()),
        });
        let before = self.state.cluster.replace(Arc::new(meta));
        self.undo.push(Box::new(|state| state.cluster = before));
    }

    /// Returns the ordinal of the next audit event within this entry.
    pub(super) fn next_ordinal(&mut self) -> u32 {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        ordinal
    }

    fn record<E: Entity>(
        &mut self,
        deployment: Option<String>,
        before: Option<Arc<E>>,
        after: Option<Arc<E>>,
    ) {
        if let Some(change) = E::change(Delta { before, after }) {
            self.events.push(Event {
                raft_index: self.index,
                deployment,
                change,
            });
        }
    }
}
