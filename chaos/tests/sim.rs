//! Simulated clusters: many seeds hold, and a seed is deterministic.
//!
//! `JACO_SIM_SEEDS` is the number of seeds (`make sim SEEDS=1000` runs as many, faster).

use std::{sync::Mutex, thread};

use jaco_chaos::{
    sim::{self, BenignFault, Failure, Mutation, Often, Options, ShrinkBudget, Tally},
    size,
};

/// Seeds without a bug in one run of all tests.
const SEEDS: u64 = 70;
/// Seeds for each benign fault.
const BENIGN_SEEDS: u64 = 15;
/// Seeds in which machines join and leave all the time.
const CHURN_SEEDS: u64 = 20;
/// Seeds in which certificates are ordered all the time, for many minutes each.
const ISSUANCE_SEEDS: u64 = 16;
/// Seeds within which a failure to repeat must be found.
const BOUND: u64 = 300;

fn threads() -> usize {
    thread::available_parallelism().map_or(1, Into::into)
}

/// Runs seeds that must all hold.
fn all_hold(seeds: u64, options: Options) -> Tally {
    let tally = sim::sweep(1, seeds, threads(), options, 3, &|_| {});
    let failures: Vec<String> = tally.failures.iter().map(|f| f.to_string()).collect();
    assert!(failures.is_empty(), "{options:?}: {}", failures.join("\n"));
    assert_eq!(tally.passed, seeds);
    tally
}

#[test]
fn every_seed_holds() {
    sim::silence_panics();
    let seeds = size("JACO_SIM_SEEDS", SEEDS);
    let tally = all_hold(seeds, Options::default());
    if seeds < SEEDS {
        return;
    }
    // A run in which none of these happens proves nothing.
    for what in [
        "elections",
        "snapshots installed",
        "killed daemons",
        "power cuts",
        "learners added",
        "learners promoted",
        "voters demoted",
        "joined",
        "members removed",
        "found unhealthy",
        "found offline",
        "came back",
        "containers made",
        "containers kept for a move",
        "stalled disks",
        "proposals unknown in time",
        "blocks allocated",
        "networks removed",
        "starts that waited for the ruleset",
        "kernels tampered with",
        "meshes changed",
        "certificates issued",
    ] {
        assert!(
            tally.counts.contains_key(what),
            "no {what}: {:?}",
            tally.counts
        );
    }
    assert!(
        tally.acknowledged > 20 * seeds,
        "{} writes",
        tally.acknowledged
    );
}

#[test]
fn benign_faults_move_nothing() {
    sim::silence_panics();
    for benign_fault in BenignFault::ALL {
        let options = Options {
            benign_fault: Some(benign_fault),
            ..Options::default()
        };
        let tally = all_hold(BENIGN_SEEDS, options);
        assert!(tally.acknowledged > 20 * BENIGN_SEEDS, "{benign_fault:?}");
    }
}

#[test]
fn leaving_members_hand_their_replicas_over() {
    sim::silence_panics();
    let options = Options {
        often: Some(Often::Churn),
        ..Options::default()
    };
    let tally = all_hold(CHURN_SEEDS, options);
    let drained = tally.counts.get("members removed after a drain");
    assert!(
        drained.is_some_and(|&times| times > CHURN_SEEDS / 4),
        "{:?}",
        tally.counts
    );
}

#[test]
fn certificates_land_and_are_renewed() {
    sim::silence_panics();
    let options = Options {
        often: Some(Often::Issuance),
        ..Options::default()
    };
    let tally = all_hold(ISSUANCE_SEEDS, options);
    for what in [
        "staging orders",
        "production orders",
        "certificates issued",
        "certificates renewed",
        "failed orders",
        "refused nonces",
        "domains found invalid",
        "issuers hit",
        "outages of an hour",
        "renewals after an outage",
    ] {
        assert!(
            tally.counts.contains_key(what),
            "no {what}: {:?}",
            tally.counts
        );
    }
}

#[test]
fn same_seed_gives_same_run() {
    sim::silence_panics();
    let options = Options::default();
    for seed in [3, 7, 11] {
        let first = sim::run(seed, options).expect("it holds");
        let keep_trace = Options {
            keep_trace: true,
            ..options
        };
        assert_eq!(sim::run(seed, keep_trace).expect("it holds"), first);
        let other = sim::run(seed + 1, options).expect("it holds");
        assert_ne!(other.trace, first.trace);
    }
}

#[test]
fn failure_repeats_exactly_and_shrinks() {
    sim::silence_panics();
    let options = Options {
        mutation: Some(Mutation::AcknowledgeUnknown),
        ..Options::default()
    };
    let reported = Mutex::new(Vec::new());
    let report = |failure: &Failure| reported.lock().unwrap().push(failure.seed);
    let tally = sim::sweep(1, BOUND, threads(), options, 1, &report);
    let first = tally.failures.first().expect("it is found");
    let again = sim::run(first.seed, options).expect_err("it fails again");
    assert_eq!(again.violation, first.violation);
    assert_eq!((again.step, again.trace), (first.step, first.trace));
    assert!(reported.into_inner().unwrap().contains(&first.seed));
    let shrunk = sim::shrink(first, options, ShrinkBudget::default());
    let small = &shrunk.failure;
    assert_eq!(small.violation.invariant, first.violation.invariant);
    assert!(small.faults.len() < first.faults.len());
    assert!(!small.tail.is_empty());
    assert!(shrunk.runs > 0);
}

#[test]
fn ended_budget_still_shows_failure() {
    sim::silence_panics();
    let options = Options {
        mutation: Some(Mutation::AcknowledgeUnknown),
        ..Options::default()
    };
    let tally = sim::sweep(1, BOUND, threads(), options, 1, &|_| {});
    let first = tally.failures.first().expect("it is found");
    let budget = ShrinkBudget {
        runs: 1,
        ..ShrinkBudget::default()
    };
    let shrunk = sim::shrink(first, options, budget);
    assert_eq!((shrunk.runs, shrunk.budget_ended), (1, true));
    assert_eq!(shrunk.before, first.faults.len());
    assert_eq!(
        shrunk.failure.violation.invariant,
        first.violation.invariant
    );
    let words = shrunk.to_string();
    assert!(words.contains("when the budget ended"), "{words}");
    let again = format!(
        "again: make sim SEED={} MUTATION=AcknowledgeUnknown",
        first.seed
    );
    assert!(words.contains(&again), "{words}");
}
