//! Cluster membership, and the voters of the raft group.
//!
//! [`jaco_policy::membership`] decides the next configuration change of the leader.
//!
//! - [`view`]: the leader's view, from which it decides.
//! - [`MembershipActor`]: carries out the changes, on the leader.
//! - [`Membership`]: handle with which the rest of the node triggers a check.

mod actor;
mod group;

use jaco_policy::membership as policy;
use jaco_proto::Error;
use jaco_raftnode::{RaftStatus, State};
use jaco_supervision::{ChildSpec, Handle};
use tokio::sync::watch;

pub use actor::{Args, Deps, MembershipActor, Msg};
pub use group::Group;

/// Handle of the membership actor, for code that changes Node rows.
#[derive(Clone, Debug)]
pub struct Membership {
    handle: Handle<Msg>,
    last_error: watch::Receiver<Option<Error>>,
}

impl Membership {
    /// Triggers a check before the next tick.
    pub fn kick(&self) {
        let _ = self.handle.cast(Msg::Kick); // an actor that is down checks when it starts
    }

    /// Records that `identity` marked the member for removal, for the removal command, and whether
    /// the drain is to be skipped. Triggers a check.
    pub fn note_leaving(&self, raft_id: u64, identity: &str, skip_drain: bool) {
        // As `kick`.
        let _ = self.handle.cast(Msg::MarkedLeaving {
            raft_id,
            identity: identity.to_owned(),
            skip_drain,
        });
    }

    /// Error of the last change, or the reason that blocks it; `None` after a success.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        self.last_error.borrow().clone()
    }
}

/// Returns the child specification of the actor and its handle.
#[must_use]
pub fn actor(group: impl Group, deps: Deps) -> (ChildSpec, Membership) {
    let (args, last_error) = Args::new(group, deps);
    let (spec, handle) = ChildSpec::worker::<MembershipActor>("membership", args);
    (spec, Membership { handle, last_error })
}

/// Returns the leader's view of its group, the input of the policy: `status` of its raft and the Node
/// rows of `state`. A follower counts as active by raft's own flag or by `is_active`, called with its
/// raft id.
#[must_use]
pub fn view(status: &RaftStatus, state: &State, is_active: impl Fn(u64) -> bool) -> policy::View {
    let progress = status.progress.iter().map(|follower| {
        let progress = policy::Progress {
            matched: follower.matched,
            active: follower.recent_active || is_active(follower.raft_id),
        };
        (follower.raft_id, progress)
    });
    policy::View {
        leader: status.raft_id,
        commit: status.commit,
        changing: status.changing_members,
        voters: status.voters.iter().copied().collect(),
        learners: status.learners.iter().copied().collect(),
        rows: policy::rows(state),
        progress: progress.collect(),
    }
}

#[cfg(test)]
mod tests;
