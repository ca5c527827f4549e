//! Removal of a member.

use std::time::Duration;

use jaco_policy::{
    membership::{NO_TRANSFER_TARGET, can_leave, leaving},
    scheduler::{drain_check, projects::Projects},
};
use jaco_proto::{
    Error, ErrorCode, drain_mark,
    v1::{self, NodeStatus, command::Payload},
};
use jaco_raftnode::{State, StateReader as _};

use super::caller::Caller;
use crate::{commit::propose, node::MemberContext};

/// Time limit of the call; the removal continues after it.
const BUDGET: Duration = Duration::from_secs(8);
/// Time that a node which lost leadership waits to see the end of the removal in its own state.
const GRACE: Duration = Duration::from_secs(2);

/// Marks a member as leaving and waits until it is removed.
///
/// The mark is sufficient: any later leader completes the removal, however this call ends.
///
/// # Errors
/// `node_not_found`, `drain_no_placement`, `raft_remove_failed` or `raft_demote_failed` with the
/// reason if the removal makes no progress, `no_leader` if another node has to answer.
pub(super) async fn remove(
    node: &MemberContext,
    caller: &Caller,
    request: v1::NodeRemoveRequest,
) -> Result<(), Error> {
    let v1::NodeRemoveRequest { hostname, force } = request;
    let membership = node.membership()?;
    let raft_id = mark(node, &hostname, force).await?;
    membership.note_leaving(raft_id, &caller.identity);

    let left = left(node, caller, &hostname, raft_id);
    match tokio::time::timeout(BUDGET, left).await {
        Ok(left) => left,
        Err(_) => Err(membership.last_error().unwrap_or_else(|| {
            Error::new(
                ErrorCode::RaftRemoveFailed,
                "the removal is still under way",
            )
            .with("hostname", &hostname)
            .with("reason", format!("not done within {BUDGET:?}"))
        })),
    }
}

/// Sets the mark of a member, if it may leave; returns its raft id.
async fn mark(node: &MemberContext, hostname: &str, force: bool) -> Result<u64, Error> {
    let _alone = node.drain_mark_lock.lock().await;
    let state = node.raft.state();
    let Some(row) = state.nodes.get(hostname) else {
        let unknown = Error::new(ErrorCode::NodeNotFound, "no member has this hostname");
        return Err(unknown.with("hostname", hostname));
    };
    if state.nodes.len() == 1 {
        let last = "the last member cannot leave; stop it and empty its directory instead";
        return Err(Error::new(ErrorCode::RaftRemoveFailed, last)
            .with("hostname", hostname)
            .with("reason", "no other member"));
    }
    if leaving(row) {
        return Ok(row.raft_id);
    }
    let (own, fresh) = (node.raft_id(), node.failure_detector.fresh());
    let answers: Vec<u64> = node.raft.with_status(|raft| {
        let active = raft.progress.iter().filter(|p| p.recent_active);
        active.map(|p| p.raft_id).chain([own]).collect()
    });
    let is_there =
        |row: &v1::Node| answers.contains(&row.raft_id) || fresh.borrow().contains(&row.hostname);
    if !can_leave(state.nodes.values().map(|row| &**row), hostname, is_there) {
        let message = "nobody who stays could lead the cluster; remove the dead members first";
        return Err(Error::new(ErrorCode::RaftRemoveFailed, message)
            .with("hostname", hostname)
            .with("reason", NO_TRANSFER_TARGET));
    }
    if !force {
        check_placement(&state, hostname)?;
    }
    // A drain that timed out starts again.
    let status = match row.status() {
        NodeStatus::DrainTimeout => NodeStatus::Ready,
        _ => NodeStatus::Unspecified,
    };
    let mark = Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
        hostname: hostname.to_owned(),
        status: status.into(),
        drain_mark: drain_mark::SET,
        ..Default::default()
    });
    let identity = format!("drain:{hostname}");
    propose(&node.raft, node.command(&identity, mark)).await?;
    Ok(row.raft_id)
}

/// Fails if a replica on the host has no other host to run on.
fn check_placement(state: &State, hostname: &str) -> Result<(), Error> {
    let stranded = drain_check::stranded(state, hostname, &mut Projects::default());
    if stranded.is_empty() {
        return Ok(());
    }
    let message = "replicas of the node have no other place";
    Err(Error::new(ErrorCode::DrainNoPlacement, message)
        .with("hostname", hostname)
        .with("replicas", stranded.join(",")))
}

/// Waits until the member has left, or until this node cannot observe or report more.
async fn left(
    node: &MemberContext,
    caller: &Caller,
    hostname: &str,
    raft_id: u64,
) -> Result<(), Error> {
    let mut states = node.raft.subscribe();
    let mut status = node.raft.subscribe_status();
    // A member that removes itself can be answered only while it is a member.
    let by_itself = caller
        .sender
        .as_ref()
        .is_some_and(|s| s.hostname == hostname);
    let itself = hostname == node.hostname;
    let gone = |state: &State| {
        state
            .nodes
            .get(hostname)
            .is_none_or(|row| row.raft_id != raft_id)
    };
    loop {
        let state = states.borrow_and_update().clone();
        if gone(&state) {
            return Ok(());
        }
        if state.nodes.get(hostname).is_some_and(|row| !leaving(row)) {
            let message = "the removal was given up";
            return Err(Error::new(ErrorCode::RaftRemoveFailed, message)
                .with("hostname", hostname)
                .with("reason", "the member is not marked as leaving any more"));
        }
        let raft = status.borrow_and_update().clone();
        let leads = raft.leader_id == Some(raft.raft_id);
        if !leads {
            // Another node leads and acts on the mark.
            if itself && raft.leader_id.is_some() {
                return Ok(());
            }
            if !itself {
                let seen = states.wait_for(|state| gone(state));
                if let Ok(Ok(_)) = tokio::time::timeout(GRACE, seen).await {
                    return Ok(());
                }
                return Err(Error::new(ErrorCode::NoLeader, "this node leads no more"));
            }
        }
        if leads && by_itself && !raft.voters.contains(&raft_id) {
            return Ok(());
        }
        // The senders live as long as the node.
        tokio::select! {
            _ = states.changed() => {}
            _ = status.changed() => {}
        }
    }
}
