//! Packets that a node dropped: totals of counters that begin again, and the audit of forged sources.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jaco_proto::v1::{AuditEvent, AuditEventType};

/// Shortest interval between two audit events about forged sources.
pub const AUDIT_INTERVAL: Duration = Duration::from_secs(60);

/// Why packets were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The source belongs to another interface than the packet came by.
    ForgedSource,
    /// The packet would have left the host outside the mesh, unencrypted.
    OutsideMesh,
    /// The source belongs to another host than the one that encrypted the packet.
    MeshWrongSource,
    /// No host of the mesh has the destination.
    MeshUnroutable,
    /// The address of the destination's host is not known yet.
    MeshNoEndpoint,
    /// A datagram that is no message of the mesh, is replayed, or fails its authentication.
    MeshInvalid,
    /// A message of a key or a session that no host has.
    MeshUnknownPeer,
    /// The kernel refused the packet.
    MeshRefused,
}

impl DropReason {
    /// Name in reports, metrics and audit events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForgedSource => "forged_source",
            Self::OutsideMesh => "outside_mesh",
            Self::MeshWrongSource => "mesh_wrong_source",
            Self::MeshUnroutable => "mesh_unroutable",
            Self::MeshNoEndpoint => "mesh_no_endpoint",
            Self::MeshInvalid => "mesh_invalid",
            Self::MeshUnknownPeer => "mesh_unknown_peer",
            Self::MeshRefused => "mesh_refused",
        }
    }

    /// Whether the sender claimed an address that is not its own.
    const fn is_forgery(self) -> bool {
        matches!(self, Self::ForgedSource | Self::MeshWrongSource)
    }
}

/// Numbers of dropped packets.
pub type Drops = BTreeMap<DropReason, u64>;

/// Totals of counters that begin at 0 again whenever what counts is replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropTotals {
    read: Drops,
    totals: Drops,
}

impl DropTotals {
    /// Adds what was counted since the last reading. A counter that is lower than then began again.
    pub fn handle_reading(&mut self, read: Drops) {
        for (reason, count) in &read {
            let last = self.read.get(reason).copied().unwrap_or_default();
            let more = count.checked_sub(last).unwrap_or(*count);
            let total = self.totals.entry(*reason).or_default();
            *total = total.saturating_add(more);
        }
        self.read = read;
    }

    /// Notes that the counters began again.
    pub fn handle_replaced(&mut self) {
        self.read.clear();
    }

    /// Packets since the first reading, and those that its counters had.
    #[must_use]
    pub const fn totals(&self) -> &Drops {
        &self.totals
    }
}

/// Decides when dropped packets with forged sources are recorded.
#[derive(Clone, Debug, Default)]
pub struct ForgeryAudit {
    /// Totals at the last event, or at the first call.
    recorded: Option<Drops>,
    last: Option<Instant>,
}

impl ForgeryAudit {
    /// Returns an event about the packets since the last one, if there are any and it is
    /// [`AUDIT_INTERVAL`] ago. Packets of before the first call belong to an earlier process, which
    /// has recorded them.
    pub fn handle_totals(
        &mut self,
        now: Instant,
        host: &str,
        totals: &Drops,
    ) -> Option<AuditEvent> {
        let forged = totals.iter().filter(|(reason, _)| reason.is_forgery());
        let forged: Drops = forged.map(|(reason, count)| (*reason, *count)).collect();
        let recorded = self.recorded.get_or_insert_with(|| forged.clone());
        let recent = |at: Instant| now.saturating_duration_since(at) < AUDIT_INTERVAL;
        if self.last.is_some_and(recent) {
            return None;
        }
        let new = forged.iter().filter_map(|(reason, count)| {
            let known = recorded.get(reason).copied().unwrap_or_default();
            let new = count.saturating_sub(known);
            (new > 0).then(|| (reason.name().to_owned(), new.to_string()))
        });
        let mut payload: BTreeMap<String, String> = new.collect();
        if payload.is_empty() {
            return None;
        }
        payload.insert("node".to_owned(), host.to_owned());
        self.recorded = Some(forged);
        self.last = Some(now);
        Some(AuditEvent {
            r#type: AuditEventType::ForgedSource.into(),
            payload: payload.into_iter().collect(),
            ..Default::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drops(forged: u64, invalid: u64) -> Drops {
        let reasons = [
            (DropReason::ForgedSource, forged),
            (DropReason::MeshInvalid, invalid),
        ];
        reasons.into()
    }

    #[test]
    fn counters_that_begin_again_add_up() {
        let mut totals = DropTotals::default();
        for (read, replaced, expected) in [
            (drops(3, 0), false, drops(3, 0)),
            (drops(5, 2), true, drops(5, 2)),
            // As high as before the replacement.
            (drops(5, 2), false, drops(10, 4)),
            // Replaced by another program.
            (drops(1, 3), false, drops(11, 5)),
            (drops(1, u64::MAX), false, drops(11, u64::MAX)),
        ] {
            totals.handle_reading(read);
            if replaced {
                totals.handle_replaced();
            }
            assert_eq!(*totals.totals(), expected);
        }
    }

    proptest! {
        #[test]
        fn totals_count_every_packet(
            parts in prop::collection::vec((0_u64..100, any::<bool>()), 0..20),
        ) {
            let (mut totals, mut count, mut expected) = (DropTotals::default(), 0, 0);
            for (packets, replaced) in parts {
                count += packets;
                expected += packets;
                totals.handle_reading(drops(count, 0));
                if replaced {
                    totals.handle_replaced();
                    count = 0;
                }
                prop_assert_eq!(totals.totals(), &drops(expected, 0));
            }
        }
    }

    #[test]
    fn forgeries_are_recorded_once_in_a_while() {
        let start = Instant::now();
        let mut audit = ForgeryAudit::default();
        for (seconds, forged, invalid, recorded) in [
            // Of an earlier process.
            (0, 7, 0, None),
            (10, 7, 5, None),
            (20, 9, 5, Some("2")),
            (30, 12, 6, None),
            (79, 15, 6, None),
            (80, 15, 6, Some("6")),
            (200, 15, 9, None),
            (201, 16, 9, Some("1")),
        ] {
            let now = start + Duration::from_secs(seconds);
            let event = audit.handle_totals(now, "n1", &drops(forged, invalid));
            let packets = event.map(|event| {
                assert_eq!(event.r#type(), AuditEventType::ForgedSource);
                assert_eq!(event.payload["node"], "n1");
                assert_eq!(event.payload.len(), 2);
                event.payload["forged_source"].clone()
            });
            assert_eq!(packets.as_deref(), recorded, "{seconds}");
        }
    }
}
