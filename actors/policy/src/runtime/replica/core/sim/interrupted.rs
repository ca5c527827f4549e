//! Starts whose gate or row changes during one of their actions.

use super::*;

/// How a start comes about.
#[derive(Clone, Copy, Debug)]
enum Cause {
    NewRow,
    /// The container of the row failed.
    Failure,
    /// The container of the row stopped while the actor was down.
    ActorRestart,
}

/// Point at which the cluster changes during an action in flight.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Before the driver sends the request.
    Unsent,
    /// After the driver sent the request.
    Sent,
    /// After the driver sent the request; the core gets the assignment at once.
    Dispatched,
}

impl Simulation {
    /// Runs without faults until the oldest action in flight is one of `kind`.
    fn run_until(&mut self, kind: fn(&Action) -> bool) -> bool {
        for _ in 0..60 {
            match self.inflight.front() {
                Some(front) if kind(&front.action) => return true,
                Some(_) => self.step(Step::Answer),
                None => self.step(Step::Timeout),
            }
        }
        false
    }

    /// The simulation of a start, up to an action of `kind`; `None` if it does not come to that.
    fn starting(cause: Cause, kind: fn(&Action) -> bool) -> Option<Self> {
        let mut simulation = Self::new();
        if !matches!(cause, Cause::NewRow) {
            simulation.run_until_idle();
            simulation.assert_converged();
            simulation.step(Step::Crash);
        }
        if matches!(cause, Cause::ActorRestart) {
            simulation.step(Step::Kill { late: false });
        }
        simulation.run_until(kind).then_some(simulation)
    }
}

/// Changes what the start in flight depends on, then ends the action in flight.
fn interrupt(simulation: &mut Simulation, change: Step, moment: Moment, end: Step) {
    if !matches!(moment, Moment::Unsent) {
        simulation.step(Step::Send);
    }
    simulation.step(change);
    if matches!(moment, Moment::Dispatched) {
        simulation.dispatch();
    }
    simulation.step(end);
    assert_eq!(simulation.check(), Ok(()));
    for _ in 0..40 {
        if simulation.inflight.is_empty() {
            simulation.step(Step::Timeout);
        } else {
            simulation.step(Step::Answer);
        }
        assert_eq!(simulation.check(), Ok(()));
    }
    simulation.run_until_idle();
    assert_eq!(simulation.check(), Ok(()));
    simulation.assert_converged();
}

type Kind = (&'static str, fn(&Action) -> bool);

#[test]
fn interrupted_start_obeys_gate_and_row() {
    let kinds: [Kind; 6] = [
        ("lookup", |action| matches!(action, Action::Lookup(_))),
        ("prepare", |action| matches!(action, Action::Prepare(_))),
        ("pull", |action| matches!(action, Action::Pull(_))),
        ("launch", |action| matches!(action, Action::Launch(..))),
        ("start", |action| matches!(action, Action::Start(..))),
        ("discard", |action| matches!(action, Action::Discard(..))),
    ];
    let gates = (3..6).map(Step::UnseenGate);
    let changes: Vec<Step> = gates.chain([Step::UnseenReissue]).collect();
    let failures = (0..4).flat_map(|kind| [false, true].map(|late| Step::Fail { late, kind }));
    let ends: Vec<Step> = failures.chain([Step::Answer]).collect();
    let mut met = std::collections::BTreeSet::new();
    for cause in [Cause::NewRow, Cause::Failure, Cause::ActorRestart] {
        for (name, kind) in kinds {
            for &change in &changes {
                for moment in [Moment::Unsent, Moment::Sent, Moment::Dispatched] {
                    for &end in &ends {
                        let Some(mut simulation) = Simulation::starting(cause, kind) else {
                            continue;
                        };
                        met.insert(name);
                        let case = (cause, name, change, moment, end);
                        println!("{case:?}");
                        interrupt(&mut simulation, change, moment, end);
                    }
                }
            }
        }
    }
    assert_eq!(met.len(), kinds.len(), "only {met:?}");
}
