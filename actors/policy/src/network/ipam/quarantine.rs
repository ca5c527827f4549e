//! Quarantine of recently freed blocks.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

/// Time before a freed block is allocated again, so that its old bridge is removed first.
pub const QUARANTINE: Duration = Duration::from_secs(5 * 60);

/// Records freed blocks by comparing each state with the previous one.
#[derive(Clone, Debug, Default)]
pub struct Quarantine {
    freed: BTreeMap<Cidr, Instant>,
    last: Option<State>,
}

impl Quarantine {
    /// Records the blocks that `state` frees compared with the previous state.
    pub fn handle_state(&mut self, now: Instant, state: &State) {
        self.freed
            .retain(|_, at| now.saturating_duration_since(*at) < QUARANTINE);
        if let Some(last) = &self.last {
            if last.subnets.ptr_eq(&state.subnets) {
                return;
            }
            for (key, row) in &last.subnets {
                let kept = state
                    .subnets
                    .get(key)
                    .is_some_and(|new| new.cidr == row.cidr);
                if let (false, Ok(cidr)) = (kept, row.cidr.parse()) {
                    self.freed.insert(cidr, now);
                }
            }
        }
        self.last = Some(State {
            subnets: state.subnets.clone(),
            ..State::default()
        });
    }

    /// Blocks that must not be allocated yet.
    pub fn blocks(&self, now: Instant) -> impl Iterator<Item = Cidr> {
        self.freed
            .iter()
            .filter(move |(_, at)| now.saturating_duration_since(**at) < QUARANTINE)
            .map(|(cidr, _)| *cidr)
    }
}
