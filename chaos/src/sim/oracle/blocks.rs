//! Judge of freed address blocks: no network is given one too early.

use std::collections::BTreeMap;

use jaco_proto::v1;
use jaco_state::{QUARANTINE, State};

/// Blocks that lost their network at any time.
#[derive(Debug, Default)]
pub(super) struct FreedBlocks {
    freed: BTreeMap<String, Freed>,
}

/// Times of commands in nanoseconds since the epoch, by the clocks of the leaders that made them.
#[derive(Debug)]
struct Freed {
    /// Command that freed the block last.
    at: i128,
    /// Latest command since then that changed a block: the quarantine ends for all leaders with the
    /// first one whose clock says so.
    latest: i128,
}

impl FreedBlocks {
    /// Records the blocks that `command` freed; returns the description of one that it assigned
    /// within the quarantine.
    pub(super) fn record(
        &mut self,
        before: &State,
        after: &State,
        command: &v1::Command,
    ) -> Option<String> {
        if before.subnets.ptr_eq(&after.subnets) {
            return None;
        }
        let ts = command.ts.unwrap_or_default();
        let now = i128::from(ts.seconds) * 1_000_000_000 + i128::from(ts.nanos);
        let block = |state: &State, key| state.subnets.get(key).map(|row| row.cidr.clone());
        for (key, row) in &before.subnets {
            if block(after, key).as_ref() != Some(&row.cidr) {
                let freed = Freed {
                    at: now,
                    latest: now,
                };
                self.freed.insert(row.cidr.clone(), freed);
            }
        }
        for freed in self.freed.values_mut() {
            freed.latest = freed.latest.max(now);
        }
        let assigned = after.subnets.iter();
        let mut assigned =
            assigned.filter(|(key, row)| block(before, key).as_ref() != Some(&row.cidr));
        assigned.find_map(|(key, row)| {
            let freed = self.freed.get(&row.cidr)?;
            let age = freed.latest - freed.at;
            let early = age < QUARANTINE.as_nanos().cast_signed();
            early.then(|| format!("{} is given to {key:?} after {age} ns", row.cidr))
        })
    }
}
