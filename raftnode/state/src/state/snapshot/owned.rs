//! Encoded fields of a snapshot message that own their entities.

use std::sync::Arc;

use super::{CLUSTER, Entity, KINDS, State, encode::encode};

/// Encoded fields, one for each entity, that own their entities.
pub(super) type OwnedFields = Box<dyn Iterator<Item = Vec<u8>> + Send>;

pub(super) fn fields_of<E: Entity>(state: &State, field: u32) -> OwnedFields {
    // Cloning the map is O(1), and iterating over the clone copies one leaf at a time.
    let map = E::map(state).clone();
    Box::new(
        map.into_iter()
            .map(move |(_, entity)| encode(field, &*entity)),
    )
}

impl State {
    /// Iterates over the fields of [`State::encode_snapshot`] in order; each is encoded on demand.
    pub fn into_snapshot_fields(self: Arc<Self>) -> impl Iterator<Item = Vec<u8>> + Send + 'static {
        let cluster = self.cluster.clone();
        let cluster = cluster.into_iter().map(|meta| encode(CLUSTER, &*meta));
        let kinds = KINDS
            .iter()
            .flat_map(move |kind| (kind.owned)(&self, kind.field));
        cluster.chain(kinds)
    }
}
