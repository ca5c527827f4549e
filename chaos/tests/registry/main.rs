//! What a registry does to a node: a real daemon, a real engine and a real registry, which is
//! asked for passwords, moves its tags, breaks, lies and hangs.
//!
//! Most tests wait more than they work, and take a light turn. Those that leave a download hanging
//! do not, because an engine has three at a time.

mod credentials;
mod digests;
mod failures;
mod hangs;
mod many;
mod references;
mod silence;

use jaco_proto::v1::{ReplicaDetail, ReplicaState};

/// Waiting for the next attempt, and saying why with these words.
fn pull_failed(replica: &ReplicaDetail, words: &str) -> bool {
    let detail = |key: &str| replica.details.get(key).map(String::as_str);
    replica.state() == ReplicaState::Pending
        && replica.code == "image_pull_failed"
        && detail("attempt").is_some_and(|attempt| attempt.parse::<u32>().is_ok())
        && detail("next_retry_at").is_some_and(|at| at.ends_with('Z'))
        && detail("reason").is_some_and(|reason| reason.contains(words))
}
