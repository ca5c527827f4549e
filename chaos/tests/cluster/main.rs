//! What a cluster of several nodes promises, on labs of real daemons.
//!
//! Every test has a size, which the environment makes larger: `make test` runs a short form.
//!
//! | variable | is | short | full |
//! |---|---|---|---|
//! | `JACO_KILLS` | how often the leader is killed | 3 | 50 |
//! | `JACO_NODES` | to how many nodes a cluster grows | 5 | 9 |
//! | `JACO_ROUNDS` | how often each role is hurt in each way | each once | 20 |
//! | `JACO_FAULT` | only this way: `Killed`, `CutOff` or `Paused` | all | all |
//! | `JACO_ROLE` | only this role: `Leader`, `Follower` or `Learner` | all | all |
//! | `JACO_CALM_SECONDS` | how long each nuisance lasts | 10 | 600 |
//! | `JACO_HALF_OPEN` | connections that are never finished | see `hostile` | 10000 |
//! | `JACO_NOISE` | datagrams of noise to each node | see `hostile` | 100000 |
//! | `JACO_BACKUPS` | backups under load | see `recovery` | 20 |
//! | `JACO_BEHIND` | entries that a member misses | see `catch_up` | 200000 |
//!
//! `scripts/acceptance.sh` runs the full form.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, whose figures are read by people"
)]

use std::{str::FromStr, time::Duration};

mod calm;
mod catch_up;
mod growth;
mod hostile;
mod leader_kills;
mod leave;
mod minority;
mod recovery;
mod roles;
mod world;

/// A size from the environment.
fn size<T: FromStr>(variable: &str, otherwise: T) -> T {
    let given = std::env::var(variable).ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// Prints the median and the 99th percentile of times, and all of them if they are few.
fn figures(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).saturating_sub(1));
    let (median, high, max) = (at(50), at(99), times.last());
    println!(
        "{what}: n={} p50={median:?} p99={high:?} max={max:?}",
        times.len()
    );
    if times.len() <= 10 {
        println!("  {times:?}");
    }
}
