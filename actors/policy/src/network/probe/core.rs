//! Decides which path is probed next, and what the answers mean.
//!
//! Each network of the host has two lanes, one for the allowed and one for the forbidden paths. In
//! each round a lane probes its next candidate and every suspect, a path whose last probe did not go
//! as expected. An allowed path fails after [`MISSES`] probes without an answer and recovers with
//! the first answer. A forbidden path that answers once is a breach, which ends after [`MISSES`]
//! probes without an answer.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::{Duration, Instant},
};

use super::{
    Expectation,
    link_quality::LinkQuality,
    paths::{Paths, Target},
};
use crate::network::names::NetworkId;

/// Interval between the rounds of a network; longer on a host with many networks, see
/// [`ROUND_SPACING`].
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Least time from one round to the next of any network, on average: the cost of a host at rest does
/// not grow with the number of its networks.
pub const ROUND_SPACING: Duration = Duration::from_millis(400);
/// Time by which a round may be early to share the wake-up of another one.
pub const BATCH: Duration = Duration::from_millis(500);
/// Interval while a path is about to change its verdict.
pub const RETRY: Duration = Duration::from_secs(2);
/// Probes without an answer after which an allowed path fails and a breach ends.
pub const MISSES: u32 = 3;
/// Delay of the first round of a network, whose bridge and endpoint are new; another part of up to
/// [`RETRY`] spreads the networks.
pub const FIRST_ROUND: Duration = Duration::from_secs(1);
/// Suspects probed in one round.
pub const ROUND_SUSPECTS: usize = 4;
/// Suspects kept per lane.
pub const MAX_SUSPECTS: usize = 64;

/// Result of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target answered after this time.
    Answered(Duration),
    /// The target did not answer in time.
    Silent,
    /// The probe was not sent, which says nothing about the path.
    NotSent,
}

/// A probe to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Number for the outcome; never used twice.
    pub id: u64,
    /// Network whose endpoint on this host sends the probe.
    pub from: NetworkId,
    /// Destination.
    pub target: Target,
    /// Whether an answer is expected.
    pub expectation: Expectation,
}

/// A forbidden path that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Network of the probing endpoint.
    pub from: NetworkId,
    /// Endpoint that answered.
    pub target: Target,
}

/// Action for the driver to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a probe and report its outcome.
    Send(Probe),
    /// Record a new breach.
    Breached(Breach),
    /// Log the end of a breach.
    Cleared(Breach),
}

/// Verdict about the paths of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// No probe has had an outcome yet, or there is no path to probe.
    Untested,
    /// The paths behave as expected.
    AsExpected,
    /// An allowed path fails, or a forbidden path answers.
    Violated,
}

/// Verdict about the allowed or the forbidden paths of one network, with the last probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Network of the probing endpoint.
    pub from: NetworkId,
    /// Which paths.
    pub expectation: Expectation,
    /// The verdict.
    pub judgement: Judgement,
    /// Target, end and outcome of the last probe that was sent.
    pub last: Option<(Target, Instant, Outcome)>,
    /// Targets of the paths that do not behave as expected.
    pub violations: Vec<Target>,
}

/// Paths from one network with one expectation.
#[derive(Clone, Debug)]
struct Lane {
    expectation: Expectation,
    turn: usize,
    /// Probes without an answer in a row, by target.
    suspects: BTreeMap<Target, u32>,
    /// Suspect that the next round continues with.
    next_suspect: usize,
    last: Option<(Target, Instant, Outcome)>,
}

impl Lane {
    fn new(expectation: Expectation) -> Self {
        Self {
            expectation,
            turn: 0,
            suspects: BTreeMap::new(),
            next_suspect: 0,
            last: None,
        }
    }

