//! Runs: one seed, or many.

use std::{
    collections::BTreeMap,
    fmt,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::{
    cluster::{Cluster, Plan, orders_certificates},
    fault::{self, BenignFault, LONG_OUTAGE, Often},
    mutation::Mutation,
    oracle::{Violation, hash},
    time::{SECOND, Time},
    trace::Trace,
};
use crate::Rng;

/// Name of the threads of [`sweep`].
const THREAD: &str = "simulated";

/// Prints no panics of the threads of [`sweep`]: raft panics on some bugs, and a run reports that
/// itself.
pub fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() != Some(THREAD) {
                usual(info);
            }
        }));
    });
}

/// Virtual time after the last fault, or the last progress of a drain, in which the cluster must
/// come to rest. Refused pulls and proposals are retried after half a minute at most, and sweeps
/// come every half minute.
const RECOVERY_TIMEOUT: Time = 300 * SECOND;
/// The same where certificates are waited for: the lease of a leader that died, and backoffs.
const ISSUANCE_TIMEOUT: Time = 1_500 * SECOND;
/// Steps after which a run counts as one that never ends.
const MAX_STEPS: u64 = 3_000_000;
/// The same if the authority is away for an hour.
const MAX_STEPS_OUTAGE: u64 = 12_000_000;
/// Of so many runs with frequent issuance, one has an outage of an hour.
const OUTAGE_ONE_IN: u64 = 8;

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
    pub benign_fault: Option<BenignFault>,
    /// Faults that were frequent, if any.
    pub often: Option<Often>,
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
        write!(f, "  again: make sim SEED={}", self.seed)?;
        if let Some(mutation) = self.mutation {
            write!(f, " MUTATION={mutation}")?;
        }
        if let Some(benign_fault) = self.benign_fault {
            write!(f, " NUISANCE={benign_fault}")?;
        }
        if let Some(often) = self.often {
            write!(f, " OFTEN={often}")?;
        }
        writeln!(f)?;
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
    pub keep_trace: bool,
    /// Benign fault to inject instead of faults; nothing may move because of it.
    pub benign_fault: Option<BenignFault>,
    /// Faults that are frequent throughout the run, beside all others.
    pub often: Option<Often>,
}

/// Runs the cluster of `seed`.
///
/// # Errors
/// [`Failure`] for the first property that does not hold.
pub fn run(seed: u64, options: Options) -> Result<Summary, Box<Failure>> {
    run_plan(plan(seed, options), options.keep_trace)
}

/// The run that `seed` stands for.
pub(super) fn plan(seed: u64, options: Options) -> Plan {
    let mut chance = Rng::new(seed ^ hash(b"faults"));
    // Some runs last long enough for the orphan sweep to happen while faults are in force.
    let fault_window = match chance.within(0..5) {
        0 => chance.within(60..150),
        _ => chance.within(15..50),
    };
    let fault_window = match options.often {
        Some(Often::Issuance) => chance.within(100..700),
        _ => fault_window,
    };
    let fault_window = fault_window * SECOND;
    let faults = match options.benign_fault {
        Some(benign_fault) => benign_fault.faults(&mut chance, fault_window),
        None => fault::draw(&mut chance, fault_window, options.often),
    };
    let mut plan = Plan {
        seed,
        mutation: options.mutation,
        benign_fault: options.benign_fault,
        often: options.often,
        fault_window,
        faults,
    };
    if options.benign_fault.is_none() && orders_certificates(&plan) {
        plan.faults
            .extend(fault::draw_issuance(&mut chance, fault_window));
    }
    let mut chance = Rng::new(seed ^ hash(b"outage"));
    if options.often == Some(Often::Issuance) && chance.within(0..OUTAGE_ONE_IN) == 0 {
        fault::draw_long_outage(&mut chance, fault_window, &mut plan.faults);
        plan.fault_window += LONG_OUTAGE;
    }
    plan
}

