//! Finding a planted bug: it must be found by a property it breaks, and be the only thing wrong.

use super::{
    mutation::Mutation,
    run::{Failure, Options, run, sweep},
};

/// Runs seeds with `mutation` planted until one violates a property in [`Mutation::found_by`], and
/// returns that failure.
///
/// # Errors
/// If no seed of `count` from `first` on fails, one fails by a property unrelated to the bug, or
/// one fails without the bug too.
pub fn find_bug(
    mutation: Mutation,
    first: u64,
    count: u64,
    threads: usize,
) -> Result<Box<Failure>, String> {
    let planted = mutation.options();
    let sound = Options {
        mutation: None,
        ..planted
    };
    let mut from = first;
    while from < first + count {
        let left = first + count - from;
        let tally = sweep(from, left, threads, planted, 1, &|_| {});
        let Some(failure) = tally.failures.into_iter().next() else {
            break;
        };
        let by = failure.violation.invariant;
        from = failure.seed + 1;
        if mutation.also_breaks().contains(&by) {
            continue;
        }
        if !mutation.found_by().contains(&by) {
            return Err(format!(
                "{mutation} is not what breaks {by:?} here:\n{failure}"
            ));
        }
        return match run(failure.seed, sound) {
            Ok(_) => Ok(failure),
            Err(other) => Err(format!("the seed fails without {mutation}:\n{other}")),
        };
    }
    Err(format!("{mutation} was not found in {count} seeds"))
}
