//! Reports to the cluster: the status of this node and audit events.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use jaco_proto::v1::{self, AuditEventType, NodeStatus, command::Payload};
use jaco_state::State;

use crate::{
    health::isolation::LOST,
    membership::leaving,
    network::{
        firewall::exemptions::{Exemption, Outcome},
        readiness::{
            COEXISTENCE, FLOW_LIST, FOREIGN_ROUTES, ISOLATION, IsolationStatus, MESH, MeshStatus,
            Readiness,
        },
    },
    node::writers::{FIREWALL, RELOAD_RECOVERED},
};

/// Reason and audit code of a ruleset that is not in the kernel after it was applied.
pub(super) const SELF_TEST_FAILED: &str = "isolation_self_test_failed";
/// Key of the reason in the status details.
const REASON: &str = "reason";
/// Value of the details [`COEXISTENCE`] and [`FLOW_LIST`].
const UNSUPPORTED: &str = "unsupported";
/// Delay before a report is submitted again, and longest wait for the row that shows a status.
const RETRY: Duration = Duration::from_secs(1);
/// Delay after a refused status, which nothing but a change of the state would allow.
const REFUSED_RETRY: Duration = Duration::from_secs(30);
/// Unsubmitted audit events that are kept; older ones are dropped.
const MAX_EVENTS: usize = 16;
/// Longest reason in a report, in bytes; the leader refuses reports that are too large.
const REASON_BYTES: usize = 2 << 10;

/// A command for the leader.
#[derive(Clone, Debug, PartialEq)]
pub struct Report(pub Payload);

/// Outcome of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is part of the state.
    Committed,
    /// It certainly is not, and may be submitted again.
    Unavailable,
    /// It may be.
    Unknown,
    /// The leader refused it.
    Refused,
}

#[derive(Clone, Debug)]
enum Pending {
    /// Whether it ends a time without isolation, and the status.
    Status(bool, v1::NodeStatusUpdate),
    Event,
}

/// Queue of reports; at most one is being submitted.
#[derive(Clone, Debug)]
pub(super) struct Reports {
    host: String,
    row: Option<Arc<v1::Node>>,
    events: VecDeque<BTreeMap<String, String>>,
    pending: Option<Pending>,
    leader_known: bool,
    /// Status that may be committed while the row is an older one.
    awaited: Option<v1::NodeStatusUpdate>,
    status_not_before: Option<Instant>,
    events_not_before: Option<Instant>,
    exemption_errors: BTreeMap<Exemption, String>,
    /// Whether the engine's own rules are out of reach, once that was looked at.
    legacy: Option<bool>,
}

impl Reports {
    pub(super) fn new(host: &str, state: &State) -> Self {
        Self {
            host: host.to_owned(),
            row: state.nodes.get(host).cloned(),
            events: VecDeque::new(),
            pending: None,
            leader_known: false,
            awaited: None,
            status_not_before: None,
            events_not_before: None,
            exemption_errors: BTreeMap::new(),
            legacy: None,
        }
    }

    pub(super) fn handle_state(&mut self, state: &State) {
        self.row = state.nodes.get(&self.host).cloned();
        self.check_awaited();
    }

    /// Ends the wait for a status that the row shows.
    fn check_awaited(&mut self) {
        if let (Some(update), Some(row)) = (&self.awaited, &self.row)
            && shows(row, update)
        {
            (self.awaited, self.status_not_before) = (None, None);
        }
    }

    pub(super) fn handle_leader(&mut self, now: Instant, known: bool) {
        if known && !self.leader_known {
            if self.awaited.is_none() {
                self.status_not_before = self.status_not_before.map(|at| at.min(now));
            }
            self.events_not_before = self.events_not_before.map(|at| at.min(now));
        }
        self.leader_known = known;
    }

