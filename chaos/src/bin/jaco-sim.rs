//! Runs many simulated clusters (`jaco-sim --seeds 1000`) or one with its trace (`jaco-sim --seed
//! 7`).

#![expect(clippy::print_stdout, reason = "its output is the result")]

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use jaco_chaos::sim::{self, BenignFault, Failure, Mutation, Often, Options, ShrinkBudget};

const USAGE: &str =
    "jaco-sim [--seeds N] [--from SEED] [--threads N] [--nuisance NAME] [--often NAME]
    runs N worlds; fails if one does; the first to fail is repeated with less and less of what
    went wrong
jaco-sim --mutation NAME [--seeds N] [--from SEED] [--threads N]
    the same with a bug planted; fails unless it is found, by what it breaks
jaco-sim --seed SEED [--mutation NAME] [--nuisance NAME] [--often NAME] [--whole]
    one world, repeated with less and less of what went wrong if it fails; --whole: once, with
    its last events

--nuisance: only ShortPauses, Loss or Delay, of which no replica may move
--often: beside everything else, much of Churn, Stalls (of disks), PausedPulls, PausedCreates,
    Contention (for a route, on slow disks) or Issuance (of certificates, by nodes that die)

A failure is printed before it is repeated with less.
    --shrink-runs N       most repetitions (300); 0 for none
    --shrink-seconds N    time for them (60); one that has begun is finished";

/// Number of failing seeds after which no more are run.
const MOST_FAILURES: usize = 5;
/// Number of trace lines that are printed after many seeds.
const TAIL: usize = 60;

#[derive(Debug)]
struct Arguments {
    seeds: u64,
    from: u64,
    threads: usize,
    seed: Option<u64>,
    whole: bool,
    mutation: Option<Mutation>,
    benign_fault: Option<BenignFault>,
    often: Option<Often>,
    budget: ShrinkBudget,
}

fn arguments() -> Result<Arguments> {
    let mut found = Arguments {
        seeds: 1000,
        from: 1,
        threads: thread::available_parallelism().map_or(1, Into::into),
        seed: None,
        whole: false,
        mutation: None,
        benign_fault: None,
        often: None,
        budget: ShrinkBudget::default(),
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let mut number = || -> Result<u64> {
            let text = given
                .next()
                .with_context(|| format!("{name} needs a value"))?;
            text.parse()
                .with_context(|| format!("{text:?} is no number"))
        };
        match name.as_str() {
            "--seeds" => found.seeds = number()?,
            "--from" => found.from = number()?,
            "--threads" => found.threads = usize::try_from(number()?)?,
            "--seed" => found.seed = Some(number()?),
            "--whole" => found.whole = true,
            "--shrink-runs" => found.budget.runs = u32::try_from(number()?)?,
            "--shrink-seconds" => found.budget.time = Duration::from_secs(number()?),
            "--mutation" => {
                let text = given.next().context("--mutation needs a name")?;
                found.mutation = Some(text.parse().map_err(anyhow::Error::msg)?);
            }
            "--nuisance" => {
                let text = given.next().context("--nuisance needs a name")?;
                found.benign_fault = Some(text.parse().map_err(anyhow::Error::msg)?);
            }
            "--often" => {
                let text = given.next().context("--often needs a name")?;
                found.often = Some(text.parse().map_err(anyhow::Error::msg)?);
            }
            _ => bail!("{name:?} is not known\n{USAGE}"),
        }
    }
    Ok(found)
}

/// Prints a line that is there even if the process is killed next.
fn say(line: impl fmt::Display) {
    println!("{line}");
    // A closed output: the exit code still says how it went.
    let _ = io::stdout().flush();
}

fn main() -> Result<ExitCode> {
    let arguments = arguments()?;
    let options = arguments.mutation.map(Mutation::options);
    let options = options.unwrap_or_default();
    let options = Options {
        benign_fault: arguments.benign_fault.or(options.benign_fault),
        often: arguments.often.or(options.often),
        ..options
    };
    // A panic is a violation, which is printed with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(seed) = arguments.seed {
        return Ok(one(seed, &arguments, options));
    }
    if let Some(mutation) = arguments.mutation {
        if arguments.benign_fault.is_some() || arguments.often.is_some() {
            bail!("a bug is looked for with what shows it: leave other faults out\n{USAGE}");
        }
        let (first, count) = (arguments.from, arguments.seeds);
        return Ok(
            match sim::find_bug(mutation, first, count, arguments.threads) {
                Ok(failure) => {
                    say(format_args!("found:\n{failure}"));
                    ExitCode::SUCCESS
                }
                Err(why) => {
                    say(why);
                    ExitCode::FAILURE
                }
            },
        );
    }
    Ok(many(&arguments, options))
}

/// Runs one seed.
fn one(seed: u64, arguments: &Arguments, options: Options) -> ExitCode {
    let options = Options {
        keep_trace: arguments.whole,
        ..options
    };
    match sim::run(seed, options) {
        Ok(summary) => {
            say(format_args!("{summary:#?}"));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            say(&failure);
            if !arguments.whole {
                shrink(&failure, arguments, options, usize::MAX);
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs many seeds.
fn many(arguments: &Arguments, options: Options) -> ExitCode {
    let (first, count) = (arguments.from, arguments.seeds);
    let report = |failure: &Failure| say(failure);
    let tally = sim::sweep(
        first,
        count,
        arguments.threads,
        options,
        MOST_FAILURES,
        &report,
    );
    say(format_args!(
        "{} seeds passed, {} failed: {} events, {} virtual hours, {} faults, \
         {} acknowledged writes, longest recovery {} s",
        tally.passed,
        tally.failures.len(),
        tally.steps,
        tally.seconds / 3600,
        tally.faults,
        tally.acknowledged,
        tally.longest_recovery
    ));
    let counts = tally.counts.iter();
    let counts: Vec<String> = counts
        .map(|(what, times)| format!("{times} {what}"))
        .collect();
    say(counts.join(", "));
    let Some(first) = tally.failures.first() else {
        return ExitCode::SUCCESS;
    };
    shrink(first, arguments, options, TAIL);
    ExitCode::FAILURE
}

/// Repeats a failed run with fewer faults, and prints what is left with its last `lines` events.
fn shrink(failure: &Failure, arguments: &Arguments, options: Options, lines: usize) {
    let budget = arguments.budget;
    if budget.runs == 0 {
        return;
    }
    say(format_args!(
        "seed {} with less of what went wrong, at most {budget}:",
        failure.seed
    ));
    let mut shrunk = sim::shrink(failure, options, budget);
    let tail = &mut shrunk.failure.tail;
    tail.drain(..tail.len().saturating_sub(lines));
    say(shrunk);
}
