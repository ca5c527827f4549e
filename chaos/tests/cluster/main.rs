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
//! | `JACO_CATCH_UP_SHARE` | per cent of its rate that a leader keeps | printed | 80 |
//! | `JACO_LIMITS` | `1` holds times to their limits | printed | 1 |
//!
//! `scripts/acceptance.sh` runs the full form, of the release build: limits are for a machine that
//! does nothing else.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, whose figures are read by people"
)]

use std::str::FromStr;

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
