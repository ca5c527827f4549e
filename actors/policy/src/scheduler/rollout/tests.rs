use proptest::prelude::*;

use super::*;

const IDS: [&str; 6] = ["r0", "r1", "r2", "r3", "r4", "r5"];

const TARGET: Target = Target {
    revision: 2,
    secrets_version: 0,
};

const OLD: Progress = Progress::Outdated {
    serves: true,
    secrets_only: false,
};
const IDLE: Progress = Progress::Outdated {
    serves: false,
    secrets_only: false,
};
const AWAY: Progress = Progress::Unreachable { outdated: true };

/// A run of a container.
fn run(number: u64) -> Progress {
    Progress::ready(&v1::ReplicaObserved {
        desired_raft_index: number,
        ..Default::default()
    })
}

fn failed() -> Progress {
    Progress::Failed("no such image".to_owned())
}

/// A service, its plan in the state, and the rollouts of a leader.
struct Fixture {
    plan: Option<v1::RolloutPlan>,
    target: Target,
    settings: Settings,
    may_start: bool,
    is_held: bool,
    rollouts: Rollouts,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        Self {
            plan: None,
            target: TARGET,
            settings: Settings::default(),
            may_start: true,
            is_held: false,
            rollouts: Rollouts::default(),
            now: Instant::now(),
        }
    }

    fn with(update: &UpdateConfig) -> Self {
        Self {
            settings: Settings::from(update),
            ..Self::new()
        }
    }

    /// Takes a step that replicas with this progress need, and stores its plan.
    fn step(&mut self, replicas: &[Progress]) -> Step<'static> {
        let replicas: Vec<Replica<'static>> = IDS
            .iter()
            .zip(replicas)
            .map(|(id, progress)| Replica {
                id,
                progress: progress.clone(),
            })
            .collect();
        let service = Service {
            key: ("app", "web"),
            plan: self.plan.as_ref(),
            target: self.target,
            settings: self.settings,
            replicas: &replicas,
            may_start: self.may_start,
            is_held: self.is_held,
        };
        self.rollouts.begin_pass();
        let step = self.rollouts.step(service, self.now, Timestamp::default());
        let step = Step {
            replace: step
                .replace
                .iter()
                .filter_map(|id| IDS.iter().find(|known| *known == id).copied())
                .collect(),
            plan: step.plan,
            ..step
        };
        if step.plan.is_some() {
            self.plan.clone_from(&step.plan);
        }
        step
    }

    /// Ids that a step replaces.
    fn replaced(&mut self, replicas: &[Progress]) -> Vec<&'static str> {
        self.step(replicas).replace.into_iter().collect()
    }

    fn pass_time(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn state(&self) -> RolloutState {
        let plan = self.plan.as_ref();
        plan.map_or(RolloutState::Unspecified, v1::RolloutPlan::state)
    }

    fn reason(&self) -> &str {
        self.plan.as_ref().map_or("", |plan| &plan.failure_reason)
    }
}

#[test]
fn replicas_are_replaced_one_at_a_time() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.replaced(&[OLD, OLD, OLD]), ["r0"]);
    assert_eq!(fixture.state(), RolloutState::InProgress);
    assert_eq!(fixture.replaced(&[Progress::Updating, OLD, OLD]), [""; 0]);
    // The first one has to run for a while.
    assert_eq!(fixture.replaced(&[run(1), OLD, OLD]), [""; 0]);
    assert_eq!(fixture.rollouts.poll_timeout(), Some(fixture.now + MONITOR));
    fixture.now += MONITOR;
    assert_eq!(fixture.replaced(&[run(1), OLD, OLD]), ["r1"]);
    assert_eq!(
        fixture.replaced(&[run(1), Progress::Updating, OLD]),
        [""; 0]
    );
    // The next one does not.
    assert_eq!(fixture.replaced(&[run(1), run(2), OLD]), ["r2"]);
    assert_eq!(fixture.replaced(&[run(1), run(2), run(3)]), [""; 0]);
    assert_eq!(fixture.state(), RolloutState::InProgress);
    fixture.now += MONITOR;
    assert_eq!(fixture.replaced(&[run(1), run(2), run(3)]), [""; 0]);
    assert_eq!(fixture.state(), RolloutState::Completed);
    let plan = fixture.plan.clone().unwrap();
    assert_eq!((plan.current_step, plan.total_steps), (3, 3));
    assert_eq!(fixture.step(&[run(1), run(2), run(3)]), Step::default());
    assert_eq!(fixture.rollouts.poll_timeout(), None);
}

