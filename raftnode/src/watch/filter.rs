//! Filter of a subscription.

use std::collections::BTreeSet;

use jaco_proto::{Error, ErrorCode, v1};
use jaco_state::event::{EntityType, Event};

/// A selection of the stream; the default is all events from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Kinds to follow; empty means all.
    pub entities: BTreeSet<EntityType>,
    /// Restricts events to this deployment; kinds outside deployments are not affected.
    pub deployment: Option<String>,
    /// Replays events newer than this log index; 0 starts with live events.
    pub since: u64,
}

impl Filter {
    /// Creates a filter for some kinds, from now on.
    pub fn of(entities: impl IntoIterator<Item = EntityType>) -> Self {
        Self {
            entities: entities.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Parses the filter of a watch request.
    ///
    /// # Errors
    ///
    /// `validation_failed` if a kind is unknown.
    pub fn from_request(request: &v1::SubscribeRequest) -> Result<Self, Error> {
        let entities = request
            .entity_types
            .iter()
            .map(|name| EntityType::parse(name).ok_or_else(|| unknown_kind(name)))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            entities,
            deployment: Some(request.deployment_filter.clone()).filter(|name| !name.is_empty()),
            since: request.since_revision,
        })
    }

    /// Whether the filter selects this kind.
    #[must_use]
    pub fn follows(&self, entity: EntityType) -> bool {
        self.entities.is_empty() || self.entities.contains(&entity)
    }

    /// Whether the filter selects this event.
    #[must_use]
    pub fn accepts(&self, event: &Event) -> bool {
        let of_another = match (&self.deployment, &event.deployment) {
            (Some(wanted), Some(actual)) => wanted != actual,
            (None, _) | (_, None) => false,
        };
        event.raft_index > self.since && !of_another && self.follows(event.change.entity())
    }
}

fn unknown_kind(name: &str) -> Error {
    Error::new(
        ErrorCode::ValidationFailed,
        format!("there is no entity type {name:?} to watch"),
    )
    .with("field", "entity_types")
    .with("value", name)
}