    /// Handles the outcomes of the exemptions: a failure is an event, once per error.
    pub(super) fn handle_exemptions(&mut self, outcomes: &[(Exemption, Outcome)]) {
        for (exemption, outcome) in outcomes {
            if *exemption == Exemption::InterNetwork {
                self.legacy = Some(*outcome == Outcome::Legacy);
            }
            let Outcome::Failed(error) = outcome else {
                self.exemption_errors.remove(exemption);
                continue;
            };
            let last = self.exemption_errors.insert(*exemption, error.clone());
            if last.as_ref() != Some(error) {
                let code = exemption.failure_code();
                self.event(&[("code", code), ("error", shorten(error))]);
            }
        }
    }

    pub(super) fn repaired(&mut self, summary: String) {
        self.event(&[("action", "applied"), ("summary", &summary)]);
    }

    pub(super) fn self_test_failed(&mut self, error: &str) {
        self.event(&[("code", SELF_TEST_FAILED), ("error", shorten(error))]);
    }

    pub(super) fn handle_submitted(&mut self, now: Instant, outcome: Submitted) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        match (pending, outcome) {
            (Pending::Status(recovers, update), Submitted::Committed | Submitted::Unknown) => {
                if recovers && outcome == Submitted::Committed {
                    self.event(&[("action", "recovered")]);
                }
                self.awaited = Some(update);
                self.status_not_before = Some(now + RETRY);
                self.check_awaited();
            }
            (Pending::Status(..), Submitted::Refused) => {
                self.status_not_before = Some(now + REFUSED_RETRY);
            }
            // A second event would be wrong; a lost one is not.
            (Pending::Event, Submitted::Committed | Submitted::Unknown | Submitted::Refused) => {
                self.events.pop_front();
            }
            (_, Submitted::Unavailable) => {
                self.status_not_before = self.status_not_before.max(Some(now + RETRY));
                self.events_not_before = Some(now + RETRY);
            }
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.status_not_before.is_some_and(|at| at <= now) {
            (self.awaited, self.status_not_before) = (None, None);
        }
        if self.events_not_before.is_some_and(|at| at <= now) {
            self.events_not_before = None;
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let both = [self.status_not_before, self.events_not_before];
        both.into_iter().flatten().min()
    }

    /// Returns the next report, given the state of the isolation and the verdict on the network.
    pub(super) fn poll(
        &mut self,
        isolation: &IsolationStatus,
        kernel: (&MeshStatus, Option<bool>),
        network: &Readiness,
    ) -> Option<Report> {
        if self.pending.is_some() || !self.leader_known {
            return None;
        }
        if self.status_not_before.is_none()
            && let Some(update) = self.status_update(isolation, kernel, network)
        {
            let lost = NodeStatus::IsolationUnavailable;
            let row = self.row.as_ref();
            let was_lost = row.is_some_and(|row| row.status() == lost);
            let recovers = was_lost && update.status() != lost;
            self.pending = Some(Pending::Status(recovers, update.clone()));
            return Some(Report(Payload::NodeStatusUpdate(update)));
        }
        if self.events_not_before.is_some() {
            return None;
        }
        let payload = self.events.front()?.clone();
        self.pending = Some(Pending::Event);
        let event = v1::AuditEvent {
            r#type: AuditEventType::IsolationRulesetReconciled.into(),
            identity: FIREWALL.to_owned(),
            payload,
            ..Default::default()
        };
        Some(Report(Payload::AuditAppend(v1::AuditAppend {
            event: Some(event),
        })))
    }

    /// Returns the status that this node should have and has not.
    ///
    /// Judged by the row alone, so that a restarted process neither repeats a status nor leaves a
    /// stale one.
    fn status_update(
        &self,
        isolation: &IsolationStatus,
        kernel: (&MeshStatus, Option<bool>),
        network: &Readiness,
    ) -> Option<v1::NodeStatusUpdate> {
        let row = self.row.as_ref()?;
        // The details of others are kept.
        let mut details = row.status_details.clone();
        details.remove(LOST);
        let (status, reason) = match (isolation, row.status()) {
            // A leaving node keeps its status.
            (IsolationStatus::Unavailable(_), _) if leaving(row) => return None,
            (
                IsolationStatus::Unavailable(reason),
                NodeStatus::Ready | NodeStatus::Joining | NodeStatus::IsolationUnavailable,
            ) => (NodeStatus::IsolationUnavailable, shorten(reason)),
            (IsolationStatus::Enforced, NodeStatus::IsolationUnavailable) => {
                for key in [ISOLATION, MESH] {
                    details.remove(key);
                }
                let status = recovered_status(row, network, &mut details)?;
                (status, RELOAD_RECOVERED)
            }
            (IsolationStatus::Enforced, NodeStatus::Ready) => {
                self.fill(&mut details, kernel);
                let differs = details != row.status_details;
                return differs.then(|| v1::NodeStatusUpdate {
                    hostname: self.host.clone(),
                    status: row.status,
                    details,
                    ..Default::default()
                });
            }
            (
                IsolationStatus::Unavailable(_)
                | IsolationStatus::Enforced
                | IsolationStatus::Pending
                | IsolationStatus::Off,
                _,
            ) => return None,
        };
        details.insert(REASON.to_owned(), reason.to_owned());
        let update = v1::NodeStatusUpdate {
            hostname: self.host.clone(),
            status: status.into(),
            details,
            ..Default::default()
        };
        (!shows(row, &update)).then_some(update)
    }

    /// Fills in the details of a node that isolates deployments; the kernel may list no connections.
    fn fill(
        &self,
        details: &mut BTreeMap<String, String>,
        (mesh, lists_flows): (&MeshStatus, Option<bool>),
    ) {
        let legacy = self
            .legacy
            .map(|legacy| legacy.then(|| UNSUPPORTED.to_owned()));
        let flows = lists_flows.map(|lists| (!lists).then(|| UNSUPPORTED.to_owned()));
        let routes = match mesh {
            MeshStatus::ForeignRoutes { routes, .. } => Some(Some(shorten(routes).to_owned())),
            MeshStatus::Up | MeshStatus::Partial { .. } => Some(None),
            // Nothing is known about them.
            _ => None,
        };
        for (key, value) in [
            (COEXISTENCE, legacy),
            (FLOW_LIST, flows),
            (FOREIGN_ROUTES, routes),
        ] {
            match value {
                Some(Some(value)) => drop(details.insert(key.to_owned(), value)),
                Some(None) => drop(details.remove(key)),
                None => {}
            }
        }
    }

    fn event(&mut self, entries: &[(&str, &str)]) {
        let node = ("node", self.host.as_str());
        let entries = entries.iter().copied().chain([node]);
        let event = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let event = event.collect();
        if self.events.len() == MAX_EVENTS {
            // The first one may be in flight.
            self.events.remove(1);
        }
        self.events.push_back(event);
    }
}

/// Whether `row` has the status of `update` for the same reason, and the same details of this actor.
fn shows(row: &v1::Node, update: &v1::NodeStatusUpdate) -> bool {
    let same = |key| row.status_details.get(key) == update.details.get(key);
    let keys = [REASON, COEXISTENCE, FLOW_LIST, FOREIGN_ROUTES];
    row.status() == update.status() && keys.into_iter().all(same)
}

/// Status of a node that isolates deployments again; its details are added. A node that lacks
/// something else waits for it as a joining one does, but one that leaves cannot join.
fn recovered_status(
    row: &v1::Node,
    network: &Readiness,
    details: &mut BTreeMap<String, String>,
) -> Option<NodeStatus> {
    if let Readiness::Ready(more) = network {
        let more = more.iter();
        details.extend(more.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        return Some(NodeStatus::Ready);
    }
    (!leaving(row)).then_some(NodeStatus::Joining)
}

/// The beginning of a reason that fits into a report.
fn shorten(reason: &str) -> &str {
    let mut end = reason.len().min(REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}
