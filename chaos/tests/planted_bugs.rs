//! Planted bugs are found: a judge that finds nothing in a correct cluster could be one that looks at
//! nothing.
//!
//! They are a program of their own, because each program has a limited time.

use std::thread;

use jaco_chaos::sim::{self, Mutation};

/// Seeds within which a planted bug must be found.
const BOUND: u64 = 300;

#[test]
fn every_planted_bug_is_found() {
    sim::silence_panics();
    let threads = thread::available_parallelism().map_or(1, Into::into);
    for mutation in Mutation::ALL {
        if let Err(why) = sim::find_bug(mutation, 1, BOUND, threads) {
            panic!("{why}");
        }
    }
}
