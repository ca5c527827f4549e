//! Blocks whose rows are gone while their containers may still run.
//!
//! The rows of a deleted deployment go at once, its containers after their stop grace. Until then
//! their blocks stay in the pool set but in no scope, so that they reach no other network.

use std::{collections::BTreeMap, time::Instant};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use super::ruleset::{POOL_SET, Ruleset};
use crate::network::{ipam::QUARANTINE, scopes::disjoint};

/// Blocks that left the rows less than [`QUARANTINE`] ago: no block is allocated again earlier.
#[derive(Clone, Debug, Default)]
pub(super) struct Retired {
    since: BTreeMap<Cidr, Instant>,
}

impl Retired {
    /// Handles a change of the rows from those of `last` to those of `next`.
    pub(super) fn handle_rows(&mut self, now: Instant, last: &State, next: &State) {
        let held = held(next);
        self.since
            .retain(|block, at| is_recent(now, *at) && !covers(&held, *block));
        for block in blocks(last).filter(|block| !covers(&held, *block)) {
            self.since.insert(block, now);
        }
    }

    /// Retires the blocks in the pool set of `table` that `state` has no row of. Blocks outside
    /// `pool` are no blocks of containers.
    pub(super) fn adopt(&mut self, now: Instant, table: &Ruleset, pool: Cidr, state: &State) {
        let held = held(state);
        let sets = table.sets.iter().filter(|set| set.name == POOL_SET);
        let found = sets.flat_map(|set| &set.elements);
        for block in found.flat_map(|span| span.blocks_within(pool)) {
            if !covers(&held, block) {
                self.since.entry(block).or_insert(now);
            }
        }
    }

    /// The retired blocks, sorted.
    pub(super) fn blocks(&self, now: Instant) -> Vec<Cidr> {
        let recent = self.since.iter().filter(|(_, at)| is_recent(now, **at));
        recent.map(|(block, _)| *block).collect()
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
fn covers(held: &[Cidr], block: Cidr) -> bool {
    let after = held.partition_point(|other| other.first() <= block.first());
    let before = after.checked_sub(1).map(|index| held[index]);
    before.is_some_and(|other| block.last() <= other.last())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::network::firewall::testing::state;

    fn rows(blocks: &[&str]) -> State {
        let rows = blocks.iter().map(|block| ("web", *block, "n1", *block));
        state(&rows.collect::<Vec<_>>())
    }

    fn shown(retired: &Retired, now: Instant) -> Vec<String> {
        let blocks = retired.blocks(now).into_iter();
        blocks.map(|block| block.to_string()).collect()
    }

    #[test]
    fn freed_block_is_retired_for_five_minutes() {
        let (mut retired, start) = (Retired::default(), Instant::now());
        let both = rows(&["10.244.1.0/24", "10.244.2.0/24"]);
        let second = rows(&["10.244.2.0/24"]);
        retired.handle_rows(start, &both, &second);
        assert_eq!(shown(&retired, start), ["10.244.1.0/24"]);
        let later = start + QUARANTINE;
        let before = later.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(shown(&retired, before), ["10.244.1.0/24"]);
        assert_eq!(shown(&retired, later), [""; 0]);
    }

    #[test]
    fn allocated_block_is_retired_no_more() {
        let (mut retired, now) = (Retired::default(), Instant::now());
        let old = rows(&["10.244.1.0/28", "10.244.2.0/24"]);
        let new = rows(&["10.244.1.0/24"]);
        retired.handle_rows(now, &old, &State::default());
        assert_eq!(shown(&retired, now).len(), 2);
        retired.handle_rows(now, &State::default(), &new);
        assert_eq!(shown(&retired, now), ["10.244.2.0/24"]);
        // A part of a block frees the rest of it for nothing.
        retired.handle_rows(now, &new, &rows(&["10.244.1.0/28"]));
        assert_eq!(shown(&retired, now), ["10.244.1.0/24", "10.244.2.0/24"]);
    }

    #[test]
    fn table_with_other_blocks_is_adopted() {
        let (mut retired, now) = (Retired::default(), Instant::now());
        let table = Ruleset::of_state(&rows(&[
            "10.244.1.0/24",
            "10.244.2.0/24",
            "10.244.3.0/24",
            "10.0.0.0/20",
        ]));
        let state = rows(&["10.244.2.0/24"]);
        let pool = "10.244.0.0/16".parse().unwrap();
        retired.adopt(now, &table, pool, &state);
        assert_eq!(shown(&retired, now), ["10.244.1.0/24", "10.244.3.0/24"]);
    }
}
