//! Runs: one seed, many seeds, and shrinking the faults of a failing one.

use std::{
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::{
    fault::{self, Fault, Nuisance},
    mutation::Mutation,
    oracle::{Violation, hash},
    time::{SECOND, Time},
    trace::Trace,
    world::{Plan, World},
};
use crate::Rng;

/// Name of the threads of [`sweep`].
pub const THREAD: &str = "simulated";

/// Virtual time after the last fault in which the cluster must come to rest. Refused pulls and
/// proposals are retried after half a minute at most, and sweeps come every half minute.
const PATIENCE: Time = 300 * SECOND;
/// Steps after which a run counts as one that never ends.
const MOST_STEPS: u64 = 3_000_000;

/// A run that went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Hash of the trace: equal for equal runs.
    pub trace: u64,
    /// Events.
    pub steps: u64,
    /// Virtual seconds.
    pub seconds: u64,
    /// Faults.
    pub faults: usize,
    /// Log entries.
    pub entries: u64,
    /// Writes that were acknowledged to clients.
    pub acknowledged: u64,
    /// Consistent reads that were answered.
    pub reads: u64,
    /// Writes and reads whose clients never learned the outcome.
    pub unknown: u64,
    /// Virtual seconds from the end of the faults until everything was at rest.
    pub recovery: u64,
    /// Occurrences of noteworthy events, by name.
    pub counts: BTreeMap<&'static str, u64>,
}

/// A run in which a property did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// Bug that was planted, if one was.
    pub mutation: Option<Mutation>,
    /// Benign fault injected instead of faults, if any.
    pub nuisance: Option<Nuisance>,
    /// Number of the event after which the violation was found.
    pub step: u64,
    /// Virtual milliseconds at that event.
    pub at_ms: u64,
    /// The property that did not hold.
    pub violation: Violation,
    /// Hash of the trace up to the violation.
    pub trace: u64,
    /// Faults of the run, one line each.
    pub faults: Vec<String>,
    /// The last events, if they were recorded.
    pub tail: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { invariant, what } = &self.violation;
        writeln!(f, "seed {}: {invariant}: {what}", self.seed)?;
        if let Some(mutation) = self.mutation {
            writeln!(f, "  planted: {mutation}")?;
        }
        if let Some(nuisance) = self.nuisance {
            writeln!(f, "  nuisance: {nuisance}")?;
        }
        writeln!(
            f,
            "  at step {}, {} ms, trace {:016x}",
            self.step, self.at_ms, self.trace
        )?;
        for fault in &self.faults {
            writeln!(f, "  fault at {fault}")?;
        }
        for line in &self.tail {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

/// Settings of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Bug to plant.
    pub mutation: Option<Mutation>,
    /// Keep the last events as text.
    pub spoken: bool,
    /// Benign fault to inject instead of faults; nothing may move because of it.
    pub nuisance: Option<Nuisance>,
    /// Machines join and leave throughout.
    pub churn: bool,
}

/// Runs the cluster of `seed`.
///
/// # Errors
/// [`Failure`] for the first property that does not hold.
pub fn run(seed: u64, options: Options) -> Result<Summary, Box<Failure>> {
    run_plan(plan(seed, options), options.spoken)
}

/// Like [`run`]; repeats a failing run with fewer and fewer faults as long as the same property is
/// violated.
///
/// # Errors
/// The smallest [`Failure`] that was found, with the last events.
pub fn run_and_shrink(seed: u64, options: Options) -> Result<Summary, Box<Failure>> {
    let mut plan = plan(seed, options);
    let failure = match run_plan(plan.clone(), false) {
        Ok(summary) => return Ok(summary),
        Err(failure) => failure,
    };
    let fails_alike = |faults: &[Fault]| {
        let less = Plan {
            faults: faults.to_vec(),
            ..plan.clone()
        };
        let outcome = run_plan(less, false);
        outcome.is_err_and(|less| less.violation.invariant == failure.violation.invariant)
    };
    let mut faults = plan.faults.clone();
    // First drop whole kinds, then single faults, the latest first.
    let mut kinds: Vec<_> = faults.iter().map(|fault| fault.what.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let less: Vec<_> = faults
            .iter()
            .copied()
            .filter(|f| f.what.kind() != kind)
            .collect();
        if fails_alike(&less) {
            faults = less;
        }
    }
    let mut at = faults.len();
    while at > 0 {
        at -= 1;
        let mut less = faults.clone();
        less.remove(at);
        if fails_alike(&less) {
            faults = less;
        }
    }
    plan.faults = faults;
    run_plan(plan, true)
}

fn plan(seed: u64, options: Options) -> Plan {
    let mut chance = Rng::new(seed ^ hash(b"faults"));
    // Some runs last long enough for the orphan sweep to happen while faults are in force.
    let storm = match chance.within(0..5) {
        0 => chance.within(60..150),
        _ => chance.within(15..50),
    };
    let storm = storm * SECOND;
    let faults = match options.nuisance {
        Some(nuisance) => nuisance.faults(&mut chance, storm),
        None => fault::draw(&mut chance, storm, options.churn),
    };
    Plan {
        seed,
        mutation: options.mutation,
        nuisance: options.nuisance,
        storm,
        faults,
    }
}

