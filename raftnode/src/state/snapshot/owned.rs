//! The bytes of the message without holding on to the state by reference.

use std::sync::Arc;

use super::{CLUSTER, Entity, KINDS, State, encode::encode};

/// Encoded fields, one for each entity, that own what they are made of.
pub(super) type OwnedFields = Box<dyn Iterator<Item = Vec<u8>> + Send>;

pub(super) fn fields_of<E: Entity>(state: &State, field: u32) -> OwnedFields {
    // Cloning the map is O(1), and going through the clone takes one leaf of it at a time.
    let map = E::map(state).clone();
    Box::new(
        map.into_iter()
            .map(move |(_, entity)| encode(field, &*entity)),
    )
}

impl State {
    /// The fields of [`State::encode_snapshot`] in order, each encoded when it is asked for.
    pub(crate) fn into_snapshot_fields(
        self: Arc<Self>,
    ) -> impl Iterator<Item = Vec<u8>> + Send + 'static {
        let cluster = self.cluster.clone();
        let cluster = cluster.into_iter().map(|meta| encode(CLUSTER, &*meta));
        let kinds = KINDS
            .iter()
            .flat_map(move |kind| (kind.owned)(&self, kind.field));
        cluster.chain(kinds)
    }
}
