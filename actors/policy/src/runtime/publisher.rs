//! Decides which observation of a replica is proposed next. Pure.
//!
//! Proposals of one replica are sequential, so that observations are written in their order. Only
//! the newest observation of a replica waits: an outage of raft delays observations without using
//! more memory.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use jaco_proto::v1::ReplicaObserved;

/// Delay after a proposal that raft did not accept.
const RETRY: Duration = Duration::from_millis(500);
/// Proposals in flight at most; raft batches proposals that arrive together.
pub const MAX_IN_FLIGHT: usize = 64;

/// Action that the shell must carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Propose this observation and report the end with [`Core::handle_proposed`].
    Propose(Box<ReplicaObserved>),
}

/// End of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was written, or rejected for good.
    Done,
    /// It was not written, or its outcome is unknown; writing it twice does no harm.
    Failed,
}

/// Observations of the replicas of one host on their way into the state.
#[derive(Debug, Default)]
pub struct Core {
    /// The newest observation of each replica that is not proposed yet.
    waiting: BTreeMap<String, ReplicaObserved>,
    in_flight: BTreeMap<String, ReplicaObserved>,
    paused_until: Option<Instant>,
    actions: VecDeque<Action>,
}

impl Core {
    /// Handles a new observation; it replaces the one of the same replica that still waits.
    pub fn handle_report(&mut self, row: ReplicaObserved) {
        self.waiting.insert(row.id.clone(), row);
        self.propose();
    }