#[test]
fn held_rollout_neither_continues_nor_fails() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.replaced(&[OLD, OLD]), ["r0"]);
    fixture.is_held = true;
    for seconds in [0, 5, 100] {
        fixture.pass_time(seconds);
        for first in [run(1), Progress::Updating, failed()] {
            assert_eq!(fixture.step(&[first, OLD]), Step::default());
        }
        assert_eq!(fixture.rollouts.poll_timeout(), None);
    }
    assert_eq!(fixture.state(), RolloutState::InProgress);
    fixture.is_held = false;
    // Its times are counted anew.
    assert_eq!(fixture.replaced(&[run(1), OLD]), [""; 0]);
    fixture.now += MONITOR;
    assert_eq!(fixture.replaced(&[run(1), OLD]), ["r1"]);
}

#[test]
fn held_rollout_does_not_begin() {
    let mut fixture = Fixture {
        is_held: true,
        ..Fixture::new()
    };
    assert_eq!(fixture.step(&[OLD, IDLE, AWAY]), Step::default());
    fixture.is_held = false;
    assert_eq!(fixture.replaced(&[OLD, OLD]), ["r0"]);
    // Another one that has to overtake it waits too.
    fixture.is_held = true;
    fixture.target.revision += 1;
    assert_eq!(fixture.step(&[run(1), OLD]), Step::default());
    fixture.is_held = false;
    fixture.replaced(&[run(1), OLD]);
    assert_eq!(fixture.plan.clone().unwrap().target_revision, 3);
}

#[test]
fn nothing_begins_without_an_outdated_replica() {
    let mut fixture = Fixture::new();
    for replicas in [&[][..], &[run(1), Progress::Updating], &[failed()]] {
        assert_eq!(fixture.step(replicas), Step::default(), "{replicas:?}");
    }
    fixture.may_start = false;
    assert_eq!(fixture.step(&[OLD]), Step::default());
}

#[test]
fn parallelism_limits_replicas_that_do_not_run() {
    use Progress::Updating;
    for (parallelism, replicas, expected) in [
        (Some(2), &[OLD, OLD, OLD][..], &["r0", "r1"][..]),
        (Some(2), &[Updating, OLD, OLD], &["r1"]),
        (Some(2), &[Updating, Updating, OLD], &[]),
        (Some(9), &[OLD, OLD], &["r0", "r1"]),
        // All at once, as in Swarm.
        (Some(0), &[OLD, OLD, OLD], &["r0", "r1", "r2"]),
        (None, &[OLD, OLD], &["r0"]),
        // A replica that does not serve goes first, and counts.
        (None, &[OLD, IDLE, OLD], &["r1"]),
        (Some(2), &[OLD, IDLE, OLD], &["r0", "r1"]),
        (None, &[Updating, IDLE, OLD], &[]),
        // Where none serves there is nothing to lose.
        (None, &[IDLE, IDLE, Updating], &["r0", "r1"]),
        // A host out of reach changes its replica once it is back.
        (None, &[AWAY, OLD, OLD], &["r0", "r1"]),
        (None, &[AWAY, Updating, OLD], &["r0"]),
    ] {
        let mut fixture = Fixture::with(&UpdateConfig {
            parallelism,
            ..UpdateConfig::default()
        });
        let replaced = fixture.replaced(replicas);
        assert_eq!(replaced, expected, "{parallelism:?} {replicas:?}");
    }
}

#[test]
fn next_replica_waits_for_the_delay() {
    let delay = Duration::from_secs(100);
    let mut fixture = Fixture::with(&UpdateConfig {
        delay: Some(delay),
        monitor: Some(Duration::ZERO),
        ..UpdateConfig::default()
    });
    assert_eq!(fixture.replaced(&[OLD, OLD]), ["r0"]);
    assert_eq!(fixture.replaced(&[run(1), OLD]), [""; 0]);
    assert_eq!(fixture.rollouts.poll_timeout(), Some(fixture.now + delay));
    // The delay is longer than the time of a step, which it does not take.
    fixture.pass_time(99);
    assert_eq!(fixture.replaced(&[run(1), OLD]), [""; 0]);
    fixture.pass_time(1);
    assert_eq!(fixture.replaced(&[run(1), OLD]), ["r1"]);
    fixture.step(&[run(1), run(2)]);
    assert_eq!(fixture.state(), RolloutState::Completed);
}

