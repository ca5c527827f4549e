//! A node that is no member any more: how it learns of it, and what it still does.
//!
//! The others stop speaking to it before it can hear why, so it takes their refusal for an answer
//! if each of a majority refuses for long enough. Its data stays until somebody empties the directory.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use jaco_proto::{Error, ErrorCode};
use jaco_raftnode::{Propose as _, State};
use tokio::sync::watch;

use super::{Running, files::Layout};
use crate::{
    peer::Refusals,
    repeat::Repeats,
    runtime::engine::{Engine, EngineError, Status},
};

/// Wait before the engine is asked again.
const RETRY: Duration = Duration::from_secs(5);

/// What a removed node answers to everything but `Cluster.Status`.
pub(crate) fn removed() -> Error {
    Error::new(
        ErrorCode::ClusterUninitialized,
        "this node was removed from its cluster; stop it, empty its data directory and start it \
         again to use it anew",
    )
    .with("reason", "removed")
}

/// What there is to know about whether this node is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is, or nothing says otherwise.
    Member,
    /// Most of the others refuse it for certain.
    Refused,
    /// Its own state says that it is none.
    Removed,
}

/// Judges by the newest state and by who refuses for certain. `arrived` says that the state held this node's
/// row before, so that its absence means something; `joined` is how many members there were when
/// this node joined them.
fn judge(
    state: &State,
    (hostname, raft_id): (&str, u64),
    arrived: bool,
    voters: &[u64],
    refused_by: &BTreeSet<String>,
    joined: usize,
) -> Verdict {
    let own = state.nodes.get(hostname);
    if arrived && own.is_none_or(|row| row.raft_id != raft_id) {
        return Verdict::Removed;
    }
    let others = state
        .nodes
        .values()
        .filter(|row| row.hostname != hostname && voters.contains(&row.raft_id));
    let (mut all, mut refusing) = (0, 0);
    for other in others {
        all += 1;
        refusing += usize::from(refused_by.contains(&other.hostname));
    }
    // Without a state there are only those that were known when it joined. One of several that
    // refuses may be cut off from the others, and not know of the join.
    if all == 0 && !arrived {
        (all, refusing) = (joined, refused_by.len());
    }
    if 2 * refusing > all {
        Verdict::Refused
    } else {
        Verdict::Member
    }
}

/// Returns once it is certain that this node is no member any more. A certificate that waits to
/// be put in force is tried first, by `another_try`: the others may know no other by now.
pub(super) async fn told(node: Arc<Running>, another_try: impl Fn() -> bool + Send) {
    let mut refusals = match &node.network {
        Some(network) => network.refusals(),
        // Nobody is there to refuse.
        None => watch::channel(Refusals::default()).1,
    };
    let mut states = node.raft.subscribe();
    let own = (node.hostname.as_str(), node.raft_id());
    let joined = node
        .network
        .as_ref()
        .map_or(0, |network| network.joined_members());
    let mut arrived = false;
    loop {
        let state = states.borrow_and_update().clone();
        let refusing = refusals.borrow_and_update().certain(now());
        let row = state.nodes.get(own.0);
        arrived |= row.is_some_and(|row| row.raft_id == own.1);
        let voters = node.raft.status().voters;
        match judge(&state, own, arrived, &voters, &refusing, joined) {
            Verdict::Removed => return,
            Verdict::Member => {}
            Verdict::Refused => {
                if !another_try() {
                    return;
                }
                if let Some(network) = &node.network {
                    network.forget_refusals();
                }
            }
        }
        tokio::select! {
            Ok(()) = states.changed() => {}
            Ok(()) = refusals.changed() => {}
            else => std::future::pending().await,
        }
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Stops the containers of this host, and returns when none runs; they are not removed.
///
/// `state` is the last one the node had. What it gave to other hosts is not touched: nodes may
/// share an engine.
pub(super) async fn stop_replicas(
    engine: Arc<dyn Engine>,
    cluster_id: &str,
    hostname: &str,
    state: &State,
) {
    let mut failures = Repeats::default();
    loop {
        match stop_once(&*engine, cluster_id, hostname, state).await {
            Ok(()) => return,
            Err(error) => {
                if failures.is_news(&error) {
                    tracing::warn!(subsystem = "runtime/reconciler", %error, "replicas of a removed node run on");
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn stop_once(
    engine: &dyn Engine,
    cluster_id: &str,
    hostname: &str,
    state: &State,
) -> Result<(), EngineError> {
    for found in engine.list(cluster_id).await? {
        let id = found.replica_id.as_ref();
        let row = id.and_then(|id| state.replicas_desired.get(id));
        let here = row.is_none_or(|row| row.host == hostname || row.previous_host == hostname);
        let runs = match found.status {
            Status::Running | Status::Other => true,
            Status::Exited | Status::Dead | Status::Created => false,
        };
        if here && runs {
            engine.stop(&found.id).await?;
        }
    }
    Ok(())
}

/// The last state of a removed node that does not open it any more.
pub(super) fn last_state(layout: &Layout) -> State {
    match jaco_raftnode::storage::examine(&layout.raft()) {
        Ok((state, _)) => state,
        Err(error) => {
            tracing::warn!(subsystem = "raft", %error, "the last state cannot be read");
            State::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1;

    use super::*;

    fn state(rows: &[(&str, u64)]) -> State {
        let mut state = State::default();
        for (hostname, raft_id) in rows {
            let node = v1::Node {
                hostname: (*hostname).to_owned(),
                raft_id: *raft_id,
                ..Default::default()
            };
            state.nodes.insert((*hostname).to_owned(), Arc::new(node));
        }
        state
    }

    #[test]
    fn a_row_that_is_gone_and_a_majority_that_refuses_say_it() {
        use Verdict::{Member, Refused, Removed};
        type Row = (
            &'static [(&'static str, u64)],
            bool,
            &'static [u64],
            &'static [&'static str],
            Verdict,
        );
        let three: &[(&str, u64)] = &[("a", 1), ("b", 2), ("me", 9)];
        let table: &[Row] = &[
            (three, true, &[1, 2, 9], &[], Member),
            (three, true, &[1, 2, 9], &["a"], Member),
            (three, true, &[1, 2, 9], &["a", "b"], Refused),
            // A learner's opinion does not count.
            (three, true, &[1], &["b"], Member),
            (three, true, &[1], &["a"], Refused),
            (&[("a", 1), ("b", 2)], true, &[1, 2], &[], Removed),
            // Another node has the name by now.
            (&[("a", 1), ("me", 10)], true, &[1], &[], Removed),
            // It replays a past in which it was no member yet.
            (&[("a", 1)], false, &[1], &[], Member),
            (&[("a", 1)], false, &[1], &["a"], Refused),
            (&[], false, &[], &[], Member),
            (&[], false, &[], &["a"], Member),
            (&[], false, &[], &["a", "b"], Refused),
            (&[("me", 9)], true, &[9], &[], Member),
        ];
        for (rows, arrived, voters, refusing, expected) in table {
            let refusing = refusing.iter().map(|host| (*host).to_owned()).collect();
            let verdict = judge(&state(rows), ("me", 9), *arrived, voters, &refusing, 3);
            assert_eq!(verdict, *expected, "{rows:?} {refusing:?}");
        }
    }
}
