//! Drain of a member that is to be removed: the mark in its row, and the time a drain may take.
//!
//! A drain that makes no progress for [`DRAIN_LIMIT`] is given up. The row then records that, apart
//! from the member's status, which goes on to follow its heartbeats.

use std::{collections::BTreeSet, time::Duration, time::Instant};

use jaco_proto::{
    ErrorCode, mark,
    v1::{self, NodeStatus},
};
use jaco_state::State;

use crate::scheduler::drain_check;

/// Time without progress after which a drain is given up.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(300);
/// Number of replicas recorded with a drain that was given up.
const LISTED_REPLICAS: usize = 100;

/// Progress of the removal of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// No removal is requested.
    Staying,
    /// To be removed, but replicas still need it. It keeps its role, and gets no new one.
    Draining,
    /// To be removed at once.
    Leaving,
}

/// Progress of one drain: the replicas that it handed over, and the time of the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainProgress {
    last: Instant,
    remaining: BTreeSet<String>,
    handed_over: BTreeSet<String>,
}

impl DrainProgress {
    /// Returns the progress of a drain first seen at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            last: now,
            remaining: BTreeSet::new(),
            handed_over: BTreeSet::new(),
        }
    }

    /// Handles the ids of the replicas that still need the member. A replica counts as progress the
    /// first time that it is missing: one that fails on its new host, and needs the old one again,
    /// must not extend the drain without end.
    pub fn handle_remaining<'a>(
        &mut self,
        now: Instant,
        remaining: impl IntoIterator<Item = &'a str>,
    ) {
        let remaining: BTreeSet<String> = remaining.into_iter().map(str::to_owned).collect();
        for id in std::mem::take(&mut self.remaining) {
            if !remaining.contains(&id) && self.handed_over.insert(id) {
                self.last = now;
            }
        }
        self.remaining = remaining;
    }

    /// Time of the last progress, or of the beginning.
    #[must_use]
    pub fn last(&self) -> Instant {
        self.last
    }
}

/// Returns how far the removal of the member `node` of `state` is, and the ids of the replicas that
/// it waits for.
#[must_use]
pub fn departure(state: &State, node: &v1::Node) -> (Departure, BTreeSet<String>) {
    if !leaving(node) {
        return (Departure::Staying, BTreeSet::new());
    }
    if skips_drain(node) {
        return (Departure::Leaving, BTreeSet::new());
    }
    let remaining = drain_check::remaining(state, &node.hostname);
    let remaining: BTreeSet<String> = remaining.into_iter().map(str::to_owned).collect();
    match remaining.is_empty() {
        true => (Departure::Leaving, remaining),
        false => (Departure::Draining, remaining),
    }
}

/// Whether the member of this row is removed without waiting for its replicas.
#[must_use]
pub fn skips_drain(node: &v1::Node) -> bool {
    node.drain.as_ref().is_some_and(|drain| drain.skip_moves)
}

/// Whether the member of this row is to be removed, once it is drained. After a drain timeout it is
/// not, and stays until its removal is requested again.
#[must_use]
pub fn leaving(node: &v1::Node) -> bool {
    node.draining && !timed_out(node)
}

/// Whether the drain of this row was given up.
#[must_use]
pub fn timed_out(node: &v1::Node) -> bool {
    records_timeout(node) || node.status() == NodeStatus::DrainTimeout
}

/// Whether this row records apart from the status that its drain was given up. It does not while a
/// member of another version might not know the field: only the status says so then, and must stay.
#[must_use]
pub fn records_timeout(node: &v1::Node) -> bool {
    node.drain.as_ref().is_some_and(|drain| drain.timed_out)
}

/// Whether a member could lead once `leaver` is marked as leaving: a member that is not leaving and
/// fulfils `is_there`.
#[must_use]
pub fn can_leave<'a>(
    mut members: impl Iterator<Item = &'a v1::Node>,
    leaver: &str,
    is_there: impl Fn(&v1::Node) -> bool,
) -> bool {
    members.any(|node| node.hostname != leaver && !leaving(node) && is_there(node))
}

/// Returns the update that marks the member of `row` for removal, without a drain if `skip_moves`. A
/// drain that timed out starts again.
#[must_use]
pub fn request_removal(row: &v1::Node, skip_moves: bool) -> v1::NodeStatusUpdate {
    let status = match row.status() {
        NodeStatus::DrainTimeout => NodeStatus::Ready,
        _ => NodeStatus::Unspecified,
    };
    v1::NodeStatusUpdate {
        hostname: row.hostname.clone(),
        status: status.into(),
        drain_mark: mark::SET,
        drain: skip_moves.then(|| v1::NodeDrain {
            skip_moves,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Returns the update that gives up the drain of `hostname`, with the replicas that still need it in
/// the details; `None` if it does not drain. The mark stays, so that the member gets no replicas
/// until its removal is requested again or its daemon restarts.
#[must_use]
pub fn end_drain(state: &State, hostname: &str) -> Option<v1::NodeStatusUpdate> {
    let node = state.nodes.get(hostname)?;
    let (departure, remaining) = departure(state, node);
    if departure != Departure::Draining {
        return None;
    }
    let listed: Vec<String> = remaining.into_iter().take(LISTED_REPLICAS).collect();
    let details = [
        ("reason", ErrorCode::DrainTimeout.as_str().to_owned()),
        ("replicas", listed.join(",")),
    ];
    let mut update = v1::NodeStatusUpdate {
        hostname: hostname.to_owned(),
        status: NodeStatus::DrainTimeout.into(),
        details: details.map(|(key, value)| (key.to_owned(), value)).into(),
        ..Default::default()
    };
    if is_one_version(state) {
        update.drain = Some(v1::NodeDrain {
            timed_out: true,
            ..Default::default()
        });
    }
    Some(update)
}

/// Returns the update that clears the mark of `hostname`, which cannot leave; `None` if it is not
/// marked as leaving.
#[must_use]
pub fn clear_mark(state: &State, hostname: &str) -> Option<v1::NodeStatusUpdate> {
    let node = state.nodes.get(hostname).filter(|node| leaving(node))?;
    Some(v1::NodeStatusUpdate {
        hostname: node.hostname.clone(),
        drain_mark: mark::CLEAR,
        ..Default::default()
    })
}

/// Whether all members have the same version: another one stops at a field that it does not know.
fn is_one_version(state: &State) -> bool {
    let mut versions = state.nodes.values().map(|node| node.version.as_str());
    let first = versions.next();
    versions.all(|version| Some(version) == first)
}
