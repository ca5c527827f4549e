//! A node that was removed from its cluster: how it detects that, and what it does afterwards.
//!
//! Peers disconnect before the removal entry arrives, so sustained rejection by a majority counts
//! as removal. The data stays until an operator empties the directory.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use jaco_engine::{Engine, EngineError, Found, Status};
use jaco_policy::peer::rejections::Rejections;
use jaco_raftnode::{State, StateReader as _};
use tokio::sync::watch;

use super::{MemberContext, files::Layout};
use crate::{log_dedup::LogDedup, runtime::replica::launch};

/// Delay before the next attempt to stop containers.
const RETRY: Duration = Duration::from_secs(5);

/// Evidence of whether this node is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemovalEvidence {
    /// It is a member, or nothing indicates otherwise.
    Member,
    /// A majority of the other voters has rejected it for long enough.
    Refused,
    /// Its own state no longer holds its row.
    Removed,
}

/// Judges by the newest state and by the members that reject this node for certain. `row_seen`: the
/// state held this node's row before, so that its absence is evidence; `joined`: number of members
/// when this node joined.
fn evaluate(
    state: &State,
    (hostname, raft_id): (&str, u64),
    row_seen: bool,
    voters: &[u64],
    refused_by: &BTreeSet<String>,
    joined: usize,
) -> RemovalEvidence {
    let own = state.nodes.get(hostname);
    if row_seen && own.is_none_or(|row| row.raft_id != raft_id) {
        return RemovalEvidence::Removed;
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
    // Without a state only the members known at the join count. A single one of several that
    // rejects this node may be partitioned and not know of the join.
    if all == 0 && !row_seen {
        (all, refusing) = (joined, refused_by.len());
    }
    if 2 * refusing > all {
        RemovalEvidence::Refused
    } else {
        RemovalEvidence::Member
    }
}

/// Returns once this node is certainly no longer a member. When a majority rejects it, a staged
/// certificate is promoted first, by `promote_staged`: the peers may know only that one by now.
pub(super) async fn wait_removed(
    node: Arc<MemberContext>,
    promote_staged: impl Fn() -> bool + Send,
) {
    let mut rejections = match &node.transport {
        Some(transport) => transport.rejections(),
        // Without a transport there are no rejections.
        None => watch::channel(Rejections::default()).1,
    };
    let mut states = node.raft.subscribe();
    let own = (node.hostname.as_str(), node.raft_id());
    let joined = node
        .transport
        .as_ref()
        .map_or(0, |transport| transport.joined_members());
    let mut row_seen = false;
    loop {
        let state = states.borrow_and_update().clone();
        let refusing = rejections.borrow_and_update().certain(now());
        let row = state.nodes.get(own.0);
        row_seen |= row.is_some_and(|row| row.raft_id == own.1);
        let voters = node.raft.status().voters;
        match evaluate(&state, own, row_seen, &voters, &refusing, joined) {
            RemovalEvidence::Removed => return,
            RemovalEvidence::Member => {}
            RemovalEvidence::Refused => {
                if !promote_staged() {
                    return;
                }
                if let Some(transport) = &node.transport {
                    transport.clear_rejections();
                }
            }
        }
        tokio::select! {
            Ok(()) = states.changed() => {}
            Ok(()) = rejections.changed() => {}
            else => std::future::pending().await,
        }
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Stops the containers on this host and returns once none runs; they are not removed.
///
/// `state` is the last state of the node. Containers of other hosts are left alone: nodes may share
/// an engine.
pub(super) async fn stop_replicas(
    engine: Arc<dyn Engine>,
    cluster_id: &str,
    hostname: &str,
    state: &State,
) {
    let mut failures = LogDedup::default();
    loop {
        match stop_once(&*engine, cluster_id, hostname, state).await {
            Ok(()) => return,
            Err(error) => {
                if failures.is_new(&error) {
                    tracing::warn!(subsystem = "runtime/reconciler", %error, "replicas of a removed node are still running");
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
        let runs = match found.status {
            Status::Running | Status::Other => true,
            Status::Exited | Status::Dead | Status::Created => false,
        };
        if runs && may_be_own(state, hostname, &found) {
            let replica = found.replica_id.as_deref().unwrap_or_default();
            launch::stop(engine, replica, &found.id).await?;
        }
    }
    Ok(())
}

/// Whether the container may belong to `hostname`: its row does not name another host, or names one
/// that made or makes a newer container. The row of a finished move does not name its former host.
fn may_be_own(state: &State, hostname: &str, found: &Found) -> bool {
    let id = found.replica_id.as_ref();
    let Some(row) = id.and_then(|id| state.replicas_desired.get(id)) else {
        return true;
    };
    if row.host == hostname || row.previous_host == hostname {
        return true;
    }
    let is_older = found.raft_index.is_none_or(|made| made < row.raft_index);
    row.previous_host.is_empty() && is_older
}

/// Reads the last state of a removed node whose database is not open.
pub(super) fn last_state(layout: &Layout) -> State {
    match jaco_raftnode::storage::read_offline(&layout.raft()) {
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
    fn containers_of_other_hosts_are_left_alone() {
        for (host, previous_host, made, own) in [
            ("me", "", Some(7), true),
            ("me", "", Some(3), true),
            ("b", "me", Some(3), true),
            // The move ended: `b` runs a container of the row.
            ("b", "", Some(3), true),
            ("b", "", None, true),
            ("b", "", Some(7), false),
            ("b", "c", Some(3), false),
            ("b", "c", Some(7), false),
        ] {
            let row = v1::ReplicaDesired {
                id: "web-0".to_owned(),
                host: host.to_owned(),
                previous_host: previous_host.to_owned(),
                raft_index: 7,
                ..Default::default()
            };
            let mut state = State::default();
            state.replicas_desired.insert(row.id.clone(), row.into());
            let mut found = Found {
                id: "c1".to_owned(),
                replica_id: Some("web-0".to_owned()),
                raft_index: made,
                status: Status::Running,
            };
            let told = may_be_own(&state, "me", &found);
            assert_eq!(told, own, "{host} {previous_host} {made:?}");
            found.replica_id = None;
            assert!(may_be_own(&state, "me", &found));
        }
    }

    #[test]
    fn missing_row_or_majority_rejection_means_removal() {
        use RemovalEvidence::{Member, Refused, Removed};
        type Row = (
            &'static [(&'static str, u64)],
            bool,
            &'static [u64],
            &'static [&'static str],
            RemovalEvidence,
        );
        let three: &[(&str, u64)] = &[("a", 1), ("b", 2), ("me", 9)];
        let table: &[Row] = &[
            (three, true, &[1, 2, 9], &[], Member),
            (three, true, &[1, 2, 9], &["a"], Member),
            (three, true, &[1, 2, 9], &["a", "b"], Refused),
            // A learner's rejection does not count.
            (three, true, &[1], &["b"], Member),
            (three, true, &[1], &["a"], Refused),
            (&[("a", 1), ("b", 2)], true, &[1, 2], &[], Removed),
            // Another node has taken the name.
            (&[("a", 1), ("me", 10)], true, &[1], &[], Removed),
            // The replayed log has not reached this node's join yet.
            (&[("a", 1)], false, &[1], &[], Member),
            (&[("a", 1)], false, &[1], &["a"], Refused),
            (&[], false, &[], &[], Member),
            (&[], false, &[], &["a"], Member),
            (&[], false, &[], &["a", "b"], Refused),
            (&[("me", 9)], true, &[9], &[], Member),
        ];
        for (rows, row_seen, voters, refusing, expected) in table {
            let refusing = refusing.iter().map(|host| (*host).to_owned()).collect();
            let evidence = evaluate(&state(rows), ("me", 9), *row_seen, voters, &refusing, 3);
            assert_eq!(evidence, *expected, "{rows:?} {refusing:?}");
        }
    }
}