fn run_plan(plan: Plan, spoken: bool) -> Result<Summary, Box<Failure>> {
    let trace = if spoken {
        Trace::spoken()
    } else {
        Trace::silent()
    };
    let mut world = World::new(plan, trace);
    // raft-rs panics on broken invariants; a panic is a violation like any other.
    let outcome = catch_unwind(AssertUnwindSafe(|| live(&mut world)));
    let recovery = match outcome {
        Ok(Ok(recovery)) => recovery,
        Ok(Err(violation)) => return Err(fail(world, violation)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
            let violation = Violation {
                invariant: "no panic",
                what: text.unwrap_or_default(),
            };
            return Err(fail(world, violation));
        }
    };
    Ok(Summary {
        trace: world.trace.hash(),
        steps: world.steps,
        seconds: world.now / SECOND,
        faults: world.plan.faults.len(),
        entries: world.oracle.last(),
        acknowledged: world.clients.acknowledged,
        reads: world.clients.reads,
        unknown: world.clients.unknown,
        recovery: recovery / SECOND,
        counts: world.counts,
    })
}

fn fail(world: World, violation: Violation) -> Box<Failure> {
    Box::new(Failure {
        seed: world.plan.seed,
        mutation: world.plan.mutation,
        nuisance: world.plan.nuisance,
        step: world.steps,
        at_ms: world.now / 1_000,
        violation,
        trace: world.trace.hash(),
        faults: world.plan.faults.iter().map(|f| format!("{f:?}")).collect(),
        tail: world.trace.into_lines(),
    })
}

/// Runs the cluster through its faults until it is at rest; returns how long it took to come to
/// rest.
fn live(world: &mut World) -> Result<Time, Violation> {
    let storm = world.plan.storm;
    let mut next_look = 0;
    let mut quiet = 0;
    let mut recovery = None;
    while world.step() {
        if let Some(violation) = world.oracle.violation() {
            return Err(violation.clone());
        }
        if world.steps > MOST_STEPS {
            return Err(Violation {
                invariant: "the run ends",
                what: format!("{MOST_STEPS} events in {} s", world.now / SECOND),
            });
        }
        if world.now >= storm && !world.calm {
            world.heal();
            next_look = world.now + SECOND;
        }
        if world.calm && world.now >= next_look {
            next_look = world.now + SECOND;
            let unsettled = world.unsettled();
            if let Some(violation) = world.oracle.violation() {
                return Err(violation.clone());
            }
            match unsettled {
                None => quiet += 1,
                Some(Violation { invariant, what }) if world.now > storm + PATIENCE => {
                    let what = format!("{} s after the last fault, {what}", PATIENCE / SECOND);
                    return Err(Violation { invariant, what });
                }
                Some(_) => quiet = 0,
            }
            // At rest means staying so for four looks, and serving requests afterwards.
            if quiet == 4 {
                match recovery {
                    Some(recovery) => return Ok(recovery),
                    None => recovery = Some(world.now - storm),
                }
                quiet = 0;
                world.oracle.keeps_promises();
                world.ask_everybody();
            }
        }
    }
    Ok(world.now - storm)
}

/// Totals of many runs.
#[derive(Debug, Default)]
pub struct Tally {
    /// Runs that went well.
    pub passed: u64,
    /// The first failures, by seed.
    pub failures: Vec<Box<Failure>>,
    /// Events of all runs.
    pub steps: u64,
    /// Virtual seconds of all runs.
    pub seconds: u64,
    /// Faults of all runs.
    pub faults: u64,
    /// Acknowledged writes of all runs.
    pub acknowledged: u64,
    /// Longest recovery, in virtual seconds.
    pub longest_recovery: u64,
    /// Occurrences of noteworthy events in all runs, by name.
    pub counts: BTreeMap<&'static str, u64>,
}

/// Runs `count` seeds from `first` on, on `threads` threads, and stops early once `most` have
/// failed.
#[must_use]
pub fn sweep(first: u64, count: u64, threads: usize, options: Options, most: usize) -> Tally {
    let next = AtomicU64::new(first);
    let tally = Mutex::new(Tally::default());
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let work = || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let full = {
                        let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                        tally.failures.len() >= most
                    };
                    if seed >= first + count || full {
                        return;
                    }
                    let outcome = run(seed, options);
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    match outcome {
                        Ok(summary) => {
                            tally.passed += 1;
                            tally.steps += summary.steps;
                            tally.seconds += summary.seconds;
                            tally.faults += summary.faults as u64;
                            tally.acknowledged += summary.acknowledged;
                            let longest = tally.longest_recovery.max(summary.recovery);
                            tally.longest_recovery = longest;
                            for (what, times) in summary.counts {
                                *tally.counts.entry(what).or_default() += times;
                            }
                        }
                        Err(failure) => tally.failures.push(failure),
                    }
                }
            };
            // If no thread can be spawned, this thread does the work.
            let builder = thread::Builder::new().name(THREAD.to_owned());
            if builder.spawn_scoped(scope, work).is_err() {
                work();
            }
        }
    });
    let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.failures.sort_by_key(|failure| failure.seed);
    tally
}
