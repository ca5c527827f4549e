//! Which members are dead, as the leader says it. Pure.
//!
//! Every node feeds its core with what it hears, leading or not, so a new leader goes on from
//! what it heard itself. Only the leader's core asks for something.
//!
//! Silence is measured in time in which this process ran: one that was stopped, or whose clock
//! ticks came late, has heard nobody through its own fault and must not blame the others.
//!
//! What is judged is what the state machine of nodes names: `ready` becomes `unhealthy` and then
//! `offline`, with or without the drain mark, which stays as it is.
//! A member that says it has stopped applying the log is `unhealthy` however often it is heard. Every
//! other status stays:
//! - `joining`: it never was ready, holds no replicas, and turns `ready` by itself;
//! - `isolation_unavailable`: its replicas are re-placed already, and its own reconciliation is
//!   what ends it; a status that also said how long it is silent would hide why;
//! - `drain_timeout`: it is given no replicas and its movable ones are re-placed already; the
//!   operator who drains it has the last word.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jaco_proto::v1::NodeStatus;

/// Time between two heartbeats of a member.
pub const BEAT: Duration = Duration::from_secs(2);
/// Heartbeats a member must miss in a row to be `unhealthy`.
pub const UNHEALTHY_MISSED: u32 = 3;
/// Heartbeats a member must miss in a row to be `offline`.
pub const OFFLINE_MISSED: u32 = 5;
/// Time a member counts as heard after its last heartbeat: three of them.
pub const HEARD_FOR: Duration = BEAT.saturating_mul(UNHEALTHY_MISSED);

/// How late the third heartbeat may be. A process that is paused for almost six seconds just
/// before a heartbeat was due is silent for almost eight, and then the way may be slow; it is not
/// ill.
const LATE: Duration = Duration::from_millis(2500);
/// Silence of an `unhealthy` member.
const UNHEALTHY_AFTER: Duration = HEARD_FOR.saturating_add(LATE);
/// Silence of an `offline` member, far enough from that.
const OFFLINE_AFTER: Duration = BEAT.saturating_mul(OFFLINE_MISSED);
/// Time between two inputs that counts in full. Ticks come several times a second; what is
/// missing beyond this is time in which this process did not run.
const STRIDE: Duration = Duration::from_secs(1);
/// Time without input after which connections may have broken through this process's fault, so
/// that everybody's silence starts over.
const STALL: Duration = HEARD_FOR;

/// What the core is told; each with the time of this node's monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// This member was heard just now.
    Heard(String),
    /// Whether this member says that it has stopped applying the log.
    Halted(String, bool),
    /// The members and their status, as the newest state has them.
    Members(BTreeMap<String, NodeStatus>),
    /// Whether this node leads and has applied an entry of its own term.
    Leads(bool),
    /// Time passed; due several times a second, also when everything is well.
    Tick,
    /// The [`Effect::Propose`] about this member came to its end, good or bad. If it was written,
    /// [`Input::Members`] has shown it before; what was not is proposed again at the next tick.
    Proposed(String),
}

/// What the core asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write that a member has this status, and tell the outcome.
    Propose {
        /// The member.
        host: String,
        /// `unhealthy` or `offline`.
        status: NodeStatus,
        /// Heartbeats it missed in a row.
        missed: u32,
        /// It is not silence that is wrong with it: it has stopped applying the log.
        halted: bool,
    },
}

/// What is known of one other member.
#[derive(Debug)]
struct Member {
    status: NodeStatus,
    /// When it was heard last, or first known of, on the clock of [`Core::ran`].
    contact: Duration,
    /// Whether it was really heard.
    heard: bool,
    /// Whether it said last that it has stopped applying the log.
    halted: bool,
    /// A verdict is on its way into the state.
    proposing: bool,
}

/// Judges the silence of the other members.
#[derive(Debug)]
pub struct Core {
    host: String,
    leading: bool,
    /// Time this process has run, as far as its inputs prove it.
    ran: Duration,
    last: Option<Instant>,
    members: BTreeMap<String, Member>,
}

impl Core {
    /// The core of member `host`, which never judges itself.
    #[must_use]
    pub fn new(host: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            leading: false,
            ran: Duration::ZERO,
            last: None,
            members: BTreeMap::new(),
        }
    }

    /// Takes one input and returns what must be done, by hostname.
    pub fn handle(&mut self, now: Instant, input: Input) -> Vec<Effect> {
        self.advance(now);
        match input {
            Input::Heard(host) => {
                let ran = self.ran;
                if let Some(member) = self.members.get_mut(&host) {
                    member.contact = ran;
                    member.heard = true;
                }
            }
            Input::Halted(host, halted) => {
                if let Some(member) = self.members.get_mut(&host) {
                    member.halted = halted;
                }
            }
            Input::Members(members) => self.set_members(members),
            Input::Leads(leads) => self.lead(leads),
            Input::Proposed(host) => {
                if let Some(member) = self.members.get_mut(&host) {
                    member.proposing = false;
                }
                // Not judged before the next tick, so that refusals do not turn into a busy loop.
                return Vec::new();
            }
            Input::Tick => {}
        }
        self.judge()
    }

    /// Members that were heard within the last three heartbeats; never this node itself.
    pub fn heard(&self) -> impl Iterator<Item = &str> {
        self.members
            .iter()
            .filter(|(_, member)| member.heard && self.silence(member) < HEARD_FOR)
            .map(|(host, _)| host.as_str())
    }

    fn advance(&mut self, now: Instant) {
        let Some(last) = self.last.replace(now) else {
            return;
        };
        let gap = now.saturating_duration_since(last);
        self.ran += gap.min(STRIDE);
        if gap >= STALL {
            let ran = self.ran;
            for member in self.members.values_mut() {
                member.contact = ran;
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
                        contact: self.ran,
                        heard: false,
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
            // Outcomes of an earlier stretch of leadership may never be told.
            for member in self.members.values_mut() {
                member.proposing = false;
            }
        }
    }

    fn silence(&self, member: &Member) -> Duration {
        self.ran.saturating_sub(member.contact)
    }

    fn judge(&mut self) -> Vec<Effect> {
        if !self.leading {
            return Vec::new();
        }
        let ran = self.ran;
        let mut effects = Vec::new();
        for (host, member) in &mut self.members {
            let silence = ran.saturating_sub(member.contact);
            let Some(status) = verdict(member.status, silence, member.halted) else {
                continue;
            };
            if std::mem::replace(&mut member.proposing, true) {
                continue;
            }
            effects.push(Effect::Propose {
                host: host.clone(),
                status,
                missed: missed(silence),
                halted: member.halted && silence < UNHEALTHY_AFTER,
            });
        }
        effects
    }
}

/// What a member of this status becomes after this silence, or because it is `halted`; one step at
/// a time.
fn verdict(status: NodeStatus, silence: Duration, halted: bool) -> Option<NodeStatus> {
    match status {
        NodeStatus::Ready => {
            (halted || silence >= UNHEALTHY_AFTER).then_some(NodeStatus::Unhealthy)
        }
        NodeStatus::Unhealthy => (silence >= OFFLINE_AFTER).then_some(NodeStatus::Offline),
        NodeStatus::Unspecified
        | NodeStatus::Joining
        | NodeStatus::Offline
        | NodeStatus::IsolationUnavailable
        | NodeStatus::DrainTimeout => None,
    }
}

/// Heartbeats that were due in a silence.
fn missed(silence: Duration) -> u32 {
    u32::try_from(silence.as_millis() / BEAT.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