#[test]
fn failure_is_answered_as_the_service_asks() {
    for (action, state, paused, rolls_back) in [
        (FailureAction::Rollback, RolloutState::Aborted, false, true),
        (FailureAction::Pause, RolloutState::InProgress, true, false),
    ] {
        let mut fixture = Fixture::with(&UpdateConfig {
            failure_action: Some(action),
            ..UpdateConfig::default()
        });
        fixture.step(&[OLD, OLD]);
        let step = fixture.step(&[failed(), OLD]);
        assert_eq!(step.rolls_back, rolls_back);
        assert_eq!(fixture.reason(), "r0: no such image");
        let plan = fixture.plan.clone().unwrap();
        assert_eq!((plan.state(), plan.paused), (state, paused));
        // It is not tried again until there is another target.
        assert_eq!(fixture.step(&[failed(), OLD]), Step::default());
        fixture.target.revision = 3;
        assert_eq!(fixture.replaced(&[IDLE, OLD]), ["r0"]);
    }
    let mut fixture = Fixture::with(&UpdateConfig {
        failure_action: Some(FailureAction::Continue),
        monitor: Some(Duration::ZERO),
        ..UpdateConfig::default()
    });
    fixture.step(&[OLD, OLD]);
    assert_eq!(fixture.replaced(&[failed(), OLD]), ["r1"]);
    fixture.step(&[failed(), run(2)]);
    assert_eq!(fixture.state(), RolloutState::Completed);
}

#[test]
fn replica_must_run_in_time() {
    let mut fixture = Fixture::new();
    fixture.step(&[OLD, OLD]);
    let due = fixture.now + STEP_TIMEOUT;
    fixture.step(&[Progress::Updating, OLD]);
    assert_eq!(fixture.rollouts.poll_timeout(), Some(due));
    fixture.pass_time(59);
    fixture.step(&[Progress::Updating, OLD]);
    assert_eq!(fixture.state(), RolloutState::InProgress);
    fixture.pass_time(1);
    assert!(fixture.step(&[Progress::Updating, OLD]).rolls_back);
    assert_eq!(fixture.reason(), TIMED_OUT);
}

#[test]
fn new_leader_counts_the_time_anew() {
    let mut fixture = Fixture::new();
    fixture.step(&[OLD, OLD]);
    fixture.pass_time(59);
    fixture.rollouts = Rollouts::default();
    fixture.step(&[Progress::Updating, OLD]);
    fixture.pass_time(59);
    assert_eq!(fixture.replaced(&[Progress::Updating, OLD]), [""; 0]);
    assert_eq!(fixture.state(), RolloutState::InProgress);
}

#[test]
fn another_start_is_monitored_anew() {
    let mut fixture = Fixture::new();
    fixture.step(&[OLD, OLD]);
    fixture.step(&[run(1), OLD]);
    fixture.pass_time(4);
    let step = fixture.step(&[Progress::Updating, OLD]);
    assert_eq!(step.held, Some(1));
    assert_eq!(fixture.step(&[Progress::Updating, OLD]).held, None);
    fixture.pass_time(1);
    assert_eq!(fixture.replaced(&[run(2), OLD]), [""; 0]);
    fixture.now += MONITOR;
    assert_eq!(fixture.replaced(&[run(2), OLD]), ["r1"]);
}

#[test]
fn failed_values_of_secrets_restore_no_revision() {
    let changed = Progress::Outdated {
        serves: true,
        secrets_only: true,
    };
    let mut fixture = Fixture::new();
    fixture.plan = Some(v1::RolloutPlan {
        target_revision: 2,
        state: RolloutState::Completed.into(),
        ..Default::default()
    });
    fixture.target.secrets_version = 7;
    assert_eq!(
        fixture.replaced(&[changed.clone(), changed.clone()]),
        ["r0"]
    );
    let step = fixture.step(&[failed(), changed.clone()]);
    assert!(!step.rolls_back);
    assert_eq!(fixture.state(), RolloutState::Aborted);
    // Other values are tried again.
    fixture.target.secrets_version = 8;
    assert_eq!(fixture.replaced(&[IDLE, changed]), ["r0"]);
}

