use jaco_state::State;

use super::*;
use crate::network::{probe::paths::tests::all_live, testing::state};

const RTT: Duration = Duration::from_millis(2);

/// A host with one network, which is also on another host beside a second network.
struct Fixture {
    core: Core,
    now: Instant,
}

fn blocks() -> State {
    state(&[
        ("a", "_default", "h1", "10.244.1.0/24"),
        ("a", "_default", "h2", "10.244.2.0/24"),
        ("b", "_default", "h2", "10.244.3.0/24"),
    ])
}

fn own() -> NetworkId {
    NetworkId::new("a", "_default")
}

impl Fixture {
    fn new() -> Self {
        let mut fixture = Self {
            core: Core::default(),
            now: Instant::now(),
        };
        fixture.paths(&blocks());
        fixture
    }

    fn paths(&mut self, state: &State) {
        let paths = Paths::new(state, "h1", &all_live(state));
        self.core.handle_paths(self.now, paths);
    }

    /// Runs the next round; a path with an expectation in `answering` answers. Returns the actions
    /// other than probes.
    fn round(&mut self, answering: &[Expectation]) -> Vec<Action> {
        self.now = self.core.poll_timeout().unwrap();
        self.core.handle_timeout(self.now);
        assert!(self.core.poll_timeout() > Some(self.now));
        let mut others = Vec::new();
        let mut sent = Vec::new();
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Send(probe) => sent.push(probe),
                other => others.push(other),
            }
        }
        for probe in sent {
            let outcome = match answering.contains(&probe.expectation) {
                true => Outcome::Answered(RTT),
                false => Outcome::Silent,
            };
            self.core.handle_outcome(self.now, probe.id, outcome);
        }
        others.extend(std::iter::from_fn(|| self.core.poll_action()));
        others
    }

    fn judgements(&self) -> [Judgement; 2] {
        let verdicts: Vec<_> = self.core.verdicts().collect();
        [verdicts[0].judgement, verdicts[1].judgement]
    }
}

use Expectation::{Allowed, Forbidden};
use Judgement::{AsExpected, Untested, Violated};

#[test]
fn healthy_paths_are_probed_at_the_interval() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.judgements(), [Untested; 2]);
    fixture.round(&[Allowed]);
    let first = fixture.now;
    assert_eq!(fixture.judgements(), [AsExpected; 2]);
    assert!(fixture.round(&[Allowed]).is_empty());
    assert_eq!(fixture.now, first + INTERVAL);
    let verdicts: Vec<_> = fixture.core.verdicts().collect();
    let (target, at, outcome) = verdicts[0].last.clone().unwrap();
    assert_eq!(target.address.to_string(), "10.244.2.254");
    assert_eq!((at, outcome), (fixture.now, Outcome::Answered(RTT)));
    let quality = fixture.core.links().of("h2").unwrap();
    assert_eq!((quality.loss, quality.rtt), (0.0, Some(RTT)));
    // A host that left is forgotten.
    fixture.core.handle_paths(fixture.now, Paths::default());
    assert_eq!(fixture.core.links().of("h2"), None);
}

#[test]
fn allowed_path_fails_after_three_misses() {
    let mut fixture = Fixture::new();
    fixture.round(&[Allowed]);
    for (round, expected) in [
        (1, AsExpected),
        (2, AsExpected),
        (3, Violated),
        (4, Violated),
    ] {
        let before = fixture.now;
        assert!(fixture.round(&[]).is_empty());
        assert_eq!(fixture.judgements()[0], expected, "{round}");
        let pause = fixture.now - before;
        assert_eq!(
            pause,
            if matches!(round, 2 | 3) {
                RETRY
            } else {
                INTERVAL
            }
        );
    }
    fixture.round(&[Allowed]);
    assert_eq!(fixture.judgements(), [AsExpected; 2]);
}

#[test]
fn one_answer_on_a_forbidden_path_breaches() {
    let mut fixture = Fixture::new();
    let actions = fixture.round(&[Allowed, Forbidden]);
    let [Action::Breached(breach)] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(breach.from, own());
    assert_eq!(breach.target.address.to_string(), "10.244.3.254");
    assert_eq!(fixture.judgements(), [AsExpected, Violated]);
    // The same breach is not new.
    assert!(fixture.round(&[Allowed, Forbidden]).is_empty());
    assert!(fixture.round(&[Allowed]).is_empty());
    assert!(fixture.round(&[Allowed, Forbidden]).is_empty());
    for _ in 1..MISSES {
        assert!(fixture.round(&[Allowed]).is_empty());
        assert_eq!(fixture.judgements()[1], Violated);
    }
    assert_eq!(fixture.round(&[Allowed]), [Action::Cleared(breach.clone())]);
    assert_eq!(fixture.judgements(), [AsExpected; 2]);
    let again = fixture.round(&[Forbidden]);
    assert_eq!(again, [Action::Breached(breach.clone())]);
}

