//! Looking for a planted bug: it must be found, by what it breaks, and be all that is wrong.

use super::{
    mutation::Mutation,
    run::{Failure, Options, run, sweep},
};

/// Runs seeds with `mutation` planted until one fails, and returns that failure.
///
/// # Errors
/// What is wrong with the hunt: no seed of `count` from `first` on fails, one fails by a property
/// that has nothing to do with the bug, or one fails without the bug too.
pub fn hunt(
    mutation: Mutation,
    first: u64,
    count: u64,
    threads: usize,
) -> Result<Box<Failure>, String> {
    let sound = Options {
        nuisance: mutation.shows_with(),
        ..Options::default()
    };
    let planted = Options {
        mutation: Some(mutation),
        ..sound
    };
    let tally = sweep(first, count, threads, planted, 1);
    for failure in &tally.failures {
        let by = failure.violation.invariant;
        if !mutation.found_by().contains(&by) {
            return Err(format!(
                "{mutation} is not what breaks {by:?} here:\n{failure}"
            ));
        }
        if let Err(other) = run(failure.seed, sound) {
            let seed = failure.seed;
            return Err(format!("seed {seed} fails without {mutation}:\n{other}"));
        }
    }
    let mut failures = tally.failures.into_iter();
    failures
        .next()
        .ok_or_else(|| format!("{mutation} was not found in {count} seeds"))
}
