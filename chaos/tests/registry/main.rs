//! Image pulls of a node: a real daemon, a real engine and a real registry, which requires
//! passwords, moves tags, fails, returns wrong content and hangs.
//!
//! Most tests mostly wait, and take a single permit. Those that leave a download hanging take more,
//! because an engine runs three downloads at a time.

mod credentials;
mod digests;
mod failures;
mod hangs;
mod many;
mod references;
mod stalled_pull;

use jaco_proto::v1::{ReplicaDetail, ReplicaState};

/// Whether a replica waits for its next attempt, with these words in its reason.
fn pull_failed(replica: &ReplicaDetail, words: &str) -> bool {
    let detail = |key: &str| replica.details.get(key).map(String::as_str);
    replica.state() == ReplicaState::Pending
        && replica.code == "image_pull_failed"
        && detail("attempt").is_some_and(|attempt| attempt.parse::<u32>().is_ok())
        && detail("next_retry_at").is_some_and(|at| at.ends_with('Z'))
        && detail("reason").is_some_and(|reason| reason.contains(words))
}
