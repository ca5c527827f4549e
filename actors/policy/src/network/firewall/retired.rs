//! Blocks in which containers may have addresses of a network that has the block no more.
//!
//! The rows of a deleted deployment go at once, its containers after their stop grace. Until then
//! their blocks stay in the pool set but in no scope, so that they reach no other network, not even
//! one that was given such a block since.
//!
//! Every container of another host reaches this one through the mesh, which admits a block only from
//! the host of its row. So a block that has a row again is withheld from it on the host of the
//! former containers alone.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use super::{
    local::LocalNetworks,
    ruleset::{POOL_SET, Ruleset, Span},
};
use crate::network::{
    ipam::QUARANTINE,
    names::NetworkId,
    scopes::{Scope, disjoint, network_id},
};

/// Blocks that are part of no scope; see the module documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Retired {
    host: String,
    /// Blocks without a row, and the time at which they lost it. They stay retired for
    /// [`QUARANTINE`].
    freed: BTreeMap<Cidr, Instant>,
    /// Blocks that this host lost, with the network they had, if it is known. The value is the time
    /// from which on no container starts there any more, once there is one: the networks that the
    /// engine is seen to have after that are all.
    lost: BTreeMap<(Cidr, Option<NetworkId>), Option<Instant>>,
    local: Option<Arc<LocalNetworks>>,
}

impl Retired {
    pub(super) fn new(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            ..Self::default()
        }
    }

    /// Handles a change of the rows from those of `last` to those of `next`.
    pub(super) fn handle_rows(&mut self, now: Instant, last: &State, next: &State) {
        let held = held(next);
        self.freed
            .retain(|block, at| is_recent(now, *at) && !covers(&held, *block));
        for block in blocks(last).filter(|block| !covers(&held, *block)) {
            self.freed.insert(block, now);
        }
        let own = self.own(next);
        for (network, block) in self.own(last) {
            if !own.contains(&(network.clone(), block)) {
                self.lost.insert((block, Some(network)), None);
            }
        }
    }

    /// Handles a list of the networks of this host's engine.
    pub(super) fn handle_local(&mut self, local: Arc<LocalNetworks>) {
        self.local = Some(local);
        self.forget();
    }

    /// Whether the engine has listed its networks.
    pub(super) fn knows_local(&self) -> bool {
        self.local.is_some()
    }

    /// Handles that a ruleset with these retired blocks, sorted and disjoint, is in force: no
    /// container starts there any more.
    pub(super) fn handle_enforced(&mut self, now: Instant, retired: &[Cidr]) {
        for ((block, _), since) in &mut self.lost {
            if covers(retired, *block) {
                since.get_or_insert(now);
            }
        }
    }

    /// Retires the blocks of `table` that have no row of `state`, or one of another network than in
    /// the table; `scopes` are those of `state`. Blocks outside `pool` are no blocks of containers.
    ///
    /// `since` is the time from which on no container starts by that table.
    pub(super) fn adopt(
        &mut self,
        now: Instant,
        table: &Ruleset,
        (pool, state, scopes): (Cidr, &State, &[Scope]),
        since: Option<Instant>,
    ) {
        let held = held(state);
        let mut assigned = Vec::new();
        let within = |span: &Span| span.blocks_within(pool);
        for set in table.scope_sets() {
            let scope = scopes.iter().find(|scope| scope.set == set.name);
            for block in set.spans().iter().flat_map(within) {
                assigned.push(block);
                if scope.is_none_or(|scope| !covers(&scope.blocks, block)) {
                    self.lost.insert((block, None), since);
                }
            }
        }
        disjoint(&mut assigned);
        let all = table.sets.iter().filter(|set| set.name == POOL_SET);
        for block in all.flat_map(|set| set.spans()).flat_map(within) {
            if !covers(&held, block) {
                self.freed.entry(block).or_insert(now);
            }
            if !covers(&assigned, block) {
                self.lost.insert((block, None), since);
            }
        }
        self.forget();
    }

    /// The blocks in `pool` that are retired given the rows of `state`, sorted and disjoint.
    pub(super) fn blocks(&self, now: Instant, pool: Cidr, state: &State) -> Vec<Cidr> {
        let recent = self.freed.iter().filter(|(_, at)| is_recent(now, **at));
        let mut retired: Vec<Cidr> = recent.map(|(block, _)| *block).collect();
        let lost = self.lost.keys().map(|(block, network)| (network, block));
        let local = self.local.iter().flat_map(|local| &local.blocks);
        let local = local.map(|(network, block)| (network, block));
        let mut former = lost.chain(local).peekable();
        if former.peek().is_some() {
            let own = self.own(state);
            let is_own = |network: &NetworkId, block| {
                let mut own = own.iter();
                own.any(|(held, cidr)| held == network && *cidr == block)
            };
            for (network, block) in former {
                if !{ network.as_ref() }.is_some_and(|network| is_own(network, *block)) {
                    retired.extend(Span::from(*block).blocks_within(pool));
                }
            }
        }
        disjoint(&mut retired);
        retired
    }

    /// Forgets lost blocks about which the engine was asked since.
    fn forget(&mut self) {
        if let Some(local) = &self.local {
            self.lost
                .retain(|_, since| since.is_none_or(|since| local.begun < since));
        }
    }

    /// Blocks of this host and their networks.
    fn own(&self, state: &State) -> Vec<(NetworkId, Cidr)> {
        let rows = state.subnets.iter().filter(|(key, _)| key.2 == self.host);
        rows.filter_map(|((deployment, network, _), row)| {
            Some((network_id(deployment, network), row.cidr.parse().ok()?))
        })
        .collect()
    }
}

fn is_recent(now: Instant, at: Instant) -> bool {
    now.saturating_duration_since(at) < QUARANTINE
}

fn blocks(state: &State) -> impl Iterator<Item = Cidr> {
    let rows = state.subnets.values();
    rows.filter_map(|row| row.cidr.parse().ok())
}

/// Blocks of the rows, sorted and disjoint.
fn held(state: &State) -> Vec<Cidr> {
    let mut held: Vec<Cidr> = blocks(state).collect();
    disjoint(&mut held);
    held
}

/// Whether `block` lies in one of `held`, which are sorted and disjoint.
pub(super) fn covers(held: &[Cidr], block: Cidr) -> bool {
    let after = held.partition_point(|other| other.first() <= block.first());
    let before = after.checked_sub(1).map(|index| held[index]);
    before.is_some_and(|other| block.last() <= other.last())
}

#[cfg(test)]
mod tests;