#[test]
fn later_revision_overtakes_a_rollout() {
    let mut fixture = Fixture::new();
    fixture.step(&[OLD, OLD]);
    fixture.target.revision = 3;
    let step = fixture.step(&[Progress::Updating, run(1)]);
    let plan = step.plan.unwrap();
    assert_eq!((plan.target_revision, plan.current_step), (3, 1));
    assert_eq!(plan.state(), RolloutState::InProgress);
}

#[test]
fn overtaken_rollout_ends_though_its_successor_waits() {
    let mut fixture = Fixture::new();
    fixture.step(&[OLD, OLD]);
    fixture.target.revision = 3;
    fixture.may_start = false;
    let step = fixture.step(&[IDLE, OLD]);
    assert!(step.replace.is_empty() && !step.rolls_back);
    assert_eq!(fixture.state(), RolloutState::Unspecified);
    assert_eq!(fixture.step(&[IDLE, OLD]), Step::default());
    fixture.may_start = true;
    assert_eq!(fixture.replaced(&[IDLE, OLD]), ["r0"]);
}

#[test]
fn preview_replaces_everything_outdated() {
    let mut fixture = Fixture::new();
    fixture.rollouts = Rollouts::at_once();
    let step = fixture.step(&[OLD, run(1), IDLE, AWAY]);
    assert_eq!(
        step.replace.into_iter().collect::<Vec<_>>(),
        ["r0", "r2", "r3"]
    );
    assert_eq!(step.plan, None);
}

/// Change of one replica while nothing else happens.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The new container of a replica runs.
    Starts(usize),
    /// A container of a replica stops running.
    Stops(usize),
    /// Time passes, in seconds.
    Time(u64),
    /// Another leader takes over.
    Leader,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..IDS.len()).prop_map(Event::Starts),
        1 => (0..IDS.len()).prop_map(Event::Stops),
        2 => (1..20_u64).prop_map(Event::Time),
        1 => Just(Event::Leader),
    ]
}

proptest! {
    /// No step takes down more replicas than permitted, whatever happens beside it, and a rollout
    /// whose replicas start ends.
    #[test]
    fn steps_keep_replicas_and_end(
        replicas in 1..=IDS.len(),
        parallelism in 1..4_u32,
        events in prop::collection::vec(event(), 0..40),
    ) {
        let limit = parallelism as usize;
        let mut fixture = Fixture::with(&UpdateConfig {
            parallelism: Some(parallelism),
            failure_action: Some(FailureAction::Continue),
            ..UpdateConfig::default()
        });
        let mut progress = vec![OLD; replicas];
        let mut starts = 0;
        // Enough quiet events to end each rollout.
        let ending = (0..2 * IDS.len()).flat_map(|round| {
            [Event::Starts(round % IDS.len()), Event::Time(61)]
        });
        for event in events.into_iter().chain(ending) {
            match event {
                Event::Starts(of) if progress.get(of) == Some(&Progress::Updating) => {
                    starts += 1;
                    progress[of] = run(starts);
                }
                Event::Stops(of) => match progress.get(of) {
                    Some(Progress::Outdated { .. }) => progress[of] = IDLE,
                    Some(Progress::Ready(_)) => progress[of] = Progress::Updating,
                    _ => {}
                },
                Event::Starts(_) => {}
                Event::Time(seconds) => fixture.pass_time(seconds),
                Event::Leader => fixture.rollouts = Rollouts::default(),
            }
            let step = fixture.step(&progress);
            let serving = |progress: &Progress| {
                matches!(progress, Progress::Outdated { serves: true, .. } | Progress::Ready(_))
            };
            let taken = step.replace.iter().filter(|id| {
                let at = IDS.iter().position(|known| known == *id).unwrap();
                serving(&progress[at])
            }).count();
            let down = progress.iter().filter(|progress| !serving(progress)).count();
            let skipped = fixture.rollouts.timings.values().map(|t| t.skipped.len()).sum::<usize>();
            prop_assert!(taken == 0 || taken + down <= limit + skipped, "{progress:?} {step:?}");
            for id in &step.replace {
                let at = IDS.iter().position(|known| known == id).unwrap();
                let was_outdated = matches!(progress[at], Progress::Outdated { .. });
                prop_assert!(was_outdated);
                progress[at] = Progress::Updating;
            }
        }
        prop_assert_eq!(fixture.state(), RolloutState::Completed);
    }
}
