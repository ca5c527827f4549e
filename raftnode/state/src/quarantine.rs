//! Quarantine of freed address blocks.
//!
//! A host may hold a block for some time after the row of it is gone: its containers end after
//! their stop grace, its bridge after those, and it may not have learned of the change. So the
//! state machine records each block that loses its row, and refuses to assign it again too early.
//! The record is a part of the state because every leader has to keep to it, also one that has
//! just started.

use std::time::Duration;

use jaco_proto::v1;
use prost_types::Timestamp;

use crate::{State, fsm::time::nanos};

/// Time before a freed block is assigned again. It passes by the timestamps of commands, so it is
/// longer or shorter by the difference of the clocks of two leaders.
pub const QUARANTINE: Duration = Duration::from_secs(5 * 60);

/// Whether a command at `now` must not assign the block. A block that was freed later than `now`
/// is in quarantine.
pub(crate) fn is_quarantined(freed: &v1::FreedSubnet, now: &Timestamp) -> bool {
    let age = nanos(Some(now)) - nanos(freed.freed_at.as_ref());
    age < QUARANTINE.as_nanos().cast_signed()
}

impl State {
    /// Blocks that a command at `now` must not assign, in the order of their texts.
    pub fn quarantined<'a>(
        &'a self,
        now: &'a Timestamp,
    ) -> impl Iterator<Item = &'a v1::FreedSubnet> {
        let freed = self.freed_subnets.values().map(AsRef::as_ref);
        freed.filter(move |freed| is_quarantined(freed, now))
    }
}
