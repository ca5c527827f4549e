//! Removal of a member.
//!
//! The mark in the member's row is sufficient: the leader of the moment waits until the replicas of
//! the member run elsewhere and then removes it, whatever becomes of the call that set the mark. The
//! call only watches the state, so it survives a change of leader, and a repeated call joins it. It
//! waits as long as the drain makes progress, and an hour at most.

use std::{collections::BTreeSet, time::Duration};

use jaco_policy::{
    membership::{
        DRAIN_LIMIT, Departure, DrainProgress, NO_TRANSFER_TARGET, can_leave, clear_mark,
        departure, leaving, request_removal, skips_drain,
    },
    scheduler::{drain_check, moves, projects::Projects},
};
use jaco_proto::{
    Error, ErrorCode,
    v1::{self, command::Payload},
};
use jaco_raftnode::{RaftStatus, State, StateReader as _};
use tokio::{sync::watch, time::Instant};

use super::{admission::Transport, caller::Caller, forward, methods::DRAIN_TIMEOUT, names};
use crate::{commit::CommitGuard, node::MemberContext};

/// Time limit of the call once the member is drained; the removal continues after it.
const REMOVAL_BUDGET: Duration = Duration::from_secs(8);
/// Time for which the call waits without a majority; an election takes less.
const QUORUM_BUDGET: Duration = Duration::from_secs(10);
/// Time for which the call waits for progress of a drain: longer than the leader, which gives up the
/// drain. A new leader gives it its whole time again.
const PROGRESS_BUDGET: Duration = DRAIN_LIMIT.saturating_add(Duration::from_secs(20));
/// Minimum delay between two looks at a drain, which costs more than a look at a row.
const SAMPLE: Duration = Duration::from_millis(100);
/// Number of names listed in a message.
const LISTED_NAMES: usize = 5;
/// Number of replicas listed in the details of an error, which is sent as a header.
const LISTED_REPLICAS: usize = 100;

/// A call to remove a member.
pub(super) struct Removal<'a> {
    pub(super) node: &'a MemberContext,
    pub(super) caller: &'a Caller,
    /// Time by which the caller needs an answer, if it set a limit.
    pub(super) deadline: Option<Instant>,
    /// Shutdown of this node, which waits for the call.
    pub(super) stopping: watch::Receiver<bool>,
    /// Whether a leader received the call before and was lost since.
    pub(super) resumed: bool,
}

/// Progress of a removal, as seen in the state.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    /// The member has left.
    Gone,
    /// The member is not marked any more, and stays.
    GivenUp,
    /// The drain took too long with these replicas left.
    TimedOut(Vec<String>),
    /// These replicas still need the member.
    Draining(Vec<String>),
    /// Nothing needs the member any more.
    Leaving,
}

impl Progress {
    fn of(state: &State, hostname: &str, raft_id: u64) -> Self {
        let row = state.nodes.get(hostname);
        let Some(row) = row.filter(|row| row.raft_id == raft_id) else {
            return Self::Gone;
        };
        match departure(state, row) {
            (Departure::Draining, left) => Self::Draining(left.into_iter().collect()),
            (Departure::Leaving, _) => Self::Leaving,
            (Departure::Staying, _) if row.draining => {
                let left = drain_check::remaining(state, hostname);
                Self::TimedOut(left.into_iter().map(str::to_owned).collect())
            }
            (Departure::Staying, _) => Self::GivenUp,
        }
    }

    /// The replicas that still need a draining member.
    fn draining(&self) -> Option<&[String]> {
        match self {
            Self::Draining(left) => Some(left),
            Self::Gone | Self::GivenUp | Self::TimedOut(_) | Self::Leaving => None,
        }
    }
}