    /// Handles the end of the proposal for replica `id`.
    pub fn handle_proposed(&mut self, now: Instant, id: &str, outcome: Outcome) {
        let Some(row) = self.in_flight.remove(id) else {
            return;
        };
        match outcome {
            Outcome::Done => {}
            Outcome::Failed => {
                // A newer observation may have come meanwhile.
                self.waiting.entry(row.id.clone()).or_insert(row);
                self.paused_until.get_or_insert(now + RETRY);
            }
        }
        self.propose();
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.propose();
        }
    }

    /// Takes the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Time at which to call [`Core::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Number of observations that wait for their proposal.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether every observation is written.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }

    fn propose(&mut self) {
        while self.paused_until.is_none() && self.in_flight.len() < MAX_IN_FLIGHT {
            let in_flight = &self.in_flight;
            let free = |id: &&String| !in_flight.contains_key(*id);
            let Some(id) = self.waiting.keys().find(free).cloned() else {
                return;
            };
            let Some(row) = self.waiting.remove(&id) else {
                return;
            };
            self.actions
                .push_back(Action::Propose(Box::new(row.clone())));
            self.in_flight.insert(id, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(id: &str, number: i64) -> ReplicaObserved {
        ReplicaObserved {
            id: id.to_owned(),
            message: number.to_string(),
            ..Default::default()
        }
    }

    struct Fixture {
        core: Core,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                core: Core::default(),
                now: Instant::now(),
            }
        }

        /// Proposals since the last call, as `id number`.
        fn proposed(&mut self) -> Vec<String> {
            std::iter::from_fn(|| self.core.poll_action())
                .map(|Action::Propose(row)| format!("{} {}", row.id, row.message))
                .collect()
        }

        fn report(&mut self, id: &str, number: i64) -> Vec<String> {
            self.core.handle_report(row(id, number));
            self.proposed()
        }

        fn end(&mut self, id: &str, outcome: Outcome) -> Vec<String> {
            self.core.handle_proposed(self.now, id, outcome);
            self.proposed()
        }

        fn timeout(&mut self) -> Vec<String> {
            self.now = self.core.poll_timeout().expect("a deadline");
            self.core.handle_timeout(self.now);
            self.proposed()
        }
    }

    #[test]
    fn newest_report_follows_the_one_in_flight() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.report("a", 1), ["a 1"]);
        assert_eq!(fixture.report("a", 2), [""; 0]);
        assert_eq!(fixture.report("a", 3), [""; 0]);
        assert_eq!(fixture.report("b", 1), ["b 1"], "others do not wait");
        assert_eq!(fixture.end("a", Outcome::Done), ["a 3"]);
        assert_eq!(fixture.end("a", Outcome::Done), [""; 0]);
        assert_eq!(fixture.end("b", Outcome::Done), [""; 0]);
        assert!(fixture.core.is_idle());
    }

    #[test]
    fn failed_report_never_replaces_newer_one() {
        let mut fixture = Fixture::new();
        fixture.report("a", 1);
        fixture.report("a", 2);
        assert_eq!(fixture.end("a", Outcome::Failed), [""; 0]);
        assert_eq!(fixture.timeout(), ["a 2"]);
        // Without a newer one it is proposed again.
        assert_eq!(fixture.end("a", Outcome::Failed), [""; 0]);
        assert_eq!(fixture.timeout(), ["a 2"]);
        assert_eq!(fixture.end("a", Outcome::Done), [""; 0]);
        assert!(fixture.core.is_idle());
    }

    #[test]
    fn failure_pauses_all_proposals_once() {
        let mut fixture = Fixture::new();
        fixture.report("a", 1);
        fixture.report("b", 1);
        fixture.end("a", Outcome::Failed);
        let due = fixture.core.poll_timeout();
        fixture.now += RETRY / 2;
        fixture.end("b", Outcome::Failed);
        assert_eq!(fixture.core.poll_timeout(), due);
        assert_eq!(fixture.report("c", 1), [""; 0]);
        fixture.core.handle_timeout(fixture.now);
        assert_eq!(fixture.proposed(), [""; 0], "not due yet");
        assert_eq!(fixture.timeout(), ["a 1", "b 1", "c 1"]);
    }

    #[test]
    fn proposals_in_flight_are_limited() {
        let mut fixture = Fixture::new();
        let ids: Vec<String> = (0..MAX_IN_FLIGHT + 2).map(|n| format!("{n:03}")).collect();
        let proposed: usize = ids.iter().map(|id| fixture.report(id, 1).len()).sum();
        assert_eq!((proposed, fixture.core.waiting()), (MAX_IN_FLIGHT, 2));
        assert_eq!(fixture.end(&ids[3], Outcome::Done).len(), 1);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Report(usize),
        End(usize, bool),
        Timeout,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3_usize).prop_map(Step::Report),
            4 => (0..3_usize, any::<bool>()).prop_map(|(id, done)| Step::End(id, done)),
            1 => Just(Step::Timeout),
        ]
    }

    proptest! {
        #[test]
        fn newest_report_is_written_last_and_in_order(
            steps in proptest::collection::vec(step(), 0..80),
        ) {
            let ids = ["a", "b", "c"];
            let mut fixture = Fixture::new();
            let (mut reported, mut proposed) = ([0_i64; 3], [0_i64; 3]);
            let mut written = [0_i64; 3];
            let mut in_flight = [false; 3];
            let drain = (0..40).flat_map(|_| {
                [Step::End(0, true), Step::End(1, true), Step::End(2, true), Step::Timeout]
            });
            for step in steps.into_iter().chain(drain) {
                match step {
                    Step::Report(at) => {
                        reported[at] += 1;
                        fixture.core.handle_report(row(ids[at], reported[at]));
                    }
                    Step::End(at, done) if in_flight[at] => {
                        in_flight[at] = false;
                        if done {
                            written[at] = proposed[at];
                        }
                        let outcome = if done { Outcome::Done } else { Outcome::Failed };
                        fixture.core.handle_proposed(fixture.now, ids[at], outcome);
                    }
                    Step::End(..) => {}
                    Step::Timeout => {
                        fixture.now += RETRY;
                        fixture.core.handle_timeout(fixture.now);
                    }
                }
                while let Some(Action::Propose(row)) = fixture.core.poll_action() {
                    let at = ids.iter().position(|id| *id == row.id).unwrap();
                    prop_assert!(!std::mem::replace(&mut in_flight[at], true), "two at a time");
                    let number: i64 = row.message.parse().unwrap();
                    prop_assert!(number >= proposed[at], "an old one after a newer one");
                    proposed[at] = number;
                }
            }
            prop_assert_eq!(written, reported);
            prop_assert!(fixture.core.is_idle());
        }
    }
}
