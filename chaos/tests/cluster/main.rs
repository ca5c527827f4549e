//! Guarantees of a cluster of several nodes, tested on labs of real daemons.
//!
//! The environment scales the tests: `make test` runs a short form.
//!
//! | variable | meaning | short | full |
//! |---|---|---|---|
//! | `JACO_KILLS` | number of leader kills | 3 | 50 |
//! | `JACO_NODES` | number of nodes a cluster grows to | 5 | 9 |
//! | `JACO_ROUNDS` | faults of each kind per role | each once | 20 |
//! | `JACO_FAULT` | only this fault: `Killed`, `CutOff` or `Paused` | all | all |
//! | `JACO_ROLE` | only this role: `Leader`, `Follower` or `Learner` | all | all |
//! | `JACO_CALM_SECONDS` | duration of each benign fault | 10 | 600 |
//! | `JACO_HALF_OPEN` | connections that are never finished | see `hostile` | 10000 |
//! | `JACO_NOISE` | random datagrams to each node | see `hostile` | 100000 |
//! | `JACO_REPLACEMENTS` | daemons that replace each other | 3 | 20 |
//! | `JACO_BACKUPS` | backups under load | see `recovery` | 20 |
//! | `JACO_BEHIND` | entries that a member misses | see `catch_up` | 200000 |
//! | `JACO_CATCH_UP_SHARE` | per cent of its rate that a leader keeps | printed | 80 |
//! | `JACO_LIMITS` | `1` asserts limits of times | printed | 1 |
//!
//! `scripts/acceptance.sh` runs the full form with the release build; its limits assume a machine
//! that runs nothing else.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests print measurements"
)]

mod benign_faults;
mod catch_up;
mod client;
mod drain;
mod growth;
mod handover;
mod hostile;
mod jobs;
mod leader_kills;
mod leave;
mod load;
mod minority;
mod mounted_files;
mod placement;
mod recovery;
mod roles;
mod rollout;
mod secret_variables;
mod setup;
