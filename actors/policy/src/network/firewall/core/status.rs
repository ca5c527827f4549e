//! State of the firewall of a node.

use std::sync::Arc;

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use crate::network::{
    firewall::ruleset::Ruleset,
    names::NetworkId,
    readiness::IsolationStatus,
    scopes::{Scope, scopes},
};

/// A ruleset and the state it was rendered from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Applied index of the state.
    pub index: u64,
    /// Scopes, sorted by network.
    pub scopes: Vec<Scope>,
    /// Blocks that left the rows recently, sorted; part of no scope.
    pub retired: Vec<Cidr>,
    /// Ruleset of the scopes and the retired blocks.
    pub ruleset: Ruleset,
}

impl Rendered {
    /// Renders the ruleset of the blocks of `state`, with `retired` blocks that nothing may reach.
    #[must_use]
    pub fn of(state: &State, retired: Vec<Cidr>) -> Self {
        let scopes = scopes(state);
        Self {
            index: state.applied_index,
            ruleset: Ruleset::with_retired(&scopes, &retired),
            scopes,
            retired,
        }
    }

    /// Whether the ruleset isolates `block` as part of `network`.
    #[must_use]
    pub fn includes(&self, network: &NetworkId, block: Cidr) -> bool {
        let found = self.scopes.binary_search_by(|scope| scope.id.cmp(network));
        found.is_ok_and(|index| {
            let mut blocks = self.scopes[index].blocks.iter();
            blocks.any(|held| held.first() <= block.first() && block.last() <= held.last())
        })
    }
}

/// State of the firewall of this node, as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether deployments are isolated.
    pub isolation: IsolationStatus,
    /// The ruleset that the kernel held when it was last tested.
    pub enforced: Option<Arc<Rendered>>,
    /// The ruleset that was last handed to the kernel.
    pub attempted: Option<Arc<Rendered>>,
    /// Number of repairs of changes that were made by others.
    pub repairs: u64,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            isolation: IsolationStatus::Pending,
            enforced: None,
            attempted: None,
            repairs: 0,
        }
    }
}
