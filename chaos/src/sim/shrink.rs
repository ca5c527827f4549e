//! Shrinking: a failing run is repeated with fewer and fewer faults, within a budget.

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::{
    cluster::Plan,
    fault::Fault,
    run::{Failure, Options, plan, run_plan},
    time::MS,
};

/// Limits of shrinking; it ends at the first one that is reached. A run that has begun is finished,
/// so the time may be exceeded by one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShrinkBudget {
    /// Most runs with fewer faults.
    pub runs: u32,
    /// Wall-clock time.
    pub time: Duration,
}

impl Default for ShrinkBudget {
    fn default() -> Self {
        Self {
            runs: 300,
            time: Duration::from_secs(60),
        }
    }
}

impl fmt::Display for ShrinkBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} runs or {} s", self.runs, self.time.as_secs())
    }
}

/// Result of shrinking.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// Failure with the fewest faults that were found, with its last events.
    pub failure: Box<Failure>,
    /// Number of faults before shrinking.
    pub before: usize,
    /// Runs with fewer faults.
    pub runs: u32,
    /// The budget ended first: fewer faults may suffice.
    pub budget_ended: bool,
}

impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (after, before) = (self.failure.faults.len(), self.before);
        write!(f, "{after} of {before} faults after {} runs", self.runs)?;
        if self.budget_ended {
            write!(f, ", when the budget ended: fewer may suffice")?;
        }
        writeln!(f, "\n{}", self.failure)
    }
}

/// Repeats the run of `failure` with fewer and fewer faults, as long as the same property is
/// violated and `budget` lasts. `options` are those of the failed run.
#[must_use]
pub fn shrink(failure: &Failure, options: Options, budget: ShrinkBudget) -> Shrunk {
    let plan = plan(failure.seed, options);
    let with = |faults: &[Fault]| Plan {
        faults: faults.to_vec(),
        ..plan.clone()
    };
    let (begun, mut runs) = (Instant::now(), 0);
    let still_fails = |faults: &[Fault]| {
        if runs == budget.runs || begun.elapsed() >= budget.time {
            return None;
        }
        runs += 1;
        let outcome = run_plan(with(faults), false);
        Some(outcome.is_err_and(|other| other.violation.invariant == failure.violation.invariant))
    };
    let (faults, budget_ended) = fewest(&plan.faults, failure.at_ms, still_fails);
    let last = run_plan(with(&faults), true);
    Shrunk {
        failure: last.err().unwrap_or_else(|| Box::new(failure.clone())),
        before: plan.faults.len(),
        runs,
        budget_ended,
    }
}

/// The fewest of `faults` that were found for which `still_fails`, which returns `None` once the
/// budget has ended, and whether it has. `at_ms` is the virtual time of the failure.
///
/// First the faults after the failure are left out, then whole kinds, then runs of neighbours, each
/// half as long as before, down to single faults. The latest come first.
fn fewest(
    faults: &[Fault],
    at_ms: u64,
    mut still_fails: impl FnMut(&[Fault]) -> Option<bool>,
) -> (Vec<Fault>, bool) {
    let mut kept = faults.to_vec();
    // Takes `less` over if it fails as well; false once the budget has ended.
    let mut attempt = |kept: &mut Vec<Fault>, less: Vec<Fault>| {
        if less.len() == kept.len() {
            return true;
        }
        let outcome = still_fails(&less);
        if outcome == Some(true) {
            *kept = less;
        }
        outcome.is_some()
    };
    let begun = |fault: &Fault| fault.at / MS <= at_ms;
    let less = kept.iter().copied().filter(begun).collect();
    if !attempt(&mut kept, less) {
        return (kept, true);
    }
    let mut classes: Vec<_> = kept.iter().map(|fault| fault.kind.class()).collect();
    classes.sort_unstable();
    classes.dedup();
    for class in classes {
        let other = |fault: &Fault| fault.kind.class() != class;
        let less = kept.iter().copied().filter(other).collect();
        if !attempt(&mut kept, less) {
            return (kept, true);
        }
    }
    let mut size = kept.len().div_ceil(2);
    while size > 0 {
        let mut end = kept.len();
        while end > 0 {
            let start = end.saturating_sub(size);
            let mut less = kept.clone();
            less.drain(start..end);
            if !attempt(&mut kept, less) {
                return (kept, true);
            }
            end = start;
        }
        size /= 2;
    }
    (kept, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{
        disk::Crash,
        fault::{FaultKind, Victim},
        time::SECOND,
    };

    fn faults(count: u64) -> Vec<Fault> {
        let fault = |number| Fault {
            at: number * SECOND,
            span: 0,
            kind: match number % 3 {
                0 => FaultKind::Crash(Victim::Member(number), Crash::Kill),
                1 => FaultKind::Pause(Victim::Member(number)),
                _ => FaultKind::Join,
            },
        };
        (0..count).map(fault).collect()
    }

    /// Fails while all faults at these seconds are among them.
    fn needs(faults: &[Fault], seconds: &[u64]) -> bool {
        let there = |second: &u64| faults.iter().any(|fault| fault.at == second * SECOND);
        seconds.iter().all(there)
    }

    #[test]
    fn only_needed_faults_are_left() {
        for needed in [vec![], vec![0], vec![29], vec![3, 4], vec![0, 7, 14]] {
            let (left, ended) = fewest(&faults(30), 29_500, |less| Some(needs(less, &needed)));
            let left: Vec<u64> = left.iter().map(|fault| fault.at / SECOND).collect();
            assert_eq!((left, ended), (needed, false));
        }
    }

    #[test]
    fn faults_after_failure_are_left_out_first() {
        let mut tried = Vec::new();
        let _ = fewest(&faults(30), 10_500, |less| {
            tried.push(less.len());
            Some(true)
        });
        assert_eq!(tried.first(), Some(&11));
    }

    #[test]
    fn end_of_budget_keeps_what_was_found() {
        for budget in 0..20 {
            let mut runs = 0;
            let (left, ended) = fewest(&faults(30), 29_500, |less| {
                if runs == budget {
                    return None;
                }
                runs += 1;
                Some(needs(less, &[5, 6]))
            });
            assert!(needs(&left, &[5, 6]), "{budget} runs");
            assert!(!ended || runs == budget, "{budget} runs");
            assert!(ended || left.len() == 2, "{budget} runs");
        }
    }
}
