//! Failure detector: decides, on the leader, which members are dead. Pure.
//!
//! Every node feeds its core with received heartbeats, leader or not, so a new leader starts from
//! its own observations. Only the core of the leader requests actions.
//!
//! Silence of a member is measured in time that this process ran: after a pause of this process or
//! late ticks, the missing heartbeats may be this node's fault and must not count against the
//! member.
//!
//! Members change from `ready` or `isolation_unavailable` to `unhealthy` and then to `offline`; a
//! drain mark stays as it is, and [`isolation`](super::isolation) keeps the reason. A member that
//! reports that it stopped applying the log becomes `unhealthy` regardless of its heartbeats. Every
//! other status stays:
//! - `joining`: the member was never ready, has no replicas, and becomes `ready` by itself;
//! - `drain_timeout`: only the status tells that the drain was given up. Where the row records it, the
//!   member counts as `ready` here.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use jaco_proto::v1::NodeStatus;

/// Heartbeat interval of a member.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// Consecutive missed heartbeats after which a member may become `unhealthy`, after the allowance
/// for late ones.
pub const UNHEALTHY_MISSED: u32 = 3;
/// Consecutive missed heartbeats that make a member `offline`.
pub const OFFLINE_MISSED: u32 = 5;
/// Time for which a member counts as live after its last heartbeat: three intervals.
pub const LIVE_FOR: Duration = HEARTBEAT_INTERVAL.saturating_mul(UNHEALTHY_MISSED);

/// Allowance for a late third heartbeat. A process paused for almost 6 s just before a heartbeat
/// was due is silent for almost 8 s, plus the network delay, and is not unhealthy.
const JITTER_ALLOWANCE: Duration = Duration::from_millis(2500);
/// Silence after which a member is `unhealthy`.
pub const UNHEALTHY_AFTER: Duration = LIVE_FOR.saturating_add(JITTER_ALLOWANCE);
/// Silence after which a member is `offline`; well above [`UNHEALTHY_AFTER`].
const OFFLINE_AFTER: Duration = HEARTBEAT_INTERVAL.saturating_mul(OFFLINE_MISSED);
/// Longest time between two events that is counted. Ticks come several times a second; the excess
/// is time in which this process did not run.
const MAX_TICK_CREDIT: Duration = Duration::from_secs(1);
/// Time without an event after which connections may have broken because of this process, so the
/// silence of every member restarts from zero.
const PAUSE_THRESHOLD: Duration = LIVE_FOR;

/// Action that the shell must carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Propose this status for a member and report the end with [`Core::handle_proposed`].
    Propose {
        /// The member.
        host: String,
        /// `unhealthy` or `offline`.
        status: NodeStatus,
        /// Consecutive missed heartbeats.
        missed: u32,
        /// Whether the reason is that the member stopped applying the log, not silence.
        halted: bool,
    },
}

/// State of one other member.
#[derive(Debug)]
struct Member {
    status: NodeStatus,
    /// Time of the last heartbeat, or of the first listing, on the clock of [`Core::ran`].
    last_contact: Duration,
    /// Whether a heartbeat arrived since it was listed.
    contacted: bool,
    /// Whether its last heartbeat reported that it stopped applying the log.
    halted: bool,
    /// A proposed status change is in flight.
    proposing: bool,
}

/// Failure detector for the other members.
#[derive(Debug)]
pub struct Core {
    host: String,
    leading: bool,
    /// Run time of this process as proven by its events; see [`MAX_TICK_CREDIT`].
    ran: Duration,
    last: Option<Instant>,
    members: BTreeMap<String, Member>,
    actions: VecDeque<Action>,
}

