//! Runs many simulated clusters (`jaco-sim --seeds 1000`) or one with its trace (`jaco-sim --seed
//! 7`).

#![expect(clippy::print_stdout, reason = "its output is the result")]

use std::{process::ExitCode, thread};

use anyhow::{Context as _, Result, bail};
use jaco_chaos::sim::{self, BenignFault, Mutation, Options};

const USAGE: &str = "jaco-sim [--seeds N] [--from SEED] [--threads N] [--nuisance NAME]
    runs N worlds; fails if one does
jaco-sim --mutation NAME [--seeds N] [--from SEED] [--threads N]
    the same with a bug planted; fails unless it is found, by what it breaks
jaco-sim --seed SEED [--mutation NAME] [--nuisance NAME] [--whole]
    one world, with its last events and less and less of what went wrong if it fails";

/// Number of failing seeds that are printed.
const SHOWN: usize = 5;
/// Number of trace lines that are printed.
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
            "--mutation" => {
                let text = given.next().context("--mutation needs a name")?;
                found.mutation = Some(text.parse().map_err(anyhow::Error::msg)?);
            }
            "--nuisance" => {
                let text = given.next().context("--nuisance needs a name")?;
                found.benign_fault = Some(text.parse().map_err(anyhow::Error::msg)?);
            }
            _ => bail!("{name:?} is not known\n{USAGE}"),
        }
    }
    Ok(found)
}

fn main() -> Result<ExitCode> {
    let arguments = arguments()?;
    let options = arguments.mutation.map(Mutation::options);
    let options = options.unwrap_or_default();
    let options = Options {
        benign_fault: arguments.benign_fault.or(options.benign_fault),
        keep_trace: true,
        ..options
    };
    // A panic is a violation, which is printed with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(seed) = arguments.seed {
        let outcome = if arguments.whole {
            sim::run(seed, options)
        } else {
            sim::run_and_shrink(seed, options)
        };
        return Ok(match outcome {
            Ok(summary) => {
                println!("{summary:#?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        });
    }
    if let Some(mutation) = arguments.mutation {
        if arguments.benign_fault.is_some() {
            bail!("a bug is looked for with what shows it: leave --nuisance out\n{USAGE}");
        }
        let (first, count) = (arguments.from, arguments.seeds);
        return Ok(
            match sim::find_bug(mutation, first, count, arguments.threads) {
                Ok(failure) => {
                    println!("found:\n{failure}");
                    ExitCode::SUCCESS
                }
                Err(why) => {
                    println!("{why}");
                    ExitCode::FAILURE
                }
            },
        );
    }
    let options = Options {
        keep_trace: false,
        ..options
    };
    let tally = sim::sweep(
        arguments.from,
        arguments.seeds,
        arguments.threads,
        options,
        SHOWN,
    );
    println!(
        "{} seeds passed: {} events, {} virtual hours, {} faults, {} acknowledged writes, \
         longest recovery {} s",
        tally.passed,
        tally.steps,
        tally.seconds / 3600,
        tally.faults,
        tally.acknowledged,
        tally.longest_recovery
    );
    let counts = tally.counts.iter();
    let counts: Vec<String> = counts
        .map(|(what, times)| format!("{times} {what}"))
        .collect();
    println!("{}", counts.join(", "));
    for failure in &tally.failures {
        println!("{failure}");
    }
    let Some(first) = tally.failures.first() else {
        return Ok(ExitCode::SUCCESS);
    };
    println!("seed {} with less of what went wrong:", first.seed);
    if let Err(mut failure) = sim::run_and_shrink(first.seed, options) {
        let skip = failure.tail.len().saturating_sub(TAIL);
        failure.tail.drain(..skip);
        println!("{failure}");
    }
    Ok(ExitCode::FAILURE)
}
