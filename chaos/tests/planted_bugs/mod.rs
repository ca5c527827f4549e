//! Planted bugs are found: a judge that finds nothing in a correct cluster could be one that looks at
//! nothing.
//!
//! The programs that use this look for a part of them each, because a program has a limited time,
//! also on a machine at a third of its speed.

use std::thread;

use jaco_chaos::sim::{self, Mutation};

/// Seeds within which a planted bug must be found.
const BOUND: u64 = 300;

/// Number of parts.
const PARTS: usize = 2;

/// Looks for every bug of a part.
pub(crate) fn find(part: usize) {
    sim::silence_panics();
    let threads = thread::available_parallelism().map_or(1, Into::into);
    for mutation in Mutation::ALL.into_iter().skip(part).step_by(PARTS) {
        if let Err(why) = sim::find_bug(mutation, 1, BOUND, threads) {
            panic!("{why}");
        }
    }
}