impl Core {
    /// Returns the core of member `host`, which never judges `host` itself.
    #[must_use]
    pub fn new(host: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            leading: false,
            ran: Duration::ZERO,
            last: None,
            members: BTreeMap::new(),
            actions: VecDeque::new(),
        }
    }

    /// Handles a heartbeat of member `host`.
    pub fn handle_heartbeat(&mut self, now: Instant, host: &str) {
        self.advance(now);
        let ran = self.ran;
        if let Some(member) = self.members.get_mut(host) {
            member.last_contact = ran;
            member.contacted = true;
        }
        self.evaluate();
    }

    /// Handles the report of member `host` whether it stopped applying the log.
    pub fn handle_halted(&mut self, now: Instant, host: &str, halted: bool) {
        self.advance(now);
        if let Some(member) = self.members.get_mut(host) {
            member.halted = halted;
        }
        self.evaluate();
    }

    /// Handles the members and their status in the newest state.
    pub fn handle_members(&mut self, now: Instant, members: BTreeMap<String, NodeStatus>) {
        self.advance(now);
        self.set_members(members);
        self.evaluate();
    }

    /// Handles whether this node leads and has applied an entry of its own term.
    pub fn handle_leads(&mut self, now: Instant, leads: bool) {
        self.advance(now);
        self.lead(leads);
        self.evaluate();
    }

    /// Handles the end of the [`Action::Propose`] for `host`. If it was committed,
    /// [`Core::handle_members`] must have come before; otherwise it is proposed again at the next
    /// tick.
    pub fn handle_proposed(&mut self, now: Instant, host: &str) {
        self.advance(now);
        // Judged at the next tick only, so that a rejected proposal is not retried in a busy loop.
        if let Some(member) = self.members.get_mut(host) {
            member.proposing = false;
        }
    }

    /// Handles a timer tick, due several times a second in any case. There is no deadline to sleep
    /// until: only regular ticks prove that this process runs, which is the time that counts.
    pub fn handle_tick(&mut self, now: Instant) {
        self.advance(now);
        self.evaluate();
    }

    /// Takes the next action; those of one event are ordered by hostname.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Members with a heartbeat within [`LIVE_FOR`]; never this node itself.
    pub fn live(&self) -> impl Iterator<Item = &str> {
        self.members
            .iter()
            .filter(|(_, member)| member.contacted && self.silence(member) < LIVE_FOR)
            .map(|(host, _)| host.as_str())
    }

    fn advance(&mut self, now: Instant) {
        let Some(last) = self.last.replace(now) else {
            return;
        };
        let gap = now.saturating_duration_since(last);
        self.ran += gap.min(MAX_TICK_CREDIT);
        if gap >= PAUSE_THRESHOLD {
            let ran = self.ran;
            for member in self.members.values_mut() {
                member.last_contact = ran;
            }
        }
    }

    fn set_members(&mut self, mut members: BTreeMap<String, NodeStatus>) {
        members.remove(&self.host);
        self.members.retain(|host, _| members.contains_key(host));
        for (host, status) in members {
            match self.members.get_mut(&host) {
                Some(member) => member.status = status,
                None => {
                    let member = Member {
                        status,
                        last_contact: self.ran,
                        contacted: false,
                        halted: false,
                        proposing: false,
                    };
                    self.members.insert(host, member);
                }
            }
        }
    }

    fn lead(&mut self, leads: bool) {
        if self.leading != leads {
            self.leading = leads;
            // The end of a proposal from an earlier leadership may never be reported.
            for member in self.members.values_mut() {
                member.proposing = false;
            }
        }
    }

    fn silence(&self, member: &Member) -> Duration {
        self.ran.saturating_sub(member.last_contact)
    }

    fn evaluate(&mut self) {
        if !self.leading {
            return;
        }
        let ran = self.ran;
        for (host, member) in &mut self.members {
            let silence = ran.saturating_sub(member.last_contact);
            let Some(status) = next_status(member.status, silence, member.halted) else {
                continue;
            };
            if std::mem::replace(&mut member.proposing, true) {
                continue;
            }
            self.actions.push_back(Action::Propose {
                host: host.clone(),
                status,
                missed: missed(silence),
                halted: member.halted && silence < UNHEALTHY_AFTER,
            });
        }
    }
}

/// Next status of a member after this `silence`, or because it is `halted`; at most one step at a
/// time. `None` if the status stays.
fn next_status(status: NodeStatus, silence: Duration, halted: bool) -> Option<NodeStatus> {
    match status {
        NodeStatus::Ready | NodeStatus::IsolationUnavailable => {
            (halted || silence >= UNHEALTHY_AFTER).then_some(NodeStatus::Unhealthy)
        }
        NodeStatus::Unhealthy => (silence >= OFFLINE_AFTER).then_some(NodeStatus::Offline),
        NodeStatus::Unspecified
        | NodeStatus::Joining
        | NodeStatus::Offline
        | NodeStatus::DrainTimeout => None,
    }
}

/// Number of heartbeats that were due during `silence`.
fn missed(silence: Duration) -> u32 {
    u32::try_from(silence.as_millis() / HEARTBEAT_INTERVAL.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
