//! `Cluster.NodeCordon`: whether a member receives further replicas.

use jaco_proto::{
    Error, ErrorCode, mark,
    v1::{self, command::Payload},
};
use jaco_raftnode::StateReader;

use super::{caller::Caller, names};
use crate::{commit::propose, node::MemberContext};

/// Serves `Cluster.NodeCordon`.
pub(super) async fn cordon(
    node: &MemberContext,
    caller: &Caller,
    request: v1::NodeCordonRequest,
) -> Result<(), Error> {
    let hostname = request.hostname;
    names::require("hostname", &hostname)?;
    // A member that leaves meanwhile takes the mark along.
    if !node.raft.state().nodes.contains_key(&hostname) {
        let message = format!("no member is called {hostname:?}");
        return Err(Error::new(ErrorCode::NodeNotFound, message).with("hostname", hostname));
    }
    let update = Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
        hostname,
        cordon_mark: match request.uncordon {
            true => mark::CLEAR,
            false => mark::SET,
        },
        ..v1::NodeStatusUpdate::default()
    });
    let command = node.command(&caller.identity, update);
    propose(&node.raft, command).await?;
    Ok(())
}