impl Removal<'_> {
    /// Marks a member for removal and waits until it is removed.
    ///
    /// # Errors
    /// `validation_failed`, `node_not_found`, `drain_no_placement`; `drain_timeout` if the replicas
    /// do not run elsewhere in time: the member then stays, without the replicas that moved;
    /// `drain_cancelled` if the time of the call ends first, or this node stops;
    /// `raft_remove_failed` or `raft_demote_failed` with the reason if the removal makes no
    /// progress; `no_leader` or `quorum_lost` if it cannot make any now.
    pub(super) async fn run(&self, request: v1::NodeRemoveRequest) -> Result<(), Error> {
        let v1::NodeRemoveRequest { hostname, force } = request;
        names::require("hostname", &hostname)?;
        let membership = self.node.membership()?;
        let raft_id = if self.resumed {
            let state = self.node.raft.state();
            match state.nodes.get(&hostname) {
                None => return Ok(()),
                Some(row) if is_requested(row, force) => row.raft_id,
                // The request was not committed, or an older one was given up.
                Some(_) => return Err(Error::new(ErrorCode::NoLeader, "the leader was lost")),
            }
        } else {
            let raft_id = mark(self.node, &hostname, force).await?;
            membership.note_leaving(raft_id, &self.caller.identity, force);
            raft_id
        };
        self.wait(&hostname, raft_id).await
    }

    /// Waits until the member has left, or until this node cannot observe or report more.
    async fn wait(&self, hostname: &str, raft_id: u64) -> Result<(), Error> {
        let mut states = self.node.raft.subscribe();
        let mut status = self.node.raft.subscribe_status();
        let mut stopping = self.stopping.clone();
        let begun = Instant::now();
        let end = begun + DRAIN_TIMEOUT;
        let end = self.deadline.map_or(end, |deadline| deadline.min(end));
        let mut drain = DrainProgress::new(begun.into_std());
        let mut leaving_since = None;
        let mut alone_since = None;
        loop {
            let state = states.borrow_and_update().clone();
            let raft = status.borrow_and_update().clone();
            let progress = Progress::of(&state, hostname, raft_id);
            let limit = match &progress {
                Progress::Gone => return Ok(()),
                Progress::GivenUp => {
                    let message = format!("the removal of node {hostname:?} was given up");
                    return Err(Error::new(ErrorCode::RaftRemoveFailed, message)
                        .with("hostname", hostname)
                        .because("the member is not marked as leaving any more"));
                }
                Progress::TimedOut(left) => return Err(timed_out(hostname, left)),
                Progress::Draining(left) => {
                    leaving_since = None;
                    let left = left.iter().map(String::as_str);
                    drain.handle_remaining(Instant::now().into_std(), left);
                    Instant::from_std(drain.last()) + PROGRESS_BUDGET
                }
                Progress::Leaving if self.is_last_chance(&raft, hostname, raft_id) => {
                    return self.last_answer(hostname);
                }
                Progress::Leaving => {
                    *leaving_since.get_or_insert_with(Instant::now) + REMOVAL_BUDGET
                }
            };
            // A removed node loses its peers, too.
            let alone = raft.quorum_lost && hostname != self.node.hostname;
            alone_since = alone.then(|| alone_since.unwrap_or_else(Instant::now));
            let limit = alone_since.map_or(limit, |since| limit.min(since + QUORUM_BUDGET));
            let draining = progress.draining();
            // The senders live as long as the node.
            tokio::select! {
                _ = states.changed() => {}
                _ = status.changed() => {}
                // The steps after a drain take less time than a stopping node has.
                _ = stopping.wait_for(|&stopping| stopping), if draining.is_some() => {
                    return Err(self.interrupted(hostname, draining.unwrap_or_default()));
                }
                () = tokio::time::sleep_until(limit.min(end)) => {
                    return Err(match alone_since {
                        Some(_) => self.node.leader.quorum_lost(),
                        None => self.unfinished(hostname, &progress),
                    });
                }
            }
            if draining.is_some() {
                tokio::time::sleep(SAMPLE).await;
            }
        }
    }

    /// Whether the member is about to lose touch with this call: it serves or forwards the call
    /// itself, and can be answered only while it is a member.
    fn is_last_chance(&self, raft: &RaftStatus, hostname: &str, raft_id: u64) -> bool {
        if hostname == self.node.hostname {
            // Another node leads and removes it.
            return raft.leader_id.is_some_and(|leader| leader != raft.raft_id);
        }
        let sender = self.caller.sender.as_ref();
        sender.is_some_and(|sender| sender.hostname == hostname) && !raft.voters.contains(&raft_id)
    }

    /// Answer of a call that cannot see its end. A member that forwarded it to the leaving one sees
    /// it, and asks the next leader.
    fn last_answer(&self, hostname: &str) -> Result<(), Error> {
        match self.caller.transport {
            Transport::Peer if hostname == self.node.hostname => Err(forward::to_be_resumed(
                "another member leads and removes this one",
            )),
            Transport::Peer | Transport::Process | Transport::Local | Transport::Api => Ok(()),
        }
    }

    /// Error of a call whose node stops. A member that forwarded it watches the state instead.
    fn interrupted(&self, hostname: &str, left: &[String]) -> Error {
        match self.caller.transport {
            Transport::Peer => forward::to_be_resumed("the leader is stopping"),
            Transport::Process | Transport::Local | Transport::Api => {
                let stopping = format!("node {:?} is stopping", self.node.hostname);
                cancelled(hostname, left).because(stopping)
            }
        }
    }

    /// Error of a call whose time ends before the removal does.
    fn unfinished(&self, hostname: &str, progress: &Progress) -> Error {
        if let Some(left) = progress.draining() {
            return cancelled(hostname, left);
        }
        let membership = self.node.membership().ok();
        let reason = membership.and_then(|membership| membership.last_error());
        reason.unwrap_or_else(|| {
            let message = format!("the removal of node {hostname:?} is still under way");
            Error::new(ErrorCode::RaftRemoveFailed, message)
                .with("hostname", hostname)
                .because(format!("not done within {REMOVAL_BUDGET:?}"))
        })
    }
}