    /// Targets of the next round.
    fn round(&mut self, from: &NetworkId, paths: &Paths) -> Vec<Target> {
        let suspects = self.suspects.keys().cycle().skip(self.next_suspect);
        let count = self.suspects.len().min(ROUND_SUSPECTS);
        let mut targets: Vec<Target> = suspects.take(count).cloned().collect();
        self.next_suspect = match self.suspects.len() {
            0 => 0,
            len => (self.next_suspect + count) % len,
        };
        if let Some(next) = paths.candidate(from, self.expectation, self.turn)
            && !self.suspects.contains_key(next)
        {
            targets.push(next.clone());
        }
        self.turn = self.turn.wrapping_add(1);
        targets
    }

    /// Whether the number of misses makes a path a violation.
    fn is_violation(&self, misses: u32) -> bool {
        match self.expectation {
            Expectation::Allowed => misses >= MISSES,
            Expectation::Forbidden => true,
        }
    }

    /// Whether further misses would change the verdict of a suspect.
    fn is_undecided(&self) -> bool {
        let mut suspects = self.suspects.values();
        match self.expectation {
            Expectation::Allowed => suspects.any(|&misses| misses < MISSES),
            Expectation::Forbidden => suspects.any(|&misses| misses > 0),
        }
    }

    /// Applies the outcome of a probe; returns whether a breach began (`true`) or ended.
    fn handle_outcome(&mut self, target: &Target, answered: bool) -> Option<bool> {
        let full = self.suspects.len() >= MAX_SUSPECTS && !self.suspects.contains_key(target);
        match (self.expectation, answered) {
            (Expectation::Allowed, true) => {
                self.suspects.remove(target);
                None
            }
            (Expectation::Allowed, false) => {
                if !full {
                    let misses = self.suspects.entry(target.clone()).or_default();
                    *misses = (*misses + 1).min(MISSES);
                }
                None
            }
            (Expectation::Forbidden, true) => {
                let is_new = !full && self.suspects.insert(target.clone(), 0).is_none();
                is_new.then_some(true)
            }
            (Expectation::Forbidden, false) => {
                let misses = self.suspects.get_mut(target)?;
                *misses += 1;
                if *misses < MISSES {
                    return None;
                }
                self.suspects.remove(target);
                Some(false)
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Network {
    next_round: Instant,
    lanes: [Lane; 2],
}

impl Network {
    /// Whether the first round was made.
    fn has_begun(&self) -> bool {
        self.lanes.iter().any(|lane| lane.turn > 0)
    }
}

/// State machine of the probes of one host; see the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Core {
    paths: Paths,
    networks: BTreeMap<NetworkId, Network>,
    in_flight: BTreeMap<u64, Probe>,
    next_id: u64,
    actions: VecDeque<Action>,
    links: LinkQuality,
}

impl Core {
    /// Handles a change of the paths.
    pub fn handle_paths(&mut self, now: Instant, paths: Paths) {
        for (from, network) in &mut self.networks {
            let is_local = paths.is_local(from);
            for lane in &mut network.lanes {
                let expectation = lane.expectation;
                lane.suspects.retain(|target, _| {
                    let kept = is_local && paths.is_current(target, expectation);
                    if !kept && expectation == Expectation::Forbidden {
                        let (from, target) = (from.clone(), target.clone());
                        self.actions
                            .push_back(Action::Cleared(Breach { from, target }));
                    }
                    kept
                });
            }
        }
        self.networks.retain(|id, _| paths.is_local(id));
        self.links.retain(|host| paths.reaches(host));
        self.in_flight
            .retain(|_, probe| paths.is_local(&probe.from));
        self.paths = paths;
        for network in self.paths.networks() {
            self.networks
                .entry(network.clone())
                .or_insert_with(|| Network {
                    next_round: now + FIRST_ROUND + spread(network),
                    lanes: [Expectation::Allowed, Expectation::Forbidden].map(Lane::new),
                });
        }
    }

    /// Handles the outcome of the probe `id`; one that was given up is ignored.
    pub fn handle_outcome(&mut self, now: Instant, id: u64, outcome: Outcome) {
        let Some(probe) = self.in_flight.remove(&id) else {
            return;
        };
        let answered = match outcome {
            Outcome::Answered(_) => true,
            Outcome::Silent => false,
            Outcome::NotSent => return,
        };
        let Some(network) = self.networks.get_mut(&probe.from) else {
            return;
        };
        let Probe {
            from,
            target,
            expectation,
            ..
        } = probe;
        if expectation == Expectation::Allowed && !self.paths.is_on_this_host(&target) {
            let rtt = match outcome {
                Outcome::Answered(rtt) => Some(rtt),
                Outcome::Silent | Outcome::NotSent => None,
            };
            self.links.handle_probe(&target.host, rtt);
        }
        let lane = &mut network.lanes[index(expectation)];
        lane.last = Some((target.clone(), now, outcome));
        // A probe of a path that changed its meaning in between says nothing.
        if !self.paths.is_current(&target, expectation) {
            return;
        }
        let began = lane.handle_outcome(&target, answered);
        if lane.is_undecided() {
            network.next_round = network.next_round.min(now + RETRY);
        }
        if let Some(began) = began {
            let breach = Breach { from, target };
            self.actions.push_back(match began {
                true => Action::Breached(breach),
                false => Action::Cleared(breach),
            });
        }
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|next| next > now) {
            return;
        }
        let interval = self.interval();
        let due = |network: &&mut Network| {
            // The first round waits for the bridge.
            let early = if network.has_begun() {
                BATCH
            } else {
                Duration::ZERO
            };
            network.next_round <= now + early
        };
        let mut probes = Vec::new();
        for (from, network) in &mut self.networks {
            let Some(network) = Some(network).filter(due) else {
                continue;
            };
            for lane in &mut network.lanes {
                for target in lane.round(from, &self.paths) {
                    probes.push((from.clone(), target, lane.expectation));
                }
            }
            // The outcomes bring the round forward if a path is about to change its verdict.
            network.next_round = now + interval;
        }
        for (from, target, expectation) in probes {
            self.next_id += 1;
            let probe = Probe {
                id: self.next_id,
                from,
                target,
                expectation,
            };
            self.in_flight.insert(probe.id, probe.clone());
            self.actions.push_back(Action::Send(probe));
        }
    }

    /// Interval between the rounds of a network, [`INTERVAL`] or longer.
    #[must_use]
    pub fn interval(&self) -> Duration {
        let networks = u32::try_from(self.networks.len()).unwrap_or(u32::MAX);
        INTERVAL.max(ROUND_SPACING.saturating_mul(networks))
    }

    /// Time at which to call [`Core::handle_timeout`]; `None` without networks.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let rounds = self.networks.values().map(|network| network.next_round);
        rounds.min()
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Verdicts about all networks of this host, in their order.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.networks.iter().flat_map(|(from, network)| {
            network.lanes.iter().map(|lane| {
                let violations = lane.suspects.iter();
                let violations: Vec<_> = violations
                    .filter(|&(_, &misses)| lane.is_violation(misses))
                    .map(|(target, _)| target.clone())
                    .collect();
                Verdict {
                    from: from.clone(),
                    expectation: lane.expectation,
                    judgement: match (&lane.last, violations.is_empty()) {
                        (_, false) => Judgement::Violated,
                        (None, true) => Judgement::Untested,
                        (Some(_), true) => Judgement::AsExpected,
                    },
                    last: lane.last.clone(),
                    violations,
                }
            })
        })
    }

    /// Quality of the paths to other hosts.
    #[must_use]
    pub fn links(&self) -> &LinkQuality {
        &self.links
    }
}

fn index(expectation: Expectation) -> usize {
    match expectation {
        Expectation::Allowed => 0,
        Expectation::Forbidden => 1,
    }
}

/// Delay from zero to [`RETRY`] that depends on the network's name only.
fn spread(network: &NetworkId) -> Duration {
    let mut hasher = DefaultHasher::new();
    network.hash(&mut hasher);
    let millis = u64::try_from(RETRY.as_millis()).unwrap_or(1);
    Duration::from_millis(hasher.finish() % millis)
}

#[cfg(test)]
mod tests;
