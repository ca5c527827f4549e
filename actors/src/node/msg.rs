//! Messages of the lifecycle actor.

use jaco_proto::{Error, v1};
use jaco_supervision::Reply;

use super::init::ClusterBootstrap;

/// Messages of a [`NodeActor`](super::NodeActor).
pub enum Msg {
    /// Opens the membership on disk, if there is one.
    Open,
    /// Bootstraps this cluster; a retry after it was created gets the same answer.
    Init(
        ClusterBootstrap,
        Reply<Result<v1::ClusterInitResponse, Error>>,
    ),
    /// The node's record and certificate in the cluster are up to date.
    Announced,
    /// This node is no longer a member.
    Removed,
    /// Verticals and containers of a removed node have stopped.
    RetireFinished,
    /// The bootstrap finished on its blocking thread.
    BootstrapFinished(
        Result<v1::ClusterInitResponse, Error>,
        Reply<Result<v1::ClusterInitResponse, Error>>,
    ),
}