#[test]
fn removed_block_ends_its_faults() {
    let mut fixture = Fixture::new();
    for _ in 0..MISSES {
        fixture.round(&[Forbidden]);
    }
    assert_eq!(fixture.judgements(), [Violated; 2]);
    fixture.paths(&state(&[("a", "_default", "h1", "10.244.1.0/24")]));
    assert!(matches!(
        fixture.core.poll_action(),
        Some(Action::Cleared(_))
    ));
    assert_eq!(fixture.judgements(), [AsExpected; 2]);
    fixture.paths(&State::default());
    assert_eq!(fixture.core.verdicts().count(), 0);
    assert_eq!(fixture.core.poll_timeout(), None);
}

#[test]
fn unsent_and_late_probes_change_no_verdict() {
    let mut fixture = Fixture::new();
    fixture.now = fixture.core.poll_timeout().unwrap();
    fixture.core.handle_timeout(fixture.now);
    let mut ids = Vec::new();
    while let Some(Action::Send(probe)) = fixture.core.poll_action() {
        ids.push(probe.id);
        fixture
            .core
            .handle_outcome(fixture.now, probe.id, Outcome::NotSent);
    }
    assert_eq!(ids.len(), 2);
    for id in ids {
        let late = Outcome::Answered(RTT);
        fixture.core.handle_outcome(fixture.now, id, late);
    }
    assert_eq!(fixture.judgements(), [Untested; 2]);
    assert_eq!(fixture.core.poll_action(), None);
    // A probe of a network that is removed before the answer.
    fixture.now = fixture.core.poll_timeout().unwrap();
    fixture.core.handle_timeout(fixture.now);
    let Some(Action::Send(probe)) = fixture.core.poll_action() else {
        panic!("no probe");
    };
    fixture.paths(&State::default());
    let silent = Outcome::Silent;
    fixture.core.handle_outcome(fixture.now, probe.id, silent);
    assert_eq!(fixture.core.verdicts().count(), 0);
}

#[test]
fn suspects_of_a_round_are_limited() {
    let rows: Vec<_> = (0..200)
        .map(|at| (format!("h{at}"), format!("10.244.{at}.0/24")))
        .collect();
    let rows: Vec<_> = rows
        .iter()
        .map(|(host, block)| ("a", "_default", host.as_str(), block.as_str()))
        .collect();
    let mut fixture = Fixture::new();
    fixture.paths(&state(&rows));
    for _ in 0..300 {
        fixture.now = fixture.core.poll_timeout().unwrap();
        fixture.core.handle_timeout(fixture.now);
        let mut sent = 0;
        while let Some(action) = fixture.core.poll_action() {
            let Action::Send(probe) = action else {
                continue;
            };
            sent += 1;
            let silent = Outcome::Silent;
            fixture.core.handle_outcome(fixture.now, probe.id, silent);
        }
        assert!(sent <= ROUND_SUSPECTS + 1, "{sent}");
    }
    let verdicts: Vec<_> = fixture.core.verdicts().collect();
    assert_eq!(verdicts[0].violations.len(), MAX_SUSPECTS);
}

#[test]
fn many_networks_share_wake_ups() {
    let names: Vec<String> = (0..100).map(|n| format!("d{n:02}")).collect();
    let cidrs: Vec<String> = (0..100).map(|n| format!("10.244.{n}.0/24")).collect();
    let rows = names.iter().zip(&cidrs);
    let rows: Vec<_> = rows.map(|(d, c)| (&**d, "_default", "h1", &**c)).collect();
    let state = state(&rows);
    let mut core = Core::default();
    let start = Instant::now();
    core.handle_paths(start, Paths::new(&state, "h1", &all_live(&state)));
    assert_eq!(core.interval(), ROUND_SPACING * 100);
    let mut last = BTreeMap::new();
    let mut wake_ups = 0;
    loop {
        let now = core.poll_timeout().unwrap();
        if now > start + core.interval() * 5 {
            break;
        }
        wake_ups += 1;
        core.handle_timeout(now);
        assert!(core.poll_timeout() > Some(now));
        while let Some(Action::Send(probe)) = core.poll_action() {
            let outcome = match probe.expectation {
                Allowed => Outcome::Answered(RTT),
                Forbidden => Outcome::Silent,
            };
            core.handle_outcome(now, probe.id, outcome);
            if let Some(before) = last.insert((probe.from, probe.expectation), now) {
                let pause = now - before;
                assert!(pause + BATCH >= core.interval() && pause <= core.interval());
            } else {
                assert!(now >= start + FIRST_ROUND);
            }
        }
    }
    assert_eq!(last.len(), 200, "two paths of each network");
    // The first rounds are spread over two seconds, each at a time of its own.
    assert!(wake_ups <= 100 + 4 * 5, "{wake_ups}");
}