pub(super) fn run_plan(plan: Plan, keep_trace: bool) -> Result<Summary, Box<Failure>> {
    let trace = if keep_trace {
        Trace::with_lines()
    } else {
        Trace::hash_only()
    };
    let mut cluster = Cluster::new(plan, trace);
    // raft-rs panics on broken invariants; a panic is a violation like any other.
    let outcome = catch_unwind(AssertUnwindSafe(|| live(&mut cluster)));
    let recovery = match outcome {
        Ok(Ok(recovery)) => recovery,
        Ok(Err(violation)) => return Err(fail(cluster, violation)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
            let violation = Violation {
                invariant: "no panic",
                what: text.unwrap_or_default(),
            };
            return Err(fail(cluster, violation));
        }
    };
    Ok(Summary {
        trace: cluster.trace.hash(),
        steps: cluster.steps,
        seconds: cluster.now / SECOND,
        faults: cluster.plan.faults.len(),
        entries: cluster.oracle.last(),
        acknowledged: cluster.clients.acknowledged,
        reads: cluster.clients.reads,
        unknown: cluster.clients.unknown,
        recovery: recovery / SECOND,
        counts: cluster
            .counts
            .into_iter()
            .chain(cluster.oracle.rollouts)
            .collect(),
    })
}

fn fail(cluster: Cluster, violation: Violation) -> Box<Failure> {
    Box::new(Failure {
        seed: cluster.plan.seed,
        mutation: cluster.plan.mutation,
        benign_fault: cluster.plan.benign_fault,
        often: cluster.plan.often,
        step: cluster.steps,
        at_ms: cluster.now / 1_000,
        violation,
        trace: cluster.trace.hash(),
        faults: cluster
            .plan
            .faults
            .iter()
            .map(|f| format!("{f:?}"))
            .collect(),
        tail: cluster.trace.into_lines(),
    })
}

/// Runs the cluster through its faults until it is at rest; returns how long it took to come to
/// rest.
fn live(cluster: &mut Cluster) -> Result<Time, Violation> {
    let fault_window = cluster.plan.fault_window;
    let (timeout, max_steps) = match (cluster.awaits_certificates(), &cluster.outage) {
        // The longest wait after a failed order.
        (_, Some(_)) => (LONG_OUTAGE + ISSUANCE_TIMEOUT, MAX_STEPS_OUTAGE),
        (true, None) => (ISSUANCE_TIMEOUT, MAX_STEPS),
        (false, None) => (RECOVERY_TIMEOUT, MAX_STEPS),
    };
    let mut next_look = 0;
    let mut quiet = 0;
    let mut recovery = None;
    while cluster.step() {
        if let Some(violation) = cluster.oracle.violation() {
            return Err(violation.clone());
        }
        if cluster.steps > max_steps {
            return Err(Violation {
                invariant: "the run ends",
                what: format!("{max_steps} events in {} s", cluster.now / SECOND),
            });
        }
        if cluster.now >= fault_window && !cluster.faults_over {
            cluster.heal();
            next_look = cluster.now + SECOND;
        }
        if cluster.faults_over && cluster.now >= next_look {
            next_look = cluster.now + SECOND;
            cluster.check_drains();
            cluster.lift_cordons();
            let unrest = cluster.unrest();
            if let Some(violation) = cluster.oracle.violation() {
                return Err(violation.clone());
            }
            match unrest {
                None => quiet += 1,
                Some(Violation { invariant, what })
                    if cluster.now > fault_window.max(cluster.drains.progressed) + timeout =>
                {
                    let what = format!(
                        "{} s after the last fault or handed over replica, {what}",
                        timeout / SECOND
                    );
                    return Err(Violation { invariant, what });
                }
                Some(_) => quiet = 0,
            }
            // At rest means staying so for four looks, and serving requests afterwards.
            if quiet == 4 {
                match recovery {
                    Some(recovery) => return Ok(recovery),
                    None => recovery = Some(cluster.now - fault_window),
                }
                quiet = 0;
                cluster.oracle.check_acknowledged();
                cluster.probe_members();
            }
        }
    }
    Ok(cluster.now - fault_window)
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
/// failed. Each failure goes to `report` at once.
#[must_use]
pub fn sweep(
    first: u64,
    count: u64,
    threads: usize,
    options: Options,
    most: usize,
    report: &(dyn Fn(&Failure) + Sync),
) -> Tally {
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
                        Err(failure) => {
                            report(&failure);
                            tally.failures.push(failure);
                        }
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
