//! Blocks that were freed a moment ago.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jaco_raftnode::State;

use super::Cidr;

/// How long a freed block is not handed out, so that its old bridge can go first.
pub(super) const QUARANTINE: Duration = Duration::from_secs(5 * 60);

/// Remembers freed blocks by comparing each state with the one before.
#[derive(Clone, Debug, Default)]
pub struct Quarantine {
    freed: BTreeMap<Cidr, Instant>,
    last: Option<State>,
}

impl Quarantine {
    /// Learns which blocks were freed on the way to `state`.
    pub fn handle_state(&mut self, state: &State, now: Instant) {
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

    /// Blocks that must not be handed out yet.
    pub fn blocks(&self, now: Instant) -> impl Iterator<Item = Cidr> {
        self.freed
            .iter()
            .filter(move |(_, at)| now.saturating_duration_since(**at) < QUARANTINE)
            .map(|(cidr, _)| *cidr)
    }
}
