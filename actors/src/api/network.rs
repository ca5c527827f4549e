//! Reports about the container networks: answers to operators, and reports of other members.

use jaco_policy::network::probe::faults;
use jaco_proto::{
    Error, ErrorCode,
    v1::{self, NetworkFault},
};
use jaco_raftnode::StateReader as _;
use jaco_state::State;

use crate::{node::MemberContext, peer::Sender};

/// Answer to `Cluster.NetworkStatus`.
pub(super) fn status(node: &MemberContext, state: &State) -> v1::NetworkStatusResponse {
    node.network_reports.status(state)
}

/// Faults that concern `deployment`, or all if it is empty.
pub(super) fn faults_of(
    node: &MemberContext,
    state: &State,
    deployment: &str,
) -> Vec<NetworkFault> {
    let mut found = node.network_reports.faults(state);
    found.retain(|fault| faults::concerns(fault, deployment));
    found
}

/// Stores the report of the member `sender` about itself.
pub(super) fn receive(
    node: &MemberContext,
    sender: &Sender,
    request: v1::ReportNetworkRequest,
) -> Result<v1::ReportNetworkResponse, Error> {
    let invalid = |field, message: String| {
        Error::new(ErrorCode::ValidationFailed, message).with("field", field)
    };
    let report = request
        .report
        .ok_or_else(|| invalid("report", "the report is empty".to_owned()))?;
    if report.hostname != sender.hostname {
        return Err(Error::new(
            ErrorCode::PrivilegeDenied,
            "a member reports about its own networks only",
        )
        .with("host", report.hostname));
    }
    node.network_reports
        .put(&sender.hostname, report)
        .map_err(|error| invalid(error.0, error.to_string()))?;
    // The row of the sender was read before the report was stored, and may be gone by now.
    node.network_reports.retain_members(&node.raft.state());
    Ok(v1::ReportNetworkResponse {})
}