/// Error of a call that ends before the drain does.
fn cancelled(hostname: &str, left: &[String]) -> Error {
    let message = format!(
        "node {hostname:?} still drains, with {} replica(s) left; the removal goes on, and a \
         repeated call waits for it",
        left.len()
    );
    Error::new(ErrorCode::DrainCancelled, message)
        .with("hostname", hostname)
        .with("replicas", ids(left))
}

fn timed_out(hostname: &str, left: &[String]) -> Error {
    let message = format!(
        "{} replica(s) of node {hostname:?} do not run elsewhere, and none has moved for {} s ({}); \
         it stays a member without those that moved: repeat the removal, or force it",
        left.len(),
        DRAIN_LIMIT.as_secs(),
        listed(left.iter().map(String::as_str).collect()),
    );
    Error::new(ErrorCode::DrainTimeout, message)
        .with("hostname", hostname)
        .with("replicas", ids(left))
}

/// Joins the first `replicas`, for the details of an error.
fn ids(replicas: &[String]) -> String {
    let first: Vec<&str> = replicas
        .iter()
        .take(LISTED_REPLICAS)
        .map(String::as_str)
        .collect();
    first.join(",")
}

/// Lists the first few `names`.
fn listed(names: BTreeSet<&str>) -> String {
    let more = names.len().saturating_sub(LISTED_NAMES);
    let first: Vec<&str> = names.into_iter().take(LISTED_NAMES).collect();
    match more {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Whether the mark of `row` is that of such a request: one that is forced does not wait for a drain.
fn is_requested(row: &v1::Node, force: bool) -> bool {
    leaving(row) && (!force || skips_drain(row))
}

/// Sets the mark of a member, if it may leave; returns its raft id.
async fn mark(node: &MemberContext, hostname: &str, force: bool) -> Result<u64, Error> {
    let guard = node.drain_mark_lock.lock(&node.raft).await?;
    let state = node.raft.state();
    let Some(row) = state.nodes.get(hostname) else {
        let message = format!("no member is called {hostname:?}");
        return Err(Error::new(ErrorCode::NodeNotFound, message).with("hostname", hostname));
    };
    if state.nodes.len() == 1 {
        let last = format!(
            "node {hostname:?} is the last member and cannot leave; stop it and empty its directory \
             instead"
        );
        return Err(Error::new(ErrorCode::RaftRemoveFailed, last)
            .with("hostname", hostname)
            .with("reason", "no other member"));
    }
    // A repeated request starts the moves again that were given up.
    if is_requested(row, force) && (skips_drain(row) || !moves::any_given_up(&state, hostname)) {
        return Ok(row.raft_id);
    }
    if !leaving(row) {
        check_successor(node, &state, hostname)?;
    }
    if !force {
        check_placement(&state, hostname)?;
    }
    let skip_moves = force && is_uniform(&state, &node.hostname, hostname);
    let update = request_removal(row, skip_moves);
    write(node, guard, update).await?;
    tracing::info!(subsystem = "raft", host = %hostname, force, "removal requested");
    if !force {
        recheck_placement(node, hostname).await?;
    }
    Ok(row.raft_id)
}

/// Whether all members but the leaving one have this node's version: another version may not know
/// the settings of a drain, and would stop at an unknown field.
fn is_uniform(state: &State, own: &str, leaver: &str) -> bool {
    let version = state.nodes.get(own).map(|row| row.version.as_str());
    let mut others = state.nodes.values().filter(|row| row.hostname != leaver);
    others.all(|row| Some(row.version.as_str()) == version)
}

/// Clears the mark again, with an error, if a replica without another host was placed on the member
/// before its mark was committed. A forced removal that was requested since goes on.
async fn recheck_placement(node: &MemberContext, hostname: &str) -> Result<(), Error> {
    let Err(error) = check_placement(&node.raft.state(), hostname) else {
        return Ok(());
    };
    let guard = node.drain_mark_lock.lock(&node.raft).await?;
    let state = node.raft.state();
    let row = state.nodes.get(hostname);
    if row.is_some_and(|row| !skips_drain(row))
        && let Some(clear) = clear_mark(&state, hostname)
    {
        write(node, guard, clear).await?;
    }
    Err(error)
}

/// Commits the update, and waits until the local state includes it.
async fn write(
    node: &MemberContext,
    guard: CommitGuard,
    update: v1::NodeStatusUpdate,
) -> Result<(), Error> {
    let identity = format!("drain:{}", update.hostname);
    let command = node.command(&identity, Payload::NodeStatusUpdate(update));
    guard.commit(&node.raft, command).await?;
    Ok(())
}

/// Fails if no other member could lead the cluster.
fn check_successor(node: &MemberContext, state: &State, hostname: &str) -> Result<(), Error> {
    let (own, fresh) = (node.raft_id(), node.failure_detector.fresh());
    let answers: Vec<u64> = node.raft.with_status(|raft| {
        let active = raft.progress.iter().filter(|p| p.recent_active);
        active.map(|p| p.raft_id).chain([own]).collect()
    });
    let is_there =
        |row: &v1::Node| answers.contains(&row.raft_id) || fresh.borrow().contains(&row.hostname);
    if can_leave(state.nodes.values().map(|row| &**row), hostname, is_there) {
        return Ok(());
    }
    let message = format!(
        "without node {hostname:?} nobody could lead the cluster; remove the dead members first"
    );
    Err(Error::new(ErrorCode::RaftRemoveFailed, message)
        .with("hostname", hostname)
        .with("reason", NO_TRANSFER_TARGET))
}

/// Fails if a replica on the host has no other host to run on.
fn check_placement(state: &State, hostname: &str) -> Result<(), Error> {
    let stranded = drain_check::stranded(state, hostname, &mut Projects::default());
    if stranded.is_empty() {
        return Ok(());
    }
    Err(no_placement(state, hostname, &stranded))
}

fn no_placement(state: &State, hostname: &str, stranded: &[String]) -> Error {
    let rows = stranded
        .iter()
        .filter_map(|id| state.replicas_desired.get(id));
    let services: BTreeSet<String> = rows
        .map(|row| format!("{}/{}", row.deployment, row.service))
        .collect();
    let message = format!(
        "no other node can run {}, which node {hostname:?} runs: data or placement ties it there; \
         a forced removal gives it up",
        listed(services.iter().map(String::as_str).collect())
    );
    Error::new(ErrorCode::DrainNoPlacement, message)
        .with("hostname", hostname)
        .with("replicas", ids(stranded))
}

#[cfg(test)]
mod tests;
