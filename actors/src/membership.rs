//! Who belongs to the cluster, and who of them votes.
//!
//! - [`policy`]: what the leader changes next, as a pure function of what it sees.
//! - [`MembershipActor`]: makes those changes, on the leader.
//! - [`Membership`]: how the rest of the node asks it to hurry.

mod actor;
mod group;
pub mod policy;

use jaco_proto::{Error, v1};
use jaco_supervision::{ChildSpec, Handle};
use tokio::sync::watch;

pub use actor::{Args, Deps, MembershipActor, Msg};
pub use group::Group;

/// The membership actor of this node, to those who change the Node rows.
#[derive(Clone, Debug)]
pub struct Membership {
    handle: Handle<Msg>,
    trouble: watch::Receiver<Option<Error>>,
}

impl Membership {
    /// Says that there may be something to do before the next tick.
    pub fn kick(&self) {
        let _ = self.handle.cast(Msg::Kick); // an actor that is down looks when it comes up
    }

    /// The member with this row was marked as leaving by `identity`, which its removal will name.
    pub fn leaves(&self, raft_id: u64, identity: &str) {
        let identity = identity.to_owned();
        let _ = self.handle.cast(Msg::Leaves { raft_id, identity }); // as `kick`
    }

    /// What the last change failed with, or what is in its way; `None` once one went well.
    #[must_use]
    pub fn trouble(&self) -> Option<Error> {
        self.trouble.borrow().clone()
    }
}

/// The actor's place in the tree, and the way to it.
#[must_use]
pub fn actor(group: impl Group, deps: Deps) -> (ChildSpec, Membership) {
    let (args, trouble) = Args::new(group, deps);
    let (spec, handle) = ChildSpec::worker::<MembershipActor>("membership", args);
    (spec, Membership { handle, trouble })
}

/// Whether somebody could lead once `leaver` is marked as leaving: a member that stays, and that
/// `is_there`.
#[must_use]
pub fn can_leave<'a>(
    mut members: impl Iterator<Item = &'a v1::Node>,
    leaver: &str,
    is_there: impl Fn(&v1::Node) -> bool,
) -> bool {
    members.any(|node| node.hostname != leaver && !leaving(node) && is_there(node))
}

/// Whether the member of this row is on its way out. One whose drain ran into its limit is not:
/// it stays until somebody asks again.
#[must_use]
pub fn leaving(node: &v1::Node) -> bool {
    node.draining && node.status() != v1::NodeStatus::DrainTimeout
}
